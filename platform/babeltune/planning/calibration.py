"""A short measurement of this machine for `babeltune plan`: some steps of the default trial, some sentences.

The trial trains on a part of the corpus, by the code that trains it in a sweep. The teacher's vectors are random there:
they decide no cost, and so only `TEACHER_SENTENCES` sentences go through it. Nothing that is measured is kept."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from babeltune.data import prepare as stores
from babeltune.data.corpus import Corpus
from babeltune.data.prepare import PreparationInputs
from babeltune.data.prepared import Prepared, sides_of
from babeltune.data.shards import read_texts, run_here
from babeltune.data.starts import place_of, split_pin, start_name
from babeltune.data.store_shards import write_shard
from babeltune.data.stored_arrays import open_matrix, open_ragged
from babeltune.data.teacher import encode_shard, load_teacher
from babeltune.data.thresholds import without_thresholds
from babeltune.errors import BabeltuneError
from babeltune.files import draft_folder, plain
from babeltune.method import needs_of, trial_context
from babeltune.models.encoder import FrozenEncoder
from babeltune.planning.availability import is_at_hand, model_width
from babeltune.planning.preparation import wanted_of
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import data_root
from babeltune.schema.records import Sweep, Trial, with_fitted
from babeltune.training.build import make_student, token_set
from babeltune.training.compute import SavedBytes, first_batches
from babeltune.training.speed import sentences_per_second

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES = 3
"""Training steps that are timed. The first one pays for what later ones reuse, so it counts only if it is alone."""
LONGEST_S = 8.0  # seconds of training steps after which no further one is timed
TEACHER_SENTENCES = 64  # sentences that the teacher encodes: about a second for a small one
WORKER_BYTES = 600 * 2**20  # memory of a worker before it has a student: Python, torch, transformers and Ray
REPORT_BYTES = 110_000
"""Disk for a report in the log, its trial's ledger and MLflow on SQLite: 90 to 111 KB in sweeps of 20 to 60 metrics."""
EMPTY_MLFLOW_BYTES = 955_000  # disk for MLflow's database before its first run
PROCESS_BYTES = 2**30  # memory of a GPU for a process that has nothing there yet: CUDA's context and libraries
GROWTH = 1.25  # the most memory of a whole trial, over that of its first steps: longer batches, dev sets, fragments
MOST_ON_A_GPU = 8  # trials that share a GPU at most: their kernels take turns, unless MPS runs
CLEAR_REFS = Path("/proc/self/clear_refs")
"""The file of Linux that starts the measurement of a process's peak memory anew."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The part of this machine that a sweep has."""

    groups: int  # trials that train at the same time
    workers: int  # workers of a trial
    threads: int  # threads of a worker
    memory_bytes: int
    device: str = "cpu"
    storage: Path | None = None  # the cluster's, which holds the models that students start from
    gpu_bytes: int = 0  # memory of a GPU; 0 if workers have none


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The time and memory of the default trial on one worker of this machine."""

    pair_s: float  # seconds of training on one pair
    sentence_s: float  # seconds of one thread, or of the GPU, to encode a dev sentence
    teacher_sentence_s: float  # seconds of the teacher for a sentence
    worker_bytes: int | None  # peak memory of a worker; None if the system does not say, or it trains on a GPU
    gpu_bytes: int = 0  # peak memory on the GPU of a trial's first steps; 0 if it trains elsewhere
    saved: SavedBytes  # bytes of a checkpoint
    text_bytes: float  # bytes of the stores for each text, without the teacher's vectors
    vector_bytes: float  # bytes of the stores for each sentence that the teacher encodes


class NotMeasuredError(BabeltuneError):
    """Why a calibration is not possible, in words that go on after `not measured: `."""


def calibrate(sweep: Sweep, corpus: Corpus, machine: Machine) -> Measured:
    """Times the default trial of the sweep on a part of its corpus.

    Raises `NotMeasuredError` if a model is not on this machine, or the trial does not train here."""
    trial = make_trial(sweep, 0, default_params(sweep))
    # Margins of random vectors mean nothing. Where the token table begins takes no time, and a part of the corpus has
    # not all of its tokens. Any number in place of `auto` takes as long.
    student = trial.student.changed(token_vectors="random")
    trial = replace(trial, sampling=without_thresholds(trial.sampling), student=student)
    trial = with_fitted(trial, dict.fromkeys(trial_context(trial.method, trial.config).fits, 1.0))
    for model in (*(each.model for each in sweep.teacher.encoders), trial.student.model):
        if model is not None and not is_at_hand(model):
            raise NotMeasuredError(f"{model} is not on this machine yet")
    before = torch.get_num_threads()
    torch.set_num_threads(machine.threads)
    try:
        with draft_folder("plan") as storage:
            return _measure(sweep, trial, corpus, machine, storage)
    except (BabeltuneError, RuntimeError, ValueError, OSError) as error:
        words = " ".join(str(error).split())[:200]
        raise NotMeasuredError(f"the default trial does not train here ({words})") from error
    finally:
        torch.set_num_threads(before)


def _measure(sweep: Sweep, trial: Trial, corpus: Corpus, machine: Machine, storage: Path) -> Measured:
    part = part_of(corpus, trial, sweep.seed)
    device = torch.device(machine.device)
    teacher_s = _teacher_seconds(sweep, part, machine.device)
    link_start(start_name(trial.student), machine.storage, storage)
    inputs = PreparationInputs(sweep, data_root(sweep), wanted_of(sweep), (trial.student,))
    prepared = stores.prepare(inputs, storage, corpus=part, run_shards=_with_random_vectors)
    prepared = _with_whole_vocabulary(prepared, trial)
    with peak_memory(device) as peak:
        pair_s, saved = _trained(trial, prepared, device)
    sizes = {path: path.stat().st_size for path in (storage / "stores").rglob("*") if path.is_file()}
    vectors = sum(size for path, size in sizes.items() if path.relative_to(storage).parts[1].startswith("teacher"))
    encoded = len(open_matrix(Path(prepared.teacher))) if prepared.teacher else 0
    return Measured(
        pair_s=pair_s,
        saved=saved,
        text_bytes=(sum(sizes.values()) - vectors) / len(part.texts),
        vector_bytes=vectors / max(encoded, 1),
        sentence_s=_sentence_seconds(trial, prepared, device),
        teacher_sentence_s=teacher_s,
        worker_bytes=None if not peak or device.type == "cuda" else WORKER_BYTES + peak[0],
        gpu_bytes=peak[0] if device.type == "cuda" else 0,
    )


def link_start(start: str | None, storage_with_start: Path | None, storage: Path) -> None:
    """Shows the other storage the start that this one keeps, if there is one: its name may be no folder here."""
    digest = split_pin(start)[1] if start else None
    if storage_with_start is None or digest is None or not place_of(storage_with_start, digest).is_dir():
        return
    place = place_of(storage, digest)
    place.parent.mkdir(parents=True)
    place.symlink_to(place_of(storage_with_start, digest).absolute(), target_is_directory=True)


def part_of(corpus: Corpus, trial: Trial, seed: int) -> Corpus:
    """Enough pairs, and graded ones, for `BATCHES` global batches, without dev sets.

    If a batch has one language pair, all are of the largest one, so that batches are as large as in the sweep."""
    rows = np.arange(len(corpus.pairs))
    if trial.sampling.batches == "one_pair":
        rows = np.flatnonzero(corpus.pair_groups == np.bincount(corpus.pair_groups).argmax())
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[: BATCHES * trial.training.global_batch])
    few = slice(BATCHES * trial.training.graded_batch)
    graded = [
        replace(task, left=task.left[few], right=task.right[few], scores=task.scores[few]) for task in corpus.graded
    ]
    ids = np.unique(np.concatenate([corpus.pairs[rows].ravel(), *map(np.asarray, sides_of(graded))]).astype(np.int64))
    return replace(
        corpus,
        texts=corpus.texts.at(ids),
        languages=corpus.languages.at(ids),
        pairs=np.searchsorted(ids, corpus.pairs[rows]).astype(np.int32),
        pair_groups=corpus.pair_groups[rows],
        weights=corpus.weights[rows],
        tasks=(),
        graded=tuple(task.mapped(lambda text, _: int(np.searchsorted(ids, text))) for task in graded),
    )


def _teacher_seconds(sweep: Sweep, part: Corpus, device: str) -> float:
    """Seconds of the teacher for a sentence."""
    teacher = load_teacher(sweep.teacher, device)
    texts = part.texts[:TEACHER_SENTENCES]
    teacher.encode(texts[:2])  # what the first call pays for
    started = time.perf_counter()
    teacher.encode(texts)
    return (time.perf_counter() - started) / len(texts)


def _with_random_vectors(
    function: Callable[..., int], arguments: Sequence[tuple[Any, ...]], *, gpu: bool = False
) -> Iterator[int]:
    """Runs shards as `run_here` does, but for the teacher's: those get unit vectors that are drawn at random."""
    if function is not encode_shard:
        yield from run_here(function, arguments, gpu=gpu)
        return
    generator = np.random.default_rng(0)
    for encoder, file, out, dtype in arguments:
        texts = read_texts(file)
        vectors = generator.standard_normal((len(texts), model_width(encoder.model, encoder.revision) or 384))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)
        write_shard(Path(out), texts, truncated=0, rows=vectors)
        yield len(texts)


