"""LASER3's own protocol: the student's left side against the teacher's right side, from the sweep file to promotion."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from babeltune.data.prepared import write_prepared
from babeltune.data.store import facts_of
from babeltune.data.stored_arrays import open_matrix
from babeltune.data.teacher import TeacherModel, load_teacher
from babeltune.errors import TeacherError
from babeltune.files import write_json
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare, wanted_of
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.promotion.candidate import Candidate, dev_texts, export_model
from babeltune.promotion.evaluate import evaluate_model
from babeltune.promotion.model_card import model_card
from babeltune.promotion.sealed_test_log import read_openings
from babeltune.promotion.verdict import Champion, weigh
from babeltune.schema.cluster import Cluster
from babeltune.sweep.driver.baselines import teacher_scores, untrained_scores
from babeltune.sweep.state.folder import SweepFolder
from babeltune.tracking.registry import Registered
from babeltune.training.build import make_method, make_student
from babeltune.training.dev_evaluation import dev_scores
from babeltune.training.trainer import TrialTrainer
from collecting import Collect
from made_sweeps import log_trial

pytestmark = pytest.mark.usefixtures("one_thread", "offline", "one_scoring_process")
ROWS = 30

SWEEP = """
version: 1
name: laser
method: laser3_co
config: {variant: laser3, self_weight: 0}
objectives: [{metric: dev/theirs/xsim_error, goal: minimize}]
data:
  root: ROOT
  train:
    - {name: natural, path: train.tsv, columns: {eng: eng, fra: fra}}
  dev:
    - {name: ours, source: {name: dev, path: dev.tsv, columns: {eng: eng, fra: fra}}}
    - {name: theirs, right_model: teacher, source: {name: dev, path: dev.tsv, columns: {eng: eng, fra: fra}}}
    - {name: mined, task: mining, right_model: teacher, gold: gold.tsv,
       source: {name: sides, id: id, column: text, paths: {fra: fra.tsv, eng: eng.tsv}},
       fit: {gold: gold.tsv, source: {name: fit, id: id, column: text, paths: {fra: fra.tsv, eng: eng.tsv}}}}
  split: {pairs: 20, right_model: teacher}
  test:
    - {name: sealed, right_model: teacher, source: {name: test, path: test.tsv, columns: {eng: eng, fra: fra}}}
