"""The filtered loss over a queue of negatives, in tiles, against full logits: seconds, and ours in bytes.

One step of LASER3-CO-Filter's loss (Algorithm 1 with the pre-filter): value, gradient and enqueueing for 32 pairs of
384 dimensions and a full queue of 65,536. Ours is the method's `loss`, called as a training step calls it, with the
vectors in place of a student. The peer writes out the logits of batch x queue, fills those that the teacher finds too
close with -inf, and leaves the gradient to autograd. Nothing of batch x queue x dim may be built: what ours takes, its
queue included, must be far less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from babeltune.method import Batch, Encode, Method, Tokens, load_method, make_config
from babeltune.method.distributed import ProcessGroup
from benchmarks.race import cpu_seconds, options, peak_memory, race, verdict

if TYPE_CHECKING:
    from jaxtyping import Float

PAIRS, QUEUE, DIM, STEPS = 32, 65_536, 384, 5
GOAL = 1.2
TEMPERATURE, SIGMA = 0.05, 0.9
TOLERANCE = 1e-4  # largest difference of value and gradient, relative to the largest value and gradient
MEMORY_SHARE = 0.1  # the largest share of the bytes of batch x queue x dim that ours may take


@dataclass(frozen=True)
class Vectors:
    """The input of both: the student's vectors, the teacher's, and those of the queue."""

    student: Float[Tensor, "pairs dim"]
    teacher: Float[Tensor, "pairs dim"]
    queue: Float[Tensor, "entries dim"]


def make_vectors(pairs: int, entries: int, dim: int) -> Vectors:
    """Vectors whose first queue entries lie near the positives, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    teacher, noise = (torch.randn(pairs, dim, generator=generator) for _ in range(2))
    queue = torch.randn(entries, dim, generator=generator)
    queue[:pairs] = teacher + 0.1 * noise
    return Vectors(*(normalize(v, dim=1) for v in (teacher + noise, teacher, queue)))


@dataclass
class Ours:
    """The method, with a queue that is full."""

    vectors: Vectors

    def __post_init__(self) -> None:
        method = load_method("laser3_co")
        values = {"temperature": TEMPERATURE, "sigma": SIGMA, "queue": len(self.vectors.queue), "self_weight": 0.0}
        config: Any = make_config(method, values)
        dim = self.vectors.queue.shape[1]
        self.objective: Method = method(config, student_dim=dim, teacher_dim=dim)
        self.objective.warm_up(self.vectors.queue, torch.arange(len(self.vectors.queue)))

    def step(self) -> tuple[float, Tensor]:
        """Value and gradient as a trial computes them; then the queue takes the batch."""
        pairs = len(self.vectors.teacher)
        ids = len(self.vectors.queue) + torch.arange(pairs)
        one_token_each = Tokens(ids, torch.ones_like(ids))
        batch = Batch(one_token_each, one_token_each, ids, ids, pairs, teacher_source=self.vectors.teacher)
        leaf = self.vectors.student.detach().requires_grad_()
        loss = self.objective.loss(cast(Encode, lambda tokens: leaf), batch, ProcessGroup())
        loss.total.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return float(loss.total.detach()), leaf.grad


@dataclass
class Peer:
    """The formula over the whole queue at once."""

    vectors: Vectors
    at: int = 0

    def __post_init__(self) -> None:
        self.queue = self.vectors.queue.clone()

    def step(self) -> tuple[float, Tensor]:
        """Value and gradient by the formula; then the queue takes the batch."""
        leaf = self.vectors.student.detach().requires_grad_()
        q, k = normalize(leaf, dim=1), normalize(self.vectors.teacher, dim=1)
        negatives = (q @ self.queue.T).masked_fill(k @ self.queue.T >= SIGMA, -torch.inf)
        logits = torch.cat([(q * k).sum(1, keepdim=True), negatives], dim=1) / TEMPERATURE
        loss = cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        loss.backward()  # type: ignore[no-untyped-call]
        self.queue[(self.at + torch.arange(len(k))) % len(self.queue)] = k
        self.at = (self.at + len(k)) % len(self.queue)
        assert leaf.grad is not None
        return float(loss.detach()), leaf.grad


def difference(vectors: Vectors, steps: int = 2) -> tuple[float, float]:
    """The relative difference of both values, and the largest one of both gradients, over a few steps."""
    ours, peer = Ours(vectors), Peer(vectors)
    errors = []
    for _ in range(steps):
        (value, gradient), (peer_value, reference) = ours.step(), peer.step()
        errors.append((abs(value / peer_value - 1), float((gradient - reference).abs().max() / reference.abs().max())))
    return max(v for v, _ in errors), max(g for _, g in errors)


def evaluate_once(side: str, pairs: int, entries: int, dim: int) -> None:
    """The work of the measured process: makes the `inputs`, and takes a step if `side` is `ours`."""
    Ours(make_vectors(4, 8, 4)).step()  # so that code that is loaded late is not counted
    vectors = make_vectors(pairs, entries, dim)
    if side == "ours":
        Ours(vectors).step()


def memory(pairs: int, entries: int, dim: int) -> tuple[int, int]:
    """Peak bytes of a full queue and a step above the inputs', and how many it may take."""
    inputs, ours = (peak_memory(evaluate_once, side, pairs, entries, dim) for side in ("inputs", "ours"))
    return ours - inputs, int(MEMORY_SHARE * 4 * pairs * entries * dim)


def main(pairs: int = PAIRS, entries: int = QUEUE, dim: int = DIM) -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    vectors = make_vectors(pairs, entries, dim)
    value, gradient = difference(vectors)
    ours, peer = Ours(vectors), Peer(vectors)
    rows = race(
        lambda: cpu_seconds(lambda: [ours.step() for _ in range(STEPS)]),
        lambda: cpu_seconds(lambda: [peer.step() for _ in range(STEPS)]),
        args.rounds,
    )
    print(f"largest difference, relative: value {value:.2g}, gradient {gradient:.2g}")
    peak, allowed = memory(pairs, entries, dim)
    print(f"peak memory above the inputs: {peak / 2**20:.0f} MiB, allowed {allowed / 2**20:.0f} MiB")
    broken = []
    if peak > allowed:
        broken.append(f"the step took more than {MEMORY_SHARE:g} of the bytes of batch x queue x dim")
    if max(value, gradient) > TOLERANCE:
        broken.append(f"ours and the peer differ by more than {TOLERANCE:g}")
    differ = {"value_difference": value, "gradient_difference": gradient}
    sizes = {"pairs": pairs, "queue": entries, "dim": dim, "bytes": peak}
    verdict("queue_loss", rows, GOAL, args, broken=broken, **sizes, **differ)


if __name__ == "__main__":
    main()
