"""Cleans the sources of a sweep into one corpus: numbered texts, pairs of them, and dev tasks.

The steps, in order and each counted per source: rows are read; long texts, pairs with equal sides and repeated pairs
are removed. So is every pair that shares a sentence with a dev or test set (and, with `overlap: near`, a nearly equal
one). Then a source is cut to its cap, and some components of pairs that share sentences are held out. Sealed test texts
are read for the comparison only."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from babeltune.data.contamination import Contamination, EvalIndex, MakeFindNear, Near, find_near_anew
from babeltune.data.eval_sets import labelled, read_eval, subsets
from babeltune.data.prepared import IdTask, TextTask
from babeltune.data.shards import Count, uncounted
from babeltune.data.sources import Rows, language_pairs, read_source
from babeltune.data.split import HELDOUT, Block, hold_out, salt_of, sentence_keys
from babeltune.data.translation import Translate
from babeltune.errors import DataError
from babeltune.schema.records import Data, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray


Done = TypeVar("Done")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training pairs and dev tasks in text ids; an id numbers `texts`, one for every distinct (language, text)."""

    texts: list[str]
    languages: list[str]
    """[texts] language code of each text."""
    pairs: NDArray[np.int32]
    """[pairs, 2] text ids, the anchor's first."""
    groups: tuple[str, ...]
    """Language pairs `anchor-other`, by first appearance."""
    group_languages: tuple[tuple[str, str], ...]
    """The same, apart."""
    pair_groups: NDArray[np.int16]
    """[pairs] index into `groups`."""
    pair_sources: NDArray[np.int16]
    """[pairs] index into `source_names`."""
    source_names: tuple[str, ...]
    weights: NDArray[np.float32]
    """[pairs] weight of the pair's source."""
    tasks: tuple[IdTask, ...]
    """The dev sets, and `heldout` where the data are split."""
    counts: dict[str, dict[str, int]]
    """Per training source, in order: rows `dropped: <reason>`, `rows` left, the language `pairs` that they make, pairs
    left after each step of `Cleaning`, then how many of these are `heldout` and how many `train`. Of eval sets and of
    sources that only feed a pivot, the rows dropped, if any."""
    overlap: dict[str, dict[str, int]]
    """Per training source, the pairs removed for a sentence in each eval set `dev/<task>` or `test/<task>`; a pair may
    count for several."""
    digests: dict[str, str]
    """SHA-256 of what was read: sources by name, tasks as `dev/<task>` and `test/<task>`. A machine's text is marked:
    `synthetic:` comes before it."""
    contamination: Contamination = field(default_factory=Contamination)
    """Equal and nearly equal texts of training sources and eval sets; empty where they were not looked for."""


def build_corpus(
    data: Data,
    root: Path,
    seed: int,
    translate: Translate | None = None,
    near: MakeFindNear | None = None,
    *,
    progress: Count = uncounted,
) -> Corpus:
    """Reads and cleans all training sources and dev sets; relative paths start at `root`.

    `translate` makes the sources that are translations. `near`, given the sets' digests, finds near-duplicates of the
    sets' texts. Without it they are searched for only if the data section removes them. `progress` counts the steps:
    the dev sets, the test sets, and for each source its reading and its cleaning.

    The result depends on the data, the records and the seed only. Raises `DataError` for text that cannot be read as
    its source says, and, when no pair is left, with the step that removed what.
    """
    step = steps_of(progress, 2 + 2 * len(data.train))
    dev, test = (step(read_eval(tasks, root, data.max_line_bytes)) for tasks in (data.dev, data.test))
    evals = {label: rows for kind, found in (("dev", dev), ("test", test)) for label, rows in labelled(kind, found)}
    sealed = {name: np.unique(sentence_keys(rows.texts())) for name, rows in evals.items()}
    near = near or (find_near_anew if data.overlap == "near" else None)
    find = near({name: rows.digest for name, rows in evals.items()}) if near else None
    index = EvalIndex({name: list(rows.texts()) for name, rows in evals.items() if find})
    cleaning = Cleaning(data, seed, sealed, find and functools.partial(find, index))
    blocks: list[Block] = []
    read: dict[str, Rows] = {}
    for made in (None, "translate", "pivot"):  # what is made of others comes after them
        for source in data.train:
            if made == (source.format if source.format in ("translate", "pivot") else None):
                rows = read_source(source, root, others=read, translate=translate, longest=data.max_line_bytes)
                read[source.name] = step(rows)
    for source in data.train:
        rows = read[source.name]
        cleaning.note_set(source.name, rows.digest, rows.dropped)
        blocks += step(cleaning.clean(source, rows) if source.train else [])
    for name, eval_rows in evals.items():
        cleaning.note_set(name, eval_rows.digest, eval_rows.dropped)
    blocks = [block for block in blocks if len(block.rows)]
    if not blocks:
        raise DataError(f"no pairs are left to train on; {words_of(cleaning.counts)}")
    held_out = [np.zeros(len(block.rows), bool) for block in blocks]
    if data.split is not None:
        held_out = hold_out(blocks, data.split, seed)
    for block, mask in zip(blocks, held_out, strict=True):
        cleaning.count(block.source, HELDOUT, int(mask.sum()))
        cleaning.count(block.source, "train", int((~mask).sum()))
    train = [block.keep(~mask) for block, mask in zip(blocks, held_out, strict=True)]
    for name, found in cleaning.near.items():
        kept = np.concatenate([np.empty(0, np.intp), *[block.rows for block in train if block.source.name == name]])
        cleaning.contamination.near(name, read[name], found, kept, index)
    asked = {name: np.unique(sentence_keys(rows.asked())) for name, rows in evals.items() if rows.languages}
    cleaning.contamination.both({**sealed, **asked})
    if find:
        cleaning.contamination.close(index)
    kept_back = [block.keep(mask) for block, mask in zip(blocks, held_out, strict=True)]
    heldout_sets = heldout_tasks(kept_back, data.split.right_model if data.split else "student")
    dev_sets = [task for rows in dev for task in subsets(rows, data.anchor_priority)]
    return numbered(train, [*dev_sets, *heldout_sets], cleaning)


