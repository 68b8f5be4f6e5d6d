"""Shared parts of the quality benchmarks: text, scores, training for a number of CPU seconds, and rows on disk.

`benchmarks.encoder` and `benchmarks.quality_curve` use it. Each training is one row in a file of its own, so that a
benchmark can be interrupted, run as several jobs, and printed once all rows are there."""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import disable_progress_bars
from transformers.utils import logging

from babeltune.data.eval_sets import read_eval, subsets
from babeltune.data.prepared import Prepared, TextTask
from babeltune.errors import TrainingError
from babeltune.files import write_whole
from babeltune.planning.preparation import prepare
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.promotion.export import export_trial
from babeltune.promotion.fresh_scorer import score
from babeltune.promotion.soup import mean_of
from babeltune.schema.records import Sweep, Trial
from babeltune.training.averages import Averages
from benchmarks.race import one_thread
from benchmarks.work import start, texts_of

REAL = "benchmarks/data/en_fra_rus_jpn_kor.yaml"
TRIED = 12  # batches after which a training's speed is known
SHOWN = {
    "Tatoeba": "test/tatoeba/accuracy",
    "NTREX": "dev/ntrex/accuracy",
    "STS-B": "test/stsb_test/spearman",
    "KorSTS": "test/korsts_test/spearman",
}
"""Title of a score -> its metric."""


@dataclass(frozen=True)
class Row:
    """One training and its scores."""

    name: str
    seconds: float  # CPU seconds that it was given
    seed: int
    pairs: int  # rows seen
    spent: float  # CPU seconds from its first batch to the end of its export, the trial of its speed included
    scores: dict[str, float]  # scores by their titles in `SHOWN`

    @property
    def file(self) -> str:
        """The row's file in the folder of rows."""
        return f"{self.name}-{self.seconds:g}-{self.seed}.json".replace(" ", "-")


def read_rows(folder: Path) -> list[Row]:
    """The rows that are there, shortest training first."""
    rows = [Row(**json.loads(file.read_text(encoding="utf-8"))) for file in sorted(folder.glob("*.json"))]
    return sorted(rows, key=lambda row: (row.seconds, row.name, row.seed))


