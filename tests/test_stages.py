"""The words about a long step: how far, how fast, how long still."""

from dataclasses import replace

import pytest

from babeltune.stages import Stage, pace, size, stage_words

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
    assert [size(count) for count in (900, 5 * 2**20, 2**31)] == ["1 kB", "5 MB", "2.0 GB"]
