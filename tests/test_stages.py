"""The words about a long step: how far, how fast, how long still."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from babeltune.cli.common import Meter, steps_shown
from babeltune.stages import Stage, listening, pace, size, stage_words, tell

TEACHER = Stage(name="encoding with the teacher", done=3000, of=12_000, begun=100.0, time=110.0)


def test_a_stage_says_its_rate_and_the_time_left():
    assert stage_words(TEACHER) == "encoding with the teacher 3,000/12,000 · 300 sentences/s · about 0:30 left"
    assert stage_words(replace(TEACHER, done=0)) == "encoding with the teacher 0/12,000"
    assert stage_words(replace(TEACHER, done=12_000)) == "encoding with the teacher 12,000/12,000 · 1,200 sentences/s"
    assert stage_words(replace(TEACHER, time=100.5)) == "encoding with the teacher 3,000/12,000", "too early to tell"
    assert stage_words(replace(TEACHER, name="making the tokenizer", done=1, of=3)) == (
        "making the tokenizer 1/3 · about 0:20 left"
    )
    assert stage_words(replace(TEACHER, name="searching")) == "searching 3,000/12,000", "trials have a time left"


def test_what_an_earlier_submission_did_says_nothing_of_the_pace():
    assert pace(replace(TEACHER, first=2000)) == " · 100 sentences/s · about 1:30 left"
    assert pace(replace(TEACHER, first=3000)) == "", "nothing was done yet"


@pytest.mark.parametrize("name", ["reading the corpus", "uploading stores/teacher-0123", "uploading a checkpoint"])
def test_bytes_are_written_in_the_unit_that_fits(name):
    stage = replace(TEACHER, name=name, done=300 * 2**20, of=3 * 2**30)
    assert stage_words(stage) == f"{name} 300 MB/3.0 GB · 30 MB/s · about 1:32 left"
    assert [size(count) for count in (900, 5 * 2**20, 2**31)] == ["900 bytes", "5 MB", "2.0 GB"]


def test_a_step_that_nobody_can_measure_is_named():
    assert stage_words(replace(TEACHER, name="exporting the checkpoint", done=0, of=0)) == "exporting the checkpoint"
    assert stage_words(replace(TEACHER, of=0)) == "encoding with the teacher 3,000 · 300 sentences/s"


def test_whoever_listens_hears_of_steps_deep_below_and_nobody_needs_to():
    seen = []
    tell("writing to MLflow", 1, 2)
    with listening(lambda *step: seen.append(step)):
        tell("writing to MLflow", 1, 2)
        tell("exporting the checkpoint")
    tell("writing to MLflow", 2, 2)
    assert seen == [("writing to MLflow", 1, 2), ("exporting the checkpoint", 0, 0)]


def test_a_line_has_the_rate_and_the_time_left_of_what_this_command_does(monkeypatch, capsys):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("babeltune.stages.time.time", lambda: now.seconds)
    write = Meter("beginning")
    for seconds, done in ((100.0, 4_000), (101.0, 4_200), (110.0, 6_000), (120.0, 10_000)):
        now.seconds = seconds
        write("encoding", done, 10_000)
    assert capsys.readouterr().err.splitlines() == [
        "encoding 4,000/10,000",
        "encoding 6,000/10,000 · 200 sentences/s · about 0:20 left",
        "encoding 10,000/10,000 · 300 sentences/s",
    ]


def test_a_command_shows_its_steps_on_standard_error(capsys):
    with steps_shown("beginning"):
        tell("evaluating the model on the dev sets", 0, 960)
        tell("evaluating the model on the dev sets", 64, 960)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "evaluating the model on the dev sets 0/960\n")
