"""Searched settings: what is asked of Optuna, what a proposal becomes, and what has to be prepared for all of them."""

import json
import math
from dataclasses import dataclass
from typing import Literal

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.errors import SpecError
from babeltune.files import plain
from babeltune.method import Needs
from babeltune.planning.parameters import allows, check_point, ordered
from babeltune.planning.space import (
    combinations,
    default_params,
    make_trial,
    possible_needs,
    preparations,
    sample,
    suggest,
)
from babeltune.schema.records import Data, Objective, Parameter, Sweep, Transformer, TsvSource, trial_from
from toy_methods import Distance, Toy, install


@dataclass(frozen=True)
class Config:
    temperature: float = 0.1
    labels: Literal["near", "hard"] = "near"
    neighbours: int = 0


class Contrast(Toy):
    name = "contrast"
    Config = Config

    @classmethod
    def needs(cls, config):
        return Needs(teacher=frozenset({"source"} if config.labels == "near" else ()), hard_negatives=config.neighbours)


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    install(monkeypatch, Contrast, Distance)


PARAMETERS = {
    "temperature": Parameter(log_float=(0.01, 1), when={"method": "contrast"}),
    "neighbours": Parameter(choice=(0, 3), when={"labels": "hard"}),
    "method": Parameter(choice=("contrast", "distance")),
    "labels": Parameter(choice=("near", "hard"), when={"method": ("contrast",)}),
    "training.learning_rate": Parameter(log_float=(1e-4, 1e-2)),
    "training.clip": Parameter(const=None),
    "student.layers": Parameter(int=(1, 4)),
    "student.vocabulary": Parameter(choice=(1000, 2000)),
    "data.sampling.temperature": Parameter(float=(1, 5)),
}


def sweep(parameters=None, **fields) -> Sweep:
    source = TsvSource(name="rows", path="rows.tsv", columns={"eng": "eng", "fra": "fra"})
    return Sweep(
        name="small",
        method="contrast",
        parameters=PARAMETERS if parameters is None else parameters,
        objectives=(Objective(metric="dev/heldout/accuracy"),),
        data=Data(train=(source,)),
        **fields,
    )


