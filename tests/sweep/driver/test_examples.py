"""The examples of a report: which translations are shown, and what untrained and trained students make of them."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from babeltune.data.prepared import IdTask
from babeltune.errors import DataError
from babeltune.evaluation.projection import cosines, in_plane
from babeltune.files import plain
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.space import make_trial
from babeltune.sweep.driver import examples
from babeltune.sweep.driver.baselines import untrained_scores
from babeltune.sweep.driver.examples import (
    ExampleRequest,
    aligned_rows,
    examples_at_the_end,
    make_examples,
    make_missing_examples,
)
from babeltune.sweep.driver.run import only_driver
from babeltune.sweep.state.examples import EXAMPLES, ExampleSentences, read_examples
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import winner
from babeltune.train import Printer
from babeltune.training.checkpoint import checkpoint_folder, read_reports
from babeltune.training.trainer import TrialTrainer

pytestmark = pytest.mark.usefixtures("undrawn")
ACCURACY = "dev/everyday/{}-eng/accuracy_forward"


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A trained trial of the tiny sweep: what was prepared, what is asked, and its reports."""
    sweep, prepared = tiny
    trial, place = make_trial(sweep, 0, {}), tmp_path_factory.mktemp("trial")
    TrialTrainer(trial, prepared, place, Printer([]), ProcessGroup(), torch.device("cpu")).train()
    reports = read_reports(place)
    return (
        prepared,
        ExampleRequest(trial=trial, place=str(place), report=reports[-1].index, dev_set="everyday"),
        reports,
    )


def test_examples_are_what_the_untrained_student_and_the_checkpoint_make_of_them(trained, monkeypatch):
    prepared, request, reports = trained
    monkeypatch.setattr(examples, "MOST_ROWS", 30)  # all rows of the dev set, so that its scores come out again
    sweep_examples = make_examples(None, request, prepared)
    untrained = untrained_scores(request.trial, prepared)
    assert (sweep_examples.trial, sweep_examples.report, sweep_examples.dev_set, sweep_examples.languages) == (
        "t0000",
        2,
        "everyday",
        ("eng", "fra", "kor"),
    )
    for each in sweep_examples.alignment:
        name = ACCURACY.format(each.language)
        assert each.found_before == pytest.approx(untrained[name], abs=1e-4)
        assert each.found_after == pytest.approx(reports[-1].metrics[name], abs=1e-4)
    fra = sweep_examples.similarities[0]
    assert (fra.left, fra.right, len(fra.after), len(fra.after[0])) == ("eng", "fra", 8, 8)
    assert fra.before != fra.after
    assert [each.text for each in sweep_examples.sentences][:2] == prepared.texts_of(
        aligned_rows(prepared, "everyday")[1][0, :2]
    )
    assert len(sweep_examples.sentences) == 30 * 3
    assert np.isfinite([each.after for each in sweep_examples.sentences]).all()


def test_the_pair_with_the_lowest_score_has_the_first_heat_map(trained, monkeypatch):
    prepared, request, _ = trained
    monkeypatch.setattr(examples, "MAPS", 1)
    for weak, strong in (("fra", "kor"), ("kor", "fra")):
        weakest = ("dev/other/deu-eng/accuracy", *(f"dev/everyday/{each}-eng/accuracy" for each in (weak, strong)))
        sweep_examples = make_examples(None, replace(request, weakest=weakest), prepared)
        assert [(each.left, each.right) for each in sweep_examples.similarities] == [("eng", weak)]
        assert sweep_examples.languages == ("eng", weak, strong)


def test_examples_are_read_as_they_were_written(trained, tmp_path):
    prepared, request, _ = trained
    sweep_examples, folder = make_examples(None, request, prepared), SweepFolder(tmp_path)
    folder.write(EXAMPLES, plain(sweep_examples))
    assert read_examples(folder) == sweep_examples
    assert (tmp_path / EXAMPLES).stat().st_size < 100_000
    (tmp_path / EXAMPLES).write_text("{")
    assert read_examples(folder).missing.startswith("examples.json is damaged")
    folder.write(EXAMPLES, {"trial": 7})
    assert "another version" in read_examples(folder).missing


