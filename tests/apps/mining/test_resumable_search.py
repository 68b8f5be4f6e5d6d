"""A search that is interrupted and goes on."""

import numpy as np
import pytest
import torch

from babeltune.apps.mining import resumable_search, vectors
from babeltune.apps.mining.resumable_search import ResumableSearch, both_ways_resumable, one_way_resumable
from babeltune.apps.mining.vectors import EncodingModel, embed
from babeltune.data.stored_arrays import open_matrix
from babeltune.errors import StoreError
from searches import both_ways

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = (16, 16)


@pytest.fixture
def sides(monkeypatch, tmp_path):
    """The shards of 40 and 50 vectors: three rows of four blocks."""
    monkeypatch.setattr(vectors, "SHARD", 16)
    monkeypatch.setattr(
        EncodingModel,
        "encode",
        lambda self, texts: np.stack([np.random.default_rng(int(text)).normal(size=8) for text in texts]),
    )
    ranges = (range(40), range(100, 150))
    return tuple(
        embed([str(i) for i in each], EncodingModel("toy", "d"), tmp_path / "vectors", tmp_path) for each in ranges
    )


@pytest.fixture
def scanned(monkeypatch):
    """The blocks that are searched; the search is interrupted after `left` blocks."""
    blocks, scan = [], resumable_search.scan
    state = {"left": -1}

    def counted(x, y, best, block, **options):
        scan(x, y, best, block, **options)
        if state["left"] == 0:
            state["left"] = -1
            raise KeyboardInterrupt
        state["left"] -= 1
        blocks.append(block)

    monkeypatch.setattr(resumable_search, "scan", counted)
    monkeypatch.setattr(resumable_search, "SHARE", 1e9)
    return blocks, state


@pytest.mark.parametrize(("every", "stops", "again"), [(0.0, 6, 6), (60.0, 6, 8)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_interrupted_search_goes_on_with_the_blocks_that_are_not_done(
    every, stops, again, precision, sides, scanned, tmp_path, monkeypatch
):
    """Within a minute, what counts is the last row of four blocks that was complete."""
    monkeypatch.setattr(resumable_search, "EVERY", every)
    blocks, state = scanned
    state["left"] = stops
    with pytest.raises(KeyboardInterrupt):
        both_ways_resumable(ResumableSearch(tmp_path, sides, 3, precision, size=SIZE))
    assert len(blocks) == stops
    blocks.clear()
    noted = []
    matches = both_ways_resumable(ResumableSearch(tmp_path, sides, 3, precision, size=SIZE), lambda *a: noted.append(a))
    assert len(blocks) == again
    assert noted[-1] == (40 * 50, 40 * 50)
    assert noted[0][0] > 40 * 50 - sum(block.cosines for block in blocks)
    whole = both_ways(*(open_matrix(*side) for side in sides), 3)
    for ours, exact in ((matches.forward, whole.forward), (matches.backward, whole.backward)):
        assert torch.equal(ours.index, exact.index)
        assert torch.allclose(ours.cosine, exact.cosine, rtol=0, atol=1e-6)
    assert not list(tmp_path.glob("*search*")), "what was kept is gone with the search"


def test_only_the_same_search_goes_on_and_only_from_a_sound_file(sides, scanned, tmp_path):
    _, state = scanned
    state["left"] = 4
    with pytest.raises(KeyboardInterrupt):
        both_ways_resumable(ResumableSearch(tmp_path, sides, 3, size=SIZE))
    (file,) = tmp_path.glob("search-*.npz")
    for other in (
        ResumableSearch(tmp_path, sides[::-1], 3, size=SIZE),
        ResumableSearch(tmp_path, (sides[0], sides[1][:-1]), 3, size=SIZE),
        ResumableSearch(tmp_path, sides, 2, size=SIZE),
        ResumableSearch(tmp_path, sides, 3, "bf16", size=SIZE),
        ResumableSearch(tmp_path, sides, 3, both=False, size=SIZE),
        ResumableSearch(tmp_path, sides, 3, size=(16, 32)),
    ):
        assert not other.done.any()
    assert ResumableSearch(tmp_path, sides, 3, size=SIZE).done.sum() == 4
    file.write_bytes(file.read_bytes()[:-100])
    assert not ResumableSearch(tmp_path, sides, 3, size=SIZE).done.any()


def test_one_direction_goes_on_too(sides, scanned, tmp_path):
    blocks, state = scanned
    state["left"] = 5
    with pytest.raises(KeyboardInterrupt):
        one_way_resumable(ResumableSearch(tmp_path, sides, 3, both=False, size=SIZE))
    blocks.clear()
    neighbours = one_way_resumable(ResumableSearch(tmp_path, sides, 3, both=False, size=SIZE))
    assert len(blocks) == 8
    assert torch.equal(neighbours.index, both_ways(*(open_matrix(*side) for side in sides), 3).forward.index)


def test_a_search_that_cannot_be_kept_says_so(sides, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(StoreError, match="No space left on device; free space and run again"):
        both_ways_resumable(ResumableSearch(tmp_path, sides, 3, size=SIZE))
    assert not list(tmp_path.glob(".search*"))
