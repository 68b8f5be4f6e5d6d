"""Confirms the replay by real sweeps: `python -m benchmarks.search_replay.confirm spa ukr`.

Each corpus is searched twice, as `today` and after the portfolio `margin`, which was not learnt from it. It prints the
counted seconds of the trials, in their order, until one is within one standard error of the best of both sweeps. A
finished sweep is not run again."""

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import babeltune as bt
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.schema.records import Sweep
from babeltune.training.compute import work_of_a_pair
from benchmarks.search_replay.record import CORPORA, JUDGED, sweep_of
from benchmarks.search_replay.table import read_table

WAYS = {"today": (), "portfolio": ("sampler.first_points=margin",)}
"""How a corpus is searched -> what that changes in the sweep."""
TRIALS = 40  # how many each sweep has


@dataclass(frozen=True)
class Spent:
    """One trial."""

    seconds: float  # counted
    accuracy: float  # the accuracy of its best report; 0 for one that was stopped early


def until(trials: Sequence[Spent], enough: float) -> tuple[int, float] | None:
    """How many trials, and their counted seconds, up to the first with this accuracy; None if there is none."""
    cumulative = itertools.accumulate(trial.seconds for trial in trials)
    hits = ((count, seconds) for count, seconds in enumerate(cumulative, 1) if trials[count - 1].accuracy >= enough)
    return next(hits, None)


def searched(sweep: Sweep, cluster: str | None, rates: tuple[float, float]) -> list[Spent]:
    """Runs the sweep, unless it is finished; its trials in their order."""
    result = bt.submit(sweep, cluster=cluster)
    prepared = prepare(sweep, result.folder.parents[1])
    rows = bt.runs(result.id, cluster=cluster)
    trials = []
    for number in range(sweep.budget.trials):
        row = rows.loc[f"t{number:04d}"]
        trial = make_trial(sweep, number, bt.trial(f"{result.id}/t{number:04d}", cluster=cluster).settings)
        seconds = float(row["pairs"]) * work_of_a_pair(trial, prepared, torch.device("cpu")).seconds(rates)
        is_finished = row["state"] == "finished"
        trials.append(Spent(seconds, float(row[sweep.objectives[0].metric]) if is_finished else 0.0))
    return trials


def confirm(corpus: str, cluster: str | None, rates: tuple[float, float]) -> None:
    """Searches one corpus in both ways, and prints what each has spent."""
    by_way = {
        way: searched(
            sweep_of(corpus, (f"name=confirm_{corpus}_{way}", f"budget.trials={TRIALS}", *changes)), cluster, rates
        )
        for way, changes in WAYS.items()
    }
    best = max(trial.accuracy for trials in by_way.values() for trial in trials)
    enough = best - math.sqrt(best * (1 - best) / JUDGED)
    print(f"{corpus}: best {best:.4f}, enough {enough:.4f}")
    for way, trials in by_way.items():
        cost = until(trials, enough)
        words = f"{cost[1]:.1f} counted s, {cost[0]} trials" if cost else "not found"
        print(
            f"  {way}: {words}; all {TRIALS} trials: {sum(trial.seconds for trial in trials):.1f} counted s", flush=True
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", metavar="CORPUS", help=f"a language, not one of {', '.join(CORPORA)}")
    parser.add_argument("--cluster", metavar="FILE", help="where to run; this machine when left out")
    args = parser.parse_args(arguments)
    if learnt := set(args.corpora) & set(CORPORA):
        parser.error(f"the portfolio was learnt from {', '.join(sorted(learnt))}; name another language")
    rates = next(iter(read_table().values())).rates
    for corpus in args.corpora:
        confirm(corpus, args.cluster, rates)


if __name__ == "__main__":
    main()
