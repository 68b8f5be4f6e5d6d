"""First points from a portfolio: how they fit a search space, that they are proposed first, and what is refused."""

import json
import re

import pytest

from babeltune.errors import SpecError
from babeltune.planning import portfolio
from babeltune.planning.portfolio import portfolio_points, portfolios, within_space
from babeltune.planning.space import suggest
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Data, Halving, Objective, Parameter, Source, Sweep, Tpe
from babeltune.sweep.search.study import Proposals

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
    return Sweep(
        name="toy",
        method="toy",
        parameters=parameters,
        objectives=(Objective(metric="dev/score"),),
        data=Data(train=(Source(name="none"),)),
        scheduler=Halving(grace=2),
        sampler=Tpe(startup=3, **sampler),
    )


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


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (
            "sampler={first_points: statik}",
            "'statik' is not a portfolio; allowed: margin, static; did you mean 'static'?",
        ),
        ("sampler={kind: random, multivariate: true}", "true is for kind 'tpe', and this one is 'random'; remove it"),
        ("sampler={kind: tpe, population: 20}", "sampler.population: 20 is for kind 'nsga2', and this one is 'tpe'"),
        ("scheduler={kind: asha, regret: 0.1}", "scheduler.regret: 0.1 is for kind 'expected_regret'"),
        ("scheduler={kind: none, finished: 9}", "finished: 9 is for kind 'expected_regret', and this one is 'none'"),
        ("sampler={group: true}", "groups settings that are modelled together; set multivariate to true"),
        ("scheduler={kind: pasha, grace: 99}", "99 must be at most training.reports"),
        ("scheduler={kind: expected_regret, regret: -1}", "regret: -1.0 must be at least 0"),
        ("scheduler={kind: expected_regret, finished: 2}", "finished: 2 must be at least 3"),
        ("scheduler={kind: expected_reget}", "expected_regret"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_the_next_step(assignment, expected):
    with pytest.raises(SpecError, match=re.escape(expected)):
        read_sweep("search_spaces/static.yaml", assignments=[assignment])


def test_a_portfolio_without_a_searched_setting_is_refused():
    with pytest.raises(SpecError, match="'static' has none of the searched parameters; remove it"):
        read_sweep(
            "search_spaces/static.yaml",
            assignments=["sampler.first_points=static", "parameters={training.warmup: {float: [0, 0.1]}}"],
        )


def test_a_gaussian_process_is_for_one_objective():
    with pytest.raises(SpecError, match="gp: is for one objective, and there are 2"):
        read_sweep(
            "search_spaces/static.yaml",
            assignments=[
                "sampler={kind: gp}",
                "objectives=[{metric: dev/everyday/accuracy}, {metric: dev/sts/eng/spearman}]",
            ],
        )


def test_a_recorded_sweep_that_names_no_portfolio_of_ours_is_refused():
    with pytest.raises(SpecError, match=re.escape("'../../elsewhere' is none of")):
        portfolio_points(a_sweep(first_points="../../elsewhere"))
