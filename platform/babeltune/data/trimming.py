"""Cuts a pretrained tokenizer to the tokens that a sweep's text uses (`student.trim`).

A multilingual encoder spends most of its weights on token vectors that one corpus never reads. Kept are the tokens of
the training and dev text, special and added tokens, and what byte-pair encoding needs to build these. Every token of
one character or byte is kept too, so that any text can still be tokenized. Text whose tokens are all kept is tokenized
as before. WordPiece takes the longest match and Unigram the most likely split, which stay the same among fewer tokens;
for byte-pair encoding every merge on the way is kept. Sealed test text is not read for this, as no other text would be.

With a limit (`student.trim: 24000`) only the most frequent tokens are kept, and of single characters those of the text.
Then rarer words are split into shorter tokens."""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np
from tokenizers import Tokenizer

from babeltune.data.store import Contents, build, digest_of_texts, key_of
from babeltune.data.stored_arrays import open_ragged
from babeltune.data.tokens import bare_tokenizer
from babeltune.errors import DataError, TeacherError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerFast

KEPT = "kept.npy"  # file beside a trimmed tokenizer: int64 [kept], the old id of each of its tokens
FEW = 1000  # below this id of the padding all lower ids are kept: some encoders count positions from it
ALPHABET = 1000
"""Up to this many tokens of one character are kept under any limit. They are an alphabet of bytes or of few scripts."""
BLOCK = 100_000  # texts of a token store that are looked at together
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a byte's token, if a tokenizer falls back on bytes


class ModelJson(TypedDict):
    """The `model` of a `tokenizer.json`: what babeltune reads and changes of it."""

    type: str
    vocab: dict[str, int] | list[list[str | float]]
    """Ids by token; of Unigram each token with its score, in the order of the ids."""
    merges: NotRequired[list[str | list[str]]]
    """BPE: two tokens that become one, in the order in which it looks for them."""
    unk_token: NotRequired[str | None]
    unk_id: NotRequired[int | None]
    continuing_subword_prefix: NotRequired[str | None]
    end_of_word_suffix: NotRequired[str | None]


class SpecialJson(TypedDict):
    """A special token of a post-processor's template."""

    ids: list[int]


class ProcessorJson(TypedDict, total=False):
    """The part of a `tokenizer.json`'s `post_processor` that holds ids."""

    processors: list[ProcessorJson]
    sep: list[str | int]
    cls: list[str | int]
    special_tokens: dict[str, SpecialJson] | None


def build_trimmed(
    root: Path, tokenizer: PreTrainedTokenizerFast, stores: Iterable[Path], limit: int | None = None
) -> Path:
    """The folder of the tokenizer cut to the tokens of these token stores of whole texts, and `KEPT`: a store, so it is
    cut once. `limit`: the number of tokens to keep, the most frequent.

    Raises:
        TeacherError: the tokenizer is of a kind that cannot be cut, or the limit has no room for single characters."""
    counts = np.zeros(len(tokenizer), np.int64)
    for store in stores:
        for values, _ in blocks(store):
            counts += np.bincount(values, minlength=len(counts))
    used = by_frequency(counts)
    used = used if limit else np.sort(used)
    description = {
        "trimmed": key_of({"json": bare_tokenizer(tokenizer).to_str()}),
        "used": digest_of_texts([str(number) for number in used]),
        **({"limit": limit} if limit else {}),
    }

    def write(folder: Path) -> Contents:
        cut, kept_ids = trimmed(tokenizer, used, limit)
        cut.save_pretrained(folder)
        np.save(folder / KEPT, kept_ids)
        return Contents(facts={"vocabulary": len(kept_ids), "before": len(tokenizer)})

    return build(root, "tokenizer", description, write)


