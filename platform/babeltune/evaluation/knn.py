"""Nearest neighbours of sentence vectors by cosine, exactly, for sets that fit in memory.

Pure functions of arrays. Cosines are fp32 with autocast and TF32 off, computed in tiles, so that memory grows with the
number of rows and not with its square. Both directions of a pair of sets come from one product. Ties
are decided by the lowest index; bit-equal vectors always tie, wherever they stand. Inputs are never changed.

A zero vector has no direction, so it has no neighbours and is nobody's. All its cosines are `UNDEFINED`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32] | Tensor
    AnySide: TypeAlias = "DistinctVectors | Vectors"  # one side of a pair of sets, made ready or not

Candidates = Literal["nearest", "all"]
BLOCK = 1 << 22  # similarities held at once (fp32: 16 MB, which stays in a processor's last cache or near it)
TILE = (512, 8192)  # rows and columns of a tile of `BLOCK` similarities, if there are many candidates
SLACK = 4  # documents that `nearest` keeps beyond k, so that rounding does not decide which are the k best
SETTLED = 32  # queries whose kept documents are in memory while their cosines are computed again
UNDEFINED = -torch.inf  # cosine, or margin, with a zero vector: below every other one
STRIDE = 16  # columns of a class. `first_largest` reads the largest value of a class first.


@dataclass(frozen=True)
class Neighbours:
    """The k candidates most similar to each query, best first, lowest index first if equal. A query without
    neighbours has the cosines `UNDEFINED` and the indices -1."""

    cosine: Float[Tensor, "queries k"]
    index: Int[Tensor, "queries k"]


@dataclass(frozen=True)
class Matches:
    """Neighbours in both directions of two sides: all that accuracy, F1, xSIM and mining need."""

    forward: Neighbours  # for each left sentence, among the right ones
    backward: Neighbours  # for each right sentence, among the left ones
    sides: tuple[DistinctVectors, DistinctVectors] | None = None
    """Both sides, if xSIM's candidates are all sentences and not the k nearest."""

    @property
    def alone(self) -> tuple[int, int]:
        """How many left and how many right sentences have no neighbours."""
        left, right = (int((side.index[:, 0] < 0).sum()) for side in (self.forward, self.backward))
        return left, right

    def turned(self) -> Matches:
        """The same matches with left and right exchanged."""
        return Matches(self.backward, self.forward, self.sides and (self.sides[1], self.sides[0]))


@dataclass(frozen=True)
class DistinctVectors:
    """Sentence vectors as they are compared: at length 1 in fp32, each distinct one once.

    A matrix product may give equal rows results that differ in the last bit by position; multiplying each row once
    keeps their ties exact."""

    distinct: Float[Tensor, "distinct dim"]  # in order of appearance
    which: Int[Tensor, "n"]  # for each row, the index of its distinct row

    def __len__(self) -> int:
        return len(self.which)

    @cached_property
    def places(self) -> Int[Tensor, "distinct most"]:
        """Where each distinct row stands, ascending; -1 after the last."""
        order = self.which.argsort(stable=True)
        counts = torch.bincount(self.which, minlength=len(self.distinct))
        rank = torch.arange(len(order), device=order.device) - torch.repeat_interleave(
            counts.cumsum(0) - counts, counts
        )
        places = order.new_full((len(counts), int(counts.max()) if len(counts) else 1), -1)
        places[self.which[order], rank] = order
        return places

    def spread(self, neighbours: Neighbours, k: int) -> Neighbours:
        """From the k nearest distinct rows to the k nearest rows."""
        if len(self.distinct) == len(self):
            return neighbours
        places = self.places[:, :k]
        index = places[neighbours.index].flatten(1)
        cosine = neighbours.cosine.repeat_interleave(places.shape[1], dim=1)
        valid = index >= 0
        # A missing place comes after every true one, also after those of a cosine that is not a number.
        order = torch.where(valid, index, len(self)).argsort(dim=1)
        index, cosine, valid = index.gather(1, order), cosine.gather(1, order), valid.gather(1, order)
        order = torch.where(valid, cosine, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :k]
        return Neighbours(cosine.gather(1, order), index.gather(1, order))


HASHED = 1 << 14  # rows that are hashed at once: 50 MB of 384 dimensions


def side(vectors: AnySide) -> DistinctVectors:
    """The vectors [n, d] made ready; a `DistinctVectors` is ready."""
    if isinstance(vectors, DistinctVectors):
        return vectors
    rows = unit(vectors)
    number, places = numbered_rows(rows.cpu().numpy())
    which = torch.from_numpy(number).to(rows.device)
    if len(places) == len(rows):
        return DistinctVectors(rows, which)
    return DistinctVectors(rows[torch.from_numpy(places).to(rows.device)], which)


