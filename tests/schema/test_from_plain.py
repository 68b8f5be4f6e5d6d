"""Records are read from JSON as they were written."""

import json
from dataclasses import replace

import pytest

from babeltune.data.prepared import EvalTask
from babeltune.files import plain
from babeltune.schema.base import from_plain
from babeltune.schema.records import (
    FrozenModel,
    Objective,
    Point,
    Report,
    Sampling,
    Static,
    Teacher,
    Training,
    Transformer,
    Trial,
)

TRIAL = Trial(
    number=3,
    seed=1,
    method="lealla",
    config={"weights": [1, 2], "inner": {"margin": 0.1}},
    student=Static(width=64),
    training=Training(matryoshka=(64, 32), rates=(1.0, 2.0)),
    sampling=Sampling(),
    objectives=(Objective(metric="dev/a/accuracy"),),
    speed=(100.0, 0.1),
)
REPORT = Report(
    index=1, step=2, pairs=3, seconds=0.5, metrics={"a": 1.0}, points=(Point(step=1, time_ms=2, values={"a": 0.5}),)
)
TASK = EvalTask(name="a", kind="mining", subset="fra-eng", left=(1, 2), right=(3,), gold=((0, 0), (1, 0)))


@pytest.mark.parametrize(
    ("hint", "record"),
    [
        (Trial, TRIAL),
        (Trial, replace(TRIAL, student=Transformer(layers=3), speed=None)),
        (Teacher, Teacher(beside=(FrozenModel(model="team/another", languages=("eng",)),))),
        (EvalTask[int], replace(TASK, fit=TASK)),
        (Report, REPORT),
    ],
    ids=lambda value: getattr(value, "__name__", "record"),
)
def test_a_record_is_read_as_it_was_written(hint, record):
    assert from_plain(hint, json.loads(json.dumps(plain(record)))) == record


def test_a_field_that_a_record_does_not_have_is_refused():
    with pytest.raises(TypeError, match="colour"):
        from_plain(Objective, {"metric": "dev/a/accuracy", "colour": "red"})
