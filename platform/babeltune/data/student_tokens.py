"""The tokenizers of a sweep's students, and the corpus's token ids of each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.alignment import build_spans
from babeltune.data.arrays import parts, places, zeros
from babeltune.data.corpus import Corpus
from babeltune.data.prepared import TokenSet
from babeltune.data.shards import RunShards
from babeltune.data.starts import keep_start, start_name
from babeltune.data.store import facts_of
from babeltune.data.teacher import teacher_folder
from babeltune.data.token_vectors import build_token_vectors, encode_tokens
from babeltune.data.tokens import (
    TokenCut,
    bare_tokenizer,
    build_token_store,
    build_tokenizer,
    has_special_tokens,
    limit_of,
    load_tokenizer,
    take_tokenizer,
    tokenizer_key,
)
from babeltune.data.trimming import KEPT, build_trimmed, check_equal
from babeltune.schema.records import Student, Sweep
from babeltune.stages import Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class StudentTokens:
    """Makes a tokenizer and its token stores for every student that the sweep can propose.

    A tokenizer from scratch is trained on the training text only, so that dev words do not shape it."""

    sweep: Sweep
    students: tuple[Student, ...]  # every student whose text is tokenized on its own
    corpus: Corpus
    text_digest: str
    stores: Path
    run_shards: RunShards
    progress: Progress

    def build(self, words: Path | None) -> dict[str, TokenSet]:
        """The token sets by tokenizer, with the tokens of `words` if a student reads them."""
        pairs, texts = self.corpus.pairs, self.corpus.texts
        train_texts = texts.at(ids_among(len(texts), pairs[:, 0], pairs[:, 1]))
        sets = {}
        for number, student in enumerate(self.students, 1):
            action = "tokenizing" if len(self.students) == 1 else f"tokenizing {number}/{len(self.students)}"
            sets[tokenizer_key(student, self.text_digest)] = self._of(student, train_texts, words, action)
        return sets

    def with_vectors(
        self, sets: dict[str, TokenSet], teacher: Path, teacher_rows: NDArray[np.integer]
    ) -> dict[str, TokenSet]:
        """The token sets with the first vectors of their tokens, for students that do not draw them.

        `teacher` is the teacher's store, `teacher_rows` [texts] has each text's row in it."""
        sets = dict(sets)
        for student in self.students:
            key, kind = tokenizer_key(student, self.text_digest), student.token_vectors
            if kind == "random" or key not in sets or kind in sets[key].vectors:
                continue
            self.progress("making the first vectors of tokens", 0, 1)
            read, size = Path(sets[key].train), sets[key].vocabulary
            if kind == "teacher":
                vectors = build_token_vectors(self.stores, read, teacher, self.corpus.pairs, teacher_rows, size=size)
            else:
                tokenizer = load_tokenizer(student, Path(sets[key].tokenizer))
                vectors = encode_tokens(self.stores, read, tokenizer, self.sweep.teacher, self.run_shards, size=size)
            self.progress("making the first vectors of tokens", 1, 1)
            sets[key] = replace(sets[key], vectors={**sets[key].vectors, kind: str(vectors)})
        return sets

    def _of(self, student: Student, train_texts: Sequence[str], words: Path | None, action: str) -> TokenSet:
        trained = None
        if student.model is None:
            self.progress("making the tokenizer", 0, 1)
            trained = self._own_tokenizer(student, train_texts)
            self.progress("making the tokenizer", 1, 1)
        kept_ids, untrimmed = None, 0
        if student.trim and student.model is not None:
            whole = load_tokenizer(replace(student, trim=False), None)
            # Of whole texts: within a word that is cut the tokens of the whole word would be missing.
            before = self._tokenize(student, None, whole, action)
            trained, untrimmed = build_trimmed(self.stores, whole, before, limit_of(student)), len(whole)
            kept_ids = trained / KEPT
        tokenizer = load_tokenizer(student, trained)
        train, evaluation = after = self._tokenize(student, student.max_tokens, tokenizer, action)
        if kept_ids is not None and limit_of(student) is None:
            for one, other in zip(before, after, strict=True):
                check_equal(
                    one, other, np.load(kept_ids), ends=bare_tokenizer(tokenizer).num_special_tokens_to_add(False)
                )
        wordy = words if has_special_tokens(student) else None  # methods that learn from words read token states
        spans = wordy and build_spans(wordy, self.corpus, tokenizer, student.prompt, student.max_tokens, self.stores)
        return TokenSet(
            tokenizer=str(trained or student.model),
            vocabulary=len(tokenizer),
            pad=tokenizer.pad_token_id,
            train=str(train),
            evaluation=str(evaluation),
            truncated=int(facts_of(train)["truncated"] or 0),
            mask=tokenizer.mask_token_id,
            special=tuple(sorted(tokenizer.all_special_ids)),
            words=str(spans / "spans.npy") if spans else None,
            table_rows=None if kept_ids is None else str(kept_ids),
            untrimmed=untrimmed,
        )

    def _own_tokenizer(self, student: Student, train_texts: Sequence[str]) -> Path:
        """The folder of the tokenizer of a student without a named model: its start's, teacher's, or a trained one."""
        if (start := start_name(student)) is not None:
            return keep_start(self.stores.parent, start)
        if student.vocabulary == "teacher":
            return take_tokenizer(self.stores, teacher_folder(self.sweep.teacher))
        return build_tokenizer(
            self.stores, train_texts, student.vocabulary, seed=self.sweep.seed, lowercase=student.lowercase
        )

    def _tokenize(
        self, student: Student, max_tokens: int | None, tokenizer: PreTrainedTokenizerFast, action: str
    ) -> tuple[Path, Path]:
        """The token stores of the texts with the student's prompt and with that of the evaluation."""
        evaluation_prompt = self.sweep.evaluation.prompt
        train, evaluation = (
            build_token_store(
                self.stores,
                self.corpus.texts,
                tokenizer,
                TokenCut(prompt, max_tokens, has_special_tokens(student)),
                run_shards=self.run_shards,
                progress=functools.partial(self.progress, action),
            )
            for prompt in (student.prompt, student.prompt if evaluation_prompt is None else evaluation_prompt)
        )
        return train, evaluation


def ids_among(texts: int, *some: NDArray[np.integer]) -> NDArray[np.int64]:
    """The text ids that occur, each once, in order."""
    among = zeros(texts, np.bool_)
    for ids in some:
        for part in parts(len(ids)):
            among[ids[part]] = True
    return places(among)
