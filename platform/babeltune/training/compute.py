"""The compute of a trial: what its training costs, counted instead of timed, so that unlike students compare.

A training step is counted in operations (of matrix products and attention) and in bytes (that all kernels read and
write). Two rates of a machine turn both into seconds of one worker: `operations / rate + bytes / rate`. The count is
the same in every run; only the rates are measured, once for a sweep. `python -m benchmarks.compute` shows how far
counted seconds are from measured ones."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from babeltune.errors import TrainingError, plural
from babeltune.method import trial_context
from babeltune.method.distributed import ProcessGroup
from babeltune.products import ONEDNN, use_onednn
from babeltune.training.build import make_steps
from babeltune.training.row_adam import RowAdam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload, OpOverloadPacket

    from babeltune.data.prepared import Prepared
    from babeltune.schema.records import Trial
    from babeltune.training.step import TrainStep

aten = torch.ops.aten


def _linear_flop(x: Tensor, weight: Tensor, *_: object, **__: object) -> int:
    """Operations of oneDNN's x @ weight.T."""
    return 2 * x.numel() * len(weight)


OPERATIONS = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
    **({torch.ops.mkldnn._linear_pointwise: _linear_flop} if ONEDNN else {}),
}
"""The operations of a kernel: torch's own table, attention on a CPU, and oneDNN's products."""
ROWS = (
    aten.embedding,
    aten.gather,
    aten.index,
    aten.index_add_,
    aten.index_copy_,
    aten.index_put_,
    aten.index_select,
    aten.scatter_add_,
)
"""Kernels that read or write some rows of their first tensor, and not all of it."""
BAGS = (aten._embedding_bag, aten._embedding_bag_forward_only)
"""Kernels that add up rows of their first tensor, as the second says."""
COUNTED = 4  # batches whose mean is the work of a step
GIGA = 1e9
REPEATS = 5  # repeats of a measured step; the fastest counts
REFERENCE = (256, 384, 12, 4000)
"""Hidden width, width of the vectors, tokens of a sentence and vocabulary of the steps that measure the rates."""


@dataclass(frozen=True)
class Work:
    """The cost of some training."""

    operations: float = 0.0  # a multiplication and an addition are two
    bytes: float = 0.0  # read and written

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def __truediv__(self, count: float) -> Work:
        return Work(self.operations / count, self.bytes / count)

    def seconds(self, rates: tuple[float, float]) -> float:
        """On a machine of these rates: 10^9 operations, and 10^9 bytes, in a second."""
        return self.operations / (rates[0] * GIGA) + self.bytes / (rates[1] * GIGA)


# --- Counting -------------------------------------------------------------------------------------------------------


class Counter(TorchDispatchMode):
    """Counts the work of everything that torch does within it, backward passes and optimizers included.

    A view costs nothing. Results stay as they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view:
            packet = func._overloadpacket
            formula = OPERATIONS.get(packet)
            operations = formula(*args, **kwargs, out_val=result) if formula else 0
            self.work += Work(operations, _moved(packet, [*args, *kwargs.values()], result))
        return result


def _moved(packet: OpOverloadPacket, arguments: Sequence[object], outputs: object) -> int:
    """Bytes that a kernel reads and writes."""
    if packet in BAGS:
        (table, ids), (sums, *_) = cast("Sequence[Tensor]", arguments[:2]), cast("Sequence[Tensor]", outputs)
        return ids.numel() * table.shape[1] * table.element_size() + _bytes(sums)
    if packet in ROWS:
        return 2 * sum(_bytes(leaf) for leaf in tree_leaves((arguments[1:], outputs)) if leaf is not arguments[0])
    return sum(map(_bytes, tree_leaves((arguments, outputs))))


def _bytes(value: object) -> int:
    """Bytes of a tensor's data; 0 for anything else. Sparse: indices and values."""
    if not isinstance(value, Tensor):
        return 0
    if value.is_sparse:
        return _bytes(value._indices()) + _bytes(value._values())
    return value.numel() * value.element_size()


class SavedBytes(NamedTuple):
    """Bytes of a checkpoint's tensors."""

    weights: int
    optimizer: int


def saved_bytes(step: TrainStep) -> SavedBytes:
    """Bytes of the weights, their average and the optimizer's state, as `trainer.py` saves them."""
    weights = [step.module.state_dict(), *([step.average.tensors()] if step.average else [])]
    states = [state for optimizer in step.optimizers for state in optimizer.state.values()]
    return SavedBytes(
        sum(_bytes_in(each) for each in weights), sum(_bytes(value) for state in states for value in state.values())
    )


def _bytes_in(tensors: Mapping[str, object]) -> int:
    return sum(_bytes_in(value) if isinstance(value, Mapping) else _bytes(value) for value in tensors.values())


@dataclass(frozen=True)
class FirstBatch:
    """One of a trial's first global batches, all of it on this rank."""

    step: Callable[[], object]  # trains on it; to be called once, and before the next batch is made
    seen: int  # pairs seen after it
    saved_bytes: Callable[[], SavedBytes]  # the bytes of a checkpoint after it


