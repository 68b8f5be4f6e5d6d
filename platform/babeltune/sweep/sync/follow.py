"""Keeps a mirror's copy of a sweep in step with the bucket while somebody reads it, such as `babeltune status -f`.

Every two seconds it asks for a few records. New lines of the ledger name the trials whose records it brings. It lists
the sweep once a minute, and when the sweep has another state or stage. So a busy sweep costs what has happened in it,
however large it is.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator

from babeltune.errors import ObjectStoreError
from babeltune.storage.mirror import Mirror
from babeltune.storage.mirror_base import together
from babeltune.sweep.state.fencing import OWNER
from babeltune.sweep.state.folder import ENDED, SweepFolder, read_outcome
from babeltune.sweep.state.progress import STAGE
from babeltune.sweep.sync.bucket_storage import undriven
from babeltune.training.checkpoint import PROGRESS, REPORTS

POLL_INTERVAL_S = 2.0
"""Seconds between two looks at the few records that say whether anything happened."""
LISTING_INTERVAL_S = 60.0
"""Seconds between two listings of a sweep. Progress within a report is seen as late."""
PULSE = (OWNER, "state.json", STAGE)
"""Small records that change while a sweep goes on."""
LEDGER, LOG = "results.jsonl", "driver.log"
"""Records that only grow. What they have gained is downloaded."""
BEGUN, ENDING = "trial.json", "outcome.json"
CHANGED = {"propose": (BEGUN,), "report": (REPORTS, PROGRESS), "end": (REPORTS, PROGRESS, ENDING)}
"""A trial's records that change, by the event in the ledger. To ask for one that is not there costs a listing on S3."""


class Follower:
    """One reader of a sweep."""

    def __init__(self, mirror: Mirror, sweep: str, pull: Callable[[], None]) -> None:
        """`pull` lists the sweep, and brings all that has changed."""
        self._mirror, self._key, self._pull = mirror, f"sweeps/{sweep}", pull
        self._folder = SweepFolder(mirror.path(self._key))
        self._polled = self._listed = time.monotonic()
        self._seen = self._standing()
        self._named: dict[int, set[str]] = {}
        """Records to bring, by the trial's number. The driver sends the ledger before it sends them."""

    def refresh(self) -> None:
        """Brings here what has changed, if the last look was long enough ago."""
        if time.monotonic() - self._polled <= POLL_INTERVAL_S:
            return
        with contextlib.suppress(ObjectStoreError):  # the reader may try again
            self._look()
        self._polled = time.monotonic()

    def _look(self) -> None:
        with undriven(self._mirror, self._folder.id) as free:
            if not free:  # this machine's driver writes the folder
                return
            together(self._mirror.fetch, [f"{self._key}/{name}" for name in PULSE])
            self._mirror.extend(f"{self._key}/{LOG}")
            gained = self._mirror.extend(f"{self._key}/{LEDGER}")
            for number, names in _named_in((gained or b"").splitlines()):
                self._named.setdefault(number, set()).update(names)
            self._bring_named()
        standing = self._standing()
        if gained is None or standing != self._seen or time.monotonic() - self._listed > LISTING_INTERVAL_S:
            self._pull()
            self._seen, self._listed = standing, time.monotonic()
            self._named.clear()

    def _bring_named(self) -> None:
        places = {self._folder.trial(number): names for number, names in self._named.items()}
        for place, names in places.items():
            if not (place / BEGUN).exists():
                names.add(BEGUN)
        together(
            self._mirror.fetch, [f"{self._mirror.key(place)}/{name}" for place in places for name in places[place]]
        )
        self._named = {
            number: missing for number, names in self._named.items() if (missing := self._missing(number, names))
        }

    def _missing(self, number: int, names: set[str]) -> set[str]:
        """What the bucket did not have yet of what the ledger says of the trial."""
        place = self._folder.trial(number)
        there = {BEGUN: (place / BEGUN).exists(), ENDING: ENDING in names and read_outcome(place) in ENDED}
        return {name for name in names if not there.get(name, True)}

    def _standing(self) -> tuple[object, object]:
        """The sweep's state, and the name of its stage. With another one, there are other records."""
        stage = self._folder.read(STAGE) or {}
        return self._folder.read("state.json"), stage.get("name")


def _named_in(lines: Iterable[bytes]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The numbers of the trials that lines of the ledger name, and which of their records have changed."""
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            if names := CHANGED.get(event["event"]):
                yield event["number"], names
