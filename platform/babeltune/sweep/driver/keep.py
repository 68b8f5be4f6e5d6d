"""Removes the checkpoints that a sweep's `keep` does not ask for, as its trials end.

Scores, settings and reports stay, so the leaderboard, `reproduce` and `refit` need no checkpoint. Promotion, a start
and `--soup` do: they name what removed it."""

import bisect
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from babeltune.errors import DamagedError
from babeltune.schema.records import Sweep
from babeltune.schema.trial_names import trial_number
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.housekeeping import OPTIMIZER, Removal, note_removed, why_removed
from babeltune.sweep.state.leaderboard import Row, best_first, trial_rows
from babeltune.sweep.state.messages import ENDED
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.housekeeping import drop_checkpoints

Rank = tuple[bool, tuple[bool, float], str]


class CheckpointPolicy:
    """The `keep` of a running sweep. It does nothing unless the sweep file asks for it."""

    def __init__(self, sweep: Sweep, folder: SweepFolder, driver_sync: DriverSync) -> None:
        self._sweep, self._folder, self._sync = sweep, folder, driver_sync
        self._order = best_first(sweep, sweep.objectives[0].metric)
        self._best: list[Rank] = []  # the ranks of the trials that keep their checkpoints, the best first
        self.active = sweep.keep.trials is not None or not sweep.keep.optimizer

    def catch_up(self) -> None:
        """For all trials that have ended: at the beginning, and at the end for what late workers wrote."""
        if not self.active:
            return
        ranks = sorted(map(self._rank, trial_rows(self._folder, self._sweep, *ENDED)))
        most = self._sweep.keep.trials
        self._best, others = ranks[:most], ranks[len(ranks[:most]) :]
        removed, best = ([rank[2] for rank in each] for each in (others, self._best))
        stripped = [] if self._sweep.keep.optimizer else best
        for name in removed:
            self._remove_here(name)
        for name in stripped:
            self._strip_here(name)
        if removed or stripped:
            self._drop_in_bucket(removed, stripped)

    def _rank(self, row: Row) -> Rank:
        return row.state != "finished", self._order(row.metrics), row.name

    def ended(self, row: Row) -> None:
        """Called for each trial that ends, after its outcome was recorded."""
        if not self.active:
            return
        most = self._sweep.keep.trials
        self._best = [rank for rank in self._best if rank[2] != row.name]
        bisect.insort(self._best, self._rank(row))
        while most is not None and len(self._best) > most:
            name = self._best.pop()[2]
            self._remove_here(name)
            self._drop_in_bucket([name], ())
        if not self._sweep.keep.optimizer and any(rank[2] == row.name for rank in self._best):
            self._strip_here(row.name)
            self._drop_in_bucket((), [row.name])

    def _place(self, name: str) -> Path:
        return self._folder.trial(trial_number(name))

    def _remove_here(self, name: str) -> None:
        place = self._place(name)
        if why_removed(place) is not None and not (place / "checkpoints").exists():
            return
        with self._folder.guard():
            note_removed(place, f"keep.trials: {self._sweep.keep.trials}")
            shutil.rmtree(place / "checkpoints", ignore_errors=True)

    def _strip_here(self, name: str) -> None:
        """In a mirror the copies stay as the bucket had them."""
        paths = list(self._place(name).glob(f"checkpoints/*/{OPTIMIZER}")) if self._sync.where is None else []
        if paths:
            with self._folder.guard():
                for path in paths:
                    with suppress(FileNotFoundError, DamagedError):
                        Removal(path, "keep.optimizer: false", 0).carry_out()

    def _drop_in_bucket(self, removed: Sequence[str], stripped: Sequence[str]) -> None:
        if self._sync.where is not None:
            mirror, key = self._sync.mirror, self._sync.mirror.key(self._folder.path)
            self._sync.run_in_background(partial(drop_checkpoints, mirror, key, removed, stripped))