def numbered_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[n] the number of each row [n, d] among the distinct ones, by first appearance; and where each of these is first.

    Rows are equal if their bits are. They are compared by 64-bit hashes, and then with the first of the same hash, so
    that some 50 bytes a row are needed besides."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    factors = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64) | np.uint64(1)
    hashes = np.empty(len(words), np.uint64)
    for start in range(0, len(words), HASHED):
        hashes[start : start + HASHED] = words[start : start + HASHED].astype(np.uint64) @ factors
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    owner = first[group]
    for start in range(0, len(words), HASHED):
        if not np.array_equal(words[start : start + HASHED], words[owner[start : start + HASHED]]):
            owner = _first_equal(words)  # two rows have one hash
            break
    places, number = np.unique(owner, return_inverse=True)
    return number.astype(np.int64), places.astype(np.int64)


def _first_equal(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """[n] for each row, the place of the first row that equals it; the slow way, for equal hashes."""
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(row.tobytes(), place) for place, row in enumerate(words)], np.int64)


def nearest_both_ways(left: AnySide, right: AnySide, k: int = 4, candidates: Candidates = "nearest") -> Matches:
    """The k nearest of the other side, of every row of `left` [n, d] and of `right` [m, d]; fewer if there are
    fewer. Each tile of the similarity matrix is computed once, for both directions. With `all` as candidates the
    matches keep both sides."""
    a, b = side(left), side(right)
    rows, columns = _tile_of(len(b.distinct))
    forward = [_nothing(len(some)) for some in torch.split(a.distinct, rows)]
    backward = []
    with full_precision(a.distinct.device.type):
        for first, some in _parts(b.distinct, columns):
            found_there = _nothing(len(some))
            for number, (row, block) in enumerate(_parts(a.distinct, rows)):
                similarity = cosines(block, some)
                forward[number] = _merged(forward[number], _largest(similarity, first, k), k)
                found_there = _merged(found_there, _largest(similarity.T, row, k), k)
            backward.append(found_there)
    sides = (a, b) if candidates == "all" else None
    return Matches(_expanded(_join(forward), a, b, k), _expanded(_join(backward or [_nothing(0)]), b, a, k), sides)


def nearest(
    queries: Vectors, table: NDArray[np.float32], rows: NDArray[np.int64], k: int, tile: tuple[int, int] = TILE
) -> Neighbours:
    """The k = min(k, documents) nearest documents of each of the `queries` [n, d] by cosine, in tiles.

    Document j is `table[rows[j]]`, so that many sets share one table. Of a tile only k and a few candidates of each
    query are kept; their cosines are then summed again in fp64, so that equal vectors tie. The whole matrix of queries
    and documents is never made, and the documents are never copied as a whole."""
    x, k = unit(queries).cpu(), min(k, len(rows))
    candidates = min(k + SLACK, len(rows))
    parts = []
    with full_precision("cpu"):
        for some in torch.split(x, tile[0]):
            best = _nothing(len(some))
            for first in range(0, len(rows), tile[1]):
                documents = unit(table[rows[first : first + tile[1]]])
                best = _merged(best, _largest(cosines(some, documents), first, candidates), candidates)
            parts.append(_settled(some, table, rows, best, k))
    return _marked(_join(parts))


