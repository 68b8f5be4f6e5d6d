"""Where one fault happens: a storage and a sweep of its own, drivers here or in other processes, and what it costs."""

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from babeltune.errors import SweepError
from babeltune.files import plain
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster, read_cluster
from babeltune.schema.records import Sweep
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import leaderboard
from chaos.faulty import RELEASED, STEPS
from chaos.invariants import check
from marked import MARK, end_marked
from waiting import PATIENCE_S, wait_until

HERE = Path(__file__).parent
SWEEP, CLUSTER = "sweep.yaml", "cluster.yaml"
CHAOS = """
version: 1
name: chaos
method: faulty
parameters:
  temperature: {log_float: [0.03, 0.2]}
  training.learning_rate: {log_float: [5e-4, 3e-3]}
training: {pairs: 3200, reports: 5, global_batch: 32}
sampler: {kind: tpe, startup: 1}
budget: {trials: 3, workers: 1}
"""
"""Laid over the tiny sweep: trials of a hundred steps, a report each twenty."""


@dataclass
class Driver:
    """A command of babeltune's in a process of its own, whose family carries the mark."""

    process: subprocess.Popen[str]
    mark: str
    said: Path

    def words(self) -> str:
        """What it has printed, as one line."""
        return " ".join(self.said.read_text(encoding="utf-8").split())

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL, to it alone."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@dataclass
class Arena:
    """A sweep that a test disturbs."""

    place: Path
    sweep: Sweep
    cluster: Cluster
    like: SweepFolder | None = None  # the same sweep, undisturbed
    environment: dict[str, str] = field(default_factory=dict)  # for drivers in processes of their own
    drivers: list[Driver] = field(default_factory=list)

    @property
    def folder(self) -> SweepFolder:
        return SweepFolder(self.cluster.folder / "sweeps" / sweep_id(self.sweep))

    # Faults from within

    def order(self, kind: str, at: int, *, rank: int = 0, times: int = 1, any: bool = False, days: int = 0) -> None:
        """Makes the first trial that reaches step `at` follow this order (`any`: every trial that does)."""
        words = {"at": at, "rank": rank, "times": times, "any": any, "days": days}
        (self.orders / f"{kind}-{at}.order").write_text(json.dumps(words), encoding="utf-8")

    def release(self) -> None:
        """Lets go on who was ordered to `hold`."""
        (self.orders / RELEASED).touch()

    @property
    def orders(self) -> Path:
        return self.place / "orders"

    def injected(self) -> list[float]:
        """When orders were followed, in seconds since the epoch."""
        taken = sorted(self.orders.glob("*.taken"))
        return sorted(json.loads(path.read_text(encoding="utf-8"))["time"] for path in taken)

    # What happened

    def steps(self) -> list[dict[str, Any]]:
        """The steps that workers have made, in order; not one whose line is being written."""
        path = self.orders / STEPS
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rows(self) -> list[dict[str, Any]]:
        """The trials' rows of the leaderboard."""
        return [plain(row) for row in leaderboard(self.folder) if row.params]

    def repeated(self) -> int:
        """How many optimizer steps were made more than once."""
        made = Counter((step["mark"], step["step"]) for step in self.steps() if step["rank"] == 0)
        return sum(count - 1 for count in made.values())

    def recovered(self, since: float, *, by: str = "pid") -> float:
        """Seconds from then to the first step of a worker (`by="mark"`: of a trial) that had made none before."""
        known = {step[by] for step in self.steps() if step["time"] <= since}
        later = [step["time"] for step in self.steps() if step["time"] > since and step[by] not in known]
        assert later, "nothing was trained afterwards"
        return min(later) - since

    def pause(self) -> float:
        """The longest time, in seconds, that a worker took from a step of a trial to the next."""
        times: dict[tuple[int, float], list[float]] = {}
        for step in self.steps():
            times.setdefault((step["pid"], step["mark"]), []).append(step["time"])
        return max(later - earlier for each in times.values() for earlier, later in itertools.pairwise(each))

    def until(self, condition: Callable[[], Any]) -> None:
        """Waits for it, but for no driver that is not there any more."""

        def somebody_drives() -> None:
            codes = [driver.process.poll() for driver in self.drivers]
            gone = bool(codes) and None not in codes and not condition()
            assert not gone, [(driver.process.args, driver.words()[-2000:]) for driver in self.drivers]

        wait_until(condition, meanwhile=somebody_drives)

    def trained(self, steps: int) -> Callable[[], bool]:
        """Whether workers have made this many steps in all."""
        return lambda: len(self.steps()) >= steps

    # Drivers

    def submit(self) -> SweepFolder:
        """In this process, on its Ray."""
        return submit(self.sweep, self.cluster)

    def refusal(self) -> str:
        """The error that a second driver in this process gets."""
        with pytest.raises(SweepError) as refused:
            self.submit()
        return str(refused.value)

    @contextlib.contextmanager
    def meanwhile(self, condition: Callable[[], Any], action: Callable[[], Any]) -> Iterator[list[BaseException]]:
        """Does the action once the condition holds, while the block runs; what it raises is raised at the end."""
        troubles: list[BaseException] = []

        def work() -> None:
            try:
                self.until(condition)
                action()
            except BaseException as error:
                troubles.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield troubles
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        if troubles:
            raise troubles[0]

    def start(self, *arguments: str, file: bool = False, **environment: str) -> Driver:
        """`babeltune …` with this cluster's file (and, with `file`, the sweep's) in a process of its own."""
        mark = uuid.uuid4().hex
        said = self.place / f"said-{mark}.log"
        command = [sys.executable, "-m", "babeltune.cli", *arguments[:1]]
        command += [str(self.place / SWEEP)] if file else []
        command += [*arguments[1:], "--cluster", str(self.place / CLUSTER)]
        path = os.pathsep.join([*own_path(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
        with said.open("w") as log:
            process = subprocess.Popen(
                command,
                env={**kept, "PYTHONPATH": path, MARK: mark, **self.environment, **environment},
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.drivers.append(Driver(process, mark, said))
        return self.drivers[-1]

    def close(self) -> None:
        """Ends what a failed test has left of its drivers, by process id."""
        for driver in self.drivers:
            end_marked(driver.mark)
            driver.process.wait(PATIENCE_S)

    def check(self, asked: int = 3, *, failed: int = 0, alike: bool = True, marked: str | None = None) -> None:
        """All invariants. The sampler lacks the results of a failed trial, so others may follow."""
        like = self.like if alike and not failed else None
        check(self.folder, self.cluster, asked, failed=failed, like=like, marked=marked)


def own_path() -> list[str]:
    """Where a Python finds `chaos.faulty`, and the distribution that offers it as a method."""
    return [str(HERE.parent), str(HERE)]


def build(place: Path, tiny_file: Path, like: Arena | None, **changes: Any) -> Arena:
    """An arena in `place`, where everything is prepared already if it is `like` another one.

    `changes` are keys of the sweep file, such as `training.pairs`, with `__` for the dot; `pause` is the method's, and
    `cluster` holds keys of the cluster file."""
    (place / "orders").mkdir(parents=True)
    document = {"name": "chaos", "storage": str(place / "storage"), "worker_groups": 1, **changes.pop("cluster", {})}
    (place / CLUSTER).write_text(yaml.safe_dump(document), encoding="utf-8")
    if like is not None:
        ignored = shutil.ignore_patterns("sweeps")
        storage = read_cluster(place / CLUSTER).folder
        shutil.copytree(like.cluster.storage, storage, ignore=ignored, dirs_exist_ok=True)
    values = yaml.safe_load(tiny_file.read_text(encoding="utf-8")) | yaml.safe_load(CHAOS)
    if like is not None:
        values["config"] = {"folder": str(place / "orders"), "pause": changes.pop("pause", 0.0)}
    for key, value in changes.items():
        *sections, last = key.split("__")
        functools.reduce(lambda section, name: section.setdefault(name, {}), sections, values)[last] = value
    (place / SWEEP).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    arena = opened(place, like)
    if like is not None:
        arena.folder.path.mkdir(parents=True)
        shutil.copy(like.folder.path / "baselines.json", arena.folder.path)
    return arena


def opened(place: Path, like: Arena | None = None) -> Arena:
    """The arena that was built in `place`."""
    return Arena(place, read_sweep(place / SWEEP), read_cluster(place / CLUSTER), like and like.folder)
