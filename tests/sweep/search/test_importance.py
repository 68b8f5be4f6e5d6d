"""Which settings mattered: those that separate the best trials from the rest."""

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from babeltune.schema.records import Parameter
from babeltune.sweep.search.importance import LEAST_TRIALS, Scored, parameter_importance
from waiting import PATIENCE_S

PARAMETERS = {
    "temperature": Parameter(log_float=(0.01, 1.0)),
    "width": Parameter(int=(1, 100)),
    "method": Parameter(choice=("a", "b")),
    "fixed": Parameter(const=3),
    "one": Parameter(choice=("only",)),
}


def trials(count, value):
    draw = random.Random(0)
    scored = []
    for _ in range(count):
        params = {"temperature": 10 ** draw.uniform(-2, 0), "width": draw.randint(1, 100), "method": draw.choice("ab")}
        scored.append(Scored(params={**params, "fixed": 3, "one": "only"}, value=value(params)))
    return scored


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_the_setting_that_decides_the_value_comes_first(goal):
    importance = parameter_importance(PARAMETERS, trials(60, lambda params: params["width"] ** 2), goal)
    assert next(iter(importance)) == "width"
    assert importance["width"] > 0.6
    assert sum(importance.values()) == pytest.approx(1)
    assert importance.keys() == {"temperature", "width", "method"}, "what has one value is left out"


def test_a_choice_that_decides_comes_first():
    importance = parameter_importance(PARAMETERS, trials(60, lambda params: float(params["method"] == "b")), "maximize")
    assert next(iter(importance)) == "method"


def without_width(params):
    return {name: value for name, value in params.items() if name != "width" or params["method"] == "b"}


def test_a_setting_that_only_some_trials_have_is_judged_too():
    every = trials(60, lambda params: params["width"] if params["method"] == "b" else 0.0)
    some = [replace(each, params=without_width(each.params)) for each in every]
    assert parameter_importance(PARAMETERS, some, "maximize").keys() == {"temperature", "width", "method"}


def test_a_value_outside_of_a_narrowed_range_is_left_out():
    narrowed = {**PARAMETERS, "width": Parameter(int=(50, 100))}
    assert parameter_importance(narrowed, trials(60, lambda params: params["width"]), "maximize")


@pytest.mark.parametrize(
    "few",
    [trials(LEAST_TRIALS - 1, lambda params: params["width"]), trials(60, lambda params: 0.5), []],
    ids=["few trials", "equal trials", "no trial"],
)
def test_too_few_or_equal_trials_say_nothing(few):
    assert parameter_importance(PARAMETERS, few, "maximize") == {}


def test_importance_loads_no_heavy_package_and_leaves_it_to_others():
    program = """
import sys
from babeltune.schema.records import Parameter
from babeltune.sweep.search.importance import Scored, parameter_importance
trials = [Scored(params={"x": n / 20}, value=abs(n / 20 - 0.5)) for n in range(20)]
assert parameter_importance({"x": Parameter(float=(0, 1))}, trials, "minimize") == {"x": 1.0}
assert not {"sklearn", "redis"} & sys.modules.keys()
import redis, sklearn
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