class Recording:
    """Answers with the first choice or the low end, and remembers what was asked."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def suggest_float(self, name, low, high, *, log=False):
        return self.answer(name, low)

    def suggest_int(self, name, low, high, *, log=False):
        return self.answer(name, low)

    def suggest_categorical(self, name, choices):
        return self.answer(name, choices[0])

    def answer(self, name, value):
        self.asked.append(name)
        return self.answers.get(name, value)


def test_conditions_decide_what_is_asked_and_constants_never_are():
    trial = Recording()
    params = suggest(PARAMETERS, trial)
    assert set(params) == set(PARAMETERS) - {"neighbours"}
    assert params["training.clip"] is None
    assert "training.clip" not in trial.asked
    assert "neighbours" in suggest(PARAMETERS, Recording(labels="hard"))
    assert not {"labels", "temperature", "neighbours"} & set(suggest(PARAMETERS, Recording(method="distance")))


def test_the_order_of_asking_depends_on_names_only():
    asked = []
    for parameters in (PARAMETERS, dict(reversed(PARAMETERS.items()))):
        trial = Recording(labels="hard")
        suggest(parameters, trial)
        asked.append(trial.asked)
    assert asked[0] == asked[1]
    assert asked[0].index("method") < asked[0].index("labels") < asked[0].index("neighbours")


def test_a_circle_of_conditions_is_refused():
    with pytest.raises(SpecError, match="a, b depend on one another in a circle"):
        ordered({"a": Parameter(choice=(1,), when={"b": 1}), "b": Parameter(choice=(1,), when={"a": 1})})


def test_optuna_itself_can_be_asked():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(8):
        trial = study.ask()
        params = suggest(PARAMETERS, trial)
        assert {name: value for name, value in params.items() if name != "training.clip"} == trial.params
        check_point(sweep(), params)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200))
def test_samples_are_in_range_and_repeat(seed, number):
    drawn = sample(sweep(seed=seed), number)
    assert drawn == sample(sweep(seed=seed), number)
    for name, value in drawn.items():
        assert allows(PARAMETERS[name], value)


def test_samples_differ_by_number_and_fill_the_range():
    drawn = [
        sample(sweep({"temperature": Parameter(log_float=(0.01, 1))}), number)["temperature"] for number in range(300)
    ]
    below = sum(value < 0.1 for value in drawn) / len(drawn)
    assert 0.4 < below < 0.6, "half of a logarithmic range lies below its geometric middle"
    counts = [sample(sweep({"student.layers": Parameter(int=(1, 3))}), n)["student.layers"] for n in range(300)]
    assert {1, 2, 3} == set(counts)
    logs = [sample(sweep({"student.width": Parameter(log_int=(1, 100))}), n)["student.width"] for n in range(300)]
    assert min(logs) == 1
    assert max(logs) <= 100
    assert 0.3 < sum(value <= 10 for value in logs) / len(logs) < 0.7


@pytest.mark.parametrize(
    ("parameter", "inside", "outside"),
    [
        (Parameter(float=(0, 1)), [0, 0.5, 1], [-0.1, 1.1, True, "0.5", None]),
        (Parameter(int=(1, 3)), [1, 3], [0, 4, 2.0, True, None]),
        (Parameter(choice=(1, True, None, "a")), [1, True, None, "a"], [0, False, "b", 2]),
        (Parameter(choice=(0, 1)), [0, 1], [True, False]),
        (Parameter(const=None), [None], [0, False]),
    ],
)
def test_a_parameter_knows_its_values_and_true_is_not_one(parameter, inside, outside):
    assert all(allows(parameter, value) for value in inside)
    assert not any(allows(parameter, value) for value in outside)


def test_combinations_are_all_reachable_choices_with_ranges_at_an_end():
    names = ("method", "labels", "neighbours", "temperature")
    low = list(combinations(PARAMETERS, names))
    assert low == [
        {"method": "contrast", "labels": "near", "temperature": 0.01},
        {"method": "contrast", "labels": "hard", "neighbours": 0, "temperature": 0.01},
        {"method": "contrast", "labels": "hard", "neighbours": 3, "temperature": 0.01},
        {"method": "distance"},
    ]
    assert {params.get("temperature") for params in combinations(PARAMETERS, names, end=1)} == {1.0, None}
    assert list(combinations(PARAMETERS, ("neighbours",)))[-1] == {"method": "distance"}, "conditions come along"
    many = {f"p{i}": Parameter(choice=(0, 1)) for i in range(40)}
    assert len(list(combinations(many))) == 4096


def test_a_trial_holds_every_setting_resolved_and_survives_json():
    params = suggest(PARAMETERS, Recording(labels="hard", **{"student.layers": 3, "training.learning_rate": 0.001}))
    trial = make_trial(sweep(seed=7), 5, params)
    assert (trial.number, trial.seed, trial.method) == (5, 7, "contrast")
    assert trial.config == {"temperature": 0.01, "labels": "hard", "neighbours": 0}
    assert (trial.student.layers, trial.student.vocabulary) == (3, 1000)
    assert (trial.training.learning_rate, trial.training.clip) == (0.001, None)
    assert trial.sampling.temperature == 1.0
    assert trial_from(json.loads(json.dumps(plain(trial)))) == trial


def test_settings_of_other_methods_do_not_reach_a_method():
    trial = make_trial(sweep(config={"labels": "hard", "power": 3.0}), 0, {"method": "distance"})
    assert trial.config == {"power": 3.0}
    assert make_trial(sweep(config={"labels": "hard", "power": 3.0}), 0, {}).config["labels"] == "hard"


def test_all_trials_share_the_seed_unless_it_is_searched():
    searched = sweep({"seed": Parameter(choice=(1, 2))}, seed=7)
    assert make_trial(searched, 3, {"seed": 2}).seed == 2
    assert make_trial(searched, 3, {}).seed == 7
    assert default_params(searched) == {"seed": 7}


def test_the_default_parameters_say_what_an_empty_proposal_gives():
    given = sweep(config={"temperature": 0.3}, student=Transformer(layers=6))
    params = default_params(given)
    assert params == {
        "method": "contrast",
        "labels": "near",
        "temperature": 0.3,
        "training.learning_rate": 5e-4,
        "training.clip": None,
        "student.layers": 6,
        "student.vocabulary": 16_000,
        "data.sampling.temperature": 1.0,
    }
    empty, default = make_trial(given, 0, {}), make_trial(given, 0, params)
    assert (empty.config, empty.student, empty.sampling) == (default.config, default.student, default.sampling)
    assert default.training.clip is None, "a constant is fixed, not searched"


def test_needs_of_all_configurations_are_found_once_each():
    found = possible_needs(sweep())
    assert {(name, needs.hard_negatives, bool(needs.teacher)) for name, _, needs in found} == {
        ("contrast", 0, True), ("contrast", 0, False), ("contrast", 3, False), ("distance", 0, True),
    }  # fmt: skip
    assert len(found) == 4


def test_students_that_tokenize_differently_are_prepared_once_each():
    students = preparations(sweep())
    assert [student.vocabulary for student in students] == [16_000, 1000, 2000]
    assert preparations(sweep({"student.layers": Parameter(int=(1, 4))})) == [Transformer()]
    fixed = preparations(sweep({"student.prompt": Parameter(const="query: ")}))
    assert [student.prompt for student in fixed] == ["query: "]


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ({"training.learning_rate": 1e-3}, None),
        ({"method": "contrast", "temperature": 0.5}, None),
        ({"training.learning_rate": 1}, "training.learning_rate: 1 is out of reach; allowed: 0.0001 to 0.01, log"),
        ({"student.layers": 2.0}, "student.layers: 2.0 is out of reach; allowed: 1 to 4, whole"),
        ({"labels": "soft"}, "labels: 'soft' is out of reach; allowed: 'near', 'hard'"),
        ({"student.layer": 2}, "did you mean 'student.layers'?"),
        ({"temperature": 0.5}, "temperature: exists only when method is 'contrast', and it leaves that out"),
        ({"method": "distance", "temperature": 0.5}, "and it has 'distance'; give both or neither"),
        ({"student.layers": math.nan}, "is out of reach"),
    ],
)
def test_a_point_that_no_proposal_could_equal_is_refused(point, expected):
    if expected is None:
        check_point(sweep(), point)
    else:
        with pytest.raises(SpecError) as caught:
            check_point(sweep(), point)
        assert expected in str(caught.value)
