"""Keeps a mirror's copy of a sweep in step with the bucket while somebody reads it, such as `babeltune status -f`.

Every two seconds it asks for a few records. If the ledger has new lines, it also asks how far each running trial is. It
lists the sweep once a minute, and when the sweep has another state or stage. So a busy sweep costs what has happened in
it, however large it is."""

import contextlib
import time
from collections.abc import Callable

from babeltune.errors import ObjectStoreError
from babeltune.storage.mirror import Mirror
from babeltune.storage.packages import together
from babeltune.sweep.state.fencing import OWNER
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, log_of
from babeltune.sweep.state.progress import STAGE
from babeltune.sweep.sync.bucket_storage import undriven
from babeltune.training.checkpoint import PROGRESS

POLL_INTERVAL_S = 2.0  # seconds between two looks at the few records that say whether anything happened
LISTING_INTERVAL_S = 60.0  # seconds between two listings of a sweep. Progress within a report is seen as late.
PULSE = (OWNER, "state.json", STAGE)  # small records that change while a sweep goes on
LOG = "driver.log"  # the driver's log. It only grows, as the ledger does, so that its new lines alone are downloaded.


class Follower:
    """One reader of a sweep."""

    def __init__(self, mirror: Mirror, sweep: str, pull: Callable[[], None]) -> None:
        """`pull` lists the sweep, and brings all that has changed."""
        self._mirror, self._key, self._pull = mirror, f"sweeps/{sweep}", pull
        self._folder = SweepFolder(mirror.path(self._key))
        self._polled = self._listed = time.monotonic()
        self._seen = self._standing()

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
            if gained:
                running = [each.name for each in log_of(self._folder.path).trials.values() if each.state == "running"]
                together(self._mirror.fetch, [f"{self._key}/trials/{name}/{PROGRESS}" for name in running])
        standing = self._standing()
        if gained is None or standing != self._seen or time.monotonic() - self._listed > LISTING_INTERVAL_S:
            self._pull()
            self._seen, self._listed = standing, time.monotonic()

    def _standing(self) -> tuple[object, object]:
        """The sweep's state, and the name of its stage. With another one, there are other records."""
        stage = self._folder.read(STAGE) or {}
        return self._folder.read("state.json"), stage.get("name")
