"""The output of `prepare` for the trials: one frozen record and the memory-mapped arrays that it names.

A sweep's folder holds the record, `prepared.json`; the arrays are in content-addressed stores. Every distinct
(language, text) of the training and dev data has one text id, a row number; pairs, tasks, token stores and teacher
stores all speak in text ids. Sealed test sets are not in here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, overload

import numpy as np

from babeltune.data.arrays import parts
from babeltune.data.stored_arrays import open_matrix
from babeltune.data.texts import Texts
from babeltune.errors import StoreError
from babeltune.files import plain, write_json
from babeltune.schema.base import from_plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.contamination import ContaminationRecord
    from babeltune.files import JsonObject, JsonValue
    from babeltune.method import TrialContext
    from babeltune.schema.records import Scalar

Text = TypeVar("Text", int, str)
TEXTS = "texts.arrow"  # the file of all texts, by their ids
TWO_SIDES = ("bitext", "mining")  # kinds of tasks whose right side another model can encode
IDS_FILE = "eval_ids.npy"  # the ids of all large dev sets, end to end, in the folder of what is prepared
MANY_IDS = 100_000  # ids of one side of a dev set from which on they are in the file
IN_STORAGE = "storage:"
"""Begins, in `prepared.json` of a sweep's folder, a path within the storage, which may be moved or mirrored."""
Other = TypeVar("Other", int, str)


@dataclass(frozen=True, kw_only=True)
class EvalTask(Generic[Text]):
    """A dev or test set. Bitext: `left[i]` translates `right[i]`. Mining: `left[i]` translates `right[j]` for the pairs
    (i, j) of `gold`. STS: `scores[i]` grades the pair. Clustering, transfer: `labels[i]` is the topic of `left[i]`.
    Retrieval: query `left[i]` and document `right[j]` are judged for the pairs (i, j) of `gold`, by the grades in
    `scores`; without these all are relevant."""

    name: str
    kind: Literal["bitext", "mining", "sts", "clustering", "transfer", "retrieval"]
    subset: str  # `fra-eng`, `eng` or `mixed`: the metric is `dev/<name>/<subset>/<metric>`
    left: Sequence[Text]
    right: Sequence[Text] = ()  # bitext: after the translations, changed sentences that are none (xSIM++)
    scores: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    gold: tuple[tuple[int, int], ...] = ()
    left_languages: tuple[str, ...] = ("",)  # the language of each text of `left`, or the one of all
    right_languages: tuple[str, ...] = ("",)
    group: str = ""
    k: int = 4  # neighbours of the margin. Retrieval: documents in which recall looks.
    own_documents: tuple[int, ...] = ()
    """Retrieval: of each query, the document that is the query itself, which is never found, -1 if there is none;
    empty if no query has one."""
    mixed: bool = False  # retrieval: whether documents are in several languages
    margin: Literal["ratio", "distance", "absolute"] = "ratio"
    candidates: Literal["nearest", "all"] = "nearest"
    compare: Literal["text", "index"] = "text"
    right_model: Literal["student", "teacher"] = "student"  # the model that encodes `right`
    fit: EvalTask[Text] | None = None  # mining: what the threshold is fitted on. Transfer: what the head learns from.

    def texts(self) -> Iterator[Text]:
        """All texts that have to be encoded."""
        yield from itertools.chain(self.left, self.right, self.fit.texts() if self.fit else ())

    def texts_of(self, model: Literal["student", "teacher"]) -> Iterator[Text]:
        """The texts that this model encodes."""
        yield from self.left if model == "student" else ()
        yield from self.right if model == self.right_model else ()
        yield from self.fit.texts_of(model) if self.fit else ()

    def against_target(self) -> EvalTask[Text]:
        """The task with another model for its right side, if it compares two sides."""
        if self.kind not in TWO_SIDES:
            return self
        return replace(self, right_model="teacher", fit=self.fit and self.fit.against_target())

    def mapped(self, name: Callable[[Text, str], Other]) -> EvalTask[Other]:
        """The task with every text called as `name` says of it and its language, left sides first."""
        left = tuple(map(name, self.left, itertools.cycle(self.left_languages)))
        right = tuple(map(name, self.right, itertools.cycle(self.right_languages)))
        fit = self.fit.mapped(name) if self.fit else None
        return EvalTask(**{**vars(self), "left": left, "right": right, "fit": fit})


