"""The soft contrastive loss in tiles against the full-matrix formula: seconds, and peak memory.

Value and gradient of L_cross (rows and columns, teacher's labels, `fixed` reading) for 8192 pairs of 384 dimensions.
Ours is the method's `loss`, called as a training step calls it, with the vectors in place of a student. The peer writes
out both N × N matrices and leaves the gradient to autograd. Memory is the peak of a fresh process that evaluates one of
them once, less the peak of a fresh process that has only made the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from babeltune.method import Batch, Encode, Tokens, load_method, make_config
from babeltune.method.distributed import ProcessGroup
from benchmarks.race import SLACK, cpu_seconds, options, peak_memory, race, verdict

if TYPE_CHECKING:
    from jaxtyping import Float

PAIRS, DIM = 8192, 384
GOAL, MEMORY_GOAL = 1.5, 20.0
TEMPERATURE = 0.1  # temperature of the student's similarities and of the labels: the paper's
TOLERANCE = 1e-4  # largest difference of value and gradient, relative to the largest value and gradient


@dataclass(frozen=True)
class Vectors:
    """The input of both: the student's vectors of both sides, and the teacher's of the source side."""

    student: Float[Tensor, "2*pairs dim"]
    teacher: Float[Tensor, "pairs dim"]


def make_vectors(pairs: int, dim: int) -> Vectors:
    """Vectors in which pairs lie closer than others, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    meaning, *noise = (torch.randn(pairs, dim, generator=generator) for _ in range(4))
    source, target, teacher = (normalize(meaning + part, dim=1) for part in noise)
    return Vectors(torch.cat([source, target]), teacher)


def tiled(vectors: Vectors) -> tuple[float, Tensor]:
    """Value and gradient as a trial computes them."""
    method = load_method("soft_contrastive")
    config = make_config(method, {"temperature": TEMPERATURE, "tcm": False, "reading": "fixed", "labels": "priority"})
    pairs, dim = vectors.teacher.shape
    objective = method(config, student_dim=dim, teacher_dim=dim)
    ids = torch.arange(pairs, device=vectors.student.device)
    one_token_each = Tokens(ids, torch.ones_like(ids))
    batch = Batch(one_token_each, one_token_each, ids, ids + pairs, pairs, teacher_source=vectors.teacher)
    leaf = vectors.student.detach().requires_grad_()
    loss = objective.loss(cast(Encode, lambda tokens: leaf), batch, ProcessGroup())
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return float(loss.total.detach()), leaf.grad


def full_matrix(vectors: Vectors) -> tuple[float, Tensor]:
    """Value and gradient by the formula, matrix by matrix."""
    leaf = vectors.student.detach().requires_grad_()
    s, t = normalize(leaf, dim=1).chunk(2)
    a = normalize(vectors.teacher, dim=1)
    labels = (a @ a.T / TEMPERATURE).softmax(1)
    similarities = s @ t.T / TEMPERATURE
    rowwise = (labels * log_softmax(similarities, 1)).sum()
    columnwise = (labels.T * log_softmax(similarities, 0)).sum()
    loss = -(rowwise + columnwise) / len(s)
    loss.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return float(loss.detach()), leaf.grad


def difference(vectors: Vectors) -> tuple[float, float]:
    """The relative difference of both values, and the largest one of both gradients."""
    (value, gradient), (peer_value, reference) = tiled(vectors), full_matrix(vectors)
    return abs(value / peer_value - 1), float((gradient - reference).abs().max() / reference.abs().max())


def evaluate_once(side: str, pairs: int, dim: int) -> None:
    """The work of the measured process: `inputs` alone, or `ours`, or the `peer`."""
    small = make_vectors(16, dim)
    tiled(small), full_matrix(small)  # so that code that is loaded late is not counted
    vectors = make_vectors(pairs, dim)
    if side != "inputs":
        {"ours": tiled, "peer": full_matrix}[side](vectors)


def memory(pairs: int, dim: int) -> tuple[int, int]:
    """Peak bytes of ours and of the peer's above the inputs'."""
    inputs, ours, peer = (peak_memory(evaluate_once, side, pairs, dim) for side in ("inputs", "ours", "peer"))
    return max(1, ours - inputs), peer - inputs


def main(pairs: int = PAIRS, dim: int = DIM) -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    vectors = make_vectors(pairs, dim)
    value, gradient = difference(vectors)
    rows = race(
        lambda: cpu_seconds(lambda: tiled(vectors)), lambda: cpu_seconds(lambda: full_matrix(vectors)), args.rounds
    )
    ours, peer = memory(pairs, dim)
    print(f"largest difference, relative: value {value:.2g}, gradient {gradient:.2g}")
    megabytes = [size / 2**20 for size in (ours, peer)]
    print("peak memory above the inputs: ours {:.0f} MiB, peer {:.0f} MiB, ".format(*megabytes), end="")
    print(f"ratio {peer / ours:.3g} goal {MEMORY_GOAL:g}")
    broken = []
    if max(value, gradient) > TOLERANCE:
        broken.append(f"ours and the peer differ by more than {TOLERANCE:g}")
    if peer / ours < SLACK * MEMORY_GOAL:
        broken.append(f"the memory ratio is below {SLACK:g} of its goal {MEMORY_GOAL:g}")
    differ = {"value_difference": value, "gradient_difference": gradient}
    verdict(
        "soft_loss", rows, GOAL, args, broken=broken, pairs=pairs, dim=dim, bytes={"ours": ours, "peer": peer}, **differ
    )


if __name__ == "__main__":
    main()
