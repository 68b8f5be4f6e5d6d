"""A sweep of a thousand trials that do nothing, through the real Tune loop: does anything grow with their number?

`TRIALS=10000 python -m benchmarks.thousand_trials` makes another number of them; it must be a multiple of 100, at least
300.

Trials make five reports each on two worker groups. Proposals are Optuna's TPE; its storage and the ledger are on disk,
as in a sweep. MLflow's share is what `benchmarks.tracker` measures. Printed, for each hundred trials: their wall
seconds, the median and the slowest proposal, and this process's memory. So are the median and the longest time from a
trial's last report to its end, in which its state is saved. So are the bytes of the study and of the ledger, which is
what a bucket would get. The ratio is an early hundred's seconds by the last's, measured once. It is the second hundred,
or with more trials than TPE looks at, the first for which it looks at as many as for the last."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from babeltune.sweep.search.few_trials import BEST, RECENT
from babeltune.sweep.search.study import Proposals
from babeltune.sweep.workers.connection import local_ray
from benchmarks.__main__ import commit
from benchmarks.race import Row, options, verdict
from benchmarks.sweep_overhead import ROOT, WORKER_GROUPS, open_pool, run, sweep_of, wait_for

TRIALS, PART, REPORTS = int(os.environ.get("TRIALS", "1000")), 100, 5
EARLY = 1 if TRIALS <= RECENT + BEST + PART else (RECENT + BEST) // PART
"""The hundred that the last is compared with, from 0."""
GROWTH_KB = 15.0  # kilobytes of this process that a trial may cost, after the first hundred
BASE_MIB = 25  # allowed besides: caches that fill once
SLOWEST_PROPOSAL = 0.2  # CPU seconds that a proposal may take at most
SLOWER = 2.0  # how much longer the last hundred, and each of their proposals, may take than the second hundred's
SAVING = 1.0  # seconds that saving a trial's state may take at most


class Watch:
    """Times what a search tells."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.ends: list[float] = []
        self.saved: list[float] = []
        self.proposed: list[float] = []
        self.cpu: list[float] = []
        """CPU seconds of each proposal, of this thread."""
        self.memory: list[float] = []
        self._reported: dict[int, float] = {}

    def __call__(self, event: str, number: int, _: object) -> None:
        now = time.perf_counter()
        if event == "report":
            self._reported[number] = now  # the last one counts
        elif event == "end":
            self.saved.append(now - self._reported.pop(number))
            self.ends.append(now)
            if len(self.ends) % PART == 0:
                self.memory.append(self.process.memory_info().rss / 2**20)
                self.say(len(self.ends))

    def timed(self, ask: Callable[[Proposals], Any]) -> Callable[[Proposals], Any]:
        """The same, its seconds noted."""

        def asking(proposals: Proposals) -> Any:
            started, cpu_start = time.perf_counter(), time.thread_time()
            try:
                return ask(proposals)
            finally:
                self.proposed.append(time.perf_counter() - started)
                self.cpu.append(time.thread_time() - cpu_start)

        return asking

    def say(self, trials: int) -> None:
        part = slice(trials - PART, trials)
        wall_s = self.ends[trials - 1] - self.ends[trials - PART]
        words = "; ".join(
            f"{name} {statistics.median(seconds[part]):.4f} s, at most {max(seconds[part]):.3f} s"
            for name, seconds in (("a proposal", self.proposed), ("saving a trial", self.saved))
        )
        print(f"trials {trials - PART + 1}-{trials}: {wall_s:.1f} s; {words}; {self.memory[-1]:.0f} MiB", flush=True)

    def seconds(self, part: int) -> float:
        """Of a hundred trials."""
        return self.ends[(part + 1) * PART - 1] - self.ends[part * PART]

    def growth(self) -> float:
        """MiB from the end of the first hundred to that of the last."""
        return self.memory[-1] - self.memory[0]

    def per_trial(self) -> float:
        """Kilobytes of this process that a trial cost, after the first hundred."""
        return self.growth() * 2**20 / 1000 / (TRIALS - PART)

    def faults(self) -> list[str]:
        """The figures that grew with the number of trials, or took too long."""
        broken = []
        if (allowed := BASE_MIB + GROWTH_KB * 1000 * (TRIALS - PART) / 2**20) < self.growth():
            broken.append(f"memory grew by {self.growth():.0f} MiB, allowed {allowed:.0f}")
        if max(self.cpu) > SLOWEST_PROPOSAL:
            broken.append(f"a proposal took {max(self.cpu):.3f} CPU seconds, allowed {SLOWEST_PROPOSAL:g}")
        if max(self.saved) > SAVING:
            broken.append(f"saving a trial took {max(self.saved):.2f} s, allowed {SAVING:g}")
        early, late = (
            statistics.median(self.proposed[start : start + PART]) for start in (EARLY * PART, TRIALS - PART)
        )
        if late > SLOWER * early:
            broken.append(f"a proposal took {late / early:.2f} times as long at the end, allowed {SLOWER:g}")
        slower = self.seconds(TRIALS // PART - 1) / self.seconds(EARLY)
        if slower > SLOWER:
            broken.append(f"the last hundred took {slower:.2f} times as long as an early one, allowed {SLOWER:g}")
        return broken


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    watch = Watch()
    Proposals.ask = watch.timed(Proposals.ask)  # type: ignore[method-assign, assignment]
    with TemporaryDirectory() as temporary, local_ray(num_cpus=WORKER_GROUPS + 1, env={"PYTHONPATH": str(ROOT)}):
        place = Path(temporary)
        with open_pool(place / "groups") as pool:
            wait_for(pool)
            wall = run(sweep_of(TRIALS, REPORTS, "tpe"), pool, place / "sweep", 0.0, watch)
        sizes = {path.name: path.stat().st_size for path in (place / "sweep").iterdir() if path.is_file()}
    print(
        f"{TRIALS} trials in {wall:.0f} s; memory grew by {watch.growth():.0f} MiB, {watch.per_trial():.1f} KB a trial"
    )
    print(f"slowest proposal: {max(watch.cpu):.3f} CPU seconds, {max(watch.proposed):.3f} s by the clock")
    print(
        "; ".join(f"{name}: {size / 1e6:.2f} MB, {size / TRIALS:.0f} B a trial" for name, size in sorted(sizes.items()))
    )
    first, last = watch.seconds(EARLY), watch.seconds(TRIALS // PART - 1)
    print(f"last hundred {last:.1f} s, hundred {EARLY + 1} {first:.1f} s")
    facts: dict[str, Any] = {"commit": commit(), "trials": TRIALS, "stored": sum(sizes.values()), "seconds": wall}
    facts |= {"growth_mib": watch.growth(), "kb_a_trial": watch.per_trial()}
    facts |= {"slowest_proposal": max(watch.cpu), "slowest_save": max(watch.saved)}
    verdict("thousand_trials", [Row(ours=last, peer=first)], 1 / SLOWER, args, broken=watch.faults(), **facts)


if __name__ == "__main__":
    main()