def write_row(folder: Path, row: Row) -> None:
    """Keeps the row; a reader sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / row.file, (json.dumps(asdict(row), indent=1) + "\n").encode())


class Work:
    """A sweep's pairs, the teacher's vectors, and the sets that all students are scored on."""

    def __init__(self, sweep: Sweep, storage: Path) -> None:
        started = time.process_time()
        self.sweep, self.storage = sweep, storage
        self.prepared: Prepared = prepare(sweep, storage)
        self.preparation = time.process_time() - started
        root = data_root(sweep)
        self.sets: dict[str, list[TextTask]] = {
            kind: subsets(read_eval(tasks, root, sweep.data.max_line_bytes), sweep.data.anchor_priority)
            for kind, tasks in (("dev", sweep.data.dev), ("test", sweep.data.test))
        }

    def trial(self, seed: int) -> Trial:
        return make_trial(replace(self.sweep, seed=seed), 0, default_params(self.sweep))

    def texts(self) -> tuple[list[str], list[str]]:
        """The anchors and the targets of all pairs."""
        texts, pairs = texts_of(self.prepared), self.prepared.pairs()
        return [texts[i] for i in pairs[:, 0]], [texts[i] for i in pairs[:, 1]]

    def scores(self, folder: Path) -> dict[str, float]:
        """The scores of an exported model."""
        values: dict[str, float] = {}
        for kind, tasks in self.sets.items():
            values |= score(str(folder), tasks, kind)
        return {title: values[metric] for title, metric in SHOWN.items()}


def read_work(sweep_file: str, settings: Mapping[str, object], storage: Path, *assignments: str) -> Work:
    """A sweep file on real text, with these settings in place of what it searches; assignments are as of `--set`."""
    return Work(read_fixed(sweep_file, settings, *assignments), storage)


def read_fixed(sweep_file: str, settings: Mapping[str, object], *assignments: str) -> Sweep:
    """The sweep file, with these values in place of all that it searches, and without first points."""
    fixed = f"parameters={json.dumps({key: {'const': value} for key, value in settings.items()})}"
    other = ["student={max_tokens: 64, projection: teacher}"] if settings.get("student.kind") == "transformer" else []
    return read_sweep(sweep_file, overlays=[REAL], assignments=["sampler.points=[]", *other, fixed, *assignments])


def pairs_within(trial: Trial, prepared: Prepared, seconds: float) -> int:
    """The pairs that a trial trains on in `seconds` CPU seconds, by the speed of its first batches."""
    run, meter = start(trial, prepared), Averages(every=10**9)
    steps = min(TRIED, len(run.steps.schedule) - 1)
    if steps < 1:
        raise TrainingError("a speed is measured on two batches and more; give the trial more pairs")
    run.one_step(0, meter, flush=False)
    started = time.process_time()
    for step in range(1, steps + 1):
        run.one_step(step, meter, flush=False)
    speed = (run.steps.schedule.seen[steps] - run.steps.schedule.seen[0]) / (time.process_time() - started)
    return int(speed * seconds)


def train_within(work: Work, trial: Trial, seconds: float, folder: Path) -> int:
    """Trains for `seconds` CPU seconds, the length of the schedule, and exports into the folder. Returns the pairs."""
    pairs = max(trial.training.global_batch, pairs_within(trial, work.prepared, seconds))
    trial = replace(trial, training=replace(trial.training, pairs=pairs, reports=1))
    run, meter = start(trial, work.prepared), Averages(every=10**9)
    for step in range(len(run.steps.schedule)):
        run.one_step(step, meter, flush=False)
    with run.train_step.averaged():
        export_trial(work.sweep, trial, work.prepared, run.train_step.encoder, run.train_step.method, folder)
    return pairs


def train_averaged(work: Work, trial: Trial, seconds: float, runs: int, folder: Path) -> int:
    """As `train_within`, with as many trainings from the same first weights in these seconds, each with an order of its
    own. The exported model has the mean of their weights."""
    share = max(trial.training.global_batch, pairs_within(trial, work.prepared, seconds / runs))
    states, first = [], trial.seed * runs
    for seed in range(first, first + runs):
        student, training = replace(trial.student, seed=first), replace(trial.training, pairs=share, reports=1)
        seeded = replace(trial, seed=seed, student=student, training=training)
        run, meter = start(seeded, work.prepared), Averages(every=10**9)
        for step in range(len(run.steps.schedule)):
            run.one_step(step, meter, flush=False)
        states.append({name: tensor.clone() for name, tensor in run.train_step.encoder.state_dict().items()})
    run.train_step.encoder.load_state_dict(mean_of(states))
    export_trial(work.sweep, seeded, work.prepared, run.train_step.encoder, run.train_step.method, folder)
    return runs * share


Contestant = Callable[[float, int, Path], tuple[int, Work]]
"""Trains for a number of CPU seconds with a seed. Returns the pairs seen, and the work that scores the folder."""


def add_options(parser: argparse.ArgumentParser, *, seconds: Sequence[float], seeds: Sequence[int]) -> None:
    """The options of a benchmark of quality."""
    parser.add_argument("--seconds", type=float, nargs="+", default=seconds, help="CPU seconds of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="who trains; all by default")
    parser.add_argument("--storage", type=Path, help="where prepared text and teacher vectors are kept")
    parser.add_argument(
        "--rows", type=Path, metavar="FOLDER", help="keeps each row here; rows that are here are not trained again"
    )
    parser.add_argument("--table", action="store_true", help="trains nothing: prints the rows of --rows")


def run_rows(
    args: argparse.Namespace, names: Iterable[str], make: Callable[[Path], Mapping[str, Contestant]]
) -> list[Row]:
    """Trains and scores what is asked for and not there yet; returns all rows. `make` gets the storage."""
    if unknown := set(args.only or ()) - set(names):
        raise SystemExit(f"nobody is named {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if args.table and not args.rows:
        raise SystemExit("--table prints the rows of a folder; name it with --rows FOLDER")
    if args.table:
        return read_rows(args.rows)
    one_thread()
    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with TemporaryDirectory() as temporary:
        folder = args.rows or Path(temporary) / "rows"
        row_files = {row.file for row in read_rows(folder)}
        contestants = make(args.storage or Path(temporary) / "storage")
        for seconds in args.seconds:
            for name in args.only or names:
                for seed in args.seeds:
                    if Row(name, seconds, seed, 0, 0, {}).file not in row_files:
                        exported = Path(temporary) / f"{name}-{seconds:g}-{seed}".replace(" ", "-")
                        write_row(folder, _row(contestants[name], name, seconds, seed, exported))
        return read_rows(folder)


def _row(train: Contestant, name: str, seconds: float, seed: int, folder: Path) -> Row:
    started = time.process_time()
    pairs, work = train(seconds, seed, folder)
    cpu_s = time.process_time() - started
    row = Row(name, seconds, seed, pairs, cpu_s, work.scores(folder))
    score_words = " ".join(f"{title} {value:.3f}" for title, value in row.scores.items())
    print(f"{name}, {seconds:g} s, seed {seed}: {pairs:,} rows in {cpu_s:.0f} s, {score_words}", flush=True)
    return row