IdTask = EvalTask[int]  # a task whose texts are numbers: those of a corpus
TextTask = EvalTask[str]  # a task whose texts are plain, for models that are given sentences


def sides_of(tasks: Iterable[IdTask]) -> Iterator[Sequence[int]]:
    """Both sides of each task and of what it is fitted on, in order."""
    for task in tasks:
        yield from (task.left, task.right)
        yield from sides_of([task.fit] if task.fit else [])


def with_files(tasks: tuple[IdTask, ...], folder: Path) -> tuple[IdTask, ...]:
    """The tasks, their large sides in the file that `ids.write_ids` wrote there."""
    sides = iter(ids_in(folder, list(sides_of(tasks))))

    def with_sides(task: IdTask) -> IdTask:
        left, right = next(sides), next(sides)
        return replace(task, left=left, right=right, fit=task.fit and with_sides(task.fit))

    return tuple(map(with_sides, tasks))


def tasks_from(values: Iterable[dict[str, Any]], folder: str = "") -> tuple[IdTask, ...]:
    """The tasks that `plain` or `_plain_task` wrote, of what is prepared in `folder`."""
    return tuple(_task_from(each, folder) for each in values)


def _task_from(values: dict[str, Any], folder: str) -> IdTask:
    """The task; a side in a file is written as [start, count] under `in_file`."""
    in_file, fit = values.get("in_file", {}), values["fit"] and _task_from(values["fit"], folder)
    task = from_plain(EvalTask[int], {name: each for name, each in values.items() if name not in ("in_file", "fit")})
    left, right = (
        Ids(str(Path(folder) / IDS_FILE), *in_file[side]) if side in in_file else getattr(task, side)
        for side in ("left", "right")
    )
    return replace(task, left=left, right=right, fit=fit)


def _plain_task(task: IdTask) -> JsonObject:
    """The task for JSON, without the ids that are in a file."""
    left, right = (() if isinstance(side, Ids) else side for side in (task.left, task.right))
    values = plain(replace(task, left=left, right=right, fit=None))
    values["fit"] = _plain_task(task.fit) if task.fit else None
    sides = {"left": task.left, "right": task.right}
    if in_file := {name: plain([side.start, side.size]) for name, side in sides.items() if isinstance(side, Ids)}:
        values["in_file"] = in_file
    return values


class Counts(TypedDict, total=False):
    """Rows that cleaning left, and how far training text stands in evaluation sets."""

    rows: dict[str, dict[str, int]]  # rows left after each cleaning step, by source
    overlap: dict[str, dict[str, int]]  # rows that an evaluation set took from a source, by source and set
    words: dict[str, Scalar]  # figures of the aligned words, if a method needs them
    contamination: ContaminationRecord


@dataclass(frozen=True, kw_only=True)
class TokenSet:
    """A tokenizer and what it made of all texts."""

    tokenizer: str  # folder of the tokenizer, or the hub id of the student that it comes with
    vocabulary: int
    pad: int
    train: str  # token store with the student's prompt
    evaluation: str  # token store with the evaluation prompt; the same one if the prompts agree
    truncated: int = 0  # texts of the training store that were cut at `student.max_tokens`
    mask: int | None = None  # the mask token's id, if there is one
    special: tuple[int, ...] = ()  # the special tokens' ids
    vectors: dict[str, str] = field(default_factory=dict)
    """Files of the vectors that a student begins with, by `student.token_vectors`: fp32 [vocabulary, teacher_dim]."""
    table_rows: str | None = None
    """File of the old ids of a trimmed tokenizer's tokens, int64 [vocabulary]. None if it is whole."""
    untrimmed: int = 0  # tokens before `student.trim`; 0 without it
    words: str | None = None
    """File of the word-positioned samples, integers [samples, 5]: pair, first token and end of a word of the source,
    the same of its translation; ordered by pair. If a method needs them."""