def _with_whole_vocabulary(prepared: Prepared, trial: Trial) -> Prepared:
    """The record whose students have as many tokens as asked for: a part of the corpus gives a smaller vocabulary."""
    vocabulary = trial.student.vocabulary
    if trial.student.model is not None or not isinstance(vocabulary, int):
        return prepared
    grown = {key: replace(each, vocabulary=max(each.vocabulary, vocabulary)) for key, each in prepared.tokens.items()}
    return replace(prepared, tokens=grown)


def _trained(trial: Trial, prepared: Prepared, device: torch.device) -> tuple[float, SavedBytes]:
    """Seconds of training on one pair, and what a checkpoint takes."""
    times: list[float] = []
    seen = 0
    for batch in itertools.islice(first_batches(trial, prepared, device), BATCHES):
        started = time.perf_counter()
        batch.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
        times.append(seconds / (batch.seen - seen))
        seen = batch.seen
        if seconds > LONGEST_S:
            break
    return min(times[1:] or times), batch.saved_bytes()


def _sentence_seconds(trial: Trial, prepared: Prepared, device: torch.device) -> float:
    """Seconds for one sentence; none for a frozen encoder, whose vectors are in the store."""
    if needs_of(trial.method, trial.config).frozen:
        return 0.0
    encoder = make_student(trial, prepared).to(device).eval()
    assert not isinstance(encoder, FrozenEncoder)
    tokens = open_ragged(Path(token_set(trial, prepared).evaluation))
    shape = f"plan {plain(trial.student)} {device}"
    texts = np.arange(prepared.texts, dtype=np.int64)
    return 1 / sentences_per_second(shape, encoder, tokens.take, texts, device)[0]


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Gives a list that holds, after the block, the bytes by which memory grew in it at most; empty if unknown."""
    peaks: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        bytes_before = torch.cuda.memory_allocated(device)
        yield peaks
        peaks.append(torch.cuda.max_memory_allocated(device) - bytes_before)
        return
    before = None
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5", encoding="ascii")
        before = _status("VmRSS")
    yield peaks
    after = _status("VmHWM")
    if before is not None and after is not None:
        peaks.append(max(0, after - before))


def _status(name: str) -> int | None:
    """Bytes that Linux says of this process; None elsewhere."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
    return None


