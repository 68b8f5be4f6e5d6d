"""The tile grid on a Ray cluster: each block is a task, and what blocks find is merged as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from babeltune.apps.mining.resumable_search import ResumableSearch
from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.tiles import Candidates, Precision, Tile, scan, settle
from babeltune.apps.mining.topk_keys import empty
from babeltune.data.stored_arrays import open_matrix
from babeltune.errors import ClusterError
from babeltune.evaluation.knn import Matches
from babeltune.stages import Count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AHEAD = 2  # tasks that wait for each CPU


def scan_block(
    left: Sequence[Path], right: Sequence[Path], block: Tile, widths: tuple[int, int], precision: Precision
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The neighbours of one block, in any process that sees the shards."""
    (top, bottom), (first, last) = block.rows, block.columns
    blocks = Candidates(empty(bottom - top, widths[0]), empty(last - first, widths[1]))
    scan(UnitRows(open_matrix(*left)), UnitRows(open_matrix(*right)), blocks, block, precision=precision)
    return blocks.forward.numpy(), blocks.backward.numpy()


def both_ways_by_ray(
    search: ResumableSearch, sides: tuple[Sequence[Path], Sequence[Path]], progress: Count, progress_timeout: float
) -> Matches:
    """As `both_ways_resumable`, of vectors in shards that every node sees, on the Ray cluster that is connected.
    `ClusterError` if no block is done for `progress_timeout` seconds."""
    import ray

    from babeltune.sweep.workers.nodes import cpus_there
    from babeltune.sweep.workers.tasks import NO_PROGRESS, fetched, first_of, kill

    columns = (search.candidates.forward.shape[1], search.candidates.backward.shape[1])
    remote = ray.remote(num_cpus=1, max_retries=2)(scan_block)
    most = AHEAD * cpus_there()
    left, right = map(list, sides)
    running: dict[ray.ObjectRef, int] = {}
    waiting = search.waiting
    while waiting or running:
        while waiting and len(running) < most:
            number = waiting.pop(0)
            running[remote.remote(left, right, search.grid[number], columns, search.precision)] = number
        ready, _ = first_of(list(running), lambda: None, progress_timeout)
        if not ready:
            kill(running)
            raise ClusterError(NO_PROGRESS.format(progress_timeout))
        number = running.pop(ready[0])
        # A result in Ray's memory is read-only, which torch would warn of.
        candidates = Candidates(*(torch.from_numpy(part.copy()) for part in fetched(ready[0])))
        search.candidates.add(candidates, search.grid[number])
        search.finish(number)
        progress(*search.cosines)
    matches = settle(search.left, search.right, search.candidates, search.k, search.precision)
    search.remove()
    return matches
