"""Off-the-shelf models as rows of a leaderboard, and against the winner at promotion."""

import json
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from babeltune.errors import TeacherError
from babeltune.files import plain
from babeltune.models.hub import baseline_row, model_folder, split_revision
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.candidate import dev_texts
from babeltune.promotion.export import export_trial
from babeltune.promotion.fresh_scorer import score
from babeltune.promotion.promote import promote
from babeltune.sweep.driver.baselines import bought_scores, score_baselines
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import read_log
from babeltune.sweep.state.leaderboard import leaderboard, winner
from babeltune.sweep.state.log import log_of
from babeltune.training.build import make_method, make_student

pytestmark = pytest.mark.usefixtures("offline")

BUNDLED = "bundled:all-MiniLM-L6-v2"
ROW = "all-MiniLM-L6-v2"


@pytest.fixture
def small_model(tiny, tmp_path):
    """The folder of a small model."""
    sweep, prepared = tiny
    trial = make_trial(sweep, 0, {})
    encoder = make_student(trial, prepared)
    export_trial(sweep, trial, prepared, encoder, make_method(trial, prepared, encoder), tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.long
def test_a_baseline_has_the_scores_of_the_model_alone_with_size_and_speed(tiny):
    _, prepared = tiny
    steps = []
    scores = bought_scores(BUNDLED, prepared, lambda *far: steps.append(far))
    alone = score(str(model_folder(BUNDLED, None, setting="baselines")), dev_texts(prepared), "dev")
    assert {name: scores[name] for name in alone} == pytest.approx(alone, abs=1e-5)
    assert scores["model/parameters"] == 22_713_216
    assert scores["model/sentences_per_second"] > 0
    assert [done for done, _ in steps] == [*range(0, steps[0][1], 64)], "each batch of sentences is counted"


@pytest.mark.usefixtures("ray_cluster")
def test_a_baseline_is_a_row_that_is_scored_once_and_wins_nothing(copied, small_model):
    sweep, folder, _ = copied
    before, best = folder.baselines(), winner(folder).name
    from babeltune.data.prepared import read_prepared

    prepared = read_prepared(folder.prepared)
    stages, sentences = [], len({text for task in prepared.tasks for text in task.texts_of("student")})
    with_one = replace(sweep, baselines=(str(small_model),))
    score_baselines(with_one, prepared, folder, lambda *stage: stages.append(stage))
    assert {title for title, _, _ in stages} == {"scoring mine"}, "the untrained student is not scored again"
    assert stages[0][1:] == (0, sentences)
    assert stages[-1][1:] == (sentences, sentences)
    before_again = len(stages)
    baselines = folder.baselines()
    assert {name: baselines[name] for name in before} == before
    alone = score(str(small_model), dev_texts(prepared), "dev")
    assert {name: baselines["mine"][name] for name in alone} == pytest.approx(alone, abs=1e-5)
    assert "mine" in [row.name for row in leaderboard(folder)]
    assert winner(folder).name == best
    score_baselines(with_one, prepared, folder, lambda *stage: stages.append(stage))
    assert len(stages) == before_again
    score_baselines(replace(sweep, baselines=()), prepared, folder)
    assert folder.baselines() == before, "a baseline that the sweep names no more is no row"


@pytest.mark.usefixtures("ray_cluster")
def test_a_finished_sweep_takes_a_baseline_over_without_training_again(copied, small_model):
    sweep, folder, cluster = copied
    before, ended = folder.baselines(), log_of(folder.path).ended
    with_one = replace(sweep, baselines=(str(small_model),))
    assert submit(with_one, cluster, into=folder.id).state() == "finished"
    assert folder.baselines().keys() == {*before, "mine"}
    assert log_of(folder.path).ended == ended


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_a_changed_baseline_is_scored_again_and_a_broken_one_costs_no_other(copied, small_model, tmp_path):
    sweep, folder, _ = copied
    from babeltune.data.prepared import read_prepared

    prepared, before = read_prepared(folder.prepared), folder.baselines()
    broken = shutil.copytree(small_model, tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{", encoding="utf-8")
    with_both = replace(sweep, baselines=(str(broken), str(small_model)))
    score_baselines(with_both, prepared, folder)
    assert folder.baselines().keys() == {*before, "mine"}
    assert "not scored: " in read_log(folder)
    first, weights = folder.baselines()["mine"], small_model / "model.safetensors"
    turned = {name: tensor.flip(0) for name, tensor in load_file(weights).items()}
    save_file(turned, weights)
    score_baselines(with_both, prepared, folder)
    assert folder.baselines()["mine"]["dev/sts/spearman"] != first["dev/sts/spearman"]
    shutil.rmtree(small_model)
    score_baselines(replace(sweep, baselines=(str(small_model),)), prepared, folder)
    assert "mine" in folder.baselines(), "one that is gone keeps its scores"


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster", "one_scoring_process")
def test_promotion_says_whether_training_beat_each_model_that_could_be_had(copied, tmp_path):
    sweep, folder, cluster = copied
    (tmp_path / "model").symlink_to(model_folder(BUNDLED, None, setting="baselines"))
    recorded = json.loads((folder.path / "sweep.json").read_text(encoding="utf-8"))
    place = recorded.get("sweep", recorded)
    place["baselines"] = [BUNDLED, "/no/such/one", str(tmp_path / "model")]
    (folder.path / "sweep.json").write_text(json.dumps(recorded), encoding="utf-8")
    decision = promote(sweep.name, cluster, dry_run=True)
    lines = [line for line in decision.reasons if f"the baseline {ROW}: " in line]
    assert len(lines) == 1, "the sealed tests are bitext alone"
    assert "mean bitext accuracy" in lines[0]
    assert all(line.startswith(("better than", "worse than", "perhaps no better than")) for line in lines)
    (line,) = (line for line in decision.reasons if "the baseline model: " in line)
    assert "[+0.0000, +0.0000]" not in line, "a baseline that is called as the candidate does not take its place"
    assert any(line.startswith("warning: not compared with a baseline: ") for line in decision.reasons)


def test_baselines_decide_no_result_so_a_file_keeps_its_sweeps_id(tiny_file):
    sweep = read_sweep(tiny_file)
    assert sweep_id(sweep) == sweep_id(replace(sweep, baselines=(BUNDLED,)))
    assert plain(read_sweep(tiny_file, assignments=[f"baselines=['{BUNDLED}']"]))["baselines"] == [BUNDLED]


def test_a_baseline_that_is_no_model_is_one_line(tiny, tmp_path):
    with pytest.raises(TeacherError, match=r"baselines .* has no \*\.safetensors file"):
        bought_scores(str(tmp_path), tiny[1])


def test_a_revision_is_behind_the_at_sign_unless_a_folder_has_it_in_its_name(tmp_path):
    assert split_revision("org/model@v1") == ("org/model", "v1")
    assert baseline_row("org/model@v1") == "model"
    (tmp_path / "a@b").mkdir()
    assert split_revision(str(tmp_path / "a@b")) == (str(tmp_path / "a@b"), None)