def gpu_share(trial_bytes: int, gpu_bytes: int) -> float:
    """The share of a GPU for a trial whose first steps took this many bytes: 1, 1/2, 1/3 and on, the least that
    has room. It is a multiple of 0.0001, as Ray asks."""
    room = trial_bytes * GROWTH + PROCESS_BYTES
    return int(10_000 / max(1, min(MOST_ON_A_GPU, int(gpu_bytes / room)))) / 10_000


# --- What it means for the sweep ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How long a sweep takes on this machine, and how much memory. No trial stops early in it."""

    teacher_s: float
    """Seconds of the teacher, once for this text."""
    trial_s: float
    """Seconds of one trial with the default settings: training and dev scores."""
    search_s: float
    """Seconds of all trials."""
    total_s: float
    memory_bytes: int | None
    """Memory of all workers together."""
    gpu_bytes: int
    """Memory of a GPU for the first steps of a trial; 0 if it trains elsewhere."""
    stores_bytes: int
    """Disk for texts, tokens and the teacher's vectors."""
    checkpoints_bytes: int
    """Disk for the checkpoints of all trials that keep them, if the best report of each is not its last."""
    records_bytes: int
    """Disk for what is recorded of all reports: logs and MLflow's database."""
    model_bytes: int
    """Disk for an exported model."""

    @property
    def disk_bytes(self) -> int:
        return self.stores_bytes + self.checkpoints_bytes + self.records_bytes + self.model_bytes


def estimate(
    sweep: Sweep,
    trial: Trial,
    measured: Measured,
    machine: Machine,
    *,
    dev_texts: int,
    teacher_sentences: int,
    texts: int,
) -> Estimate:
    """The sweep's time, memory and disk, from what was measured and how much there is to do. `texts` are all that the
    stores hold."""
    training = trial.training
    trained = training.compute if training.compute is not None else training.pairs * measured.pair_s / machine.workers
    threads = machine.workers * machine.threads
    scored = training.reports * dev_texts * measured.sentence_s / threads
    abreast = machine.groups * machine.workers
    teacher_s = teacher_sentences * measured.teacher_sentence_s / abreast
    search_s = sweep.budget.trials * (trained + scored) / min(machine.groups, sweep.budget.trials)
    memory = None if measured.worker_bytes is None else measured.worker_bytes * abreast
    return Estimate(
        teacher_s=teacher_s,
        trial_s=trained + scored,
        search_s=search_s,
        total_s=teacher_s + search_s,
        memory_bytes=memory,
        gpu_bytes=measured.gpu_bytes,
        stores_bytes=round(texts * measured.text_bytes + teacher_sentences * measured.vector_bytes),
        checkpoints_bytes=checkpoints_bytes(sweep, trial, measured.saved, machine.groups),
        records_bytes=EMPTY_MLFLOW_BYTES + sweep.budget.trials * training.reports * REPORT_BYTES,
        model_bytes=measured.saved.weights,
    )


def checkpoints_bytes(sweep: Sweep, trial: Trial, saved: SavedBytes, groups: int) -> int:
    """The most bytes of the checkpoints: two of each trial that keeps them, whole ones while it trains."""
    most, keep = sweep.budget.trials, sweep.keep
    ended = saved.weights + (saved.optimizer if keep.optimizer else 0)
    running = min(groups, most) if keep.trials is not None or not keep.optimizer else 0
    trials = most - running if keep.trials is None else min(keep.trials, most)
    return min(2, trial.training.reports) * (trials * ended + running * sum(saved))
