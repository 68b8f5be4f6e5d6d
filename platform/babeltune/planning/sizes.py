"""How many weights a named model has: whole, and after `student.keep_layers` and `student.trim`.

A plan says both. It builds the student, which takes a second and refuses what can never train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.tokens import bare_tokenizer, has_special_tokens, limit_of, load_tokenizer
from babeltune.data.trimming import by_frequency, trimmed
from babeltune.method import needs_of
from babeltune.models.build import build_student
from babeltune.models.vocabulary import Vocabulary
from babeltune.planning.availability import is_at_hand, teacher_width
from babeltune.schema.records import Student, Sweep, Trial

if TYPE_CHECKING:
    from babeltune.data.corpus import Corpus

READ_TEXTS = 50_000  # texts whose tokens a plan counts: some seconds. Of a larger corpus it draws as many at random.


@dataclass(frozen=True)
class NamedSize:
    """Weights of a student from a named model, without the method's own."""

    whole: int
    """Weights of the model as it is."""
    cut: int
    """Weights of the student."""
    texts_read: int | None
    """How many texts `trim` was tried on, if not all: the others may add tokens to `cut`."""


def named_sizes(sweep: Sweep, trials: Sequence[Trial], corpus: Corpus) -> list[NamedSize | None]:
    """The size of each trial's student; None of one that is not cut, of a frozen encoder, and of a model elsewhere.

    Raises `TeacherError` for a student that cannot be built."""
    sizes: dict[Student, NamedSize] = {}
    vocabularies: dict[Student, Vocabulary] = {}
    width = teacher_width(sweep.teacher)

    def weights(student: Student, vocabulary: Vocabulary) -> int:
        encoder = build_student(student, vocabulary, teacher_dim=width, seed=0)
        return sum(parameter.numel() for parameter in encoder.parameters())

    for trial in trials:
        student = trial.student
        cuts = student.model is not None and (student.trim or student.keep_layers is not None)
        if not cuts or student in sizes or not is_at_hand(str(student.model)):
            continue
        if needs_of(trial.method, trial.config).frozen:
            continue
        tokenized = student.changed(keep_layers=None)
        if tokenized not in vocabularies:
            vocabularies[tokenized] = _vocabulary(sweep, student, corpus)
        vocabulary = vocabularies[tokenized]
        whole = weights(tokenized, replace(vocabulary, table_rows=None))
        cut = weights(student, vocabulary)
        full = not student.trim or vocabulary.size == limit_of(student) or len(corpus.texts) <= READ_TEXTS
        sizes[student] = NamedSize(whole, cut, None if full else READ_TEXTS)
    return [sizes.get(trial.student) for trial in trials]


def _vocabulary(sweep: Sweep, student: Student, corpus: Corpus) -> Vocabulary:
    """The tokens that the student would read."""
    tokenizer = load_tokenizer(student.changed(trim=False), None)
    if not student.trim:
        return Vocabulary(len(tokenizer), tokenizer.pad_token_id)
    ids = np.arange(len(corpus.texts))
    if len(ids) > READ_TEXTS:
        ids = np.sort(np.random.default_rng(sweep.seed).choice(ids, READ_TEXTS, replace=False))
    backend, special = bare_tokenizer(tokenizer), has_special_tokens(student)
    prompts = {student.prompt, student.prompt if sweep.evaluation.prompt is None else sweep.evaluation.prompt}
    texts = [prompt + text for prompt in sorted(prompts) for text in corpus.texts.at(ids)[:]]
    read = [np.array(row.ids, np.int64) for row in backend.encode_batch_fast(texts, add_special_tokens=special)]
    counts = np.bincount(np.concatenate(read), minlength=len(tokenizer))
    cut, token_ids = trimmed(tokenizer, by_frequency(counts), limit_of(student))
    return Vocabulary(len(token_ids), cut.pad_token_id, table_rows=token_ids)
