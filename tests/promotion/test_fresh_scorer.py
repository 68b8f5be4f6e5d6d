"""The process that scores: what it says of a teacher."""

from dataclasses import replace

import pytest

from babeltune.data.eval_sets import read_tasks
from babeltune.errors import TeacherError
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.promotion.fresh_scorer import score


def test_a_raw_teacher_is_scored_as_the_model_that_it_is(scoring_process, tiny_file):
    sweep = read_sweep(tiny_file)
    tasks = read_tasks(sweep.data.dev, data_root(sweep), sweep.data)
    with pytest.raises(TeacherError, match="absent"):
        scoring_process().of_teacher(replace(sweep.teacher, model="absent/model"), tasks, "dev")
    found = scoring_process().of_teacher(sweep.teacher, tasks, "dev")
    assert found == pytest.approx(score(model_of(sweep.teacher), tasks, "dev"), abs=1e-4)


def model_of(teacher):
    from babeltune.models.hub import model_folder

    return str(model_folder(teacher.model, teacher.revision, setting="teacher.model"))
