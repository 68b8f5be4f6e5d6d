"""Seconds of a sweep of sixteen trials of five seconds of work on two warm worker groups, against the work's own time.

The unit is wall time. The work sleeps, so that the figure is what the engine adds: proposals, hand-over, reports,
verdicts, the ledger and Optuna's storage, from the first proposal to the last trial's end. The time that worker groups
take to open, once in a sweep, is printed beside. `ratio` is the work's own time (40 s) by ours; 1 / 1.2 is asked for.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypedDict, cast

from babeltune.planning.space import suggest
from babeltune.schema.records import (
    Budget,
    Data,
    Halving,
    Objective,
    Parameter,
    PlainSampler,
    Report,
    Scalar,
    Sweep,
    Tpe,
    Training,
)
from babeltune.signals import StopSignal
from babeltune.sweep.search.tune_run import search
from babeltune.sweep.search.tune_searcher import Callbacks, OnEvent
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.workers.connection import local_ray
from babeltune.sweep.workers.pool import WorkerPool
from babeltune.sweep.workers.pool_settings import PoolSettings
from babeltune.sweep.workers.worker import DispatcherReporter
from benchmarks.race import Row, options, verdict

GOAL = 1 / 1.2
WORKER_GROUPS, TRIALS, SECONDS, REPORTS = 2, 16, 5.0, 5
ROOT = Path(__file__).resolve().parents[1]
METRIC = "dev/score"


class ExampleRequest(TypedDict):
    """The work of a trial: reports with a rising value, over some seconds of sleep."""

    reports: int
    seconds: float
    value: float


def work(assignment: TrialAssignment, dispatcher: DispatcherReporter, rank: int, world: int, device: str) -> None:
    """A worker group's trial: `reports` reports over `seconds` seconds of sleep."""
    request = cast("ExampleRequest", assignment.trial)
    reports, seconds, value = request["reports"], request["seconds"], request["value"]
    for index in range(1, reports + 1):
        time.sleep(seconds / reports)
        metrics = {METRIC: value * index}
        if not dispatcher.report(
            Report(index=index, step=index, pairs=0, seconds=0.0, metrics=metrics, last=index == reports)
        ):
            return


def sweep_of(trials: int, reports: int, sampler: Literal["random", "tpe"]) -> Sweep:
    """A sweep of such trials over two parameters."""
    return Sweep(
        name="no_op",
        method="none",
        objectives=(Objective(metric=METRIC),),
        data=Data(train=()),
        parameters={"x": Parameter(float=(0.0, 1.0)), "y": Parameter(log_float=(1e-4, 1.0))},
        training=Training(reports=reports),
        scheduler=Halving(kind="none"),
        sampler=Tpe() if sampler == "tpe" else PlainSampler(),
        budget=Budget(trials=trials),
    )


def open_pool(storage: Path) -> WorkerPool:
    """Two worker groups of one worker."""
    settings = PoolSettings(
        count=WORKER_GROUPS,
        workers=1,
        cpus_per_worker=1,
        gpus_per_worker=0,
        run_trial="benchmarks.sweep_overhead:work",
        storage=storage,
    )
    return WorkerPool(settings)


def wait_for(pool: WorkerPool) -> None:
    """Until every worker group waits for a trial."""
    while pool.dispatcher.free() < pool.count:
        time.sleep(0.1)


def run(sweep: Sweep, pool: WorkerPool, folder: Path, seconds: float, on_event: OnEvent) -> float:
    """Seconds of one search of the sweep's trials, each with `seconds` of work."""
    folder.mkdir(parents=True)
    shape = {"reports": sweep.training.reports, "seconds": seconds}

    def make_assignment(number: int, params: dict[str, Scalar]) -> TrialAssignment:
        return TrialAssignment(folder=str(folder / f"t{number:04d}"), trial={**shape, "value": params["x"]})

    started = time.perf_counter()
    search(
        sweep,
        pool=pool,
        folder=folder,
        suggest=lambda trial: suggest(sweep.parameters, trial),
        callbacks=Callbacks(make_assignment, on_event),
        trials=sweep.budget.trials,
        stop=StopSignal(),
    )
    return time.perf_counter() - started


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    ideal, sweep = TRIALS * SECONDS / WORKER_GROUPS, sweep_of(TRIALS, REPORTS, "random")
    with TemporaryDirectory() as temporary, local_ray(num_cpus=WORKER_GROUPS + 1, env={"PYTHONPATH": str(ROOT)}):
        place, started = Path(temporary), time.perf_counter()
        with open_pool(place / "groups") as pool:
            print(f"{WORKER_GROUPS} worker groups opened in {time.perf_counter() - started:.1f} s", flush=True)
            wait_for(pool)
            rows = []
            for number in range(args.rounds):
                seconds = run(sweep, pool, place / f"round-{number}", SECONDS, lambda *_: None)
                rows.append(Row(ours=seconds, peer=ideal))
                print(f"round {number + 1}: {rows[-1].ours:.2f} s for {ideal:g} s of work", flush=True)
    verdict("sweep_overhead", rows, GOAL, args, unit="wall seconds")


if __name__ == "__main__":
    main()
