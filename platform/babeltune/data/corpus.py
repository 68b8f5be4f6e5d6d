"""Cleans the sources of a sweep into one corpus: numbered texts, pairs of them, and dev tasks.

The steps, in order and each counted per source: rows are read; long texts, pairs with equal sides and repeated pairs
are removed. So is every pair that shares a sentence with a dev or test set (and, with `overlap: near`, a nearly equal
one). Then a source is cut to its cap, and some components of pairs that share sentences are held out. Sealed test texts
are read for the comparison only."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from babeltune.data import arrays, read_progress
from babeltune.data.arrays import (
    end_to_end,
    first_places,
    histogram,
    in_sorted,
    inverted,
    is_first,
    number_type,
    numbers,
    parts,
    places,
    repeated,
    rows_where,
    smallest,
    unseen,
    where_in,
    zeros,
)
from babeltune.data.contamination import Contamination, EvalIndex, MakeFindNear, Near, find_near_anew
from babeltune.data.eval_sets import EvalRows, labelled, read_eval, sts_subset, subsets
from babeltune.data.language_id import labels_of
from babeltune.data.prepared import IdTask, TextTask
from babeltune.data.sources import Rows, language_pairs, read_source
from babeltune.data.split import Block, hold_out, salt_of
from babeltune.data.text_keys import sentence_keys
from babeltune.data.text_shards import TextShards, hashes_of
from babeltune.data.texts import Texts, text_hashes, write_texts
from babeltune.data.translation import OwnLanguage, Translate
from babeltune.errors import DataError
from babeltune.schema.base import changed
from babeltune.schema.records import HELDOUT, Data, Source, Sts, TranslateSource
from babeltune.stages import CLEANING, READING, Count, Progress, no_progress

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training pairs and dev tasks in text ids; an id numbers `texts`, one for every distinct (language, text)."""

    texts: Texts
    languages: Texts  # [texts] language code of each text
    pairs: NDArray[np.integer]  # [pairs, 2] text ids, the anchor's first
    groups: tuple[str, ...]  # language pairs `anchor-other`, by first appearance
    group_languages: tuple[tuple[str, str], ...]  # the same, apart
    pair_groups: NDArray[np.int16]  # [pairs] index into `groups`
    weights: NDArray[np.float32]  # [pairs] weight of the pair's source
    tasks: tuple[IdTask, ...]  # the dev sets, and `heldout` if the data are split
    counts: dict[str, dict[str, int]]
    """Per training source, in order: rows `dropped: <reason>`, `rows` left, the language `pairs` that they make, pairs
    left after each step of `Cleaning`, then how many of these are `heldout` and how many `train`. Of eval sets and of
    sources that only feed a pivot, the rows dropped, if any."""
    overlap: dict[str, dict[str, int]]
    """Per training source, the pairs removed for a sentence in each eval set `dev/<task>` or `test/<task>`; a pair may
    count for several."""
    digests: dict[str, str]
    """SHA-256 of what was read: sources by name, sets as `dev/<task>`, `test/<task>` or `graded/<task>`. A machine's
    text is marked: `synthetic:` comes before it."""
    contamination: Contamination = field(default_factory=Contamination)
    """Equal and nearly equal texts of training sources and eval sets; empty if they were not looked for."""
    graded: tuple[IdTask, ...] = ()  # the graded pairs that train