def first_batches(trial: Trial, prepared: Prepared, device: torch.device) -> Iterator[FirstBatch]:
    """The trial's first `COUNTED` global batches, for a student that is thrown away."""
    context = trial_context(trial.method, trial.config)
    short = with_length(trial, COUNTED * trial.training.global_batch)
    short = replace(short, training=replace(short.training, capture="off"))
    steps = make_steps(short, prepared, ProcessGroup.alone(), device, context)
    if context.needs.warm_up:
        steps.train_step.method.warm_up(*steps.reader.anchors(context.needs.warm_up, trial.seed))
    for step in range(len(steps.schedule)):
        batch, pairs_seen = steps.batch(step), steps.seen(step + 1)
        train_step = steps.train_step
        saved = functools.partial(saved_bytes, train_step)
        yield FirstBatch(functools.partial(train_step.step, batch, pairs_seen), pairs_seen, saved)


def work_of_a_pair(trial: Trial, prepared: Prepared, device: torch.device) -> Work:
    """The cost of training on one pair: the mean over the trial's first batches, so that the number of ranks plays no
    part."""
    work, seen = Work(), 0
    for batch in first_batches(trial, prepared, device):
        with Counter() as counter:
            batch.step()
        work, seen = work + counter.work, batch.seen
    return work / seen


def with_length(trial: Trial, pairs: int) -> Trial:
    """The trial with this number of pairs."""
    return replace(trial, training=replace(trial.training, pairs=pairs))


def paid_for(trial: Trial, prepared: Prepared, ranks: ProcessGroup, device: torch.device) -> Trial:
    """The trial with the pairs that its `training.compute` pays for; as it is if it has none. Rank 0 counts.

    Raises `TrainingError`, on all ranks, if these are too few for its reports."""
    training = trial.training
    if training.compute is None:
        return trial
    assert training.rates is not None
    pairs_paid = 0 if ranks.rank else training.compute / work_of_a_pair(trial, prepared, device).seconds(training.rates)
    pairs = ranks.of_first(int(pairs_paid), device)
    if pairs < (least := 2 * training.reports * training.global_batch):
        raise TrainingError(
            f"training.compute {training.compute:g} s pays for {plural(pairs, 'pair')}, and "
            f"{plural(training.reports, 'report')} of two "
            f"steps need {least:,}; give at least {training.compute * least / max(pairs, 1):.2g}"
        )
    return with_length(trial, pairs)


# --- The two rates --------------------------------------------------------------------------------------------------


def measured_rates(device: torch.device) -> tuple[float, float]:
    """10^9 operations and 10^9 bytes that this machine does in a second, in training steps like ours.

    Four steps are counted and timed: a static student's and a one-layer Transformer's, each with a small and a large
    batch. The rates are those by which the counts explain the times best, in relative error."""
    counts, times = [], []
    for step in (_step(device, pairs, layers) for layers in (0, 1) for pairs in (64, 256)):
        step()
        with Counter() as counter:
            step()
        counts.append([counter.work.operations / GIGA, counter.work.bytes / GIGA])
        times.append(min(_timed(step, device) for _ in range(REPEATS)))
    shares = torch.tensor(counts, dtype=torch.float64) / torch.tensor(times, dtype=torch.float64)[:, None]
    ones = torch.ones(len(times), 1, dtype=torch.float64)
    best = torch.linalg.lstsq(shares, ones).solution.flatten().tolist()
    if min(best) <= 0:  # One rate fits as zero or negative. Use the common mean for both.
        best = [1 / float(shares.sum(dim=1).mean())] * 2
    return 1 / best[0], 1 / best[1]


def _timed(step: Callable[[], None], device: torch.device) -> float:
    """Seconds of one step."""
    started = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _step(device: torch.device, pairs: int, layers: int) -> Callable[[], None]:
    """A training step on pairs of random tokens: both sides encoded, one softmax over the batch, Adam."""
    width, dim, length, vocabulary = REFERENCE
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        table = nn.EmbeddingBag(vocabulary, width, mode="mean", sparse=True)
        words = nn.Embedding(vocabulary, width)
        blocks = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
            for _ in range(layers)
        ]
        last = nn.Linear(width, dim)
        ids = torch.randint(0, vocabulary, (2 * pairs, length)).to(device)
    body = nn.Sequential(words, *blocks) if layers else table
    module = nn.Sequential(body, last).to(device)
    use_onednn(module)
    dense = [*last.parameters(), *(body.parameters() if layers else ())]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(dense, fused=True)]
    if not layers:
        optimizers.append(RowAdam(table.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8))
    own_places = torch.arange(pairs, device=device)

    def step() -> None:
        module.zero_grad()
        states = body(ids)
        vectors = functional.normalize(last(states.mean(dim=1) if layers else states))
        functional.cross_entropy(20 * vectors[:pairs] @ vectors[pairs:].T, own_places).backward()  # type: ignore[no-untyped-call]
        for parameter in table.parameters() if not layers else ():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.coalesce()
        for optimizer in optimizers:
            optimizer.step()

    return step