student: {layers: 1, width: 32, heads: 2, feed_forward: 64, vocabulary: 1000, max_tokens: 32, projection: teacher}
training: {pairs: 20000, reports: 1, global_batch: 64, learning_rate: 3e-3}
scheduler: {kind: none}
sampler: {kind: random}
budget: {trials: 1, workers: 1}
"""


@pytest.fixture(scope="module")
def laser(tmp_path_factory, tiny):
    """A trained trial with `self_weight: 0`: (candidate, folder)."""
    place = tmp_path_factory.mktemp("laser")
    for name in ("train", "dev", "test"):
        lines = (data_root(tiny[0]) / f"natural_{name}.tsv").read_text(encoding="utf-8").splitlines()
        (place / f"{name}.tsv").write_text(
            "\n".join(lines[: 1 + (3000 if name == "train" else ROWS)]), encoding="utf-8"
        )
    rows = [line.split("\t") for line in (place / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    for side, language in ((1, "eng"), (2, "fra")):
        lines = [f"{language}{row}\t{columns[side]}\n" for row, columns in enumerate(rows)]
        (place / f"{language}.tsv").write_text("id\ttext\n" + "".join(lines), encoding="utf-8")
    gold = "".join(f"fra{row}\teng{row}\n" for row in range(0, ROWS, 2))
    (place / "gold.tsv").write_text(gold, encoding="utf-8")
    (place / "laser.yaml").write_text(SWEEP.replace("ROOT", str(place)), encoding="utf-8")
    sweep = read_sweep(place / "laser.yaml")
    prepared = prepare(sweep, place / "storage")
    trial, folder = make_trial(sweep, 0, {}), SweepFolder(place / "storage" / "sweeps" / "laser")
    reports = TrialTrainer(trial, prepared, folder.trial(0), Collect(), ProcessGroup(), torch.device("cpu")).train()
    write_json(folder.trial(0) / "trial.json", trial)
    log_trial(folder, 0, {}, reports, "finished")
    folder.write("sweep.json", sweep)
    write_prepared(prepared, folder.prepared)
    return Candidate(folder, sweep, trial, reports[-1], prepared)


def loop(left, right, k=4):
    """xSIM errors of both directions and the accuracies, by the printed formula, one cosine at a time."""
    x, y = ([row / np.linalg.norm(row) for row in side.astype(np.float64)] for side in (left, right))

    def direction(queries, candidates):
        right, nearest = 0, 0
        for i, q in enumerate(queries):
            cosines = [float(q @ c) for c in candidates]
            order = sorted(range(len(candidates)), key=lambda j: -cosines[j])[:k]
            around = sum(cosines[j] for j in order) / k
            scores = {}
            for j in order:
                back = sum(sorted((float(candidates[j] @ other) for other in queries), reverse=True)[:k]) / k
                scores[j] = cosines[j] / ((around + back) / 2)
            right += max(order, key=lambda j: scores[j]) == i
            nearest += order[0] == i
        return 1 - right / len(queries), nearest / len(queries)

    return direction(x, y), direction(y, x)


def columns_of(candidate, name):
    """The French and the English side of a file."""
    path = data_root(candidate.sweep) / f"{name}.tsv"
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [row[2] for row in rows], [row[1] for row in rows]


def test_a_self_weight_0_student_is_scored_as_a_plain_loop_over_both_models(laser, tmp_path):
    fra, eng = columns_of(laser, "dev")
    export_model(laser, tmp_path / "model")
    student = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    teacher = load_teacher(laser.sweep.teacher)
    scores = laser.report.metrics
    for name, right in (("ours", student.encode(eng)), ("theirs", teacher.encode(eng))):
        (forward, hits), (backward, hits_back) = loop(student.encode(fra), right)
        at = f"dev/{name}/fra-eng"
        assert scores[f"{at}/xsim_error_forward"] == pytest.approx(forward), name
        assert scores[f"{at}/xsim_error"] == scores[f"dev/{name}/xsim_error"] == pytest.approx((forward + backward) / 2)
        assert (scores[f"{at}/accuracy_forward"], scores[f"{at}/accuracy_backward"]) == (hits, hits_back)
    assert scores["dev/theirs/xsim_error"] < scores["dev/ours/xsim_error"], "it has learnt the teacher's space alone"


def test_mining_scores_are_a_loop_over_both_models_vectors(laser, tmp_path):
    fra, eng = columns_of(laser, "dev")
    export_model(laser, tmp_path / "model")
    x = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(fra)
    cosines = x @ load_teacher(laser.sweep.teacher).encode(eng).T
    around = np.sort(cosines, axis=1)[:, -4:].mean(1)[:, None] + np.sort(cosines, axis=0)[-4:].mean(0)[None]
    margins = 2 * cosines / around
    nearest = np.argsort(-cosines, axis=1)[:, :4]
    best = [max(found, key=lambda j, row=row: margins[row, j]) for row, found in enumerate(nearest)]
    pairs = sorted(((margins[i, j], i == j and i % 2 == 0) for i, j in enumerate(best)), reverse=True)
    f1 = max(2 * sum(hit for _, hit in pairs[:n]) / (n + ROWS // 2) for n in range(1, ROWS + 1))
    assert laser.report.metrics["dev/mined/f1_forward"] == pytest.approx(f1)


def test_no_report_encodes_with_the_teacher_whose_vectors_are_stored(laser, monkeypatch):
    """All dev texts were encoded once, in fp32; a trial reads the right sides from the store."""
    prepared = laser.prepared
    store = Path(prepared.teacher)
    assert open_matrix(store).rows(np.arange(2)).dtype == np.float32
    assert facts_of(store)["forwarded"] == len(open_matrix(store))

    def encode(self, texts):
        raise AssertionError("the teacher was asked again")

    monkeypatch.setattr(TeacherModel, "encode", encode)
    encoder = make_student(laser.trial, prepared)
    method, asked = make_method(laser.trial, prepared, encoder), []
    encoder.register_forward_pre_hook(lambda _, tokens: asked.append(len(tokens[0])))
    replaced = replace(prepared, tasks=tuple(t for t in prepared.tasks if t.name == "theirs"))
    scores = dev_scores(encoder, method, laser.trial, replaced, ProcessGroup(), torch.device("cpu"))
    assert sum(asked) == ROWS, "the student encodes the left side alone"
    assert scores["dev/theirs/fra-eng/accuracy"] <= 1


def test_held_out_pairs_are_scored_against_the_teacher_where_the_split_says_so(laser, tmp_path):
    (task,) = [task for task in dev_texts(laser.prepared) if task.name == "heldout"]
    export_model(laser, tmp_path / "model")
    left = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(list(task.left))
    (forward, hits), _ = loop(left, load_teacher(laser.sweep.teacher).encode(list(task.right)))
    assert laser.report.metrics["dev/heldout/fra-eng/xsim_error_forward"] == pytest.approx(forward)
    assert laser.report.metrics["dev/heldout/fra-eng/accuracy_forward"] == hits


def test_the_baselines_follow_the_same_rule(laser, tmp_path):
    fra, eng = columns_of(laser, "dev")
    teacher = load_teacher(laser.sweep.teacher)
    raw, untrained = teacher_scores(laser.prepared), untrained_scores(laser.trial, laser.prepared)
    (forward, _), (backward, _) = loop(teacher.encode(fra), teacher.encode(eng))
    assert raw["dev/theirs/xsim_error"] == raw["dev/ours/xsim_error"] == pytest.approx((forward + backward) / 2)
    export_model(laser, tmp_path / "model", untrained=True)
    student = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    (forward, _), (backward, _) = loop(student.encode(fra), teacher.encode(eng))
    assert untrained["dev/theirs/xsim_error"] == pytest.approx((forward + backward) / 2)
    assert untrained["dev/theirs/xsim_error"] != untrained["dev/ours/xsim_error"]


def test_promotion_scores_the_right_sides_with_the_real_teacher(laser, scoring_process, tmp_path):
    export_model(laser, tmp_path / "model")
    export_model(laser, tmp_path / "untrained", untrained=True)
    decision = weigh(laser, tmp_path, scoring_process())
    assert decision.verdict == "promote", decision.reasons
    logged = {k: v for k, v in laser.report.metrics.items() if k.startswith("dev/") and "flipped" not in k}
    assert {k: decision.dev[k] for k in logged} == pytest.approx(logged, abs=1e-4)
    fra, eng = columns_of(laser, "test")
    student = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    (forward, _), (backward, _) = loop(student.encode(fra), load_teacher(laser.sweep.teacher).encode(eng))
    assert decision.test["test/sealed/fra-eng/xsim_error"] == pytest.approx((forward + backward) / 2)
    card = model_card(laser.sweep, laser.trial, laser.report, laser.prepared, decision)
    assert (
        "The right sides of `dev/theirs`, `dev/mined`, `dev/heldout`, `test/sealed` are encoded by the teacher `"
        in card
    )


def test_a_trial_is_evaluated_with_the_teacher_of_its_sweep(laser, tmp_path):
    """Where the file names no teacher."""
    file = tmp_path / "data.yaml"
    text = SWEEP.replace("ROOT", laser.sweep.data.root)
    file.write_text(text[text.index("data:") : text.index("student:")], encoding="utf-8")
    storage = laser.folder.path.parents[1]
    done = evaluate_model("laser/t0000", str(file), Cluster(storage=str(storage)), test=False)
    names = [name for name in laser.report.metrics if name.startswith(("dev/theirs", "dev/ours", "dev/mined"))]
    assert {name: done.scores[name] for name in names} == pytest.approx(
        {name: laser.report.metrics[name] for name in names}, abs=1e-4
    )


def test_a_champion_is_compared_on_the_teachers_right_side(laser, scoring_process, tmp_path):
    """The untrained student as champion; one of another dimension is refused before a test is opened."""
    export_model(laser, tmp_path / "model")
    export_model(laser, tmp_path / "untrained", untrained=True)
    version = Registered("1", "", "", {})
    storage = laser.folder.path.parents[1]
    narrow = replace(laser, trial=replace(laser.trial, student=replace(laser.trial.student, projection=None)))
    narrow = replace(narrow, trial=replace(narrow.trial, method="soft_contrastive", config={}))
    export_model(narrow, tmp_path / "narrow", untrained=True)
    before = len(read_openings(storage))
    rescore = scoring_process()
    contested = weigh(laser, tmp_path, rescore, Champion("models:/a@champion", version, tmp_path / "untrained"))
    opened = len(read_openings(storage))
    words = r"^the champion models:/b@champion has vectors of 32 dim.* of 384.*one"
    with pytest.raises(TeacherError, match=words) as e:
        weigh(laser, tmp_path, rescore, Champion("models:/b@champion", version, tmp_path / "narrow"))
    assert "\n" not in str(e.value)
    (cell,) = contested.contest.cells
    assert cell.challenger == contested.test["test/sealed/fra-eng/accuracy"] > 2 * cell.champion
    assert opened == before + 1 == len(read_openings(storage))


def test_the_teachers_vectors_are_stored_in_fp32_only_where_a_dev_set_needs_it(laser):
    """Promotion could not find scores of fp16 vectors again."""
    tasks = tuple(replace(task, right_model="student") for task in laser.sweep.data.dev)
    other = replace(laser.sweep, data=replace(laser.sweep.data, dev=tasks, split=None))
    assert (wanted_of(laser.sweep).exact, wanted_of(other).exact) == (True, False)