def steps_of(progress: Count, of: int) -> Callable[[Done], Done]:
    """A function that counts a step as done and passes on what the step has made."""
    done = itertools.count(1)
    progress(0, of)

    def step(made: Done) -> Done:
        progress(next(done), of)
        return made

    return step


def check_corpus(corpus: Corpus) -> None:
    """Raises `DataError` where no language pair has two pairs to train on, or a dev set one row and no more."""
    if np.bincount(corpus.pair_groups).max() < 2:
        raise DataError(
            "one pair is left to train on in each language pair, and no batch of it has a negative; give data.train "
            f"more rows; {words_of(corpus.counts)}"
        )
    for name in dict.fromkeys(task.name for task in corpus.tasks):
        if all(len(task.left) < 2 for task in corpus.tasks if task.name == name):
            raise DataError(f"dev set {name!r} has one row, and a score over one row says nothing; give it more rows")


@dataclass
class Cleaning:
    """Takes a source's rows to the pairs that may be trained on, remembering what earlier sources had."""

    data: Data
    seed: int
    sealed: Mapping[str, NDArray[np.uint64]]
    """Eval set -> its sentence keys, sorted."""
    find_near: Callable[[Rows], dict[str, Near]] | None = None
    """Finds the near-duplicates of the sets' texts in a source."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    overlap: dict[str, dict[str, int]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    seen: dict[tuple[str, str], NDArray[np.uint64]] = field(default_factory=dict)
    """Pair keys by language pair."""
    hits: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Eval set -> [rows] which rows of the source that is being cleaned have a text in it, in any language."""

    near: dict[str, dict[str, Near]] = field(default_factory=dict)
    """Source -> side -> near-duplicates."""
    contamination: Contamination = field(default_factory=Contamination)

    def count(self, source: Source, step: str, pairs: int) -> None:
        """Adds pairs to what a source has left after a step."""
        steps = self.counts.setdefault(source.name, {})
        steps[step] = steps.get(step, 0) + pairs

    def note_set(self, name: str, digest: str, dropped: Mapping[str, int]) -> None:
        """Records the digest of a source or eval set, and the rows that were left out when it was read."""
        self.digests[name] = digest
        self.count_dropped(name, dropped)

    def count_dropped(self, name: str, dropped: Mapping[str, int]) -> None:
        """Counts the rows that were left out when a source or eval set was read, where there were any."""
        for reason, rows in dropped.items():
            self.counts.setdefault(name, {})[f"dropped: {reason}"] = rows

    def clean(self, source: Source, rows: Rows) -> list[Block]:
        """The source's pairs that are left after all steps, one block for each language pair."""
        self.count(source, "rows", len(rows))
        pairs = language_pairs(source, list(rows.columns), self.data.anchor_priority)
        keys = {language: sentence_keys(texts) for language, texts in rows.columns.items()}
        all_keys = np.stack(list(keys.values()), axis=1)
        self.hits = {name: np.asarray(np.isin(all_keys, known).any(axis=1)) for name, known in self.sealed.items()}
        self.overlap[source.name] = dict.fromkeys(self.sealed, 0)
        self.contamination.exact(source.name, keys, self.sealed)
        if self.find_near:
            self.near[source.name] = self.find_near(rows)
        steps = [self.max_characters, self.sides_differ, self.distinct, self.no_overlap, self.cap]
        if self.data.overlap == "near":
            steps.insert(-1, self.no_near_overlap)
        blocks = []
        for anchor, other in pairs:
            block = Block(
                source=source,
                group=(anchor, other),
                anchors=rows.columns[anchor],
                others=rows.columns[other],
                rows=np.arange(len(rows)),
                keys=np.stack([keys[anchor], keys[other]], axis=1),
            )
            self.count(source, "pairs", len(rows))
            for step in steps:
                block = block.keep(step(block))
                self.count(source, step.__name__, len(block.rows))
            blocks.append(block)
        return blocks

    def max_characters(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs have no side that is too long."""
        lengths = [np.fromiter(map(len, side), np.int64, len(side)) for side in (block.anchors, block.others)]
        fits: NDArray[np.bool_] = np.maximum(*lengths)[block.rows] <= self.data.max_characters
        return fits

    def sides_differ(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs do not say the same on both sides (compared by `text_key`): those are not translations."""
        differ: NDArray[np.bool_] = block.keys[:, 0] != block.keys[:, 1]
        return differ

    def distinct(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs are the first of their kind in their language pair, over all sources so far."""
        keys = block.pair_keys()
        mask = np.zeros(len(keys), bool)
        mask[np.unique(keys, return_index=True)[1]] = True
        earlier = self.seen.get(block.group, np.empty(0, np.uint64))
        mask &= ~np.isin(keys, earlier)
        self.seen[block.group] = np.concatenate([earlier, keys[mask]])
        return mask

    def no_overlap(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs have no text of their row in any dev or test set, in whatever language. That holds for both
        sides and for other translations, such as the English through which a pivot joined them."""
        hit = np.zeros(len(block.rows), bool)
        for name, rows in self.hits.items():
            in_set = rows[block.rows]
            self.overlap[block.source.name][name] += int(in_set.sum())
            hit |= in_set
        return ~hit

    def no_near_overlap(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs have no near-duplicate of a dev or test text in their row, on any side."""
        sides = self.near[block.source.name].values()
        return ~np.isin(block.rows, np.concatenate([near.rows for near in sides]))

    def cap(self, block: Block) -> NDArray[np.bool_]:
        """Which pairs a seeded draw keeps. A pair's rank depends on itself, its source and the seed alone."""
        mask = np.ones(len(block.rows), bool)
        if block.source.cap is not None and block.source.cap < len(mask):
            ranks = block.pair_keys(salt_of(self.seed, "cap", block.source.name, *block.group))
            mask[np.argsort(ranks, kind="stable")[block.source.cap :]] = False
        return mask


# --- Numbers -------------------------------------------------------------------------------------------------------


def heldout_tasks(blocks: Sequence[Block], right_model: Literal["student", "teacher"]) -> list[TextTask]:
    """The held-out pairs as bitext, one subset per language pair."""
    sides: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for block in blocks:
        if len(block.rows):
            left, right = sides.setdefault(block.group, ([], []))
            left += [block.others[i] for i in block.rows]
            right += [block.anchors[i] for i in block.rows]
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


def numbered(train: Sequence[Block], dev: Sequence[TextTask], cleaning: Cleaning) -> Corpus:
    """The corpus: every distinct (language, text) numbered by first appearance, training pairs before dev sets."""
    numbers: dict[tuple[str, str], int] = {}

    def number(text: str, language: str) -> int:
        return numbers.setdefault((language, text), len(numbers))

    groups = {group: index for index, group in enumerate(dict.fromkeys(block.group for block in train))}
    names = {name: index for index, name in enumerate(dict.fromkeys(block.source.name for block in train))}
    sizes = [len(block.rows) for block in train]
    pairs = [
        [
            [number(block.anchors[i], block.group[0]) for i in block.rows],
            [number(block.others[i], block.group[1]) for i in block.rows],
        ]
        for block in train
    ]
    tasks = tuple(task.mapped(number) for task in dev)
    return Corpus(
        texts=[text for _, text in numbers],
        languages=[language for language, _ in numbers],
        pairs=np.concatenate([np.array(pair, np.int32).T for pair in pairs]),
        groups=tuple(f"{anchor}-{other}" for anchor, other in groups),
        group_languages=tuple(groups),
        pair_groups=np.repeat([groups[block.group] for block in train], sizes).astype(np.int16),
        pair_sources=np.repeat([names[block.source.name] for block in train], sizes).astype(np.int16),
        source_names=tuple(names),
        weights=np.repeat([block.source.weight for block in train], sizes).astype(np.float32),
        tasks=tasks,
        counts=cleaning.counts,
        overlap=cleaning.overlap,
        digests=cleaning.digests,
        contamination=cleaning.contamination,
    )


def words_of(counts: Mapping[str, Mapping[str, int]]) -> str:
    """What each source has left after each step, in words."""
    sources = (f"{name}: {', '.join(f'{step} {n}' for step, n in steps.items())}" for name, steps in counts.items())
    return "; ".join(sources)
