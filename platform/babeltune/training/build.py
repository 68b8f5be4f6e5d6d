"""Builds what a trial trains with: its student and method, the reader of its batches, and their schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer

from babeltune.data.stored_arrays import open_matrix, open_ragged
from babeltune.data.thresholds import of_passing_pairs, passing, passing_words
from babeltune.data.tokens import tokenizer_key
from babeltune.errors import TrainingError
from babeltune.method import Method, Needs, TrialContext, trial_context
from babeltune.method.distributed import ProcessGroup
from babeltune.method.masked_lm import Masking
from babeltune.models.build import build_student
from babeltune.models.encoder import Encoder, FrozenEncoder, StudentEncoder, TextIds
from babeltune.models.start import take_embeddings
from babeltune.models.static import StaticEncoder
from babeltune.models.vocabulary import Vocabulary
from babeltune.training.batches import BatchReader, sampled_shapes
from babeltune.training.epochs import DrawnPairs
from babeltune.training.graded import GradedSteps
from babeltune.training.sampler import Schedule
from babeltune.training.step import Steps, TrainStep

if TYPE_CHECKING:
    from torch import Tensor

    from babeltune.data.prepared import Prepared, TokenSet
    from babeltune.schema.records import Trial


def token_set(trial: Trial, prepared: Prepared) -> TokenSet:
    """The tokenizer and token stores of a trial's student."""
    return prepared.tokens[tokenizer_key(trial.student, prepared.text_digest)]


def make_student(trial: Trial, prepared: Prepared, context: TrialContext | None = None) -> StudentEncoder:
    """The untrained student of a trial, the same weights on every rank; or the teacher's stored vectors."""
    needs = (context or trial_context(trial.method, trial.config)).needs
    if needs.frozen:
        assert prepared.teacher is not None
        return FrozenEncoder(open_matrix(Path(prepared.teacher)), prepared.teacher_rows())
    tokens, student = token_set(trial, prepared), trial.student
    if student.start is not None:  # the folder of its tokenizer holds its weights, too
        student = replace(student, model=tokens.tokenizer, start=None)
    encoder = build_student(
        student,
        Vocabulary(
            tokens.vocabulary,
            tokens.pad,
            table_rows=None if tokens.table_rows is None else np.load(tokens.table_rows),
            tokenizer=Tokenizer.from_file(f"{tokens.tokenizer}/tokenizer.json") if trial.student.ngrams else None,
        ),
        teacher_dim=prepared.teacher_dim,
        seed=trial.first_seed,
        projected=needs.vectors,
    )
    if student.token_vectors != "random":
        assert isinstance(encoder, StaticEncoder)
        encoder.begin_with(torch.from_numpy(np.load(tokens.vectors[student.token_vectors])))
    if student.embeddings_from is not None:
        assert isinstance(encoder, Encoder)
        take_embeddings(encoder, Path(tokens.tokenizer))
    return encoder


def make_method(
    trial: Trial, prepared: Prepared, encoder: StudentEncoder, context: TrialContext | None = None
) -> Method:
    """The untrained method of a trial on this encoder; the same weights on every rank."""
    context = context or trial_context(trial.method, trial.config)
    needs = context.needs
    sizes: dict[str, object] = {"student_dim": encoder.dim, "teacher_dim": prepared.teacher_dim}
    if needs.per_language:
        sizes["languages"] = prepared.trained_languages
    if needs.states:
        assert isinstance(encoder, Encoder)
        if needs.layer > encoder.layers:
            raise TrainingError(
                f"method {trial.method!r} reads layer {needs.layer} of a student that has {encoder.layers}; "
                "name a layer that the student has"
            )
        sizes |= {"width": encoder.width, "vocabulary": len(encoder.word_embeddings)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.first_seed)
        make: Callable[..., Method] = context.method_class
        return make(context.config, **sizes)


