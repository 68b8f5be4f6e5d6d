"""The contamination ledger: which training texts are equal or nearly equal to a text of a dev or test set.

Texts are compared by their `text_key` (no case, punctuation, blanks). Equal ones are removed before training. Two
texts are nearly equal if their sets of character trigrams have a Jaccard similarity of at least `THRESHOLD`.
Candidates share a band of their MinHash signatures, which rensa computes and indexes (Broder 1997; Leskovec,
Rajaraman and Ullman, Mining of Massive Datasets, section 3.4). Then the exact similarity is computed, so no count is
an estimate. 20 bands of 6 find 99.8 % of the pairs at the threshold. 506,344 training texts against 103,811
evaluation texts take 22 CPU seconds."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

import numpy as np
from rensa import RMinHash, RMinHashLSH  # type: ignore[import-untyped]

from babeltune.data import text_shards
from babeltune.data.arrays import in_sorted, parts
from babeltune.data.sources import Rows
from babeltune.data.store import Contents, build, digest_of_texts
from babeltune.data.text_keys import sentence_keys, text_key
from babeltune.data.texts import Texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.prepared import Counts

GRAM = 3  # characters of a gram
BANDS, ROWS = 20, 6
THRESHOLD = 0.8
CONTAMINATED = 0.05  # a set cannot gate if more than this share of its texts has a near-duplicate in the training text
EXAMPLES = 3  # examples that are kept for each source, set and side
BLOCK = 256  # texts whose signatures are held at once. The trigrams of more do not stay in a core's cache.
KNOWN = "evaluation.arrow"  # the file of an index's texts, for tasks
ASKED = 1 << 16  # texts that are asked for at once. Equal ones among them are looked for once.


def signatures(texts: Sequence[str]) -> list[RMinHash]:
    """The MinHash signature of each text's trigrams."""
    hashes: list[RMinHash] = RMinHash.from_token_sets(map(_grams, texts), BANDS * ROWS, 0)
    return hashes


def _grams(text: str) -> list[str]:
    """The trigrams of a text's key; a text shorter than a trigram is one gram."""
    key = text_key(text).ljust(GRAM, "\0")
    characters = key.encode("utf-32-le")  # a window of 12 bytes at each of these is a trigram
    grams: list[str] = np.ndarray(len(key) - GRAM + 1, f"<U{GRAM}", characters, strides=(4,)).tolist()
    return grams


def jaccard(a: str, b: str) -> float:
    """The Jaccard similarity of two texts: of the sets of character trigrams of their keys."""
    first, second = _gram_set(a), _gram_set(b)
    return len(first & second) / len(first | second)


@functools.lru_cache(maxsize=10_000)
def _gram_set(text: str) -> frozenset[str]:
    return frozenset(_grams(text))


@dataclass(frozen=True)
class Near:
    """Near-duplicates of one side of a source: pairs of a row and an evaluation text, rows ascending."""

    rows: NDArray[np.int64]
    texts: NDArray[np.int64]  # the indices into `EvalIndex.texts`


class EvalIndex:
    """All texts of all dev and test sets, each once, to be asked for near-duplicates of training text."""

    def __init__(self, sets: Mapping[str, Sequence[str]]) -> None:
        """`sets`: the texts of each set, `dev/<task>` or `test/<task>`, in whatever language."""
        texts = list(dict.fromkeys(itertools.chain(*sets.values())))
        keys = sentence_keys(texts)
        self.keys, first = np.unique(keys, return_index=True)
        self.texts = [texts[i] for i in first]
        self.sets = {name: np.unique(np.searchsorted(self.keys, sentence_keys(some))) for name, some in sets.items()}
        """The indices of each set's texts."""

    @functools.cached_property
    def _bands(self) -> RMinHashLSH:
        """The signatures of all texts, to be asked for those that share a band."""
        bands = RMinHashLSH(THRESHOLD, BANDS * ROWS, BANDS)
        for start in range(0, len(self.texts), BLOCK):
            bands.insert_pairs(enumerate(signatures(self.texts[start : start + BLOCK]), start))
        return bands

    def near(self, texts: Sequence[str], keys: NDArray[np.uint64] | None = None) -> Near:
        """The near-duplicates of these texts that are not equal to them. `keys`: their `sentence_keys`, if known."""
        keys = sentence_keys(texts) if keys is None else keys
        pairs = [pair for part in parts(len(texts), ASKED) for pair in self._near(texts[part], keys[part], part.start)]
        rows, others = np.array(pairs, np.int64).reshape(-1, 2).T
        return Near(rows, others)

    def _near(self, texts: Sequence[str], keys: NDArray[np.uint64], start: int) -> Iterator[tuple[int, int]]:
        """Row and evaluation text of each near-duplicate; the rows count from `start`."""
        keys, first, where = np.unique(keys, return_index=True, return_inverse=True)
        near: dict[int, list[int]] = {}
        for part in parts(len(first), BLOCK):
            chunk = [texts[i] for i in first[part]]
            shared = self._bands.query_all(signatures(chunk))
            for i, (text, others) in enumerate(zip(chunk, shared, strict=True), part.start):
                candidates = (j for j in sorted(others) if keys[i] != self.keys[j])
                if alike := [j for j in candidates if jaccard(text, self.texts[j]) >= THRESHOLD]:
                    near[i] = alike
        for row in np.flatnonzero(np.isin(where, list(near))).tolist():
            yield from ((start + row, j) for j in near[int(where[row])])


