"""Makes the examples of a sweep's report: what the best trial does to a few translations.

When a sweep ends, a Ray task makes the vectors, for the driver does not load transformers, which takes seconds. It runs
while worker groups and MLflow are closed. What goes wrong is a line of the report and never fails a sweep. The command
that writes a report makes missing examples in its own process, and takes its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from babeltune.data.prepared import IdTask, Prepared, read_prepared
from babeltune.errors import DataError, SweepError
from babeltune.evaluation.metric_names import MAIN_METRICS
from babeltune.evaluation.projection import cosines, in_plane
from babeltune.schema.records import Trial, trial_from
from babeltune.schema.storage_location import StorageLocation
from babeltune.schema.trial_names import trial_name, trial_number
from babeltune.storage.mirror import Mirror
from babeltune.sweep.state.examples import (
    EXAMPLES,
    ExampleSentence,
    ExampleSentences,
    LanguageAlignment,
    Similarities,
    read_examples,
)
from babeltune.sweep.state.folder import SweepFolder, read_of_trial
from babeltune.sweep.state.leaderboard import winner
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.sync.view import bring_checkpoint
from babeltune.sweep.sync.worker import with_prepared
from babeltune.training.checkpoint import checkpoint_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.float32]

MOST_LANGUAGES = 6  # languages that are shown: a chart has no more colours
MOST_POINTS = 150  # sentences that are projected; more take longer and hide one another
MOST_ROWS = 25  # translations that are projected, in each language
FEWEST_ROWS = 4  # a language with fewer translations is left out
MAP_ROWS, MAPS = 8, 4  # translations in a heat map, and pairs of languages that have one
STUDENT = "student.safetensors"  # the student's weights in a checkpoint
MOST_CHARACTERS = 160  # characters of a sentence that are kept
TIMEOUT_S = 60.0
"""Seconds that a sweep waits at its end for its examples. They take a few, of a large student on a CPU."""


@dataclass(frozen=True, kw_only=True)
class ExampleRequest:
    """Whose examples are to be made."""

    trial: Trial
    place: str  # the trial's folder; relative to the storage if that is a URI
    report: int
    dev_set: str  # the set that is preferred: that of the first objective
    weakest: tuple[str, ...] = ()
    """Metrics of single subsets, such as `dev/everyday/fra-eng/accuracy`, the lowest first."""


@contextmanager
def examples_at_the_end(folder: SweepFolder, where: StorageLocation | None) -> Iterator[Callable[[], None]]:
    """Gives a function that starts making the examples. If it was called, the end of the block writes them.

    `where` is the storage, if it is behind a URI."""
    begun: list[Any] = []

    def begin() -> None:
        task = ray.remote(with_prepared).options(num_cpus=0, max_retries=0).remote
        begun.append(_or_why_not(partial(_call_for_winner, folder, where, task)))

    yield begin
    for each in begun:
        folder.write(EXAMPLES, each if isinstance(each, ExampleSentences) else _or_why_not(partial(_result, each)))


def make_missing_examples(
    folder: SweepFolder, where: StorageLocation | None, note: Callable[[str], None] = lambda _: None
) -> None:
    """Makes the examples that a sweep lacks, in this process; none while a driver runs the sweep, which makes them.

    `note` is called before, with words for whoever waits."""
    recorded = read_examples(folder)
    if not recorded.missing or is_driven(folder):
        return
    note(f"making the examples of translations, which this sweep lacks ({recorded.missing})")
    examples = _or_why_not(partial(_call_for_winner, folder, where, with_prepared))
    if examples != recorded:
        folder.write(EXAMPLES, examples)


def _or_why_not(make: Callable[[], Any]) -> Any:
    """The value that `make` returns, or examples that say why there are none."""
    try:
        return make()
    except Exception as error:  # the sweep has finished, whatever its report lacks
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        words = " ".join(str(cause).split())[:300]
        is_ours = isinstance(cause, DataError | SweepError)
        return ExampleSentences(missing=words if is_ours else f"{type(cause).__name__}: {words}")


def _call_for_winner(folder: SweepFolder, where: StorageLocation | None, call: Callable[..., Any]) -> Any:
    """Calls `make_examples` for the winner, by `call`: `with_prepared` itself, or its Ray task."""
    best = winner(folder)
    number = trial_number(best.name)
    values = read_of_trial(folder.trial(number), "trial.json")
    if values is None or folder.data_of(number) != folder.prepared:
        raise SweepError(f"{best.name} began with other data")
    place, key = folder.trial(number), f"sweeps/{folder.id}/{folder.prepared.name}"
    scores = {
        name: value
        for name, value in best.metrics.items()
        if name.count("/") == 3 and name.rpartition("/")[2] in MAIN_METRICS
    }
    request = ExampleRequest(
        trial=trial_from(values),
        place=str(place) if where is None else f"sweeps/{folder.id}/trials/{place.name}",
        report=best.best or 0,
        dev_set=folder.sweep().objectives[0].metric.split("/")[1],
        weakest=tuple(sorted(scores, key=lambda name: scores[name])),
    )
    return call(where, key, make_examples, where, request, None if where else read_prepared(folder.prepared))


def _result(task: Any) -> ExampleSentences:
    """The result of the task, within `TIMEOUT_S`."""
    try:
        examples: ExampleSentences = ray.get(task, timeout=TIMEOUT_S)
        return examples
    except ray.exceptions.GetTimeoutError as error:
        with suppress(Exception):  # Ray ends soon, and the task with it
            ray.cancel(task, force=True)
        raise SweepError(f"they took longer than {TIMEOUT_S:.0f} s") from error


# --- In the task ---------------------------------------------------------------------------------------------------


def make_examples(where: StorageLocation | None, request: ExampleRequest, prepared: Prepared) -> ExampleSentences:
    """The examples, by the untrained student and by the checkpoint. Raises `DataError` for a sweep without any."""
    place = Path(request.place)
    if where is not None:
        mirror = Mirror(where)
        place = mirror.path(request.place)
        bring_checkpoint(mirror, checkpoint_folder(place, request.report))
    checkpoint = checkpoint_folder(place, request.report)
    dev_set = _set_of(prepared, request.dev_set)[0].name
    names = (metric.split("/") for metric in request.weakest)  # the anchor comes first: fra-eng becomes eng, fra
    weakest = [(subset.partition("-")[2], subset.partition("-")[0]) for _, name, subset, _ in names if name == dev_set]
    languages, rows = aligned_rows(prepared, dev_set, weakest)
    if not (weights := checkpoint / STUDENT).is_file():
        raise SweepError(f"there is no {weights}")
    before, after = _vectors(request.trial, checkpoint, prepared, rows)
    texts = prepared.texts_of(rows.ravel())
    flat = [vectors.reshape(-1, vectors.shape[-1]) for vectors in (before, after)]
    positions = [np.round(in_plane(vectors), 3).tolist() for vectors in flat]
    sentences = tuple(
        ExampleSentence(
            language=languages[number % len(languages)],
            text=text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…",
            row=number // len(languages),
            before=tuple(positions[0][number]),
            after=tuple(positions[1][number]),
        )
        for number, text in enumerate(texts)
    )
    return ExampleSentences(
        trial=trial_name(request.trial.number),
        report=request.report,
        dev_set=dev_set,
        languages=languages,
        sentences=sentences,
        similarities=tuple(_maps(languages, weakest, before[:MAP_ROWS], after[:MAP_ROWS])),
        alignment=tuple(_alignment(languages, before, after)),
    )


def aligned_rows(
    prepared: Prepared, dev_set: str, weakest: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Languages, and [rows, languages] text ids of sentences that are translations of one another.

    Languages are added one by one, those of the `weakest` pairs first, while enough rows have all of them."""
    of_text = prepared.text_languages()
    translations: dict[int, dict[str, int]] = {}
    for task in _set_of(prepared, dev_set):
        for left, right in zip(task.left, task.right, strict=False):
            by_language = translations.setdefault(right, {prepared.languages[of_text[right]]: right})
            by_language.setdefault(prepared.languages[of_text[left]], left)
    counts = Counter(language for by_language in translations.values() for language in by_language)
    first = Counter(prepared.languages[of_text[right]] for right in translations).most_common(1)[0][0]
    languages: tuple[str, ...] = (first,)
    rows = list(translations.values())
    weak = (language for pair in weakest for language in pair if language in counts)
    for language in dict.fromkeys([*weak, *(language for language, _ in counts.most_common())]):
        shared = [by_language for by_language in rows if language in by_language]
        if language != first and len(shared) >= min(FEWEST_ROWS, len(rows)) and len(languages) < MOST_LANGUAGES:
            languages, rows = (*languages, language), shared
    rows = [by_language for by_language in rows if all(language in by_language for language in languages)]
    if len(languages) < 2:
        raise DataError(f"the dev set {dev_set!r} has no sentences in two languages")
    most = min(MOST_ROWS, MOST_POINTS // len(languages), len(rows))
    chosen = np.linspace(0, len(rows) - 1, most).round().astype(int)
    return languages, np.array([[rows[row][language] for language in languages] for row in chosen], dtype=np.int64)


def _set_of(prepared: Prepared, preferred: str) -> list[IdTask]:
    """The subsets of the preferred dev set, or else of the first one, whose two sides the student encodes."""
    fit = [task for task in prepared.tasks if task.kind == "bitext" and task.right_model == "student"]
    if not fit:
        raise DataError("no dev set is a bitext whose two sides the student encodes")
    name = preferred if any(task.name == preferred for task in fit) else fit[0].name
    return [task for task in fit if task.name == name]


def _vectors(trial: Trial, checkpoint: Path, prepared: Prepared, rows: NDArray[np.int64]) -> tuple[Rows, Rows]:
    """[rows, languages, dim] vectors by the untrained student and by the checkpoint."""
    from safetensors.torch import load_file

    from babeltune.training.build import make_student_and_method
    from babeltune.training.dev_evaluation import vectors_of

    encoder, method = make_student_and_method(trial, prepared)
    before = vectors_of(encoder, method, trial, prepared, rows.ravel())
    encoder.load_state_dict(load_file(checkpoint / STUDENT))
    if (layers := checkpoint / "method.safetensors").is_file():
        method.load_state_dict(load_file(layers))
    after = vectors_of(encoder, method, trial, prepared, rows.ravel())
    return before.reshape(*rows.shape, -1), after.reshape(*rows.shape, -1)


def _maps(
    languages: Sequence[str], weakest: Sequence[tuple[str, str]], before: Rows, after: Rows
) -> Iterator[Similarities]:
    """Heat maps of `MAPS` pairs of languages: the weakest, then others with the first language."""
    pairs = [pair for pair in weakest if set(pair) <= set(languages)]
    pairs = list(dict.fromkeys([*pairs, *((languages[0], language) for language in languages[1:])]))
    for left, right in pairs[:MAPS]:
        columns = languages.index(left), languages.index(right)
        both = (cosines(vectors[:, columns[0]], vectors[:, columns[1]]) for vectors in (before, after))
        maps = [tuple(tuple(round(float(value), 4) for value in line) for line in each) for each in both]
        yield Similarities(left=left, right=right, before=maps[0], after=maps[1])


def _alignment(languages: Sequence[str], before: Rows, after: Rows) -> Iterator[LanguageAlignment]:
    for column, language in list(enumerate(languages))[1:]:
        measured: list[float] = []
        for vectors in (before, after):
            all_ = cosines(vectors[:, column], vectors[:, 0])
            measured += [float(np.diag(all_).mean()), float((all_.argmax(axis=1) == np.arange(len(all_))).mean())]
        names = ("cosine_before", "found_before", "cosine_after", "found_after")
        values = {name: round(value, 4) for name, value in zip(names, measured, strict=True)}
        yield LanguageAlignment(language=language, **values)
