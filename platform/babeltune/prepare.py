"""Prepares a sweep once: corpus, tokens, teacher vectors and mined negatives, as stores that all trials share.

Everything is content-addressed, so a second sweep over the same text and teacher finds its stores ready.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from babeltune.corpus import Corpus, build_corpus
from babeltune.mining import mine_negatives
from babeltune.prepared import Prepared
from babeltune.records import Sweep, plain
from babeltune.space import possible_needs, preparations
from babeltune.spec import data_root
from babeltune.store import Contents, build, digest_of_texts, key_of, open_matrix
from babeltune.teacher import RunShards, build_teacher_store, inline_shards
from babeltune.tokens import build_token_store, load_tokenizer, tokenizer_key, train_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

Progress = Callable[[str, int, int], None]
"""Called with what is being built, how much is done, and of how much."""


def silent(what: str, done: int, total: int) -> None:
    """Reports no progress."""


@dataclass(frozen=True)
class Wanted:
    """What the methods that a sweep can propose ask for, together."""

    sides: frozenset[str]
    negatives: tuple[tuple[str, int, float], ...]
    """Key, number per pair, and the teacher cosine that they stay below."""

    @classmethod
    def of(cls, sweep: Sweep) -> Wanted:
        needs = [need for _, _, need in possible_needs(sweep)]
        mined = {(n.negatives_key, n.hard_negatives, n.hard_negatives_below) for n in needs if n.hard_negatives}
        sides = frozenset(itertools.chain.from_iterable(n.teacher for n in needs))
        return cls(sides | {"source"} if mined else sides, tuple(sorted(mined)))


def prepare(
    sweep: Sweep, storage: Path, *, run_shards: RunShards = inline_shards, progress: Progress = silent
) -> Prepared:
    """Builds or finds everything that the sweep's trials read.

    Raises `DataError` for broken text, `TeacherError` for a teacher that cannot be loaded, `StoreError` when the
    storage fails.
    """
    stores = storage / "stores"
    stores.mkdir(parents=True, exist_ok=True)
    progress("reading and cleaning the corpus", 0, 1)
    corpus = build_corpus(sweep.data, data_root(sweep), sweep.seed)
    progress("reading and cleaning the corpus", 1, 1)
    wanted = Wanted.of(sweep)
    text_digest = key_of({"texts": corpus.texts, "languages": corpus.languages})
    tokens, eval_tokens = build_tokens(sweep, corpus, text_digest, stores, progress)
    teacher_rows = asked_of_teacher(corpus, wanted, copy_anchor=sweep.teacher.target_side == "copy_anchor")
    asked = np.flatnonzero(teacher_rows >= 0)
    teacher = build_teacher_store(
        stores,
        [corpus.texts[i] for i in asked],
        sweep.teacher,
        run_shards=run_shards,
        progress=lambda done, total: progress("encoding with the teacher", done, total),
    )
    matrix = open_matrix(teacher)
    description = {
        "data": corpus.digests,
        "texts": text_digest,
        "pairs": key_of({"pairs": corpus.pairs.tolist(), "groups": corpus.pair_groups.tolist()}),
        "weights": key_of({"weights": corpus.weights.tolist()}),
        "tasks": key_of({"tasks": plain(corpus.tasks)}),
        "tokens": [tokens, eval_tokens],
        "teacher": teacher.name,
        "teacher_settings": plain(sweep.teacher),
        "negatives": plain(wanted.negatives),
    }

    def write(folder: Path) -> Contents:
        np.save(folder / "pairs.npy", corpus.pairs)
        np.save(folder / "groups.npy", corpus.pair_groups)
        np.save(folder / "weights.npy", corpus.weights)
        np.save(folder / "teacher_rows.npy", teacher_rows)
        (folder / "texts.json").write_text(json.dumps(corpus.texts, ensure_ascii=False), encoding="utf-8")
        for key, k, below in wanted.negatives:
            progress("mining hard negatives", 0, 1)
            vectors = matrix.rows(teacher_rows[corpus.pairs[:, 0]])
            mined = mine_negatives(vectors, corpus.pairs, corpus.pair_groups, k=k, below=below)
            np.save(folder / f"negatives-{key}.npy", mined)
            progress("mining hard negatives", 1, 1)
        return Contents()

    folder = build(stores, "prepared", description, write)
    record = Prepared(
        folder=str(folder),
        digest=key_of(description),
        texts=len(corpus.texts),
        groups=corpus.groups,
        group_rows=tuple(np.bincount(corpus.pair_groups, minlength=len(corpus.groups)).tolist()),
        tokens=tokens,
        eval_tokens=eval_tokens,
        teacher=str(teacher),
        teacher_dim=matrix.width,
        copy_anchor=sweep.teacher.target_side == "copy_anchor",
        negatives={key: str(folder / f"negatives-{key}.npy") for key, _, _ in wanted.negatives},
        tasks=corpus.tasks,
        counts={"rows": corpus.counts, "overlap": corpus.overlap},
        digests=corpus.digests,
    )
    return record
