"""Value and gradient of the soft contrastive loss of 65,536 pairs: seconds and memory.

The gradient of some rows is compared with the formula in fp64. The full matrices stand beside it as far as they have
room."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.timing import DEVICE, Size, peak, timed
from benchmarks.soft_loss import DIM, TEMPERATURE, Vectors, full_matrix, make_vectors, tiled

CHECKED = 512
DIFFERENCE = 1e-3  # largest difference of the gradient, relative to the largest gradient


def formula(vectors: Vectors, rows: Tensor, part: int = 4096) -> Tensor:
    """The gradient of some source vectors in fp64, from the formula's derivative, in parts of the columns.

    dL/dS_ij = (softmax_j(S)_ij + softmax_i(S)_ij - w_ij - w_ji) / N."""
    s, t = vectors.student.double().chunk(2)
    a, total = vectors.teacher.double(), len(vectors.teacher)
    column_sums, label_sums = (
        torch.cat([(x @ y[at : at + part].T / TEMPERATURE).logsumexp(0) for at in range(0, total, part)])
        for x, y in ((s, t), (a, a))
    )
    row_sums = (s[rows] @ t.T / TEMPERATURE).logsumexp(1)
    similarities, labels = s[rows] @ t.T / TEMPERATURE, a[rows] @ a.T / TEMPERATURE
    change = (similarities - row_sums[:, None]).exp() + (similarities - column_sums).exp()
    change -= (labels - label_sums[rows, None]).exp() + (labels - label_sums).exp()
    above = change @ t / (total * TEMPERATURE)
    return above - (above * s[rows]).sum(1, keepdim=True) * s[rows]  # the vectors have length 1


def free_memory() -> None:
    """Gives memory that nothing holds back to the GPU."""
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def cost(function: Callable[[], object]) -> dict[str, Any]:
    """Seconds and bytes on the GPU."""
    return {"seconds": timed(function), "bytes": peak(function)}


def measure(_: Path, size: Size) -> dict[str, Any]:
    """Seconds and memory of value and gradient of the soft contrastive loss."""
    results: dict[str, Any] = {}
    for pairs in size.soft_loss:
        on_cpu = make_vectors(pairs, DIM)
        vectors = Vectors(on_cpu.student.to(DEVICE), on_cpu.teacher.to(DEVICE))
        rows = torch.randperm(pairs, generator=torch.Generator().manual_seed(1))[:CHECKED].to(DEVICE)
        gradient = tiled(vectors)[1]
        exact = formula(vectors, rows)
        difference = float((gradient[rows] - exact).abs().max() / exact.abs().max())
        free_memory()
        cost_of_ours = cost(functools.partial(tiled, vectors))
        try:
            peer = cost(functools.partial(full_matrix, vectors))
        except torch.OutOfMemoryError as error:
            peer = {"out of memory": str(error).split(". ")[0]}
        free_memory()
        results[str(pairs)] = {"ours": cost_of_ours, "full matrices": peer, "gradient_difference": difference}
    return results


def faults(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The missed goals."""
    for name, row in results.items():
        if row["gradient_difference"] > DIFFERENCE:
            yield f"soft loss of {name} pairs: the gradient differs from the formula's"