class GradedPairs(NamedTuple):
    """Graded pairs of all sets."""

    pairs: NDArray[np.int64]  # [pairs, 3] the number of the set, ascending, and both text ids
    grades: NDArray[np.float64]  # [pairs]; those of one set compare


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The record. Paths are absolute folders on storage that every worker sees."""

    folder: str
    digest: str
    texts: int
    groups: tuple[str, ...]  # language pairs `anchor-other`; `groups.npy` numbers them
    group_rows: tuple[int, ...]
    group_languages: tuple[tuple[str, str], ...]  # the two languages of each group
    languages: tuple[str, ...]
    """The languages of all texts, those of the training pairs first; `languages.npy` numbers them."""
    text_digest: str  # digest of all texts; part of the keys of `tokens`
    tokens: dict[str, TokenSet]  # token sets by `tokenizer_key` (see `tokens.py`)
    teacher: str | None  # teacher store folder: one row per entry of `teacher_rows.npy`'s text ids
    teacher_dim: int
    copy_anchor: bool  # a target's teacher vector is its anchor's (`teacher.target_side: copy_anchor`)
    negatives: dict[str, str]
    """Mined negatives by key `k=<k>,below=<cosine>`: a file of integers [pairs, k], -1 if none."""
    tasks: tuple[IdTask, ...]
    counts: dict[str, Any]  # the `Counts`, which are recorded with the run
    digests: dict[str, str]  # digest of every source and task

    @property
    def trained_languages(self) -> tuple[str, ...]:
        """Those of the training pairs, an anchor's first."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(self.group_languages)))

    def pairs(self) -> NDArray[np.integer]:
        """[pairs, 2] text ids, source (anchor) side first."""
        array: NDArray[np.integer] = np.load(Path(self.folder) / "pairs.npy", mmap_mode="r")
        return array

    def graded(self) -> GradedPairs | None:
        """The graded pairs that train, if there are some."""
        folder = Path(self.folder)
        if not (folder / "graded.npy").exists():
            return None
        return GradedPairs(np.load(folder / "graded.npy"), np.load(folder / "grades.npy"))

    def some_trained(self, most: int) -> NDArray[np.int64]:
        """At most `most` text ids of the training pairs, each once, drawn at random and always alike."""
        return np.random.default_rng(0).permutation(np.unique(np.asarray(self.pairs())))[:most]

    def distinct_anchors(self) -> NDArray[np.int64]:
        """The text ids that are some pair's source, each once."""
        return np.unique(np.asarray(self.pairs()[:, 0], dtype=np.int64))

    def negatives_seen(self, context: TrialContext, global_batch: int) -> int:
        """Different negatives that an anchor can see: of a queue, which holds anchors, no more than there are."""
        negatives = context.method_class.negatives(context.config, global_batch)
        return self.anchors_up_to(negatives) if context.needs.warm_up else negatives

    def anchors_up_to(self, most: int) -> int:
        """The number of different anchors; at most `most`."""
        pairs, seen = self.pairs(), np.empty(0, np.int64)
        for part in parts(len(pairs)):
            seen = np.union1d(seen, pairs[part, 0])
            if len(seen) >= most:
                return most
        return len(seen)

    def pair_groups(self) -> NDArray[np.int16]:
        """[pairs] index into `groups`."""
        array: NDArray[np.int16] = np.load(Path(self.folder) / "groups.npy", mmap_mode="r")
        return array

    def pair_weights(self) -> NDArray[np.float32]:
        """[pairs] the weight of the pair's source."""
        array: NDArray[np.float32] = np.load(Path(self.folder) / "weights.npy", mmap_mode="r")
        return array

    def teacher_rows(self) -> NDArray[np.integer]:
        """[texts] the teacher store's row of each text id, -1 if the teacher was not asked."""
        array: NDArray[np.integer] = np.load(Path(self.folder) / "teacher_rows.npy", mmap_mode="r")
        return array

    def teacher_vectors(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[ids, teacher_dim] the stored vectors of texts that the teacher was asked for."""
        assert self.teacher is not None
        vectors: NDArray[np.float32] = open_matrix(Path(self.teacher)).rows(self.teacher_rows()[ids]).astype(np.float32)
        return vectors

    def text_languages(self) -> NDArray[np.int16]:
        """[texts] index into `languages`."""
        array: NDArray[np.int16] = np.load(Path(self.folder) / "languages.npy", mmap_mode="r")
        return array

    def all_texts(self) -> Texts:
        """Every text by its id."""
        return texts_in(Path(self.folder))

    def texts_of(self, ids: NDArray[np.int64]) -> list[str]:
        """The texts of these ids."""
        return self.all_texts().at(ids)[:]

    def folders(self) -> Iterator[Path]:
        """The stores that it names; a tokenizer that comes with a model is no store."""
        places = [self.folder, self.teacher]
        for tokens in self.tokens.values():
            places += [
                tokens.train,
                tokens.evaluation,
                tokens.tokenizer,
                tokens.words and str(Path(tokens.words).parent),
                *(str(Path(vectors).parent) for vectors in tokens.vectors.values()),
            ]
        yield from sorted({Path(name) for name in places if name is not None and Path(name).is_absolute()})


@dataclass(frozen=True)
class Ids(Sequence[int]):
    """A part of `IDS_FILE`, as a sequence of integers. It is opened at first use.

    A worker maps the file, instead of reading millions of numbers in JSON."""

    file: str
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Ids: ...
    def __getitem__(self, at: int | slice) -> int | Ids:
        if isinstance(at, slice):
            first, end, step = at.indices(self.size)
            if step != 1:
                raise ValueError(f"a step of {step}; text ids are cut in their order")
            return Ids(self.file, self.start + first, max(0, end - first))
        if not -self.size <= at < self.size:
            raise IndexError(f"{at} of {self.size} text ids")
        return int(self._array()[at % self.size])

    def __iter__(self) -> Iterator[int]:
        array = self._array()
        for part in parts(self.size):
            yield from array[part].tolist()

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> NDArray[np.integer]:
        return np.array(self._array(), dtype=dtype, copy=copy)

    def _array(self) -> NDArray[np.integer]:
        return _open_ids(self.file)[self.start : self.start + self.size]


@lru_cache(maxsize=8)
def _open_ids(file: str) -> NDArray[np.integer]:
    try:
        array: NDArray[np.integer] = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} is damaged or gone ({error}); `babeltune resume` makes it again") from error
    return array


def write_ids(folder: Path, sides: Sequence[Sequence[int]]) -> None:
    """Writes the large ones of these sides, if there are some."""
    if large := [np.asarray(side, np.int64) for side in sides if len(side) >= MANY_IDS]:
        np.save(folder / IDS_FILE, np.concatenate(large))


def ids_in(folder: Path, sides: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The sides, those that `write_ids` wrote there as parts of its file."""
    ids: list[Sequence[int]] = []
    start = 0
    for side in sides:
        large = len(side) >= MANY_IDS
        ids.append(Ids(str(folder / IDS_FILE), start, len(side)) if large else side)
        start += len(side) if large else 0
    return ids


def texts_in(folder: Path) -> Texts:
    """The texts of a store, mapped into memory."""
    return Texts.open(folder / TEXTS)


def storage_of(path: Path) -> Path | None:
    """The storage that a file of a sweep lies in; None for one that lies elsewhere."""
    sweeps = next((parent for parent in path.absolute().parents if parent.name == "sweeps"), None)
    return sweeps and sweeps.parent


def _moved(value: JsonValue, before: str, after: str) -> JsonValue:
    """The JSON value with another beginning of its paths."""
    if isinstance(value, dict):
        return {key: _moved(each, before, after) for key, each in value.items()}
    if isinstance(value, str) and value.startswith(before):
        return after + value[len(before) :]
    return value


def write_prepared(record: Prepared, path: Path) -> None:
    """Writes the record as JSON; its arrays are in the stores that it names."""
    values = plain(replace(record, tasks=()))
    values["tasks"] = [_plain_task(task) for task in record.tasks]
    storage = storage_of(path)
    write_json(path, values if storage is None else _moved(values, f"{storage}/", IN_STORAGE))


def read_prepared(path: Path) -> Prepared:
    """Reads what `write_prepared` wrote; `StoreError` if it is damaged or another version of babeltune wrote it."""
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError) as error:
        raise StoreError(f"{path} is damaged or gone ({error}); `babeltune resume` makes it again") from error
    storage = storage_of(path)
    if storage is not None:
        written = _moved(written, IN_STORAGE, f"{storage}/")
    try:
        tasks = tasks_from(written["tasks"], written["folder"])
        return replace(from_plain(Prepared, {**written, "tasks": []}), tasks=tasks)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"{path} was written by another version of babeltune ({type(error).__name__}: {error}); "
            f"`babeltune resume {path.parent.name} --accept-changes` prepares the sweep again"
        ) from error