def cosines(x: Float[Tensor, "n dim"], y: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
    """The cosines of unit vectors, `UNDEFINED` for zero vectors."""
    product = x @ y.T
    product[~x.any(dim=1)] = UNDEFINED
    product[:, ~y.any(dim=1)] = UNDEFINED
    return product


def _marked(neighbours: Neighbours) -> Neighbours:
    """The same with -1 in place of zero vectors."""
    return Neighbours(neighbours.cosine, torch.where(neighbours.cosine == UNDEFINED, -1, neighbours.index))


def narrowed(neighbours: Neighbours) -> Neighbours:
    """The same without the last columns that hold no neighbour, so that the mean cosine of a row is one of neighbours.

    One column stays. All queries that have neighbours have as many, which is why columns suffice."""
    if not neighbours.index.numel():
        return neighbours
    k = max(1, int((neighbours.index >= 0).sum(dim=1).max()))
    return Neighbours(neighbours.cosine[:, :k], neighbours.index[:, :k])


def _settled(
    x: Float[Tensor, "queries dim"], table: NDArray[np.float32], rows: NDArray[np.int64], candidates: Neighbours, k: int
) -> Neighbours:
    """The k best of what was found, by cosines in fp64 rounded to fp32, lowest index first if equal."""
    index = candidates.index.sort(dim=1).values
    cosine = torch.empty(index.shape)
    for part in torch.split(torch.arange(len(x)), SETTLED):
        places = rows[index[part].flatten().numpy()]
        documents = unit(table[places]).view(len(part), -1, x.shape[1])
        cosine[part] = (x[part, None].double() * documents.double()).sum(dim=2).float()
        cosine[part] = cosine[part].masked_fill(~(x[part, None].any(dim=2) & documents.any(dim=2)), UNDEFINED)
    order = cosine.argsort(dim=1, descending=True, stable=True)[:, :k]
    return Neighbours(cosine.gather(1, order), index.gather(1, order))


def _tile_of(candidates: int) -> tuple[int, int]:
    """Rows and columns of a tile of `BLOCK` similarities: all columns if at least as many rows as in `TILE` fit."""
    rows = BLOCK // max(1, candidates)
    return (rows, max(1, candidates)) if rows >= TILE[0] else TILE


def _parts(rows: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    """The rows in parts of this size, each with the number of its first row."""
    for first in range(0, len(rows), size):
        yield first, rows[first : first + size]


def _nothing(queries: int) -> Neighbours:
    return Neighbours(torch.empty(queries, 0), torch.empty(queries, 0).long())


def _largest(values: Tensor, first: int, k: int) -> Neighbours:
    """The k largest of each row of a tile whose first column has this number."""
    largest = first_largest(values, min(k, values.shape[1]))
    return Neighbours(largest.cosine, largest.index + first)


def _join(parts: list[Neighbours]) -> Neighbours:
    return Neighbours(torch.cat([part.cosine for part in parts]), torch.cat([part.index for part in parts]))


def _expanded(neighbours: Neighbours, queries: DistinctVectors, candidates: DistinctVectors, k: int) -> Neighbours:
    """From distinct rows to all rows, of both sides."""
    neighbours = narrowed(_marked(candidates.spread(neighbours, min(k, len(candidates)))))
    if len(queries.distinct) == len(queries):
        return neighbours
    return Neighbours(neighbours.cosine[queries.which], neighbours.index[queries.which])


def _merged(earlier: Neighbours, later: Neighbours, k: int) -> Neighbours:
    """The k best of both, if the indices of `earlier` are all lower."""
    if not earlier.cosine.shape[1]:
        return later
    cosine = torch.cat([earlier.cosine, later.cosine], dim=1)
    index = torch.cat([earlier.index, later.index], dim=1)
    order = cosine.argsort(dim=1, descending=True, stable=True)[:, :k]
    return Neighbours(cosine.gather(1, order), index.gather(1, order))


def first_largest(values: Float[Tensor, "rows columns"], k: int) -> Neighbours:
    """The k largest of each row, largest first, the lowest index first among equals. A transposed view is as good.

    Columns at a fixed distance form a class. The k largest values lie in the k classes with the largest maxima. So only
    these classes are sorted."""
    rows, columns = values.shape
    classes = columns // STRIDE
    if classes <= 4 * k:
        return _sorted_largest(values.contiguous(), k)
    even = classes * STRIDE
    largest = reduce(torch.maximum, torch.split(values[:, :even], classes, dim=1))
    best = largest.contiguous().topk(k + 1, dim=1)
    chosen = best.indices[:, :k].sort(dim=1).values
    steps = torch.arange(STRIDE, device=values.device) * classes
    rest = torch.arange(even, columns, device=values.device)
    index = torch.cat([(steps[:, None] + chosen[:, None, :]).flatten(1), rest.expand(rows, -1)], dim=1)  # ascending
    top = _sorted_largest(values.gather(1, index), k)
    result = Neighbours(top.cosine, index.gather(1, top.index))
    unsure = ~(best.values[:, k] < top.cosine[:, -1])  # one more class has an equal, or something is not a number
    if unsure.any():
        again = _sorted_largest(values[unsure], k)
        result.cosine[unsure], result.index[unsure] = again.cosine, again.index
    return result


def _sorted_largest(values: Float[Tensor, "rows columns"], k: int) -> Neighbours:
    """`torch.topk` with the lowest index first among equals, which topk leaves open."""
    more = min(k + 1, values.shape[1])
    top, index = values.topk(more, dim=1)
    top, index = top[:, :k], index[:, :k]
    by_index = index.argsort(dim=1)
    top, index = top.gather(1, by_index), index.gather(1, by_index)
    top, order = top.sort(dim=1, descending=True, stable=True)
    index = index.gather(1, order)
    if more > k:
        tied = (values >= top[:, -1:]).sum(dim=1) > k
        if tied.any():
            again, where = values[tied].sort(dim=1, descending=True, stable=True)
            top[tied], index[tied] = again[:, :k], where[:, :k]
    return Neighbours(top, index)


def unit(vectors: Vectors) -> Float[Tensor, "n dim"]:
    """The rows at length 1, in fp32, in memory of their own."""
    rows = torch.as_tensor(vectors).detach().float()
    return torch.nn.functional.normalize(rows, dim=1)


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Matrix products in fp32, whatever the caller trains with."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


ROWS = 1 << 16  # vectors that are copied at once if all are summed: 100 MB of 384 dimensions in fp32


def mean_cosine(vectors: Vectors) -> float:
    """The mean cosine of all pairs of different rows of [n, d] without zero vectors, near 1 after a collapse; 0 for one
    row."""
    count, total = 0, torch.zeros(())
    for first in range(0, len(vectors), ROWS):
        part = unit(vectors[first : first + ROWS])
        count, total = count + int(part.any(dim=1).sum()), total + part.double().sum(dim=0)
    return float((total.square().sum() - count) / (count * (count - 1))) if count > 1 else 0.0
