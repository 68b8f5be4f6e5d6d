"""First points from a portfolio: how they fit a search space, that they are proposed first, and what is refused."""

import json
import re

import pytest

from babeltune.errors import SpecError
from babeltune.planning import portfolio
from babeltune.planning.portfolio import portfolio_points, portfolios, within_space
from babeltune.planning.space import suggest
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Halving, Parameter, Tpe
from babeltune.sweep.search.study import Proposals
from toy_methods import toy_sweep

POINT = {"weight": 2.0, "student.width": 300, "training.learning_rate": 0.5, "labels": "soft", "tau": 0.1}
PARAMETERS = {
    "weight": Parameter(log_float=(0.1, 30)),
    "student.width": Parameter(choice=(64, 256, 512)),
    "training.learning_rate": Parameter(log_float=(1e-4, 1e-2)),
    "labels": Parameter(choice=("hard", "soft")),
    "tau": Parameter(float=(0.01, 1), when={"labels": "soft"}),
}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A portfolio `mine` of two points."""
    points = [POINT, {**POINT, "labels": "hard"}]
    (tmp_path / "mine.yaml").write_text(json.dumps({"points": points}))
    monkeypatch.setattr(portfolio, "FOLDER", tmp_path)


def a_sweep(parameters=PARAMETERS, **sampler):
    return toy_sweep(parameters=parameters, scheduler=Halving(grace=2), sampler=Tpe(startup=3, **sampler))


def test_a_point_takes_the_nearest_values_of_the_search_space():
    inside = {"weight": 2.0, "student.width": 256, "training.learning_rate": 0.01, "labels": "soft", "tau": 0.1}
    assert within_space(PARAMETERS, POINT) == inside
    counted = {"student.width": Parameter(int=(16, 128)), "labels": Parameter(choice=("near", "far"))}
    assert within_space(counted, POINT) == {"student.width": 128}


def test_a_conditional_setting_is_given_only_where_it_exists():
    hard = within_space(PARAMETERS, {**POINT, "labels": "hard"})
    assert hard["labels"] == "hard"
    assert "tau" not in hard
    fixed = {**PARAMETERS, "labels": Parameter(const="soft")}
    assert within_space(fixed, {"tau": 0.1, "labels": "hard"}) == {"tau": 0.1}


def test_a_portfolio_is_proposed_after_the_given_points(kept):
    given = {"weight": 1.0}
    sweep = a_sweep(first_points="mine", points=(given,))

    def propose(count):
        proposals = Proposals(sweep, lambda trial: suggest(sweep.parameters, trial))
        return [proposals.ask()[1] for _ in range(count)]

    found = propose(4)
    assert found[0]["weight"] == 1.0
    assert found[1:3] == portfolio_points(sweep)
    assert found[3] not in found[:3]
    assert propose(4) == found


def test_a_point_that_the_file_gives_already_is_not_proposed_again(kept):
    twice = a_sweep(first_points="mine", points=tuple(portfolio_points(a_sweep(first_points="mine"))))
    assert portfolio_points(twice) == []


@pytest.mark.parametrize("name", portfolios())
def test_each_portfolio_fits_the_search_space_of_static_students(name):
    sweep = read_sweep("search_spaces/static.yaml", assignments=[f"sampler.first_points={name}"])
    points = portfolio_points(sweep)
    assert points
    assert all(point.keys() <= sweep.parameters.keys() for point in points)


def test_a_recorded_sweep_that_names_no_portfolio_of_ours_is_refused():
    with pytest.raises(SpecError, match=re.escape("'../../elsewhere' is none of")):
        portfolio_points(a_sweep(first_points="../../elsewhere"))
