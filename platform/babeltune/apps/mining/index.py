"""Neighbours through a faiss index, for corpora beyond what exact search can do: its candidates are scored exactly.

What an index misses is missed; what it finds has the cosines of exact search. faiss answers -1 if it found too few
(in a partition, say): such sentences are searched exactly.

An index is in memory, one direction's after the other's: of n vectors [dim] in fp32, `ivf` holds n (4 dim + 8) bytes
and `hnsw` n (4 dim + 264), which at 10^7 x 384 is 15 and 18 GB; `pq` holds n (dim / 4 + 8), 1 GB. Training takes
`TRAINING` numbers more. An interrupted search through an index starts again."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch

from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.tiles import SLACK, check, exact, searched
from babeltune.apps.mining.topk_keys import EMPTY, cosine_of, index_of, pack
from babeltune.errors import DataError
from babeltune.evaluation.knn import Matches, Neighbours, narrowed
from babeltune.stages import Count, uncounted

if TYPE_CHECKING:
    from babeltune.apps.mining.rows import Vectors

Index = Literal["exact", "ivf", "pq", "hnsw"]
BLOCK = 8_192  # vectors given to faiss at a time
SMALLEST = {"ivf": 256, "pq": 9_984, "hnsw": 1}
"""Sentences without which an index cannot be trained: 39 for each of 256 centroids of a product quantiser."""
SAMPLE, FEWEST = 256, 39  # vectors a partition is trained on, and the fewest that faiss takes for enough
TRAINING = 1 << 28  # numbers of the vectors that partitions are trained on: 1 GB


def through_index(left: Vectors, right: Vectors, k: int, kind: Index, progress: Count = uncounted) -> Matches:
    """Nearest neighbours in both directions, among the candidates that an index of this kind gives.

    `progress` counts vectors: each is put into an index once, and searched for once."""
    x, y = UnitRows(left), UnitRows(right)
    check(x, y, k)
    half = len(x) + len(y)
    forward = _nearest(x, y, k, kind, lambda done: progress(done, 2 * half))
    return Matches(forward, _nearest(y, x, k, kind, lambda done: progress(half + done, 2 * half)))


def _nearest(queries: UnitRows, candidates: UnitRows, k: int, kind: Index, tell: Callable[[int], None]) -> Neighbours:
    k = min(k, len(candidates))
    depth = min(k + SLACK["bf16"], len(candidates))
    index = _filled(kind, candidates, tell)
    best = torch.empty(len(queries), k, dtype=torch.long)
    for start in range(0, len(queries), BLOCK):
        x = queries.block(start, min(start + BLOCK, len(queries)))
        cosine, places = (torch.from_numpy(a) for a in index.search(x.numpy(), depth))
        keys = torch.where(places < 0, EMPTY, pack(cosine, places.clamp(min=0)))
        size = max(1, (1 << 22) // (depth * queries.dim))
        both = zip(torch.split(x, size), torch.split(keys, size), strict=True)
        chosen = torch.cat([exact(some, candidates, of_some)[:, :k] for some, of_some in both])
        few = ((chosen[:, -1] == EMPTY) & x.any(dim=1)).nonzero()[:, 0]
        if len(few):
            chosen[few] = searched(x[few], candidates, k)
        best[start : start + len(x)] = chosen
        tell(len(candidates) + start + len(x))
    return narrowed(Neighbours(cosine_of(best), index_of(best)))


def _filled(kind: Index, candidates: UnitRows, tell: Callable[[int], None]) -> Any:
    faiss = load_faiss()
    count = len(candidates)
    if count < SMALLEST[kind]:
        words = f"an index {kind!r} needs {SMALLEST[kind]:,} sentences to learn from, not {count}: --index exact"
        raise DataError(words)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(candidates.dim, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = 128
    else:
        lists, trained = training_size(count, candidates.dim)
        # np: without the polysemous codes that faiss else spends nearly all of its training on, and that nothing reads.
        dim = candidates.dim  # a vector is cut into the most parts that divide it, of four numbers or more
        parts = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
        code = "Flat" if kind == "ivf" else f"PQ{parts}np"
        index = faiss.index_factory(candidates.dim, f"IVF{lists},{code}", faiss.METRIC_INNER_PRODUCT)
        index.nprobe = max(8, lists // 16)
        sample = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:trained]
        index.train(candidates.take(sample.sort().values).numpy())
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        index.add(candidates.block(start, stop).numpy())
        tell(stop)
    return index


def training_size(count: int, dim: int) -> tuple[int, int]:
    """Partitions of this number of vectors, and how many vectors they are trained on, which `TRAINING` bounds."""
    most = min(count, TRAINING // dim)
    lists = max(1, min(int(4 * count**0.5), most // FEWEST))
    return lists, min(SAMPLE * lists, most)


def load_faiss() -> Any:
    """faiss; `DataError` with the command that installs it."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        words = "faiss is not installed: pip install 'babeltune[faiss]' (`mine` does without it: --index exact)"
        raise DataError(words) from error
