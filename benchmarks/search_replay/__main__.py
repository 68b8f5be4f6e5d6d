"""Replays samplers and schedulers over the recorded table; prints what each spends to find a setting good enough.

Good enough is a last report within one standard error of the corpus's best. `today` is what sweeps without the new
options do: TPE and ASHA. Portfolios hold settings that were good on the other corpora, never on the one searched."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna

from babeltune.files import plain, write_whole
from babeltune.schema.records import ExpectedRegret, Halving, PlainSampler, Tpe
from benchmarks.search_replay.record import sweep_of
from benchmarks.search_replay.replay import Contestant, Outcome, contest
from benchmarks.search_replay.table import FIRST, TABLE, Corpus, Surrogate, portfolio, read_table

SEEDS = 100
SLOW_SEEDS = 10  # seeds of searches with the Gaussian process, which is slow
GOALS = {"today": 3.0, "random": 10.0}  # the winner is to spend at most this part of what these spend

NONE, ASHA, PASHA = Halving(kind="none"), Halving(kind="asha"), Halving(kind="pasha")
REGRET = ExpectedRegret()
RANDOM, TPE, GP = PlainSampler(kind="random"), Tpe(), PlainSampler(kind="gp")
TOGETHER = Tpe(multivariate=True, group=True)
CONTESTANTS = (
    Contestant("random", RANDOM, NONE),
    Contestant("random + asha", RANDOM, ASHA),
    Contestant("today", TPE, ASHA),
    Contestant("tpe + pasha", TPE, PASHA),
    Contestant("tpe + regret", TPE, REGRET),
    Contestant("multivariate + asha", TOGETHER, ASHA),
    Contestant("multivariate + pasha", TOGETHER, PASHA),
    Contestant("multivariate + regret", TOGETHER, REGRET),
    Contestant("gp + asha", GP, ASHA, seeds=SLOW_SEEDS),
    Contestant("gp + regret", GP, REGRET, seeds=SLOW_SEEDS),
    Contestant("portfolio", TPE, ASHA, portfolio=FIRST),
    Contestant("multivariate + asha + portfolio", TOGETHER, ASHA, portfolio=FIRST),
    Contestant("multivariate + regret + portfolio", TOGETHER, REGRET, portfolio=FIRST),
)

Rows = dict[str, dict[str, list[Outcome]]]  # contestant -> corpus -> outcomes by seed


def describe(surrogate: Surrogate) -> str:
    """How good the best setting is, how rare are those good enough, and how far the surrogate can be trusted."""
    corpus, (last, everywhere) = surrogate.corpus, surrogate.rank_correlation()
    return (
        f"{corpus.name}: {len(corpus.settings)} settings, best {surrogate.best:.3f}, enough {surrogate.enough:.3f}, "
        f"which {surrogate.share_enough():.1%} of random settings reach; the surrogate's rank correlation for "
        f"settings left out: {last:.2f} at the last report, {everywhere:.2f} at all"
    )


def run(corpora: dict[str, Corpus], contestants: Sequence[Contestant], seeds: int, cache: OutcomeCache) -> Rows:
    """All searches that are not kept already."""
    surrogates = {name: Surrogate(corpus, sweep_of(name)) for name, corpus in corpora.items()}
    for name, surrogate in surrogates.items():
        print(describe(surrogate), flush=True)
        other_surrogates = [candidate for candidate in surrogates.values() if candidate is not surrogate]
        for contestant in contestants:
            points = portfolio(other_surrogates, contestant.portfolio) if contestant.portfolio else []
            outcomes = cache.rows.setdefault(contestant.name, {}).setdefault(name, [])
            outcomes += [
                contest(surrogate, contestant, points, n)
                for n in range(len(outcomes), min(seeds, contestant.seeds or seeds))
            ]
            cache.write()
    return {contestant.name: cache.rows[contestant.name] for contestant in contestants}


class OutcomeCache:
    """Outcomes in a file, or in memory alone. Those of another table do not count."""

    def __init__(self, path: Path | None, table: Path) -> None:
        self._path, self._digest = path, hashlib.sha256(table.read_bytes()).hexdigest()
        self.rows: Rows = {}
        if path is not None and path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["table"] == self._digest:
                self.rows = {
                    name: {
                        corpus: [Outcome(**outcome) for outcome in outcomes] for corpus, outcomes in by_corpus.items()
                    }
                    for name, by_corpus in record["rows"].items()
                }

    def write(self) -> None:
        if self._path is not None:
            write_whole(self._path, json.dumps({"table": self._digest, "rows": plain(self.rows)}).encode())


def quartiles(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Of the compute; a search that found nothing good enough counts what it spent."""
    low, middle, high = np.percentile([outcome.seconds for outcome in outcomes], [25, 50, 75], method="nearest")
    return float(low), float(middle), float(high)


def ratio(rows: Rows, name: str, other: str) -> float:
    """The ratio of two contestants' median costs, as a geometric mean over the corpora."""
    parts = [quartiles(rows[other][corpus])[1] / quartiles(rows[name][corpus])[1] for corpus in rows[name]]
    return math.exp(sum(map(math.log, parts)) / len(parts))


def show(rows: Rows, corpora: Sequence[str]) -> None:
    """Prints the table."""
    width = max(map(len, rows)) + 2
    print("\ncounted seconds until good enough: median (quartiles); and how many times less than random and than today")
    print(
        f"{'':<{width}}"
        + "".join(f"{corpus:>22}" for corpus in corpora)
        + f"{'random':>9}{'today':>8}{'found':>7}{'seeds':>7}"
    )
    for name, by_corpus in rows.items():
        cells = ""
        for corpus in corpora:
            low, middle, high = quartiles(by_corpus[corpus])
            cells += f"{f'{middle:.1f} ({low:.1f} {high:.1f})':>22}"
        ratio_cells = "".join(
            f"{f'{ratio(rows, name, other):.2f}' if other in rows else '-':>{size}}"
            for other, size in (("random", 9), ("today", 8))
        )
        share = np.mean([outcome.succeeded for outcomes in by_corpus.values() for outcome in outcomes])
        print(f"{name:<{width}}{cells}{ratio_cells}{f'{share:.0%}':>7}{len(by_corpus[corpora[0]]):>7}")


def verdict(rows: Rows) -> bool:
    """Prints the winner and its goals; whether they are met."""
    if not set(GOALS) <= rows.keys():
        return True
    winner = max(rows, key=lambda name: ratio(rows, name, "today"))
    ratios = {other: ratio(rows, winner, other) for other in GOALS}
    words = ", ".join(f"{value:.2f} times less than {other} (goal {GOALS[other]:g})" for other, value in ratios.items())
    print(f"\nwinner: {winner}: {words}")
    return all(ratios[other] >= goal for other, goal in GOALS.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the replay; the exit code is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contestants; all by default")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep outcomes here, and run none of them again")
    args = parser.parse_args(arguments)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    corpora = read_table(args.table)
    contestants = [contestant for contestant in CONTESTANTS if not args.only or contestant.name in args.only]
    rows = run(corpora, contestants, args.seeds, OutcomeCache(args.json, args.table))
    show(rows, list(corpora))
    return 0 if verdict(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
