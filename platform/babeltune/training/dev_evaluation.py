"""The scores of a student on the dev sets, in the midst of its training: the ranks share the sentences."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from babeltune.data.stored_arrays import open_ragged
from babeltune.evaluation.evaluate import evaluate
from babeltune.evaluation.metric_names import PARAMETERS, SPEED, SPREAD, UNTRIMMED
from babeltune.files import plain
from babeltune.method import Method, Tokens
from babeltune.method.distributed import ProcessGroup
from babeltune.models.encoder import FrozenEncoder, StudentEncoder, TextIds, encode_all
from babeltune.models.static import StaticEncoder
from babeltune.schema.records import Trial
from babeltune.stages import Count, uncounted
from babeltune.training.build import token_set
from babeltune.training.sampler import local_sizes, own_rows
from babeltune.training.speed import sentences_per_second
from babeltune.training.step import cuts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.prepared import Prepared
    from babeltune.data.stored_arrays import Ragged


Found = TypeVar("Found")


class EvaluationLeftError(Exception):
    """A stop request ended an evaluation. All ranks raise it."""


@dataclass
class _SharedEncoding:
    """Encodes sentences on all ranks together. If one rank leaves, all do."""

    encoder: StudentEncoder
    method: Method
    prepared: Prepared
    take: Callable[[NDArray[np.integer]], tuple[NDArray[np.integer], NDArray[np.integer]]]
    """The token ids of texts end to end, and their lengths."""
    ranks: ProcessGroup
    device: torch.device
    poll: Count
    done: int = 0  # sentences that this rank has encoded
    of: int = 0

    def on_all(self, vectors: Found | None) -> Found:
        """This rank's vectors, if none has left."""
        has_left = torch.tensor(float(vectors is None), device=self.device)
        if bool(self.ranks.sum_scalars({"left": has_left})["left"]) or vectors is None:
            raise EvaluationLeftError
        return vectors

    def poll_together(self) -> None:
        """Calls `poll` on every rank."""
        stays = None
        with contextlib.suppress(EvaluationLeftError):
            self.poll(self.done, self.of)
            stays = True
        self.on_all(stays)

    def count(self, _: torch.nn.Module, inputs: tuple[Tokens, ...]) -> None:
        """Before a batch is encoded."""
        self.poll(self.done, self.of)
        self.done += len(inputs[0].lengths)

    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[ids, dim] vectors of these texts. Each rank encodes its part."""
        ranks, languages = self.ranks, self.prepared.text_languages()
        order = np.random.default_rng(0).permutation(len(ids))
        local = ids[own_rows(order, ranks.rank, ranks.world)]
        encoded, self.of = None, self.of + len(local)
        with contextlib.suppress(EvaluationLeftError), self.encoder.register_forward_pre_hook(self.count):
            encoded = torch.from_numpy(encode_all(self.encoder, self.take, local, device=self.device)).to(self.device)
        part = self.on_all(encoded)
        ranks.set_sizes(local_sizes(len(ids), ranks.world))
        with torch.no_grad():
            finished = self.method.finish(part, [self.prepared.languages[number] for number in languages[local]])
            vectors = ranks(finished).cpu().numpy()
        restored = np.empty_like(vectors)
        restored[order] = vectors
        return restored


def dev_scores(
    encoder: StudentEncoder,
    method: Method,
    trial: Trial,
    prepared: Prepared,
    ranks: ProcessGroup,
    device: torch.device,
    poll: Count = uncounted,
) -> dict[str, float]:
    """All dev metrics of the student with its method's layers, and its size and speed (`model/…`). With
    `training.matryoshka` those of each smaller dimension (`dim128/dev/…`), from the same vectors. The ranks share the
    unique sentences and get all the scores. The right sides of tasks with `right_model: teacher` are not encoded: their
    vectors are in the teacher store.

    `poll` is called before each batch is encoded and each subset is scored; if it raises `EvaluationLeftError` on
    one rank, all raise it."""
    encoder, tokens = _as_exported(encoder, trial, prepared)
    shared = _SharedEncoding(encoder, method, prepared, tokens.take, ranks, device, poll)
    modules = [encoder, *method.layers().values()]
    size = sum(parameter.numel() for module in modules for parameter in module.parameters())
    cuts = cuts_of(encoder, trial.training)
    scores = evaluate(
        prepared.tasks, shared.embed, teacher=prepared.teacher_vectors, poll=shared.poll_together, cuts=cuts
    )
    scores[PARAMETERS] = size
    if prepared.tasks and ranks.rank == 0:
        scores[SPEED], scores[SPREAD] = trial.speed or speed_of(encoder, trial, prepared, device)
    if not isinstance(encoder, FrozenEncoder) and (table := token_set(trial, prepared)).untrimmed > table.vocabulary:
        scores[UNTRIMMED] = size + (table.untrimmed - table.vocabulary) * encoder.word_embeddings.shape[1]
    return scores


def speed_of(encoder: StudentEncoder, trial: Trial, prepared: Prepared, device: torch.device) -> tuple[float, float]:
    """How many sentences of the dev sets the encoder encodes in a second, and the spread, as `sentences_per_second`."""
    encoder, tokens = _as_exported(encoder, trial, prepared)
    texts = np.unique(np.fromiter((id_ for task in prepared.tasks for id_ in task.texts_of("student")), np.int64))
    size = sum(parameter.numel() for parameter in encoder.parameters())
    shape = f"{plain(trial.student)} {size} {device}"
    return sentences_per_second(shape, encoder, tokens.take, texts, device)


def vectors_of(
    encoder: StudentEncoder, method: Method, trial: Trial, prepared: Prepared, ids: NDArray[np.int64]
) -> NDArray[np.float32]:
    """[ids, dim] vectors of these texts as `dev_scores` makes them, in this process alone and on the CPU."""
    encoder, tokens = _as_exported(encoder, trial, prepared)
    encoded = torch.from_numpy(encode_all(encoder, tokens.take, ids, device="cpu"))
    languages = prepared.text_languages()[ids]
    with torch.no_grad():
        vectors: NDArray[np.float32] = method.finish(encoded, [prepared.languages[each] for each in languages]).numpy()
    return vectors


def _as_exported(
    encoder: StudentEncoder, trial: Trial, prepared: Prepared
) -> tuple[StudentEncoder, TextIds | Ragged[np.integer]]:
    """The encoder in the shape that it is exported in, and the tokens of the dev texts that it reads."""
    if isinstance(encoder, FrozenEncoder):
        return encoder, TextIds()
    tokens = open_ragged(Path(token_set(trial, prepared).evaluation))
    return encoder.folded() if isinstance(encoder, StaticEncoder) else encoder, tokens