def test_rows_have_all_languages_that_share_enough_translations(tiny):
    _, prepared = tiny
    languages, rows = aligned_rows(prepared, "everyday")
    assert languages == ("eng", "fra", "kor")
    of_text = prepared.text_languages()
    assert {tuple(prepared.languages[of_text[each]] for each in row) for row in rows} == {languages}
    (fra,) = (task for task in prepared.tasks if task.subset == "fra-eng")
    assert set(zip(rows[:, 1].tolist(), rows[:, 0].tolist(), strict=True)) <= set(zip(fra.left, fra.right, strict=True))
    assert len(rows) == examples.MOST_ROWS
    few = replace(prepared, tasks=(fra, replace(fra, subset="kor-eng", left=fra.left[:0], right=())))
    assert aligned_rows(few, "everyday")[0] == ("eng", "fra")


def test_a_sweep_without_a_bitext_that_the_student_encodes_says_why_it_has_none(tiny):
    _, prepared = tiny
    sts = tuple(task for task in prepared.tasks if task.kind == "sts")
    against = tuple(replace(task, right_model="teacher") for task in prepared.tasks if task.kind == "bitext")
    for tasks in (sts, against):
        with pytest.raises(DataError, match="no dev set is a bitext whose two sides the student encodes"):
            aligned_rows(replace(prepared, tasks=tasks), "everyday")
    twice = IdTask(name="same", kind="bitext", subset="eng-eng", left=sts[0].left, right=sts[0].right)
    with pytest.raises(DataError, match="'same' has no sentences in two languages"):
        aligned_rows(replace(prepared, tasks=(twice,)), "same")


def test_positions_are_near_where_cosines_are_high_and_the_same_each_time():
    random = np.random.default_rng(0)
    centres = np.eye(4, 16, dtype=np.float32)
    vectors = np.repeat(centres, 6, axis=0) + 0.05 * random.normal(size=(24, 16)).astype(np.float32)
    places = in_plane(vectors)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    same = np.repeat(np.arange(4), 6)[:, None] == np.repeat(np.arange(4), 6)[None]
    nearest = np.where(np.eye(24, dtype=bool), np.inf, apart).argmin(axis=1)
    assert same[np.arange(24), nearest].all()
    assert (in_plane(vectors) == places).all()
    assert cosines(centres, centres) == pytest.approx(np.eye(4))


@pytest.mark.parametrize(("vectors", "words"), [(np.eye(4), "too few"), (np.ones((9, 3)), "all vectors are alike")])
def test_vectors_without_positions_are_an_error_in_words(vectors, words):
    with pytest.raises(DataError, match=words):
        in_plane(vectors.astype(np.float32))


def test_a_report_makes_the_examples_that_the_sweeps_end_did_not(command, copied_home):
    folder = copied_home[1]
    folder.write(EXAMPLES, ExampleSentences(missing="they took longer than 60 s"))
    with only_driver(folder):
        make_missing_examples(folder, None, pytest.fail)  # that driver makes them
    code, _, err = command("report", folder.id)
    assert code == 0
    assert "making the examples of translations, which this sweep lacks (they took longer than 60 s)" in err
    stored = read_examples(folder)
    assert (stored.missing, stored.trial) == ("", winner(folder).name)
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "Cosines of translations" in page
    code, _, err = command("report", folder.id)
    assert (code, err) == (0, ""), "what is there is not made again"


def test_a_report_without_examples_says_why_there_are_none_still(copied):
    _, folder, _ = copied
    best = winner(folder)
    shutil.rmtree(checkpoint_folder(folder.trial(int(best.name[1:])), best.best))
    (folder.path / EXAMPLES).unlink(missing_ok=True)
    noted = []
    make_missing_examples(folder, None, noted.append)
    assert len(noted) == 1
    assert "there is no" in read_examples(folder).missing
    assert "student.safetensors" in read_examples(folder).missing


def test_a_checkpoint_that_is_gone_is_a_line_of_the_report_and_fails_no_sweep(ray_cluster, copied):
    _, folder, _ = copied
    best = winner(folder)
    shutil.rmtree(checkpoint_folder(folder.trial(int(best.name[1:])), best.best))
    with examples_at_the_end(folder, None) as begin:
        begin()
    assert "student.safetensors" in read_examples(folder).missing
    with pytest.raises(KeyError), examples_at_the_end(folder, None) as begin:
        raise KeyError  # the block fails as it would without
