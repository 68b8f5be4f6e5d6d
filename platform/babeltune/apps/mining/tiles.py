"""k nearest neighbours of both directions from one pass of tiles, exact, in memory that does not grow with the corpus.

A tile of cosines is multiplied once and read twice: for the best columns of its rows and the best rows of its
columns. The last bits of a cosine depend on the shape of the product. So a few more candidates than k are kept, and
if rounding could decide, they are computed again in fp64 (`settle`). The result is that of the cosines in fp64
rounded to fp32, equal ones by the lowest index, however the work was cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.topk_keys import EMPTY, cosine_of, empty, index_of, merge, pack
from babeltune.errors import DataError
from babeltune.evaluation.knn import UNDEFINED, Matches, Neighbours, cosines, full_precision, narrowed
from babeltune.memory import emulates_bf16
from babeltune.products import product
from babeltune.stages import Count, uncounted

if TYPE_CHECKING:
    from jaxtyping import Float, Int


TILE = (4096, 4096)  # rows and columns of a tile: 67 MB of cosines
GPU_TILE = (16_384, 16_384)  # the same on a GPU: 1.1 GB
RESIDENT = 1 << 32  # bytes of right vectors up to which a GPU keeps them
GROUP = 16  # cosines of a line whose maximum decides whether they are looked at
SLACK = {"fp32": 4, "bf16": 28}  # candidates that are kept beyond k
SETTLED = 1 << 22  # numbers of vectors that are in memory while candidates are computed again
ROUNDING = {"fp32": 0.0, "bf16": 2.0**-6}
"""The most that rounding moves a cosine, besides that of sums in fp32. In bf16, 2^-8 for each of both unit vectors, and
2^-8 each for sums that a GPU takes in parts and for what comes out."""

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Tile:
    """A rectangle of the cosines of all left with all right sentences."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def cosines(self) -> int:
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])


@dataclass(frozen=True)
class Candidates:
    """The candidates of some left and some right sentences, as keys; `add` merges in place."""

    forward: Int[Tensor, "left kept"]
    backward: Int[Tensor, "right kept"]

    def add(self, part: Candidates, block: Tile) -> None:
        """Merges what one block found. Blocks that share no cosine may come in any order."""
        pairs = ((self.forward, part.forward, block.rows), (self.backward, part.backward, block.columns))
        for best, new, (start, stop) in pairs:
            best[start:stop] = merge(best[start:stop], new, k=best.shape[1])


def nothing(left: int, right: int, k: int, precision: Precision = "fp32", *, both: bool = True) -> Candidates:
    """An empty `Candidates`, with room for the candidates of `left` and `right` sentences, or of the left alone."""
    depth = k + SLACK[precision]
    return Candidates(empty(left, min(depth, right)), empty(right, min(depth, left) if both else 0))


def blocks(left: int, right: int, size: tuple[int, int] = TILE) -> Iterator[Tile]:
    """The grid, row by row."""
    for row, column in itertools.product(range(0, left, size[0]), range(0, right, size[1])):
        yield Tile((row, min(row + size[0], left)), (column, min(column + size[1], right)))


def check(left: UnitRows, right: UnitRows, k: int) -> None:
    """Raises `DataError` for what cannot be compared."""
    if left.dim != right.dim:
        raise DataError(f"vectors of {left.dim} and of {right.dim} dimensions; encode both sides with one model")
    if not len(left) or not len(right):
        sizes = f"{len(left)} sentences on the left and {len(right)} on the right"
        raise DataError(f"{sizes}; neighbours need some of both")
    if k < 1:
        raise DataError(f"k is {k}; a sentence needs at least one neighbour")


@torch.inference_mode()
def scan(
    left: UnitRows,
    right: UnitRows,
    candidates: Candidates,
    block: Tile,
    *,
    precision: Precision = "fp32",
    tile: tuple[int, int] | None = None,
    progress: Count = uncounted,
) -> None:
    """Adds to `found`, which holds the block's rows and columns, the candidates among the block's cosines."""
    (top, bottom), (first, last) = block.rows, block.columns
    tile = tile or (GPU_TILE if torch.cuda.is_available() else TILE)
    done = 0
    columns = _Columns(right, block.columns, tile[1], precision)
    with full_precision("cpu"), full_precision("cuda"):  # no TF32, whose rounding `settle` does not allow for
        for row in range(top, bottom, tile[0]):
            rows = min(row + tile[0], bottom) - row
            x = _factor(left.block(row, row + rows), precision)
            nearest = candidates.forward[row - top : row - top + rows]
            forward = nearest.to(x.device)
            for column in range(first, last, tile[1]):
                count = min(column + tile[1], last) - column
                y = columns.at(column)
                sheet = _cosines(x, y)
                # Zero vectors are nobody's neighbours, and what pads a factor is zero.
                sheet[~x.any(dim=1)] = UNDEFINED
                sheet[:, ~y.any(dim=1)] = UNDEFINED
                _best_columns(sheet, forward, column)
                if candidates.backward.shape[1]:
                    other = candidates.backward[column - first : column - first + count]
                    backward = other.to(x.device)
                    _best_rows(sheet, backward, row)
                    other.copy_(backward)
                del sheet  # else two of them are in memory
                done += rows * count
                progress(done, block.cosines)
            nearest.copy_(forward)