def build_corpus(
    data: Data,
    root: Path,
    seed: int,
    translate: Translate | None = None,
    near: MakeFindNear | None = None,
    *,
    progress: Progress = no_progress,
    shards: TextShards | None = None,
) -> Corpus:
    """Reads and cleans all training sources and dev sets; relative paths start at `root`.

    `translate` makes the sources that are translations. `near`, given the sets' digests, finds near-duplicates of the
    sets' texts. Without it they are searched for only if the data section removes them. `progress` counts the bytes
    that are read, and then the pairs that are cleaned. `shards`: where the work on many texts is done.

    The result depends on the data, the records and the seed only. Raises `DataError` for text that cannot be read as
    its source says, and, when no pair is left, with the step that removed what."""
    if translate is not None and data.clean.language == "drop":
        translate = OwnLanguage(translate)
    with read_progress.counting_bytes(data, root, functools.partial(progress, READING)):
        dev, test, graded = (read_eval(sets, root, data.max_line_bytes) for sets in (data.dev, data.test, data.graded))
        read = read_sources(data, root, translate, shards)
    evals = {label: rows for kind, sets in (("dev", dev), ("test", test)) for label, rows in labelled(kind, sets)}
    sealed = {name: np.unique(sentence_keys(rows.texts())) for name, rows in evals.items()}
    near = near or (find_near_anew if data.overlap == "near" else None)
    find = near({name: rows.digest for name, rows in evals.items()}) if near else None
    index = EvalIndex({name: list(rows.texts()) for name, rows in evals.items() if find})
    cleaning = Cleaning(data, seed, sealed, find and functools.partial(find, index))
    blocks = clean_sources(data, read, cleaning, functools.partial(progress, CLEANING))
    for name, eval_rows in evals.items():
        cleaning.note_set(name, eval_rows.digest, eval_rows.dropped)
    blocks = [block for block in blocks if len(block.rows)]
    if not blocks:
        raise DataError(f"no pairs are left to train on; {words_of(cleaning.counts)}")
    train, kept_back = split(blocks, cleaning)
    graded_blocks = clean_graded_sets(graded, kept_back, cleaning)
    read |= {name: block.whole for name, block in graded_blocks.items()}
    for name, sets in cleaning.near.items():
        rows_kept = [block.rows for block in train if block.source.name == name]
        rows_kept += [graded_blocks[name].rows] if name in graded_blocks else []
        cleaning.contamination.near(name, read[name], sets, rows_kept, index)
    query_keys = {name: np.unique(sentence_keys(rows.queries())) for name, rows in evals.items() if rows.languages}
    cleaning.contamination.both({**sealed, **query_keys})
    if find:
        cleaning.contamination.close(index)
    dev_sets = subsets(dev, data.anchor_priority)
    dev_sets += heldout_tasks(kept_back, data.split.right_model if data.split else "student")
    return numbered_corpus(train, dev_sets, cleaning, shards, [block.task for block in graded_blocks.values()])


def split(blocks: Sequence[Block], cleaning: Cleaning) -> tuple[list[Block], list[Block]]:
    """The pairs of each block that are trained on, and those that are held out; both are counted."""
    held_out: list[NDArray[np.bool_]] = [zeros(len(block.rows), np.bool_) for block in blocks]
    if cleaning.data.split is not None:
        held_out = hold_out(blocks, cleaning.data.split, cleaning.seed)
    for block, mask in zip(blocks, held_out, strict=True):
        cleaning.count(block.source, HELDOUT, count := int(np.count_nonzero(mask)))
        cleaning.count(block.source, "train", len(mask) - count)
    train = [block.keep(inverted(mask)) for block, mask in zip(blocks, held_out, strict=True)]
    return train, [block.keep(mask) for block, mask in zip(blocks, held_out, strict=True)]


def read_sources(
    data: Data, root: Path, translate: Translate | None, shards: TextShards | None = None
) -> dict[str, Rows]:
    """The rows of every training source by its name."""
    read: dict[str, Rows] = {}
    for origin in (None, "translate", "pivot"):  # what is made of others comes after them
        for source in data.train:
            if origin == (source.format if source.format in ("translate", "pivot") else None):
                rows = read_source(
                    source, root, others=read, translate=translate, longest=data.max_line_bytes, shards=shards
                )
                read[source.name] = replace(rows, shards=shards)
    return read


