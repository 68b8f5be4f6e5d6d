"""The tile grid on a Ray cluster: each block is a task, and what blocks find is merged as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from babeltune.evaluation.neighbours import Matches
from babeltune.mining.best import empty
from babeltune.mining.rows import Rows
from babeltune.mining.tiles import TILE, Block, Found, Precision, Progress, blocks, nothing, scan, settle
from babeltune.mining.vectors import joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

TILES = (4, 8)
"""Tiles of a task, down and across: some seconds of work, and 3 MB of results."""
AHEAD = 2
"""Tasks that wait for each CPU."""


def scan_block(
    left: Sequence[Path], right: Sequence[Path], block: Block, kept: tuple[int, int], precision: Precision
) -> tuple[NDArray[Any], NDArray[Any]]:
    """What one block finds, in any process that sees the shards."""
    (top, bottom), (first, last) = block.rows, block.columns
    found = Found(empty(bottom - top, kept[0]), empty(last - first, kept[1]))
    scan(Rows(joined(left)), Rows(joined(right)), found, block, precision=precision)
    return found.forward.numpy(), found.backward.numpy()


def both_ways_by_ray(
    left: Sequence[Path],
    right: Sequence[Path],
    k: int,
    *,
    precision: Precision,
    progress: Progress,
    size: tuple[int, int] = (TILES[0] * TILE[0], TILES[1] * TILE[1]),
) -> Matches:
    """As `tiles.both_ways`, of vectors in shards that every node sees, on the Ray cluster that is connected."""
    import ray

    from babeltune.engine.sweep import fetched

    x, y = Rows(joined(left)), Rows(joined(right))
    total = nothing(len(x), len(y), k, precision)
    kept = (total.forward.shape[1], total.backward.shape[1])
    remote = ray.remote(num_cpus=1, max_retries=2)(scan_block)
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    running: dict[Any, Block] = {}
    waiting, done = list(blocks(len(x), len(y), size)), 0
    while waiting or running:
        while waiting and len(running) < most:
            block = waiting.pop()
            running[remote.remote(list(left), list(right), block, kept, precision)] = block
        (ready, *_), _ = ray.wait(list(running), num_returns=1)
        block = running.pop(ready)
        # A result in Ray's memory is read-only, which torch would warn of.
        total.add(Found(*(torch.from_numpy(part.copy()) for part in fetched(ready))), block)
        done += block.cosines
        progress(done, len(x) * len(y))
    return settle(x, y, total, k, precision)
