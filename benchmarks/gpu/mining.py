"""Seconds in which the nearest of a million vectors are found in a million others, both ways and exactly.

Some are compared with a search in fp64. A larger search is left out if a smaller one says that it takes too long."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.timing import DEVICE, Size, synchronized
from benchmarks.mining import K, in_shards, search

DIM, CHECKED, GOAL_S = 384, 512, 60.0
LONGEST_S = 200.0  # seconds that a search may take by the time of the one before


def measure(place: Path, size: Size) -> dict[str, Any]:
    """The figures of each size."""
    figures: dict[str, Any] = {}
    for before, count in zip((None, *size.vectors), size.vectors, strict=False):
        if before and (guess := figures[str(before)]["seconds"] * (count / before) ** 2) > LONGEST_S:
            figures[str(count)] = {"not measured": f"it would take some {guess:.0f} s"}
            break
        torch.manual_seed(0)
        x = torch.nn.functional.normalize(torch.randn(count, DIM, device=DEVICE))
        y = torch.nn.functional.normalize(x + 0.04 * torch.randn(count, DIM, device=DEVICE))
        sides = [in_shards(place, vectors.cpu().numpy(), f"{count} {side}") for vectors, side in ((x, "x"), (y, "y"))]
        started = synchronized()
        matches = search(place, *sides)
        seconds = synchronized() - started
        rows = torch.randperm(count)[:CHECKED]
        cosines = torch.cat([x[rows].double() @ y[at : at + 65_536].double().T for at in range(0, count, 65_536)], 1)
        exact = cosines.topk(K, dim=1).indices.cpu()
        same = float((matches.forward.index[rows] == exact).float().mean())
        share = float((matches.forward.index[:, 0] == torch.arange(count)).float().mean())
        figures[str(count)] = {
            "seconds": seconds,
            "cosines_per_second": count * count / seconds,
            "as_in_fp64": same,
            "found_its_pair": share,
        }
        del x, y, cosines
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    return figures


def faults(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The missed goals."""
    for name, row in rows.items():
        if row.get("as_in_fp64", 1.0) < 1.0:
            yield f"{name} vectors: {1 - row['as_in_fp64']:.2%} of the neighbours are not those of fp64"
        if row.get("seconds", 0.0) > GOAL_S:
            yield f"{name} vectors: {row['seconds']:.0f} s, and the goal for a million is {GOAL_S:g}"
