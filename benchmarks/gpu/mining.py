"""Seconds in which the nearest of a million vectors are found in a million others, both ways and exactly.

Some are compared with a search in fp64. A larger search is left out if a smaller one says that it takes too long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.timing import synchronized
from benchmarks.mining import K, in_shards, search

SIZES, DIM, CHECKED = (200_000, 1_000_000), 384, 512
LONGEST_S = 200.0
"""Seconds that a search may take by the time of the one before."""


def measure(place: Path) -> dict[str, Any]:
    """The figures of each size."""
    found: dict[str, Any] = {}
    for before, count in zip((None, *SIZES), SIZES, strict=False):
        if before and (guess := found[str(before)]["seconds"] * (count / before) ** 2) > LONGEST_S:
            found[str(count)] = {"not measured": f"it would take some {guess:.0f} s"}
            break
        torch.manual_seed(0)
        x = torch.nn.functional.normalize(torch.randn(count, DIM, device="cuda"))
        y = torch.nn.functional.normalize(x + 0.04 * torch.randn(count, DIM, device="cuda"))
        sides = [in_shards(place, vectors.cpu().numpy(), f"{count} {side}") for vectors, side in ((x, "x"), (y, "y"))]
        started = synchronized()
        matches = search(place, *sides)
        seconds = synchronized() - started
        rows = torch.randperm(count)[:CHECKED]
        cosines = torch.cat([x[rows].double() @ y[at : at + 65_536].double().T for at in range(0, count, 65_536)], 1)
        exact = cosines.topk(K, dim=1).indices.cpu()
        same = float((matches.forward.index[rows] == exact).float().mean())
        own = float((matches.forward.index[:, 0] == torch.arange(count)).float().mean())
        found[str(count)] = {
            "seconds": seconds,
            "cosines_per_second": count * count / seconds,
            "as_in_fp64": same,
            "found_its_pair": own,
        }
        del x, y, cosines
        torch.cuda.empty_cache()
    return found


def faults(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What is not as promised."""
    for name, row in found.items():
        if row.get("as_in_fp64", 1.0) < 1.0:
            yield f"{name} vectors: {1 - row['as_in_fp64']:.2%} of the neighbours are not those of fp64"