def near_of(index: EvalIndex, rows: Rows, language: str) -> Near:
    """The near-duplicates of a column of a source."""
    texts = rows.columns[language]
    if rows.shards is None or len(texts) <= text_shards.MANY:
        return index.near(texts, rows.keys[language])
    evaluated = Texts.of(index.texts)
    by_shard = [
        some + np.array([[part.start], [0]])
        for part, some in rows.shards.each(near_in_shard, texts, KNOWN, files={KNOWN: evaluated})
    ]
    return Near(*np.concatenate(by_shard, axis=1))


def near_in_shard(texts: Texts, index_file: str) -> NDArray[np.int64]:
    """[2, found] rows of a shard, and the texts of an index that they nearly equal. `index_file` has these."""
    near = _index_of(Path(index_file).read_bytes()).near(texts)
    return np.stack([near.rows, near.texts])


@functools.lru_cache(maxsize=1)
def _index_of(content: bytes) -> EvalIndex:
    """The index of a file of texts, made once for all shards that a process works on."""
    return EvalIndex({"": Texts.read(content)[:]})


FindNear = Callable[[EvalIndex, Rows], dict[str, Near]]  # the near-duplicates of every column of a source
MakeFindNear = Callable[[Mapping[str, str]], FindNear]  # makes a `FindNear` from the digest of every set


def find_near_anew(_: Mapping[str, str]) -> FindNear:
    """A `FindNear` that searches at every call and keeps nothing. It needs no digests of the sets."""
    return lambda index, rows: {name: near_of(index, rows, name) for name in rows.columns}


def find_near_once(stores: Path, evals: Mapping[str, str]) -> FindNear:
    """Keeps what it finds in `stores`: for each source as it was read, and these sets."""

    def find(index: EvalIndex, rows: Rows) -> dict[str, Near]:
        columns = {language: digest_of_texts(texts) for language, texts in rows.columns.items()}
        settings = [GRAM, BANDS, ROWS, THRESHOLD]

        def write(folder: Path) -> Contents:
            for place, language in enumerate(rows.columns):
                near = near_of(index, rows, language)
                np.save(folder / f"{place}.npy", np.stack([near.rows, near.texts]))
            return Contents()

        folder = build(stores, "overlap", {"columns": columns, "sets": dict(evals), "settings": settings}, write)
        return {language: Near(*np.load(folder / f"{place}.npy")) for place, language in enumerate(columns)}

    return find


class Example(TypedDict):
    """A row of a source, and its near-duplicate in an evaluation set."""

    source: str
    set: str
    side: str
    row: int
    text: str
    jaccard: float
    evaluation: NotRequired[str]  # the evaluation set's text, unless the set is sealed


class ContaminationRecord(TypedDict, total=False):
    """The ledger in `prepared.json`: the fields of `Contamination`."""

    sources: dict[str, dict[str, dict[str, dict[str, int]]]]
    examples: list[Example]
    sets: dict[str, dict[str, float]]
    seen: dict[str, dict[str, float]]