def clean_sources(data: Data, read: Mapping[str, Rows], cleaning: Cleaning, tell: Count) -> list[Block]:
    """Cleans the sources that are trained on and returns the pairs that are left. `tell` gets the progress in pairs."""
    trained = [source for source in data.train if source.train]
    done, of = 0, sum(len(read[each.name]) * len(cleaning.pairs_of(each, read[each.name])) for each in trained)
    tell(done, of)
    blocks: list[Block] = []
    for source in data.train:
        rows = read[source.name]
        cleaning.note_set(source.name, rows.digest, rows.dropped)
        for block in cleaning.clean(source, rows) if source.train else ():
            blocks.append(block)
            done += len(rows)
            tell(done, of)
    return blocks


def clean_graded_sets(
    graded: Sequence[EvalRows], kept_back: Sequence[Block], cleaning: Cleaning
) -> dict[str, GradedBlock]:
    """The graded pairs of every set that may train, by its name. Rows that are held out are a dev set to them."""
    if cleaning.data.split is not None:
        keys = np.unique(np.concatenate([block.keys for block in kept_back]))
        cleaning.sealed = {**cleaning.sealed, f"dev/{HELDOUT}": keys}
    return {name: cleaning.clean_graded(name, rows) for name, rows in labelled("graded", graded)}


def check_corpus(corpus: Corpus) -> None:
    """Raises `DataError` if no language pair has two pairs to train on, or a dev set one row and no more."""
    if histogram(corpus.pair_groups).max() < 2:
        raise DataError(
            "one pair is left to train on in each language pair, and no batch of it has a negative; give data.train "
            f"more rows; {words_of(corpus.counts)}"
        )
    for name in dict.fromkeys(task.name for task in corpus.tasks):
        if all(len(task.left) < 2 for task in corpus.tasks if task.name == name):
            raise DataError(f"dev set {name!r} has one row, and a score over one row says nothing; give it more rows")


class GradedBlock(NamedTuple):
    """Graded pairs that train."""

    whole: Rows  # both sides of all pairs that were read
    rows: NDArray[np.intp]  # those that are left
    task: TextTask  # these, with their grades