class _Columns:
    """The right factors of one scan. A GPU keeps them from one row of tiles to the next, if they are few."""

    def __init__(self, right: UnitRows, span: tuple[int, int], width: int, precision: Precision) -> None:
        self._right, self._last, self._width, self._precision = right, span[1], width, precision
        self._keeps = torch.cuda.is_available() and (span[1] - span[0]) * right.dim * 4 <= RESIDENT
        self._factors: dict[int, Tensor] = {}

    def at(self, column: int) -> Float[Tensor, "columns dim"]:
        """The factor that begins at this column."""
        if (factor := self._factors.get(column)) is None:
            stop = min(column + self._width, self._last)
            factor = _factor(self._right.block(column, stop), self._precision)
            if self._keeps:
                self._factors[column] = factor
        return factor


def _factor(vectors: Float[Tensor, "rows dim"], precision: Precision) -> Float[Tensor, "padded dim"]:
    """A factor of a product, on a GPU if there is one, with rows so that groups are full."""
    vectors = torch.nn.functional.pad(vectors, (0, 0, 0, -len(vectors) % GROUP))
    vectors = vectors.bfloat16() if precision == "bf16" else vectors.float()
    return vectors.cuda() if torch.cuda.is_available() else vectors


def _cosines(x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]) -> Float[Tensor, "rows columns"]:
    """[rows, columns] cosines in fp32, on the device of the factors."""
    if x.is_cuda or (x.dtype == torch.bfloat16 and not emulates_bf16()):
        return (x @ y.T).float()
    return product(x.float(), y.float().T)


def _best_columns(sheet: Float[Tensor, "rows columns"], best: Int[Tensor, "lines kept"], first: int) -> None:
    rows, columns = sheet.shape
    groups = columns // GROUP
    largest = sheet.view(rows, GROUP, groups).amax(1)
    _improve(best, sheet.view(-1), largest[: len(best)], line=columns, group=1, member=groups, first=first)


def _best_rows(sheet: Float[Tensor, "rows columns"], best: Int[Tensor, "lines kept"], first: int) -> None:
    rows, columns = sheet.shape
    groups = rows // GROUP
    largest = sheet.view(GROUP, groups, columns).amax(0).T.contiguous()
    lines = largest[: len(best)]
    _improve(best, sheet.view(-1), lines, line=1, group=columns, member=groups * columns, first=first)


