"""How many running trials one dispatcher serves: cost of a report, answers' delay and memory at three sizes.

Trials are light objects that report, wait for the verdict and report again; a driver polls and lets them go on. The
dispatcher is the sweep's own. Every size is played in a process of its own on one core.
`reports/s` is reports by CPU second of that whole process, the players included, as fast as they can. `p99` is the wall
time from a report to its verdict while all trials together make 500 reports a second. `memory` is the process's peak
beyond the same process without trials, dispatcher and driver together. The ratio is the CPU time of a report at the
smallest size by that at the largest: below 1/2, the cost grows with the number of trials, and memory may grow no faster
than their number.

Then the same dispatcher runs as Ray runs it, an actor that answers calls from this process, at the largest size. Its
figures are printed: the reports by CPU second of the actor's own process, and the calls that waited at once.

Last, a corpus is cleaned at three sizes, a 64th of real ones, as `benchmarks.corpus` does: its memory may not grow, and
its time no faster than the pairs. `python -m benchmarks.scale --json docs/measured/scale.json` writes the site's table.
"""

import asyncio
import functools
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import psutil

from babeltune.files import plain
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Point, Report
from babeltune.sweep.state.messages import ReportMessage, TrialAssignment
from babeltune.sweep.workers.dispatcher import PENDING_CALLS, TrialDispatcher
from babeltune.sweep.workers.dispatcher_state import News
from benchmarks import corpus
from benchmarks.__main__ import commit
from benchmarks.race import Options, Row, in_own_process, options, own_peak, verdict

SIZES = (200, 800, 2000)
REPORTS = 20_000
"""Reports of the throughput's measurement, of all trials together: more than are journaled between two compactions."""
RATE, SECONDS = 500.0, 6.0  # reports a second, and for how long, of the delay's measurement
SLOWER = 2.0  # how much more CPU time a report may cost at the largest size than at the smallest
LEAST_RATE, MOST_DELAY_MS = 500.0, 50.0
ACTOR_REPORTS = 6000


@functools.cache
def trial_of_a_sweep() -> dict[str, Any]:
    """A trial as a driver hands it out."""
    sweep = read_sweep("search_spaces/quickstart.yaml")
    return dict(plain(make_trial(sweep, 0, default_params(sweep))))


def assignment_of(trial: str) -> str:
    """An assignment for a worker group, of some 2 KB."""
    return TrialAssignment(folder=trial, trial=trial_of_a_sweep(), prepared="prepared.json", token=1).encode()


class Calls(Protocol):
    """The dispatcher's calls, in this process or by Ray."""

    async def offer(self, trial: str, assignment: str) -> None: ...
    async def next(self, worker_group: str, group: str) -> Any: ...
    async def report(self, trial: str, index: int, last: bool, text: str) -> bool | None: ...
    async def poll(self, after: int, seconds: float) -> list[News]: ...
    async def go_on(self, reports: list[tuple[str, int]]) -> None: ...


@dataclass(frozen=True)
class Figures:
    """The measurements at one size."""

    groups: int
    rate: float  # reports by CPU second
    p99_ms: float
    peak: int  # bytes

    def shown(self, base: int) -> str:
        memory = (self.peak - base) / 2**20
        return (
            f"{self.groups:6d} {self.rate:10.0f} {self.p99_ms:9.2f} {memory:12.1f} {1024 * memory / self.groups:12.1f}"
        )


HEAD = f"{'groups':>6} {'reports/s':>10} {'p99 ms':>9} {'memory MiB':>12} {'KiB a group':>12}"


def a_report(trial: str, index: int) -> str:
    """A report as a trial of the quickstart makes it: 20 points of 6 figures, 40 metrics."""
    figures = {f"train/figure_{number}": 0.123456789 + number for number in range(6)}
    points = tuple(Point(step=step, time_ms=1_700_000_000_000 + step, values=figures) for step in range(20))
    metrics = {f"dev/task_{number}/accuracy": 0.987654321 / (1 + number) for number in range(40)}
    return ReportMessage(
        trial, Report(index=index, step=index, pairs=0, seconds=1.0, metrics=metrics, points=points)
    ).encode()