@dataclass
class Contamination:
    """Counts and examples of training texts that are also, or nearly, in evaluation sets. They are plain values, and
    written with the prepared sweep."""

    sources: dict[str, dict[str, dict[str, dict[str, int]]]] = field(default_factory=dict)
    """Source -> set -> side -> `exact`, rows whose text of that side is in the set (they are removed), and `near`, rows
    that are trained on and have a near-duplicate there. Only what is not 0."""
    examples: list[Example] = field(default_factory=list)
    """A few near-duplicates of each source, set and side. Of a sealed test only the training text is said."""
    sets: dict[str, dict[str, float]] = field(default_factory=dict)
    """Set -> its distinct `texts`, how many have a `near`-duplicate in the text that is trained on, and the `share`."""

    seen: dict[str, dict[str, float]] = field(default_factory=dict)
    """Test set -> its distinct `texts`, how many of them are a `dev` set's too, and the `share`. Only what is not 0."""

    def both(self, sealed: Mapping[str, NDArray[np.uint64]]) -> None:
        """Counts the texts of test sets that dev sets hold: what selects a model cannot judge it."""
        dev = [keys for name, keys in sealed.items() if name.startswith("dev/")]
        dev_keys = np.concatenate(dev) if dev else np.empty(0, np.uint64)
        for name, keys in sealed.items():
            if name.startswith("test/") and (count := int(np.isin(keys, dev_keys).sum())):
                self.seen[name] = {"texts": len(keys), "dev": count, "share": count / len(keys)}

    def exact(
        self, source: str, keys: Mapping[str, NDArray[np.uint64]], sealed: Mapping[str, NDArray[np.uint64]]
    ) -> None:
        """Counts the equal texts of a source, by the sentence keys of its sides and of the sets. Of the sides, keys
        that are in no set may be left out."""
        for side, side_keys in keys.items():
            for name, set_keys in sealed.items():
                if count := int(np.isin(side_keys, set_keys).sum()):
                    self._add(source, name, side, "exact", count)

    def near(
        self, source: str, rows: Rows, by_side: Mapping[str, Near], used: Sequence[NDArray[np.intp]], index: EvalIndex
    ) -> None:
        """Counts the near-duplicates among the rows of a source that are trained on. `used` has their numbers in
        order."""
        for side, near in by_side.items():
            trained = np.zeros(len(near.rows), bool)
            for some in used:
                trained |= in_sorted(near.rows, some)
            for name, texts in index.sets.items():
                chosen = np.flatnonzero(trained & np.isin(near.texts, texts))
                if not len(chosen):
                    continue
                self._add(source, name, side, "near", len(np.unique(near.rows[chosen])))
                self._hit.setdefault(name, set()).update(near.texts[chosen].tolist())
                for place in chosen[:EXAMPLES].tolist():
                    text, other = rows.columns[side][near.rows[place]], index.texts[near.texts[place]]
                    sealed = name.startswith("test/")
                    example: Example = {
                        "source": source,
                        "set": name,
                        "side": side,
                        "row": int(near.rows[place]),
                        "text": text,
                        "jaccard": round(jaccard(text, other), 3),
                    }
                    if not sealed:
                        example["evaluation"] = other
                    self.examples.append(example)

    _hit: dict[str, set[int]] = field(default_factory=dict)

    def _add(self, source: str, name: str, side: str, kind: str, count: int) -> None:
        sides = self.sources.setdefault(source, {}).setdefault(name, {})
        sides.setdefault(side, {})[kind] = count

    def close(self, index: EvalIndex) -> None:
        """Fills `sets`, once all training text was added: how many texts of each set have a near-duplicate."""
        for name, texts in index.sets.items():
            near = len(self._hit.get(name, ()))
            self.sets[name] = {"texts": len(texts), "near": near, "share": near / max(1, len(texts))}

    def plain(self) -> ContaminationRecord:
        return {"sources": self.sources, "examples": self.examples, "sets": self.sets, "seen": self.seen}


def contaminated(counts: Mapping[str, object], kind: str = "test") -> dict[str, str]:
    """The test sets that cannot gate, or the `dev` sets that cannot compare, by the `counts` of a `Prepared`, and why:
    `tatoeba` -> words."""
    reasons = dict[str, str]()
    ledger: ContaminationRecord = cast("Counts", counts).get("contamination", {})

    def add(name: str, facts: Mapping[str, float], count: str, words: str) -> None:
        if name.startswith(f"{kind}/") and facts["share"] > CONTAMINATED:
            reasons[name.split("/")[1]] = (
                f"{name} is contaminated: {facts[count]:.0f} of its {facts['texts']:.0f} texts ({facts['share']:.1%}, "
                f"allowed {CONTAMINATED:.0%}) {words}"
            )

    for name, facts in ledger.get("sets", {}).items():
        words = "have a near-duplicate in the training text; set `data.overlap: near` to leave such rows out"
        add(name, facts, "near", words)
    for name, facts in ledger.get("seen", {}).items():
        add(name, facts, "dev", "are in dev sets, which select; test on other text")
    return reasons
