"""Quality against CPU seconds, for four kinds of student; writes docs/quality.md and docs/quality.svg.

* `static`: a table of token vectors, their mean, a linear layer.
* `static, averaged`: the mean of several such trainings from the same first weights, one for each 95 seconds.
* `transformer`: one layer, from scratch, with the same tokens and losses.
* `transformer from static`: the same, whose token table is that of a static student. A fifth of the seconds train that.

Every point is a training of its own, whose schedule ends when its seconds do, on one thread. In pieces:
`--rows FOLDER --only static --seconds 300`, as often as it takes, and `--rows FOLDER --table` in the end."""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from babeltune.files import write_whole
from benchmarks.encoder import SETTINGS, SWEEP, ours
from benchmarks.quality import SHOWN, Contestant, Row, Work, add_options, read_work, run_rows, train_within

ROOT = Path(__file__).parents[1]
RANKING = {
    **{key: value for key, value in SETTINGS.items() if not key.startswith(("data.", "lealla", "settings."))},
    "lealla": 0,
    "translation_ranking": 3.6,
    "mse_distillation": 22,
}
"""Settings without a margin: two other terms take its place."""
TERMS = "config.settings.translation_ranking={hard_negatives: 0, temperature: 0.05}"
TRANSFORMER = {
    **{key: value for key, value in RANKING.items() if not key.startswith("student.")},
    "student.kind": "transformer",
    "student.width": 384,
    "student.layers": 1,
    "student.heads": 6,
    "student.feed_forward": 768,
    "student.vocabulary": SETTINGS["student.vocabulary"],
    "training.learning_rate": 0.001,
    "training.global_batch": 256,
}
"""A Transformer's settings, where they differ from the static student's."""
SHARE = 0.2  # the static student's share of the seconds of `transformer from static`


def static(storage: Path) -> Contestant:
    work = read_work(SWEEP, SETTINGS, storage)
    return lambda seconds, seed, folder: (train_within(work, work.trial(seed), seconds, folder), work)


def static_without_margin(storage: Path) -> Contestant:
    work = read_work(SWEEP, RANKING, storage, TERMS)
    return lambda seconds, seed, folder: (train_within(work, work.trial(seed), seconds, folder), work)


def static_averaged(storage: Path) -> Contestant:
    work = read_work(SWEEP, SETTINGS, storage)
    return lambda seconds, seed, folder: (ours(work, seconds, seed, folder), work)


def transformer(storage: Path) -> Contestant:
    work = read_work(SWEEP, TRANSFORMER, storage, TERMS)
    return lambda seconds, seed, folder: (train_within(work, work.trial(seed), seconds, folder), work)


def transformer_from_static(storage: Path) -> Contestant:
    first = static_without_margin(storage)

    def train(seconds: float, seed: int, folder: Path) -> tuple[int, Work]:
        start = folder.with_name(f"{folder.name}-start")
        before, _ = first(SHARE * seconds, seed, start)
        tokens = f"student.vocabulary={TRANSFORMER['student.vocabulary']}"
        work = read_work(SWEEP, TRANSFORMER, storage, f"student.embeddings_from={start}", tokens, TERMS)
        return before + train_within(work, work.trial(seed), (1 - SHARE) * seconds, folder), work

    return train


MADE: dict[str, Callable[[Path], Contestant]] = {
    "static": static,
    "static, averaged": static_averaged,
    "static without margin": static_without_margin,
    "transformer": transformer,
    "transformer from static": transformer_from_static,
}


class Contestants(Mapping[str, Contestant]):
    """Who trains, by name; what each needs is prepared when it is asked for."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage

    def __getitem__(self, name: str) -> Contestant:
        return MADE[name](self.storage)

    def __iter__(self) -> Iterator[str]:
        return iter(MADE)

    def __len__(self) -> int:
        return len(MADE)


def means(rows: Sequence[Row], name: str, title: str) -> list[tuple[float, float]]:
    """CPU seconds and mean score over the seeds, in order."""
    times = sorted({row.seconds for row in rows if row.name == name})
    return [
        (seconds, statistics.mean(r.scores[title] for r in rows if (r.name, r.seconds) == (name, seconds)))
        for seconds in times
    ]


def page(rows: Sequence[Row]) -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Quality against CPU seconds",
        "",
        "Each point is a training of its own on one core, whose schedule ends when its seconds do. Pairs are of",
        "`benchmarks/data/en_fra_rus_jpn_kor.yaml`. Tatoeba, STS-B and KorSTS are sealed tests. NTREX is a dev set.",
        "`CPU s` is what the training was given. `in all` is what was used, with reading, a measurement of the speed,",
        "and the export.",
        "`static, averaged` is the mean of several trainings from the same first weights, one for each 95 seconds.",
        "The losses of `static without margin` and of the Transformers have mUSE's ranking and the distance to the",
        "teacher in place of LEALLA's margin.",
        "`python -m benchmarks.quality_curve` writes this page and its picture.",
        "",
        "![quality against CPU seconds](quality.svg)",
        "",
        f"| student | seed | CPU s | in all | pairs seen | {' | '.join(SHOWN)} |",
        f"|---|--:|--:|--:|--:|{'--:|' * len(SHOWN)}",
    ]
    for row in sorted(rows, key=lambda row: (list(MADE).index(row.name), row.seconds, row.seed)):
        scores = " | ".join(f"{row.scores[title]:.3f}" for title in SHOWN)
        lines.append(f"| {row.name} | {row.seed} | {row.seconds:g} | {row.spent:.0f} | {row.pairs:,} | {scores} |")
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[Row], picture: Path) -> None:
    """One panel for each score, one line for each student, seconds on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "quality", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(SHOWN), figsize=(3 * len(SHOWN), 3), layout="constrained")
    for title, panel in zip(SHOWN, panels, strict=True):
        for name in MADE:
            if points := means(rows, name, title):
                panel.plot(*zip(*points, strict=True), marker="o", label=name)
        ticks = sorted({row.seconds for row in rows})
        panel.set(title=title, xlabel="CPU seconds", xscale="log", xticks=ticks)
        panel.set_xticks(ticks, [f"{seconds:g}" for seconds in ticks])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].legend()
    figure.savefig(picture, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, seconds=[10, 30, 100, 300, 1000], seeds=[0])
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the page and the picture")
    args = parser.parse_args(arguments)
    rows = run_rows(args, list(MADE), Contestants)
    if rows and not args.only:
        write_whole(args.docs / "quality.md", page(rows).encode())
        draw(rows, args.docs / "quality.svg")
    print(page(rows))


if __name__ == "__main__":
    main()