class Played:
    """Trials that run on one dispatcher, and their driver."""

    def __init__(self, dispatcher: Calls, groups: int) -> None:
        self._dispatcher = dispatcher
        self._trials = [f"t{number}" for number in range(groups)]
        self._text = a_report("t", 1)
        self._indices = dict.fromkeys(self._trials, 0)
        self._left = itertools.count()
        self.delays: list[float] = []
        self.waiting = self.most_waiting = 0

    async def begin(self) -> None:
        """Offers the trials, and has a worker group take each."""
        for trial in self._trials:
            await self._dispatcher.offer(trial, assignment_of(trial))
            await self._dispatcher.next(f"group-{trial}", "ranks")

    async def drive(self) -> None:
        """As the driver does, until it is cancelled: a call for each report, whose answer it does not wait for."""
        number, calls = 0, set[asyncio.Future[None]]()
        while True:
            news = await self._dispatcher.poll(number, 10.0)
            for event in news:
                number = event.number
                calls.add(asyncio.ensure_future(self._dispatcher.go_on([(event.trial, self._indices[event.trial])])))
            calls = {call for call in calls if not call.done()}

    async def once(self, trial: str) -> None:
        """One report of a trial, up to its verdict."""
        self._indices[trial] += 1
        started = time.perf_counter()
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        verdict = None
        while verdict is None:
            verdict = await self._dispatcher.report(trial, self._indices[trial], False, self._text)
        assert verdict
        self.waiting -= 1
        self.delays.append(time.perf_counter() - started)

    async def flat_out(self, reports: int) -> None:
        """All trials report as fast as they can, until `reports` reports have arrived."""

        async def trial_of(trial: str) -> None:
            while next(self._left) < reports:
                await self.once(trial)

        await asyncio.gather(*map(trial_of, self._trials))

    async def steadily(self, rate: float, seconds: float) -> None:
        """Trials report in turn, at `rate` reports a second in all."""
        begun, reports = time.perf_counter(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            reports.append(asyncio.ensure_future(self.once(self._trials[number % len(self._trials)])))
        await asyncio.gather(*reports)


async def driven(played: Played, work: Callable[[], Awaitable[None]]) -> None:
    """The work while a driver polls."""
    driver = asyncio.ensure_future(played.drive())
    await work()
    driver.cancel()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(groups: int) -> Figures:
    """The figures of one size, in this process."""
    played = Played(TrialDispatcher(), groups)
    await played.begin()
    started = time.process_time()
    await driven(played, lambda: played.flat_out(REPORTS))
    rate = REPORTS / (time.process_time() - started)
    played.delays.clear()
    await driven(played, lambda: played.steadily(RATE, SECONDS))
    return Figures(groups, rate, 1000 * percentile(played.delays, 0.99), own_peak())


def on_one_core(groups: int) -> Figures:
    """The figures of one size. Confines this process to one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return asyncio.run(measure(groups)) if groups else Figures(0, 0.0, 0.0, own_peak())


class ByRay:
    """The calls of a dispatcher that runs as an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)

        async def call(*arguments: Any) -> Any:
            return await method.remote(*arguments)

        return call


def as_an_actor(groups: int) -> str:
    """A sentence on the work of one actor for this many trials."""
    import ray

    from babeltune.sweep.workers.connection import local_ray

    async def play(actor: Any, pid: int) -> str:
        played = Played(ByRay(actor), groups)
        await played.begin()
        times = psutil.Process(pid).cpu_times()
        await driven(played, lambda: played.flat_out(ACTOR_REPORTS))
        now = psutil.Process(pid).cpu_times()
        cpu_s = now.user + now.system - times.user - times.system
        played.delays.clear()
        await driven(played, lambda: played.steadily(RATE, SECONDS))
        return (
            f"as an actor: {groups} groups, {ACTOR_REPORTS / cpu_s:.0f} reports by CPU second of its process, "
            f"99 % of the answers within {1000 * percentile(played.delays, 0.99):.0f} ms at {RATE:g} reports a second, "
            f"{played.most_waiting} reports waited at once, {psutil.Process(pid).memory_info().rss >> 20} MiB"
        )

    with local_ray(num_cpus=1):
        settings = {"num_cpus": 0, "max_concurrency": PENDING_CALLS}
        actor = ray.remote(TrialDispatcher).options(**settings).remote()
        pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
        return asyncio.run(play(actor, pid))


def faults(sizes: list[Figures], base: int) -> list[str]:
    """The missed goals, and the figures that grew faster than the number of groups."""
    small, large, broken = sizes[0], sizes[-1], []
    if large.rate < LEAST_RATE:
        broken.append(f"{large.rate:.0f} reports/s at {large.groups} groups, at least {LEAST_RATE:g} are asked for")
    if large.p99_ms > MOST_DELAY_MS:
        broken.append(f"p99 {large.p99_ms:.0f} ms at {large.groups} groups, at most {MOST_DELAY_MS:g} are asked for")
    growth, most = (large.peak - base) / max(small.peak - base, 1), large.groups / small.groups
    if growth > most:
        broken.append(f"memory is {growth:.1f} times as much with {most:.0f} times as many groups")
    return broken


def cleaned() -> tuple[list[corpus.Figures], list[str]]:
    """The cost of a corpus at three sizes, and the figures that grew faster than its pairs."""
    print(corpus.HEAD)
    sizes = []
    for pairs in corpus.SIZES:
        sizes.append(in_own_process(corpus.measure_anywhere, pairs, corpus.SMALLER))
        print(sizes[-1].shown(), flush=True)
    broken, small, large = corpus.faults(sizes), sizes[0], sizes[-1]
    growth = large.cpu / large.pairs / (small.cpu / small.pairs)
    if growth > corpus.SLOWER:
        broken.append(f"a pair takes {growth:.1f} times as long with {large.pairs // small.pairs} times as many pairs")
    return sizes, broken


def main(args: Options | None = None) -> None:
    """Runs the benchmark."""
    args = args or options(__doc__)
    base, rows, rounds = in_own_process(on_one_core, 0).peak, [], []
    print(HEAD)
    for _ in range(args.rounds):
        rounds.append([in_own_process(on_one_core, groups) for groups in SIZES])
        rows.append(Row(ours=1 / rounds[-1][-1].rate, peer=1 / rounds[-1][0].rate))
        print("\n".join(figures.shown(base) for figures in rounds[-1]), flush=True)
    best = [min(of_size, key=lambda figures: figures.p99_ms) for of_size in zip(*rounds, strict=True)]
    spoken = as_an_actor(SIZES[-1])
    print(spoken)
    corpora, grown = cleaned()
    facts: dict[str, Any] = {
        "commit": commit(),
        "sizes": [asdict(figures) for figures in best],
        "base": base,
        "actor": spoken,
        "corpora": [asdict(figures) for figures in corpora],
    }
    broken = [*faults(best, base), *grown]
    verdict("scale", rows, 1 / SLOWER, args, broken=broken, unit="CPU seconds of a report", **facts)


if __name__ == "__main__":
    main()
