"""Runs a group of three gloo processes once: this file is also the program of each process."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from babeltune.errors import TrainingError
from babeltune.method.distributed import ProcessGroup, numbers
from waiting import PATIENCE_S

pytestmark = pytest.mark.slow

WORLD = 3
SIZES = [3, 0, 2]


def everyone() -> torch.Tensor:
    return torch.arange(10, dtype=torch.float64).view(5, 2) + 1


def coefficients(rank: int) -> torch.Tensor:
    return torch.arange(10, dtype=torch.float64).view(5, 2) * (rank + 1)


def observe(rank: int) -> dict:
    """What one rank sees of everything that `ProcessGroup` does. A warning that something is old is an error."""
    warnings.simplefilter("error", FutureWarning)
    ranks = ProcessGroup()
    rows = everyone().split(SIZES)[rank].clone().requires_grad_()
    without_sizes = ranks(rows).tolist()
    ranks.set_sizes(SIZES)
    gathered = ranks(rows)
    (coefficients(rank) * gathered).sum().backward()
    ids = ranks(torch.arange(5).split(SIZES)[rank] + 2**40)
    try:
        ranks(torch.zeros(SIZES[rank] + 1, 2))
        refused = ""
    except TrainingError as error:
        refused = str(error)
    parameters = [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(3))]
    parameters.append(torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
    parameters[0].grad = torch.full((2, 2), float(rank))
    if rank == 1:
        parameters[1].grad = torch.tensor([1.0, 2.0, 3.0])
    parameters[2].grad = torch.full((2,), 0.5, dtype=torch.float64)
    ranks.sum_gradients(parameters)
    return {
        "who": [ranks.rank, ranks.world, ranks.backend],
        "without_sizes": without_sizes,
        "gathered": gathered.tolist(),
        "gradient": rows.grad.tolist(),
        "ids": ids.tolist(),
        "refused": refused,
        "offset": ranks.offset(SIZES[rank]),
        "summed": [p.grad.tolist() for p in parameters],
        "scalars": numbers(ranks.sum_scalars({"b": torch.tensor(float(rank)), "a": torch.tensor(1.0)})),
    }


@pytest.fixture(scope="module")
def observed(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    # LOCAL_RANK lies, as on a second machine: what counts is the global rank.
    search_path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0", "PYTHONPATH": search_path}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)], env=environment) for rank in range(WORLD)
    ]
    assert [process.wait(PATIENCE_S) for process in processes] == [0] * WORLD
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.trap(2, 3)
def test_all_rows_arrive_in_the_order_of_global_ranks_whatever_their_sizes(observed):
    for rank, record in enumerate(observed):
        assert record["who"] == [rank, WORLD, "gloo"]
        assert record["gathered"] == record["without_sizes"] == everyone().tolist()
        assert record["ids"] == [2**40 + i for i in range(5)], "large numbers stay exact"
        assert "were announced" in record["refused"], "as many rows as were announced, or none"


@pytest.mark.trap(1)
def test_the_gradient_of_a_row_is_the_sum_of_all_ranks_shares(observed):
    total = sum(coefficients(rank) for rank in range(WORLD))
    for record, expected in zip(observed, total.split(SIZES), strict=True):
        assert record["gradient"] == expected.tolist()


@pytest.mark.trap(2)
def test_offsets_count_the_rows_of_lower_ranks(observed):
    assert [record["offset"] for record in observed] == [0, 3, 3]


def test_gradients_and_scalars_are_summed_and_missing_gradients_are_zeros(observed):
    for record in observed:
        assert record["scalars"] == {"b": 3.0, "a": 3.0}
        assert record["summed"] == [[[3.0, 3.0], [3.0, 3.0]], [1.0, 2.0, 3.0], [1.5, 1.5]]


def test_alone_everything_is_the_identity():
    ranks, rows = ProcessGroup(), torch.ones(2, 3)
    assert (ranks.rank, ranks.world, ranks.backend, ranks.offset(2)) == (0, 1, "none", 0)
    assert ranks(rows) is rows
    assert numbers(ranks.sum_scalars({"x": torch.tensor(2.5)})) == {"x": 2.5}
    assert numbers({}) == ranks.sum_scalars({}) == {}
    parameter = torch.nn.Parameter(torch.ones(1))
    ranks.sum_gradients([parameter])
    assert parameter.grad.tolist() == [0.0], "as on several ranks: an update decays a weight that nothing reads"


def test_sizes_for_another_number_of_ranks_are_refused():
    with pytest.raises(TrainingError, match="2 sizes for 1 ranks"):
        ProcessGroup().set_sizes([1, 2])


if __name__ == "__main__":
    place = Path(sys.argv[2])
    own_rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=own_rank, world_size=WORLD)
    (place / f"{own_rank}.json").write_text(json.dumps(observe(own_rank)))
    dist.destroy_process_group()
