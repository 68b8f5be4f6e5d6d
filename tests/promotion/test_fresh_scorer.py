"""The process that scores: what it says of a teacher."""

from dataclasses import replace

import pytest

from babeltune.errors import TeacherError
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.promotion.fresh_scorer import score
from babeltune.stages import listening
from corpora import read_tasks


def test_a_raw_teacher_is_scored_as_the_model_that_it_is(scoring_process, tiny_file):
    sweep = read_sweep(tiny_file)
    tasks = read_tasks(sweep.data.dev, data_root(sweep), sweep.data)
    with pytest.raises(TeacherError, match="absent"):
        scoring_process().of_teacher(replace(sweep.teacher, model="absent/model"), tasks, "dev")
    scores = scoring_process().of_teacher(sweep.teacher, tasks, "dev")
    assert scores == pytest.approx(score(model_of(sweep.teacher), tasks, "dev"), abs=1e-4)


def test_the_process_says_how_far_it_is_batch_by_batch(scoring_process, tiny_file):
    sweep = read_sweep(tiny_file)
    tasks = read_tasks(sweep.data.dev, data_root(sweep), sweep.data)
    steps = []
    with listening(lambda *step: steps.append(step)):
        scoring_process().scored({"untrained": model_of(sweep.teacher)}, tasks, "dev")
    texts = len({(text, language) for task in tasks for text, language in texts_of(task)})
    name = "evaluating the untrained student on the dev sets"
    assert steps[0] == (name, 0, texts)
    assert steps[-1] == (name, texts, texts)
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


def test_a_model_beside_which_several_are_judged_is_scored_once(scoring_process, tiny_file):
    sweep = read_sweep(tiny_file)
    tasks = read_tasks(sweep.data.dev, data_root(sweep), sweep.data)
    bought, steps, answers = {"baseline mE5": model_of(sweep.teacher)}, [], []
    for some_tasks in (tasks, tasks, tasks[:1]):
        calls = []
        with listening(lambda *step, calls=calls: calls.append(step)):
            answers.append(scoring_process().scored(bought, some_tasks, "test", remembered=True))
        steps.append(len(calls))
    assert answers[0] == answers[1] == scoring_process().scored(bought, tasks, "test")
    assert steps[0] > 0
    assert steps[1] == 0
    assert steps[2] > 0, "other sets are another question"


def texts_of(task):
    texts = []
    task.mapped(lambda text, language: texts.append((text, language)) or text)
    return texts


def model_of(teacher):
    from babeltune.models.hub import model_folder

    return str(model_folder(teacher.model, teacher.revision, setting="teacher.model"))
