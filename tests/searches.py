"""A search of neighbours in one piece, for tests that compare others with it or look at its tiles."""

from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.tiles import Tile, check, nothing, scan, settle
from babeltune.stages import uncounted


def both_ways(left, right, k, *, precision="fp32", tile=None, progress=uncounted):
    """The k nearest neighbours of `left` in `right`, and of right in left."""
    x, y = UnitRows(left), UnitRows(right)
    check(x, y, k)
    best = nothing(len(x), len(y), k, precision)
    scan(x, y, best, Tile((0, len(x)), (0, len(y))), precision=precision, tile=tile, progress=progress)
    return settle(x, y, best, k, precision)