@dataclass
class Cleaning:
    """Takes a source's rows to the pairs that may be trained on, remembering what earlier sources had."""

    data: Data
    seed: int
    sealed: Mapping[str, NDArray[np.uint64]]  # eval set -> its sentence keys, sorted
    find_near: Callable[[Rows], dict[str, Near]] | None = None
    """Finds the near-duplicates of the sets' texts in a source."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    overlap: dict[str, dict[str, int]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    seen: dict[tuple[str, str], list[NDArray[np.uint64]]] = field(default_factory=dict)
    """Pair keys by language pair, of each source."""
    hits: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Eval set -> the rows of the source that is being cleaned that have a text in it, in any language."""

    strangers: dict[str, NDArray[np.int16]] = field(default_factory=dict)
    """Language -> the `strangers` of the source that is being cleaned; of a `translate`, in the originals alone."""

    near: dict[str, dict[str, Near]] = field(default_factory=dict)  # source -> side -> near-duplicates
    contamination: Contamination = field(default_factory=Contamination)

    def count(self, source: Source, step: str, pairs: int) -> None:
        """Adds pairs to what a source has left after a step."""
        steps = self.counts.setdefault(source.name, {})
        steps[step] = steps.get(step, 0) + pairs

    def note_set(self, name: str, digest: str, dropped: Mapping[str, int]) -> None:
        """Records the digest of a source or eval set, and the rows that were left out when it was read."""
        self.digests[name] = digest
        for reason, rows in dropped.items():
            self.counts.setdefault(name, {})[f"dropped: {reason}"] = rows

    def pairs_of(self, source: Source, rows: Rows) -> tuple[tuple[str, str], ...]:
        """The language pairs that a source is read for."""
        return language_pairs(source, list(rows.columns), self.data.anchor_priority)

    def clean(self, source: Source, rows: Rows) -> Iterator[Block]:
        """The source's pairs that are left after all steps, one block for each language pair."""
        self.begin(source, rows)
        steps = [self.max_characters, self.sides_differ, self.distinct, self.no_overlap, self.cap]
        if self.data.overlap == "near":
            steps.insert(-1, self.no_near_overlap)
        if self.data.clean.language != "off":
            judged = [source.translation.original] if isinstance(source, TranslateSource) else list(rows.columns)
            self.strangers = {language: rows.strangers[language] for language in judged}
            steps.insert(-1, self.language)
        for pair in self.pairs_of(source, rows):
            yield self.cleaned(steps, source, rows, pair)

    def clean_graded(self, name: str, rows: EvalRows) -> GradedBlock:
        """The graded pairs of a set that may train: none with a text of a dev or test set. All is counted as of a
        source. `DataError` if no two grades are left to compare."""
        assert isinstance(rows.task, Sts)
        task, source = sts_subset(rows.task, rows), changed(Source, rows.task.graded(), {"name": name})
        sides = {"left": Texts.of(task.left), "right": Texts.of(task.right)}
        limited = Rows(columns=sides, ids=Texts.of([]), digest=rows.digest, dropped=rows.dropped)
        self.note_set(name, rows.digest, rows.dropped)
        self.begin(source, limited)
        steps = [self.max_characters, self.no_overlap]
        steps += [self.no_near_overlap] if self.data.overlap == "near" else []
        block = self.cleaned(steps, source, limited, ("left", "right"))
        self.count(source, "train", len(block.rows))
        left, right, grades = (
            tuple(side[row] for row in block.rows.tolist()) for side in (task.left, task.right, task.scores)
        )
        if len(set(grades)) < 2:
            raise DataError(f"{name}: no two pairs of different grades are left; {words_of({name: self.counts[name]})}")
        return GradedBlock(limited, block.rows, replace(task, left=left, right=right, scores=grades))

    def begin(self, source: Source, rows: Rows) -> None:
        """Counts a source's rows, and finds those that are equal or near to a text of an eval set."""
        self.count(source, "rows", len(rows))
        self._find_equal(source, rows)
        self.overlap[source.name] = dict.fromkeys(self.sealed, 0)
        if self.find_near:
            self.near[source.name] = self.find_near(rows)

    def cleaned(
        self, steps: Sequence[Callable[[Block], NDArray[np.bool_]]], source: Source, rows: Rows, pair: tuple[str, str]
    ) -> Block:
        """The rows of a source's two columns after the cleaning steps, counted after each."""
        anchor, other = pair
        block = Block(
            source=source,
            group=pair,
            anchors=rows.columns[anchor],
            others=rows.columns[other],
            rows=arrays.numbered(len(rows)),
            keys=side_by_side(rows.keys[anchor], rows.keys[other]),
        )
        self.count(source, "pairs", len(rows))
        for step in steps:
            block = block.keep(step(block))
            self.count(source, step.__name__, len(block.rows))
        return block

    def _find_equal(self, source: Source, rows: Rows) -> None:
        """Finds and counts the rows that have a text of an eval set."""
        sealed_keys = np.unique(np.concatenate([np.empty(0, np.uint64), *self.sealed.values()]))
        matching = {language: places(where_in(keys, sealed_keys)) for language, keys in rows.keys.items()}
        equal = {language: rows.keys[language][matching[language]] for language in matching}
        self.contamination.exact(source.name, equal, self.sealed)
        self.hits = {
            name: np.unique(np.concatenate([matching[side][in_sorted(equal[side], keys)] for side in matching]))
            for name, keys in self.sealed.items()
        }

    def max_characters(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs have no side that is too long."""
        fits = zeros(len(block.rows), np.bool_)
        for part in parts(len(fits)):
            lengths = [side.at(block.rows[part]).lengths() for side in (block.anchors, block.others)]
            fits[part] = np.maximum(*lengths) <= self.data.max_characters
        return fits

    def sides_differ(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs do not say the same on both sides (compared by `text_key`): those are not translations."""
        differ = zeros(len(block.rows), np.bool_)
        np.not_equal(block.keys[:, 0], block.keys[:, 1], out=differ)
        return inverted(differ) if block.alone else differ

    def distinct(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs are the first of their kind in their language pair, over all sources so far."""
        keys = block.pair_keys()
        earlier = self.seen.setdefault(block.group, [])
        mask = unseen(keys, earlier)
        earlier.append(rows_where(keys, mask))
        return mask

    def no_overlap(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs have no text of their row in any dev or test set, in whatever language. That holds for both
        sides and for other translations, such as the English through which a pivot joined them."""
        free = zeros(len(block.rows), np.bool_)
        free[:] = True
        for name, rows in self.hits.items():
            in_set = rows[in_sorted(rows, block.rows)]
            self.overlap[block.source.name][name] += len(in_set)
            free[np.searchsorted(block.rows, in_set)] = False
        return free

    def no_near_overlap(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs have no near-duplicate of a dev or test text in their row, on any side."""
        near = np.unique(np.concatenate([side.rows for side in self.near[block.source.name].values()]))
        return inverted(where_in(block.rows, near))

    def language(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs have no text that is surely in another language than its column says. The others are counted by
        reason, and stay if the section only counts them."""
        stay = zeros(len(block.rows), np.bool_)
        anchor, other = block.group
        for part in parts(len(stay)):
            left, right = (self._labels(language, block.rows[part]) for language in block.group)
            swapped = np.isin(left, labels_of(other)) & np.isin(right, labels_of(anchor))
            kinds = np.where(swapped, 4, (left >= 0) + 2 * (right >= 0))
            reasons = ("", f"not in {anchor}", f"not in {other}", f"not in {anchor} nor {other}", "swapped")
            for reason, count in zip(reasons[1:], np.bincount(kinds, minlength=5)[1:].tolist(), strict=True):
                if count:
                    self.count(block.source, reason, count)
            stay[part] = ((left < 0) & (right < 0)) | (self.data.clean.language == "count")
        return stay

    def _labels(self, language: str, rows: NDArray[np.integer]) -> NDArray[np.int16]:
        """The `strangers` of these rows; none in a column that is not judged."""
        labels = self.strangers.get(language)
        return np.full(len(rows), -1, np.int16) if labels is None else labels[rows]

    def cap(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs a seeded draw keeps. A pair's rank depends on itself, its source and the seed alone."""
        cap = block.source.cap
        if cap is None or cap >= len(block.rows):
            return inverted(zeros(len(block.rows), np.bool_))
        return smallest(block.pair_keys(salt_of(self.seed, "cap", block.source.name, *block.group)), cap)


def side_by_side(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """[rows, 2] the keys of both sides."""
    keys = zeros((len(left), 2), np.uint64)
    keys[:, 0], keys[:, 1] = left, right
    return keys


# --- Numbers -------------------------------------------------------------------------------------------------------


def heldout_tasks(blocks: Sequence[Block], right_model: Literal["student", "teacher"]) -> list[TextTask]:
    """The held-out pairs as bitext, one subset per language pair."""
    sides: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for block in blocks:
        if len(block.rows):
            left, right = sides.setdefault(block.group, ([], []))
            left += block.others.at(block.rows)
            right += block.anchors.at(block.rows)
    return [
        TextTask(
            name=HELDOUT,
            kind="bitext",
            subset=f"{other}-{anchor}",
            left=tuple(left),
            right=tuple(right),
            left_languages=(other,),
            right_languages=(anchor,),
            right_model=right_model,
        )
        for (anchor, other), (left, right) in sides.items()
    ]


def numbered_corpus(
    train: Sequence[Block],
    dev: Sequence[TextTask],
    cleaning: Cleaning,
    shards: TextShards | None = None,
    graded: Sequence[TextTask] = (),
) -> Corpus:
    """The corpus: every distinct (language, text) numbered by first appearance, training pairs before other sets."""
    noted = NotedTexts()
    tasks = [task.mapped(noted.note) for task in (*dev, *graded)]
    sides = [side for block in train for side in sides_of(block)]
    hashes = end_to_end([*(hashes_of(texts, language, shards) for texts, language in sides), noted.hashes()])
    first = first_places(hashes)
    new = is_first(first)
    ids = numbers(first, new)
    ends = np.cumsum([0, *(len(texts) for texts, _ in sides)])
    spans = [slice(start, end) for start, end in itertools.pairwise(ends.tolist())]
    texts = [(texts.at(places(new[span])), language) for (texts, language), span in zip(sides, spans, strict=True)]
    texts += [noted.at(int(place)) for place in np.flatnonzero(new[ends[-1] :])]
    evals = ids[ends[-1] :].tolist()
    tasks = [task.mapped(lambda place, _: evals[place]) for task in tasks]
    groups = {group: index for index, group in enumerate(dict.fromkeys(block.group for block in train))}
    pair_groups = [groups[block.group] for block in train]
    weights = [block.source.weight for block in train]
    sizes = [len(block.rows) for block in train]
    return Corpus(
        texts=write_texts(batch for some, _ in texts for batch in some.batches()),
        languages=coded_languages([(language, len(some)) for some, language in texts]),
        pairs=pair_ids(ids, spans),
        groups=tuple(f"{anchor}-{other}" for anchor, other in groups),
        group_languages=tuple(groups),
        pair_groups=repeated(pair_groups, sizes, np.int16),
        weights=repeated(weights, sizes, np.float32),
        tasks=tuple(tasks[: len(dev)]),
        graded=tuple(tasks[len(dev) :]),
        counts=cleaning.counts,
        overlap=cleaning.overlap,
        digests=cleaning.digests,
        contamination=cleaning.contamination,
    )


def sides_of(block: Block) -> Iterator[tuple[Texts, str]]:
    """The texts and the language of both sides, the anchor's first."""
    for texts, language in zip((block.anchors, block.others), block.group, strict=True):
        yield texts.at(block.rows), language


class NotedTexts:
    """The texts of dev sets and graded pairs, in the order in which they are to be numbered."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, str]] = []

    def note(self, text: str, language: str) -> int:
        """Takes the next text; returns its place."""
        self._noted.append((text, language))
        return len(self._noted) - 1

    def at(self, place: int) -> tuple[Texts, str]:
        """A text and its language."""
        text, language = self._noted[place]
        return Texts.of([text]), language

    def hashes(self) -> NDArray[np.uint64]:
        """[texts] the `text_hashes` of all."""
        hashes = np.zeros(len(self._noted), np.uint64)
        of_language: dict[str, list[int]] = {}
        for place, (_, language) in enumerate(self._noted):
            of_language.setdefault(language, []).append(place)
        for language, members in of_language.items():
            hashes[members] = text_hashes(Texts.of([self._noted[place][0] for place in members]), language)
        return hashes


def pair_ids(ids: NDArray[np.int64], spans: Sequence[slice]) -> NDArray[np.integer]:
    """[pairs, 2] the text ids of both sides. `spans` alternate: a block's anchors, then its other side."""
    texts = int(ids.max()) + 1 if len(ids) else 0
    pairs = zeros((sum(span.stop - span.start for span in spans[::2]), 2), number_type(texts))
    end = 0
    for left, right in zip(spans[::2], spans[1::2], strict=True):
        start, end = end, end + left.stop - left.start
        pairs[start:end, 0], pairs[start:end, 1] = ids[left], ids[right]
    return pairs


def coded_languages(runs: Sequence[tuple[str, int]]) -> Texts:
    """The language of each text, of runs of texts in one language."""
    codes = {language: code for code, language in enumerate(dict.fromkeys(language for language, _ in runs))}
    return Texts.coded(list(codes), repeated([codes[name] for name, _ in runs], [count for _, count in runs], np.int16))


def words_of(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The rows of each source after each step, in words."""
    sources = (f"{name}: {', '.join(f'{step} {n}' for step, n in steps.items())}" for name, steps in counts.items())
    return "; ".join(sources)
