"""The driver's own cost of opening worker groups: CPU seconds and memory, at three numbers of groups.

The pool, its dispatcher and Ray Train's trainers are the sweep's own. The controllers ask for a resource that no node
has, so Ray accepts them and starts no process: this machine holds a few real groups only. A stand-in asks the
dispatcher for a trial on behalf of each group. Printed are CPU seconds and wall seconds of this process until every
group waits for a trial, five surveys of all groups included, and how much its memory grew. It fails if 800 groups take
three minutes of the driver's CPU time, if a group costs it 1 MB, or if the cost of a group grows faster than their
number. The ratio is the CPU time of a group at the smallest number by that at the largest, measured once.
`python -m benchmarks.opening --json docs/measured/opening.json` writes the table of the site."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import ray
from ray.train import Result

from babeltune.sweep.workers import worker_groups
from babeltune.sweep.workers.connection import local_ray
from babeltune.sweep.workers.pool import WorkerPool
from babeltune.sweep.workers.pool_settings import PoolSettings
from babeltune.sweep.workers.ray_train import ENVIRONMENT, WorkerGroupTrainer, _Fixed, _remote_controller
from benchmarks.__main__ import commit
from benchmarks.race import Row, options, verdict

SIZES = (50, 200, 800)
SURVEYS = 5
MOST_SECONDS, MOST_MB = 180.0, 1.0
"""Goals at the largest size: CPU seconds in all, and megabytes of this process for each group."""


class Unplaced(WorkerGroupTrainer):
    """A worker group whose controller never finds a node."""

    def _initialize_and_run_controller(self, **parts: object) -> Result:
        parts["scaling_policy"] = _Fixed(self.scaling_config)
        self.controller = _remote_controller().options(resources={"nowhere": 1.0}).remote(ENVIRONMENT, **parts)
        return Result(metrics=None, checkpoint=None, error=None, path=None)


@dataclass(frozen=True)
class OpeningCost:
    """The driver's cost of this many groups."""

    groups: int
    cpu: float
    wall: float
    mb: float

    def shown(self) -> str:
        kb_per_group = 1000 * self.mb / self.groups
        return f"{self.groups:6d} {self.cpu:10.1f} {self.wall:10.1f} {self.mb:10.1f} {kb_per_group:12.0f}"


HEAD = f"{'groups':>6} {'CPU s':>10} {'wall s':>10} {'MB':>10} {'KB a group':>12}"


def asking(pool: WorkerPool) -> Callable[[], None]:
    """Asks the dispatcher for a trial on behalf of all groups, and again when a call comes back without one."""
    calls_by_group: dict[str, ray.ObjectRef[object]] = {}

    def ask() -> None:
        calls = list(calls_by_group.values())
        back = set(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) if calls else set()
        for name in pool._groups:
            if name not in calls_by_group or calls_by_group[name] in back:
                calls_by_group[name] = pool.dispatcher._actor.next.remote(name, "ranks")

    return ask


def opened(groups: int, place: Path) -> OpeningCost:
    """Opens the groups in this process."""
    process = psutil.Process()
    before, started, cpu_start = process.memory_info().rss, time.perf_counter(), time.process_time()
    settings = PoolSettings(
        count=groups,
        workers=1,
        cpus_per_worker=0.001,
        gpus_per_worker=0,
        run_trial="benchmarks.sweep_overhead:work",
        storage=place,
    )
    pool = WorkerPool(settings)
    pool._waiting = asking(pool)
    with pool:
        while pool.dispatcher.free() < groups:
            pool._waiting()
            time.sleep(0.2)
        for _ in range(SURVEYS):
            pool._surveyed = 0.0
            pool.mend()
        cpu, wall = time.process_time() - cpu_start, time.perf_counter() - started
        return OpeningCost(groups, cpu, wall, (process.memory_info().rss - before) / 1e6)


def faults(sizes: list[OpeningCost]) -> list[str]:
    """The missed goals."""
    small, large, broken = sizes[0], sizes[-1], []
    if large.cpu > MOST_SECONDS:
        broken.append(f"{large.groups} groups took {large.cpu:.0f} CPU seconds, allowed {MOST_SECONDS:g}")
    if large.mb > MOST_MB * large.groups:
        broken.append(f"{large.groups} groups took {large.mb:.0f} MB, allowed {MOST_MB * large.groups:.0f}")
    growth, most = large.cpu / small.cpu, large.groups / small.groups
    if growth > most:
        broken.append(f"the CPU time is {growth:.1f} times as much with {most:.0f} times as many groups")
    return broken


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    vars(worker_groups)["WorkerGroupTrainer"] = Unplaced
    sizes = []
    print(HEAD)
    with local_ray(num_cpus=1):
        for groups in SIZES:
            with TemporaryDirectory() as place:
                sizes.append(opened(groups, Path(place)))
            print(sizes[-1].shown(), flush=True)
    small, large = (size.cpu / size.groups for size in (sizes[0], sizes[-1]))
    facts: dict[str, Any] = {"commit": commit(), "sizes": [asdict(size) for size in sizes]}
    row = Row(ours=large, peer=small)
    verdict("opening", [row], 1.0, args, broken=faults(sizes), unit="CPU seconds of a group", **facts)


if __name__ == "__main__":
    main()