def by_frequency(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of the tokens that occur, the most frequent first, from the count of each id."""
    return np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]


def check_equal(before: Path, after: Path, token_ids: NDArray[np.int64], *, ends: int = 0) -> None:
    """Raises `DataError` unless the trimmed tokenizer gives a text the tokens that it had before.

    Texts are whole in the store `before`. A text that is cut in the store `after` ends in other tokens, at most `ends`.
    """
    for (old, whole), (new, lengths) in zip(blocks(before), blocks(after), strict=True):
        # How many tokens of a text precede each token in `after`, and where that token is in `before`.
        place = np.arange(len(new)) - np.repeat(lengths.cumsum() - lengths, lengths)
        twin = np.minimum(place + np.repeat(whole.cumsum() - whole, lengths), len(old) - 1)
        compared = place < np.repeat(np.where(lengths < whole, lengths - ends, lengths), lengths)
        if (lengths > whole).any() or not np.array_equal(old[twin[compared]], token_ids[new[compared]]):
            raise DataError(
                "the trimmed tokenizer splits some text of this corpus in another way than the whole one; remove "
                "student.trim"
            )


def blocks(store: Path) -> Iterator[tuple[NDArray[np.integer], NDArray[np.int64]]]:
    """The token ids of a store end to end and the lengths of its texts, some texts at a time."""
    ragged = open_ragged(store)
    for start in range(0, len(ragged), BLOCK):
        yield ragged.take(np.arange(start, min(start + BLOCK, len(ragged))))


def trimmed(
    tokenizer: PreTrainedTokenizerFast, used: NDArray[np.int64], limit: int | None = None
) -> tuple[PreTrainedTokenizerFast, NDArray[np.int64]]:
    """The tokenizer with these token ids and those that it needs besides; and [kept] the old ids, by new id.

    With a limit `used` has the most frequent first, and as many of them are kept as the limit allows.

    Raises:
        TeacherError: the tokenizer is of a kind that cannot be cut, or the limit has no room for single characters."""
    from transformers import PreTrainedTokenizerFast

    described = json.loads(bare_tokenizer(tokenizer).to_str())
    model, added = described["model"], described["added_tokens"]
    if model["type"] not in KINDS:
        raise TeacherError(
            f"a tokenizer of kind {model['type']} cannot be trimmed (BPE, Unigram and WordPiece can); remove "
            "student.trim"
        )
    text_of = {number: token for token, number in tokenizer.get_vocab().items()}
    pad = tokenizer.pad_token_id
    always = {token["id"] for token in added} | set(tokenizer.all_special_ids)
    always |= set(range(pad + 1)) if pad is not None and pad < FEW else set()
    kept_ids = _ids_to_keep(model, text_of, always, used, limit)
    new = {int(old): place for place, old in enumerate(kept_ids)}
    KINDS[model["type"]][1](model, new)
    for token in added:
        token["id"] = new[token["id"]]
    renumber(described["post_processor"], new)
    backend = Tokenizer.from_str(json.dumps(described))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    if vocabulary != {text_of[int(old)]: place for place, old in enumerate(kept_ids)}:
        raise TeacherError(
            "this tokenizer numbers its added tokens in a way that cannot be trimmed; remove student.trim"
        )
    cut = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=tokenizer.model_input_names,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        **tokenizer.special_tokens_map,
    )
    return cut, kept_ids


def _ids_to_keep(
    model: ModelJson, text_of: dict[int, str], always: set[int], used: NDArray[np.int64], limit: int | None
) -> NDArray[np.int64]:
    """The ids `always`, those of single characters, as many of `used` as the limit allows, and what all these need."""
    singles = {number: token for number, token in text_of.items() if is_single(token, model)}
    if limit is not None and len(singles) > ALPHABET:
        letters = {letter for number in used for letter in text_of[int(number)]}
        singles = {number: token for number, token in singles.items() if token[-1] in letters or BYTE.fullmatch(token)}

    def with_needed(count: int) -> set[int]:
        ids = always | singles.keys() | {int(number) for number in used[:count]}
        more = KINDS[model["type"]][0](model, {text_of[number] for number in ids if number in text_of})
        return (ids | more) & text_of.keys()

    if limit is None:
        return np.array(sorted(with_needed(len(used))), np.int64)
    if (least := len(with_needed(0))) > limit:
        raise TeacherError(
            f"student.trim {limit} is less than the {least} tokens that single characters of the text and special "
            "tokens take; raise it, or set it to true"
        )
    count = bisect_right(range(len(used) + 1), limit, key=lambda some: len(with_needed(some))) - 1
    return np.array(sorted(with_needed(count)), np.int64)


def is_single(token: str, model: ModelJson) -> bool:
    """Whether a token stands for one character or byte."""
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""
    return len(token.removeprefix(prefix).removesuffix(suffix)) == 1 or BYTE.fullmatch(token) is not None


# --- What each kind of model needs besides, and how it is renumbered ------------------------------------------------


def no_more(model: ModelJson, tokens: Iterable[str]) -> set[int]:
    """WordPiece: a longest match needs no other token; what stands for unknown text is kept."""
    unknown = names_of(model).get(model.get("unk_token") or "")
    return set() if unknown is None else {unknown}


def least_likely(model: ModelJson, tokens: Iterable[str]) -> set[int]:
    """Unigram: the least score decides what unknown text costs, so that token is kept, beside the unknown one."""
    scores = [float(score) for _, score in pieces_of(model)]
    unknown = model.get("unk_id")
    return {int(np.argmin(scores))} | (set() if unknown is None else {unknown})


def on_the_way(model: ModelJson, tokens: Iterable[str]) -> set[int]:
    """BPE: all that merging makes on the way to these tokens. Within a token no merge depends on its neighbours."""
    prefix = model.get("continuing_subword_prefix") or ""
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges_of(model))))}
    pieces = {unknown} if (unknown := model.get("unk_token")) else set[str]()
    for token in tokens:
        pieces.update(merged(token, ranks, prefix, model.get("end_of_word_suffix") or ""))
    vocabulary = names_of(model)
    return {vocabulary[token] for token in pieces if token in vocabulary}


def names_of(model: ModelJson) -> dict[str, int]:
    """The ids of WordPiece's and BPE's tokens."""
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict):
        raise TeacherError(f"a tokenizer of kind {model['type']} names no ids of its tokens; remove student.trim")
    return vocabulary


def pieces_of(model: ModelJson) -> list[list[str | float]]:
    """Unigram's tokens with their scores."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        raise TeacherError(f"a tokenizer of kind {model['type']} has no scores of its tokens; remove student.trim")
    return vocabulary


def merges_of(model: ModelJson) -> Iterator[tuple[str, str]]:
    """The merges of a BPE model in order."""
    for merge in model["merges"]:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        yield left, right


def merged(token: str, ranks: dict[tuple[str, str], int], prefix: str, suffix: str = "") -> Iterator[str]:
    """Every symbol that byte-pair encoding meets in the token alone."""
    first = bool(prefix) and token.startswith(prefix)
    ends = bool(suffix) and token.endswith(suffix)
    letters = list(token.removeprefix(prefix).removesuffix(suffix))
    letters[-1:] = [letter + suffix * ends for letter in letters[-1:]]
    symbols = [letter if place == 0 and not first else prefix + letter for place, letter in enumerate(letters)]
    yield from symbols
    while True:
        pairs = list(itertools.pairwise(symbols))
        ranked = [(ranks[pair], at) for at, pair in enumerate(pairs) if pair in ranks]
        if not ranked:
            return
        _, at = min(ranked)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1].removeprefix(prefix)]
        yield symbols[at]


