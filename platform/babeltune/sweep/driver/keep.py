"""Removes the checkpoints that a sweep's `keep` does not ask for, as its trials end.

Scores, settings and reports stay, so the leaderboard, `reproduce` and `refit` need no checkpoint. Promotion, a start
and `--soup` do: they name what removed it.
"""

from __future__ import annotations

import bisect
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from babeltune.schema.records import Sweep
from babeltune.sweep.state.folder import ENDED, SweepFolder
from babeltune.sweep.state.housekeeping import OPTIMIZER, Removal, note_removed
from babeltune.sweep.state.leaderboard import Row, best_first, trial_row
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.housekeeping import drop_checkpoints, drop_optimizers

Rank = tuple[bool, tuple[bool, float], str]


class CheckpointPolicy:
    """The `keep` of a running sweep. It does nothing unless the sweep file asks for it."""

    def __init__(self, sweep: Sweep, folder: SweepFolder, driver_sync: DriverSync) -> None:
        self._sweep, self._folder, self._sync = sweep, folder, driver_sync
        self._order = best_first(sweep, sweep.objectives[0].metric)
        self._best: list[Rank] = []
        """The ranks of the trials that keep their checkpoints, the best first."""
        self.active = sweep.keep.trials is not None or not sweep.keep.optimizer

    def key_of(self, place: Path, report: int) -> str:
        """Where the storage has a trial's checkpoint."""
        return self._sync.key_of(place, report)

    def catch_up(self) -> None:
        """For all trials that have ended: at the beginning, and at the end for what late workers wrote."""
        if not self.active:
            return
        self._best.clear()
        rows = [trial_row(path, *self._sweep.objectives) for path in self._trials()]
        for row in rows:
            if row.state in ENDED:
                self.ended(row)

    def _trials(self) -> Iterable[Path]:
        return [path for path in self._folder.trials() if (path / "trial.json").exists()]

    def ended(self, row: Row) -> None:
        """Called for each trial that ends, after its outcome and its model in MLflow were recorded."""
        if not self.active:
            return
        most = self._sweep.keep.trials
        bisect.insort(self._best, (row.state != "finished", self._order(row.metrics), row.name))
        while most is not None and len(self._best) > most:
            self._remove(self._best.pop()[2], f"keep.trials: {most}")
        if not self._sweep.keep.optimizer and any(rank[2] == row.name for rank in self._best):
            self._strip(self._folder.trial(int(row.name[1:])))

    def _remove(self, name: str, rule: str) -> None:
        place = self._folder.trial(int(name[1:]))
        with self._folder.guard():
            note_removed(place, rule)
            shutil.rmtree(place / "checkpoints", ignore_errors=True)
        self._in_bucket(lambda: drop_checkpoints(self._sync.mirror, self._sync.mirror.key(place)))

    def _strip(self, place: Path) -> None:
        if self._sync.where is None:
            with self._folder.guard():
                for path in place.glob(f"checkpoints/*/{OPTIMIZER}"):
                    Removal(path, "keep.optimizer: false", 0).carry_out()
        self._in_bucket(lambda: drop_optimizers(self._sync.mirror, self._sync.mirror.key(place)))

    def _in_bucket(self, errand: Callable[[], None]) -> None:
        if self._sync.where is not None:
            self._sync.later(errand)
