"""One optimizer step: the student and its method, forward, backward over all ranks, and the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from babeltune.errors import TrainingError
from babeltune.method import Batch, Cut, Loss, Method, Tokens
from babeltune.method.contract import FIRST_AND_LAST
from babeltune.method.distributed import ProcessGroup, numbers
from babeltune.method.gradcache import CachedEncode, RandomState
from babeltune.method.matryoshka import cuts_below, matryoshka_loss
from babeltune.models.encoder import Encoder, FrozenEncoder, StudentEncoder
from babeltune.training.batches import BatchReader
from babeltune.training.capture import TOLERANCE, Capture, CudaGraphs
from babeltune.training.graded import graded_loss, sizes_of
from babeltune.training.parts import loss_in_parts
from babeltune.training.row_adam import RowAdam
from babeltune.training.sampler import Schedule, local_sizes, own_rows
from babeltune.training.weight_average import weight_average, weights_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from babeltune.schema.records import Goal, Training


STEPS = (2, 4, 5)  # sixths of the pairs at which `schedule: steps` takes a tenth of the rate
RATE = "rate"  # key of a group of parameters: how many times the learning rate it gets
STOP = "stop?"  # among the step's summed values: how many ranks want to stop
PLATEAU = 3  # reports without a better score that `schedule: plateau` forgives, as Li's code does
BETTER = 1e-4  # the least relative improvement that counts (torch's `ReduceLROnPlateau`)


def learning_rate_at(training: Training, seen: int, halvings: int = 0) -> float:
    """The learning rate after `seen` pairs: warm-up, then the schedule, after this number of `halvings`."""
    warm = training.warmup * training.pairs
    if seen < warm:
        return training.learning_rate * seen / warm
    if training.schedule in ("constant", "plateau"):
        return training.learning_rate * 0.5**halvings
    if training.schedule == "steps":
        return training.learning_rate * 0.1 ** sum(6 * seen >= sixths * training.pairs for sixths in STEPS)
    progress = min(1.0, (seen - warm) / max(1.0, training.pairs - warm))
    factor = 1 - progress if training.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return training.learning_rate * factor


def halvings_after(scores: Sequence[float], goal: Goal) -> int:
    """How often `schedule: plateau` has halved the rate after reports of these scores, as torch's `ReduceLROnPlateau`
    with a factor of 0.5 counts."""
    sign = 1 if goal == "maximize" else -1
    best, bad, halvings = -math.inf, 0, 0
    for score in (sign * score for score in scores):
        if not math.isfinite(best) or score > best + BETTER * abs(best):
            best, bad = score, 0
        else:
            bad += 1
        if bad > PLATEAU:
            bad, halvings = 0, halvings + 1
    return halvings


class ParameterKind(NamedTuple):
    """Parameters of one kind share a group of an optimizer."""

    sparse: bool
    no_decay: bool
    embedding_rate: bool


def make_optimizers(module: nn.Module, tokens: Tensor | None, training: Training) -> list[torch.optim.Optimizer]:
    """Fused AdamW of all parameters, and `RowAdam` of those whose gradient names the rows that a batch touched.

    Embeddings and vectors (biases, norms, temperatures) are not decayed. `tokens` are the token embeddings, whose rate
    is `training.embedding_learning_rate` times the others': `RATE` of their group."""
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    sparse = sparse_tables(module)
    faster = {id(tokens), *sparse} if training.embedding_learning_rate != 1 else set()
    groups: dict[ParameterKind, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            no_decay = parameter.ndim <= 1 or id(parameter) in embeddings
            kind = ParameterKind(id(parameter) in sparse, no_decay, id(parameter) in faster)
            groups.setdefault(kind, []).append(parameter)
    rate, betas = training.learning_rate, (training.beta1, training.beta2)
    optimizers: list[torch.optim.Optimizer] = []
    for is_sparse in (False, True):
        chosen: list[dict[str, Any]] = []
        for kind in sorted(each for each in groups if each.sparse == is_sparse):
            factor = training.embedding_learning_rate if kind.embedding_rate else 1.0
            chosen.append({"params": groups[kind], RATE: factor})
            if not is_sparse:
                chosen[-1]["weight_decay"] = 0.0 if kind.no_decay else training.weight_decay
        if chosen and is_sparse:
            optimizers.append(RowAdam(chosen, lr=rate, betas=betas, eps=training.epsilon))
        elif chosen:
            optimizers.append(torch.optim.AdamW(chosen, lr=rate, betas=betas, eps=training.epsilon, fused=True))
    return optimizers


def sparse_tables(module: nn.Module) -> set[int]:
    """The ids of the tables whose gradient names the rows that a batch touched."""
    return {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse}


def clip(parameters: Sequence[nn.Parameter], most: float) -> Tensor:
    """Scales the gradients so that their common norm is at most this; returns the norm that they had."""
    gradients = [p.grad._values() if p.grad.is_sparse else p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    factor = torch.clamp(most / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(gradients, factor)
    return norm


@dataclass(frozen=True)
class AutocastEncode:
    """The encoder as methods see it: run under autocast, answering in fp32. Implements `Encode`."""

    encoder: StudentEncoder
    autocast: torch.autocast

    def __call__(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        with self.autocast:
            vectors: Tensor = self.encoder(tokens)
        return vectors.float()

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        with self.autocast:
            return self.student.states(tokens, layers)

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        return self.student.word_embeddings

    @property
    def student(self) -> Encoder:
        """The encoder, if it is one with token states: a static or a frozen one has none."""
        assert isinstance(self.encoder, Encoder)
        return self.encoder


@dataclass
class TrainStep:
    """The state that one optimizer step reads and changes."""

    encoder: StudentEncoder
    method: Method
    training: Training
    ranks: ProcessGroup
    device: torch.device
    optimizers: list[torch.optim.Optimizer] = field(init=False)
    halvings: int = 0  # halvings of `schedule: plateau`; the caller that sees the reports sets it
    stop: bool = False  # whether this rank wants all to stop after the next step
    stopping: bool = False
    """Whether any rank wanted to before the latest one: the same on all, by the collective that sums the loss."""

    def __post_init__(self) -> None:
        self.module = nn.ModuleDict({"student": self.encoder, "method": self.method}).to(self.device)
        tokens = None if isinstance(self.encoder, FrozenEncoder) else self.encoder.word_embeddings
        self.optimizers = make_optimizers(self.module, tokens, self.training)
        self.cuts = cuts_of(self.encoder, self.training)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.by_row = [p for p in self.parameters if id(p) in sparse_tables(self.module)]
        average, total = self.training.average, self.training.pairs
        self.average = weight_average(average, weights_of(self.module), total) if average else None
        self.capture: Capture | None = None
        if self.training.capture == "auto":
            off = self.not_captured()
            self.record_with(None if off else CudaGraphs(self.device), off)

    def not_captured(self) -> str:
        """Why steps are not recorded; empty if they may be."""
        training = self.training
        reasons = {
            "there is no GPU": self.device.type != "cuda",
            "the student is no Transformer that runs packed": not isinstance(self.encoder, Encoder)
            or not self.encoder.packs,
            "several workers share a batch": self.ranks.world > 1,
            "training.chunk and training.batch_parts cut a batch": training.chunk is not None
            or training.batch_parts > 1,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def record_with(self, recorder: CudaGraphs | None, off: str = "") -> None:
        """Lets a recorder run the steps. The learning rate is then a tensor, which a recorded step reads."""
        self.capture = Capture(
            self.update, self.gradients_without_update, recorder, TOLERANCE[self.training.precision], off
        )
        for group in self.optimizers[0].param_groups if recorder else ():
            group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
            group["capturable"] = self.device.type == "cuda"

    def averaged(self) -> AbstractContextManager[None]:
        """Within the block the module has the weights that are evaluated and exported: `training.average`'s, if any."""
        return self.average.in_place() if self.average else nullcontext()

    def backward(self, batch: Batch) -> dict[str, Tensor]:
        """Leaves the gradient of the global loss in every parameter; returns the global loss and its terms, and whether
        a rank wants to stop."""
        training = self.training
        autocast = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=training.precision == "bf16")
        encode = AutocastEncode(self.encoder, autocast)
        self.ranks.set_sizes(local_sizes(batch.total, self.ranks.world))
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        frozen = isinstance(self.encoder, FrozenEncoder)  # there is nothing to encode again
        cached = CachedEncode(encode, training.chunk) if training.chunk and not frozen else None

        def loss_of(some: Batch) -> Loss:
            if training.matryoshka:
                return matryoshka_loss(self.method, self.cuts, cached or encode, some, self.ranks)
            return self.method.loss(cached or encode, some, self.ranks)

        parts = training.batch_parts
        loss = loss_of(batch) if parts == 1 else loss_in_parts(loss_of, batch, parts, self.ranks)
        loss.total.backward()  # type: ignore[no-untyped-call]
        if cached:
            cached.backward()
        shares = {"loss": loss.total.detach(), **loss.terms, **loss.diagnostics}
        if batch.graded is not None:
            self.ranks.set_sizes(sizes_of(batch.graded.total, batch.total, self.ranks.world))
            graded = graded_loss(encode, batch.graded, self.ranks)
            (training.graded_weight * graded).backward()  # type: ignore[no-untyped-call]
            shares |= {"loss": shares["loss"] + training.graded_weight * graded.detach(), "graded": graded.detach()}
        self.ranks.sum_gradients(self.parameters, self.by_row)
        return self.ranks.sum_scalars({**shares, STOP: loss.total.new_full((), float(self.stop))})

    def set_rate(self, seen: int) -> None:
        """Sets the learning rate of `seen` pairs."""
        rate = learning_rate_at(self.training, seen, self.halvings)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate * group[RATE])
                else:
                    group["lr"] = rate * group[RATE]

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Gradients and one clipped update; returns what `backward` does, and the gradient's norm."""
        shared = self.backward(batch)
        norm = clip(self.parameters, self.training.clip or math.inf)
        for optimizer in self.optimizers:
            optimizer.step()
        return {**shared, "gradient_norm": norm}

    def gradients_without_update(self, batch: Batch) -> dict[str, Tensor]:
        """The same without the update: weights, buffers and random numbers are as before."""
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        state = RandomState(self.device)
        shared = self.backward(batch)
        norm = clip(self.parameters, math.inf)
        state.restore()
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])
        return {**shared, "gradient_norm": norm}

    def step(self, batch: Batch, seen: int, halfway: int | None = None) -> dict[str, float]:
        """One optimizer step on a global batch; `TrainingError` when the loss or its gradient is not finite.

        `seen` pairs are seen after it. Its learning rate is that of `halfway` pairs; absent: that of `seen`."""
        self.set_rate(seen if halfway is None else halfway)
        shared = self.capture.run(batch) if self.capture else self.update(batch)
        if self.average:
            self.average.after_update(seen)
        # Numbers are read once and last, so that a GPU has all of the step to do meanwhile.
        values = numbers(shared)
        stops = values.pop(STOP)
        # A replayed CUDA graph returns the stop flag of its recording.
        self.stopping = stops > 0 if self.ranks.world > 1 else self.stop
        if not math.isfinite(values["loss"]):
            raise TrainingError(f"loss is {values['loss']}; lower training.learning_rate or raise the temperature")
        if not math.isfinite(values["gradient_norm"]):
            raise TrainingError(f"gradient norm is {values['gradient_norm']}; lower training.learning_rate")
        return values


def cuts_of(encoder: StudentEncoder, training: Training) -> tuple[Cut, ...]:
    """The cuts of `training.matryoshka` below the student's width; `TrainingError` if it cannot be cut so."""
    if not training.matryoshka:
        return ()
    if isinstance(encoder, FrozenEncoder):
        raise TrainingError("training.matryoshka trains a student, and the encoder is frozen; remove it")
    return cuts_below(training.matryoshka, encoder.dim, encoder.normalize)


@dataclass
class Steps:
    """The steps of a trial: each takes its global batch, with its own randomness, through the training step."""

    train_step: TrainStep
    reader: BatchReader
    schedule: Schedule
    seed: int  # the trial's

    def batch(self, step: int) -> Batch:
        """This rank's rows of global batch `step`, counted from 0. Seeds what is random within the step."""
        ranks, rows = self.train_step.ranks, self.schedule.rows(step)
        torch.manual_seed(step_seed(self.seed, step, ranks.rank))
        first, total = ranks.rank * len(rows) // ranks.world, len(rows)
        rank_rows, alone = own_rows(rows, ranks.rank, ranks.world), self.reader.alone(rows)
        return self.reader.batch(rank_rows, total, step=step, first=first, alone=alone)

    def seen(self, steps: int) -> int:
        """Pairs of these steps."""
        return int(self.schedule.seen[steps - 1]) if steps else 0

    def halfway(self, step: int) -> int:
        """Pairs seen in the middle of a step, which say its learning rate."""
        return (self.seen(step) + self.seen(step + 1)) // 2

    def run(self, step: int) -> dict[str, float]:
        """One optimizer step; `TrainingError` if it cannot be trained on."""
        try:
            return self.train_step.step(self.batch(step), self.seen(step + 1), self.halfway(step))
        except TrainingError as error:
            raise TrainingError(f"step {step + 1}: {error}") from error


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of dropout and other randomness within one step on one rank."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