def cut_list(model: ModelJson, new: dict[int, int]) -> None:
    """Unigram's vocabulary, in place."""
    pieces = pieces_of(model)
    model["vocab"] = [pieces[old] for old in new if old < len(pieces)]
    if (unknown := model.get("unk_id")) is not None:
        model["unk_id"] = new[unknown]


def cut_names(model: ModelJson, new: dict[int, int]) -> None:
    """WordPiece's and BPE's vocabulary and merges, in place."""
    prefix = model.get("continuing_subword_prefix") or ""
    vocabulary = {token: new[old] for token, old in names_of(model).items() if old in new}
    if "merges" in model:
        model["merges"] = [
            [left, right]
            for left, right in merges_of(model)
            if {left, right, left + right.removeprefix(prefix)} <= vocabulary.keys()
        ]
    model["vocab"] = vocabulary


Needed = Callable[[ModelJson, Iterable[str]], set[int]]
Cut = Callable[[ModelJson, dict[int, int]], None]
KINDS: dict[str, tuple[Needed, Cut]] = {
    "BPE": (on_the_way, cut_names),
    "Unigram": (least_likely, cut_list),
    "WordPiece": (no_more, cut_names),
}
"""For each kind of model: which tokens it needs besides, and what cuts it."""


def renumber(processor: ProcessorJson | None, new: dict[int, int]) -> None:
    """The ids of special tokens in a post-processor, in place."""
    if processor is None:
        return
    for inner in processor.get("processors", ()):
        renumber(inner, new)
    for pair in (processor.get("sep"), processor.get("cls")):
        if pair is not None:
            pair[1] = new[int(pair[1])]
    for each in (processor.get("special_tokens") or {}).values():
        each["ids"] = [new[old] for old in each["ids"]]