def _improve(
    best: Int[Tensor, "lines kept"],
    cosines: Float[Tensor, "sheet"],
    largest: Float[Tensor, "lines groups"],
    *,
    line: int,
    group: int,
    member: int,
    first: int,
) -> None:
    """Merges into `best` the cosines of its lines, all on one device."""
    # Candidate j of group g of line l is at l·line + g·group + j·member; its index is `first` + g + j·groups.
    # Only groups whose `largest` cosine is better than a line's worst are read.
    device = cosines.device
    (lines, depth), groups = best.shape, largest.shape[1]
    worst = cosine_of(best[:, -1])
    hit = largest > worst[:, None]
    members = torch.arange(GROUP, device=device)
    if int(hit.sum()) > lines * min(depth, groups):  # at the start: of each line, the groups of the largest cosines
        which = largest.topk(min(depth, groups), dim=1).indices
        at = (torch.arange(lines, device=device)[:, None] * line + which * group)[..., None] + members * member
        values, place = cosines[at.view(lines, -1)].topk(min(depth, which.shape[1] * GROUP), dim=1)
        index = first + which.gather(1, place // GROUP) + place % GROUP * groups
        keys = torch.where(values > -torch.inf, pack(values, index), EMPTY)
        best.copy_(merge(best, keys, k=depth))
        return
    where, which = hit.nonzero(as_tuple=True)
    values = cosines[(where * line + which * group)[:, None] + members * member]
    chosen, place = (values > worst[where, None]).nonzero(as_tuple=True)
    if not len(chosen):
        return
    where, which = where[chosen], which[chosen]
    changed, line_of, count = torch.unique_consecutive(where, return_inverse=True, return_counts=True)
    keys = torch.full((len(changed), int(count.max())), EMPTY, device=device)
    start = count.cumsum(0) - count
    keys[line_of, torch.arange(len(where), device=device) - start[line_of]] = pack(
        values[chosen, place], first + which + place * groups
    )
    best[changed] = merge(best[changed], keys, k=depth)


def settle(left: UnitRows, right: UnitRows, candidates: Candidates, k: int, precision: Precision = "fp32") -> Matches:
    """The k nearest of all candidates that are not zero vectors. Those are computed again whose order rounding could
    have decided."""
    forward = settled(left, right, candidates.forward, k, precision)
    return Matches(forward, settled(right, left, candidates.backward, k, precision))


@torch.inference_mode()
def settled(
    queries: UnitRows, candidates: UnitRows, keys: Int[Tensor, "n kept"], k: int, precision: Precision = "fp32"
) -> Neighbours:
    """`settle` of one direction: the k nearest of the candidates of all queries."""
    k = min(k, len(candidates))
    error = queries.dim * 2.0**-24 + ROUNDING[precision]
    complete = keys.shape[1] == len(candidates)
    best = torch.empty(len(keys), k, dtype=torch.long)
    for start in range(0, len(keys), TILE[0]):
        part = keys[start : start + TILE[0]]
        chosen = part[:, :k].clone()
        gaps = -cosine_of(part).diff(dim=1)[:, :k]
        doubtful = (gaps < 2 * error).any(dim=1).nonzero()[:, 0] if precision == "fp32" else torch.arange(len(part))
        size = max(1, SETTLED // (part.shape[1] * queries.dim))
        for rows in torch.split(doubtful, size):
            chosen[rows] = exact(queries.take(start + rows), candidates, part[rows])[:, :k]
        # What was not kept may have a cosine as large as the last that was, and the error more.
        worst, last = cosine_of(chosen[doubtful, -1]), cosine_of(part[doubtful, -1])
        rows = doubtful[(worst <= last + 1.01 * error) & (worst > UNDEFINED)]
        if len(rows) and not complete:
            chosen[rows] = _again(queries.take(start + rows), candidates, k, precision)
        best[start : start + len(part)] = chosen
    return narrowed(Neighbours(cosine_of(best), index_of(best)))


def _again(x: Float[Tensor, "rows dim"], candidates: UnitRows, k: int, precision: Precision) -> Int[Tensor, "rows k"]:
    """The k nearest of all candidates, in the next higher precision."""
    if precision == "fp32":
        return searched(x, candidates, k)
    queries = UnitRows(x)
    nearest_again = nothing(len(x), len(candidates), k, both=False)
    scan(queries, candidates, nearest_again, Tile((0, len(x)), (0, len(candidates))))
    nearest = settled(queries, candidates, nearest_again.forward, k)
    return pack(nearest.cosine, nearest.index)


def exact(
    x: Float[Tensor, "rows dim"], candidates: UnitRows, keys: Int[Tensor, "rows kept"]
) -> Int[Tensor, "rows kept"]:
    """The same candidates with cosines summed in fp64, each pair by itself, so that equal vectors tie."""
    index = index_of(keys).clamp(min=0)
    y = candidates.take(index.view(-1)).view(*index.shape, x.shape[1])
    cosine = (x[:, None].double() * y.double()).sum(-1).float()
    defined = (keys != EMPTY) & x[:, None].any(dim=2) & y.any(dim=2)
    return torch.where(defined, pack(cosine, index), EMPTY).sort(dim=1, descending=True).values


def searched(x: Float[Tensor, "rows dim"], candidates: UnitRows, k: int) -> Int[Tensor, "rows k"]:
    """The k nearest of all candidates by products in fp64, for the few rows with many nearly equal ones."""
    best = empty(len(x), k)
    width = TILE[1]
    for rows in torch.split(torch.arange(len(x)), TILE[0] // 2):
        query = x[rows].double()
        for start in range(0, len(candidates), width):
            y = candidates.block(start, min(start + width, len(candidates)))
            cosine = cosines(query, y.double()).float()
            keys = torch.where(cosine == UNDEFINED, EMPTY, pack(cosine, torch.arange(start, start + len(y))))
            best[rows] = merge(best[rows], keys.topk(min(k, len(y)), dim=1).values, k=k)
    return best