def make_student_and_method(
    trial: Trial, prepared: Prepared, context: TrialContext | None = None
) -> tuple[StudentEncoder, Method]:
    """Both, untrained. `context` avoids computing it again."""
    encoder = make_student(trial, prepared, context)
    return encoder, make_method(trial, prepared, encoder, context)


def load_weights(encoder: StudentEncoder, method: Method, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Gives a student and its method the weights of a checkpoint, whose `method` is missing if it has none."""
    encoder.load_state_dict(tensors["student"])
    method.load_state_dict(tensors.get("method", method.state_dict()))


def make_train_step(
    trial: Trial, prepared: Prepared, ranks: ProcessGroup, device: torch.device, context: TrialContext | None = None
) -> TrainStep:
    """The untrained training step of a trial. `context` avoids computing it again."""
    return TrainStep(*make_student_and_method(trial, prepared, context), trial.training, ranks, device)


def make_reader(
    trial: Trial, prepared: Prepared, device: torch.device, context: TrialContext | None = None
) -> BatchReader:
    """The reader of a trial's batches. `context` avoids computing it again."""
    needs = (context or trial_context(trial.method, trial.config)).needs
    mined = prepared.negatives[needs.negatives_key] if needs.hard_negatives else None
    negatives = np.load(mined, mmap_mode="r") if mined else None
    if negatives is not None and (passed := passing(prepared, trial.sampling)) is not None:
        negatives = of_passing_pairs(negatives, prepared.pairs(), passed)
    tokens = None if needs.frozen else token_set(trial, prepared)
    graded = prepared.graded() if trial.training.graded_weight else None
    words = passing_words(Path(tokens.words or ""), trial.sampling) if tokens and needs.words else None
    return BatchReader(
        prepared=prepared,
        tokens=TextIds() if tokens is None else open_ragged(Path(tokens.train)),
        teacher=open_matrix(Path(prepared.teacher)) if prepared.teacher else None,
        device=device,
        needs=needs,
        negatives=negatives,
        words=words,
        masking=masking(tokens, needs.masked) if tokens and needs.masked else None,
        seed=trial.seed,
        graded=graded and GradedSteps(graded, trial.training.graded_batch, trial.seed),
    )


def make_schedule(trial: Trial, prepared: Prepared, reader: BatchReader, needs: Needs) -> Schedule:
    """The global batches of a trial whose method has these needs."""
    return Schedule(
        DrawnPairs(
            prepared.pair_groups(),
            prepared.pair_weights(),
            order=reader.target_lengths() if needs.order == "length" else None,
            only=passing(prepared, trial.sampling, reader.usable()),
        ),
        trial.sampling,
        global_batch=trial.training.global_batch,
        total_pairs=trial.training.pairs,
        seed=trial.seed,
    )


def masking(tokens: TokenSet, share: float) -> Masking:
    """The masks of this tokenizer; `TrainingError` if it has no mask token."""
    if tokens.mask is None:
        raise TrainingError(
            f"the tokenizer {tokens.tokenizer!r} has no mask token, which masked language modelling needs; name "
            "another student, or turn masking off in the method's settings"
        )
    return Masking(share, tokens.mask, np.setdiff1d(np.arange(tokens.vocabulary), tokens.special))


def make_steps(
    trial: Trial, prepared: Prepared, ranks: ProcessGroup, device: torch.device, context: TrialContext | None = None
) -> Steps:
    """The steps of an untrained trial. `context` avoids computing it again."""
    context = context or trial_context(trial.method, trial.config)
    reader = make_reader(trial, prepared, device, context)
    schedule = make_schedule(trial, prepared, reader, context.needs)
    train_step = make_train_step(trial, prepared, ranks, device, context)
    if reader.graded and train_step.capture:
        train_step.record_with(None, "graded pairs train beside the pairs")
    if train_step.capture and not train_step.capture.off:
        reader.shapes = sampled_shapes(reader, schedule, trial.student.max_tokens)
    return Steps(train_step, reader, schedule, trial.seed)
