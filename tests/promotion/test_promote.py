"""Promotion: the best trial, exported, scored afresh, judged, registered; and every way in which it is refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from mlflow.exceptions import MlflowException
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import babeltune as bt
from babeltune.cli import app
from babeltune.data.prepared import TextTask, read_prepared
from babeltune.errors import CheckpointError, PromotionError, SpecError, SweepError, TeacherError, UnknownNameError
from babeltune.evaluation.metric_names import each_once
from babeltune.files import sha256_of
from babeltune.method.distributed import ProcessGroup
from babeltune.models.hub import open_model
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.canary import CANARY, read_canary
from babeltune.promotion.candidate import dev_texts, doubts_about, export_model, find_candidate
from babeltune.promotion.card_facts import facts_of
from babeltune.promotion.drift import SAMPLE, read_profile, training_sample
from babeltune.promotion.evaluate import evaluate_model
from babeltune.promotion.fresh_scorer import score
from babeltune.promotion.gates import TOLERANCE, chance_of, judge
from babeltune.promotion.model_card import model_card
from babeltune.promotion.promote import promote
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Gate, Promotion
from babeltune.sweep.state.leaderboard import winner
from babeltune.tracking.mlflow_client import open_client
from babeltune.tracking.registry import champion_of, fetch, find_run, trial_of_run, version_in
from babeltune.train import Printer
from babeltune.training.checkpoint import checkpoint_folder, read_reports
from babeltune.training.trainer import TrialTrainer
from fake_hub import fake_hub
from notified import events_in, teller

pytestmark = [pytest.mark.usefixtures("one_scoring_process")]
GATE = Gate(test="t", times_chance=5, times_untrained=2)
LOGGED = {"dev/d/accuracy": 0.5}


def accuracies(value):
    return {"test/t/fra-eng/accuracy": value}


def bitext(name, subset, n):
    rows = tuple(str(i) for i in range(n))
    return TextTask(name=name, kind="bitext", subset=subset, left=rows, right=rows)


# The decision alone


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    ("reproduced", "verdict"),
    [
        ({"dev/d/accuracy": 0.5}, "promote"),
        ({"dev/d/accuracy": 0.5 + 0.9 * TOLERANCE}, "promote"),
        ({"dev/d/accuracy": 0.5 + 1.1 * TOLERANCE}, "refuse"),
        ({"dev/d/accuracy": 0.9}, "refuse"),
        ({"dev/d/accuracy": float("nan")}, "refuse"),
        ({}, "refuse"),
    ],
)
def test_every_logged_metric_must_come_out_again_within_the_tolerance(reproduced, verdict):
    assert judge(LOGGED, reproduced)[0] == verdict


def test_a_metric_that_comes_out_otherwise_is_named_with_its_reason():
    logged = {"dev/everyday/accuracy": 0.8764, "dev/sts/spearman": 0.7}
    verdict, reasons = judge(logged, logged | {"dev/everyday/accuracy": 0.8767})
    assert verdict == "promote"
    assert "dev/everyday/accuracy was logged as 0.8764 and is 0.8767 here: other batches round" in reasons[0]
    assert judge(logged, logged)[1] == ("2 logged dev metrics reproduced by the exported folder",)


@pytest.mark.parametrize(("score", "verdict"), [(0.22, "promote"), (0.23, "promote"), (0.27, "refuse")])
def test_a_clustering_score_comes_out_again_within_its_spread_between_seeds(score, verdict):
    """k-means may take another way where two vectors differ in their last digit."""
    logged = {"dev/t/ari": 0.2, "dev/t/ari_sd": 0.04}
    assert judge(logged, {"dev/t/ari": score, "dev/t/ari_sd": 0.5})[0] == verdict


@pytest.mark.parametrize(
    ("model", "untrained", "chance", "verdict"),
    [
        (0.10, 0.01, 0.02, "promote"),  # exactly five times chance
        (0.09, 0.01, 0.02, "refuse"),
        (0.20, 0.10, 0.02, "promote"),  # exactly twice the untrained student
        (0.19, 0.10, 0.02, "refuse"),
        (float("nan"), 0.01, 0.02, "refuse"),
    ],
)
def test_a_gate_asks_for_multiples_of_chance_and_of_the_untrained_student(model, untrained, chance, verdict):
    decided, reasons = judge(LOGGED, LOGGED, [GATE], accuracies(model), accuracies(untrained), accuracies(chance))
    assert decided == verdict
    assert any("5 x chance" in r and "2 x untrained" in r for r in reasons)


def test_a_gate_holds_for_every_subset_of_a_test_that_was_scored():
    test = {"test/t/fra-eng/accuracy": 0.9, "test/t/kor-eng/accuracy": 0.05}
    verdict, reasons = judge(LOGGED, LOGGED, [GATE], test, {}, dict.fromkeys(test, 0.02))
    assert (verdict, len(reasons)) == ("refuse", 1)
    assert "kor-eng" in reasons[0]
    verdict, reasons = judge(LOGGED, LOGGED, [GATE], {}, {}, {})
    assert verdict == "refuse"
    assert "no such sealed test" in reasons[0]
    tasks = [bitext("t", "fra-eng", 8), TextTask(name="s", kind="sts", subset="eng", left=("a",), right=("b",))]
    assert chance_of(tasks) == {"test/t/fra-eng/accuracy": 1 / 8}, "one over the candidates"


# The whole of it


@pytest.fixture(scope="module")
def promoted(copy_of, tmp_path_factory):
    """One promotion of a copy of the finished sweep: (folder, cluster, decision, model folder)."""
    place = tmp_path_factory.mktemp("promotion")
    sweep, folder, cluster = copy_of(place / "storage")
    return folder, cluster, promote(sweep.name, cluster, out=place / "out"), place / "out"


def test_promotion_takes_the_best_finished_trial_and_writes_tensors_json_and_text(promoted):
    folder, _, decision, out = promoted
    assert decision.verdict == "promote", decision.reasons
    best = winner(folder)
    assert (decision.trial, decision.report) == (best.name, best.best)
    finished = [r.metrics["dev/everyday/accuracy"] for n in (0, 2, 3) for r in read_reports(folder.trial(n))]
    assert best.metrics["dev/everyday/accuracy"] == max(finished)
    assert decision.folder == str(out)
    kinds = {path.suffix for path in out.rglob("*") if path.is_file()}
    assert {".safetensors"} <= kinds <= {".safetensors", ".json", ".md", ".txt"}
    prepared = read_prepared(folder.prepared)
    assert read_profile(out) == training_sample(str(out), prepared).profile(), "of its training text"
    assert read_profile(out).texts == min(SAMPLE, len(np.unique(prepared.pairs())))


def test_the_champion_is_loaded_by_its_name(promoted, monkeypatch):
    folder, _, decision, out = promoted
    monkeypatch.setenv("BABELTUNE_HOME", str(folder.path.parents[1]))
    assert decision.registered.startswith("models:/searched@champion")
    texts = ["Good morning.", "Bonjour.", "I drink a cup of coffee every morning."]
    expected = SentenceTransformer(str(out), device="cpu").encode(texts)
    assert bt.load("models:/searched@champion").encode(texts) == pytest.approx(expected, abs=1e-5)


def test_the_exported_folder_gives_the_logged_metrics_in_sentence_transformers(promoted):
    from babeltune.evaluation.evaluate import evaluate_texts

    folder, _, decision, out = promoted
    candidate = find_candidate(folder.id, folder.path.parents[1])
    model = SentenceTransformer(str(out), device="cpu")
    scores = evaluate_texts(dev_texts(candidate.prepared), lambda texts, _: model.encode(texts), "dev")
    logged = {k: v for k, v in candidate.report.metrics.items() if k.startswith("dev/")}
    assert len(logged) > 5
    assert scores == pytest.approx(logged, abs=TOLERANCE)
    assert decision.dev == pytest.approx(logged, abs=TOLERANCE)


def test_a_model_in_half_precision_is_scored_in_fp32_and_a_pickled_one_is_refused(promoted, tmp_path):
    *_, out = promoted
    task = bitext("t", "fra-eng", 8)
    model = SentenceTransformer(str(out), device="cpu").bfloat16()
    model.save(str(tmp_path / "half"), create_model_card=False)
    loaded = open_model(str(tmp_path / "half"))
    assert {value.dtype for value in loaded.parameters()} == {torch.float32}
    assert "test/t/fra-eng/accuracy" in score(str(tmp_path / "half"), [task], "test")
    shutil.copytree(out, tmp_path / "pickled")
    for path in (tmp_path / "pickled").rglob("model.safetensors"):
        torch.save(load_file(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    with pytest.raises(TeacherError, match="safetensors"):
        score(str(tmp_path / "pickled"), [task], "test")


def test_who_may_read_new_files_may_read_all_of_a_sweep_and_its_model(promoted):
    _, cluster, _, out = promoted
    new = out.parent / "new"
    new.touch()
    others = cluster.folder / "artifacts"  # where other tests register what they made themselves
    files = [path for place in (cluster.folder, out) for path in place.rglob("*") if path.is_file()]
    files = [path for path in files if not path.is_relative_to(others)]
    assert {".safetensors", ".json", ".npy", ".jsonl"} <= {path.suffix for path in files}
    assert not [path for path in files if path.stat().st_mode & 0o444 != new.stat().st_mode & 0o444]


def test_the_alias_points_to_the_version_with_its_lineage(promoted, tmp_path):
    folder, cluster, decision, out = promoted
    version = champion_of(cluster.mlflow, "searched", "champion")
    assert version is not None
    assert f"version {version.version}" in decision.registered
    assert version.tags["babeltune.sweep"] == folder.id
    assert version.tags["babeltune.trial"] == decision.trial
    assert version.tags["babeltune.data"] == folder.read("prepared.json")["digest"]
    assert version.tags["metric.dev/everyday/accuracy"] == f"{decision.dev['dev/everyday/accuracy']:.4f}"
    client = mlflow.MlflowClient(cluster.mlflow)
    assert "babeltune promote" in client.get_registered_model("searched").description
    model = client.get_logged_model(version.tags["babeltune.model_id"])
    assert (model.source_run_id, model.name) == (version.run_id, f"{folder.id}-{decision.trial}")
    assert (model.tags["babeltune.trial"], model.tags["babeltune.report"]) == (decision.trial, str(decision.report))
    assert {"name": "searched", "version": version.version} in json.loads(model.tags["mlflow.modelVersions"])
    page = f"#/experiments/{model.experiment_id}/models/{model.model_id}"
    description = client.get_model_version("searched", version.version).description
    assert f"\n\nIts checkpoint: [{model.name}]({page}).\n\n## " in description
    model = fetch(cluster.mlflow, "models:/searched@champion", tmp_path)
    weights = "model.safetensors"
    assert sha256_of(next(Path(model).rglob(weights))) == sha256_of(next(out.rglob(weights)))
    before = next(Path(model).rglob(weights)).stat().st_mtime_ns
    assert fetch(cluster.mlflow, "models:/searched@champion", tmp_path) == model
    assert next(Path(model).rglob(weights)).stat().st_mtime_ns == before, "files that are there are not fetched again"


def test_another_sweep_starts_where_the_promoted_model_ended(promoted, tiny_file, tmp_path):
    _, cluster, decision, _ = promoted
    text = tiny_file.read_text(encoding="utf-8")
    shape = next(line for line in text.splitlines() if line.startswith("student:"))
    path = tmp_path / "next.yaml"
    path.write_text(text.replace(shape, 'student: {model: "models:/searched@champion", max_tokens: 32}'))

    def fetched(name):
        return str(fetch(cluster.mlflow, name, tmp_path / "fetched"))

    still = ["parameters={}", "training={pairs: 64, reports: 1, global_batch: 32, learning_rate: 1e-12}"]
    sweep = read_sweep(path, assignments=still, fetch=fetched)
    start = version_in(cluster.mlflow, Path(sweep.student.model))
    assert start == champion_of(cluster.mlflow, "searched", "champion"), "what the start was trained on is known"
    prepared = prepare(sweep, tmp_path)
    (tmp_path / "run").mkdir()
    trial, here = make_trial(sweep, 0, {}), (Printer([]), ProcessGroup(), torch.device("cpu"))
    TrialTrainer(trial, prepared, tmp_path / "run", *here).train()
    (report,) = read_reports(tmp_path / "run")
    dev = {name: value for name, value in decision.dev.items() if name in report.metrics}
    assert len(dev) > 5
    assert {name: report.metrics[name] for name in dev} == pytest.approx(dev, abs=TOLERANCE)


@pytest.mark.trap(39)
def test_the_card_says_what_the_run_and_the_promotion_measured(promoted):
    folder, _, decision, out = promoted
    card = (out / "README.md").read_text(encoding="utf-8")
    trial = json.loads((folder.trial(int(decision.trial[1:])) / "trial.json").read_text(encoding="utf-8"))
    for metric, value in each_once(decision.dev).items():
        assert f"| {metric} | {value:.4f} |" in card
    assert "| dev/sts/eng/spearman |" in card
    assert "| dev/sts/spearman |" not in card, "a mean over one subset repeats it"
    for metric, value in each_once(decision.test).items():
        line = next(line for line in card.splitlines() if line.startswith(f"| {metric} |"))
        assert f"| {value:.4f} | {decision.untrained[metric]:.4f} | {decision.teacher[metric]:.4f} |" in line
    assert card.count("| temperature |") == card.count("learning_rate |") == 1, "a setting stands once"
    assert f"| temperature | {trial['params']['temperature']:.4g} |" in card
    selection = decision.selection
    assert (selection.among, selection.metric) == (3, "dev/everyday/accuracy")
    assert f"Trial {decision.trial} is the best of 3 trials, so its dev/everyday/accuracy is partly luck." in card
    error = (selection.value * (1 - selection.value) / 30) ** 0.5  # both languages have the same rows
    assert selection.error == pytest.approx(error)
    assert f"would still look about {selection.inflation:.4f} better, by chance" in card
    assert f"its true value is {selection.shrunken:.4f}. Its standard error is about {selection.error:.4f}." in card
    assert f"| learning_rate | {trial['training']['learning_rate']:.4g} |" in card
    prepared = folder.read("prepared.json")
    assert prepared["digest"] in card
    for group, rows in zip(prepared["groups"], prepared["group_rows"], strict=True):
        assert f"| {group} | {rows} |" in card


def test_the_card_has_what_a_hub_reads_and_goes_there(promoted, command, monkeypatch):
    folder, cluster, decision, out = promoted
    card = ModelCard((out / "README.md").read_text(encoding="utf-8"))
    assert (card.data.language, card.data.license) == (["en", "fr", "ko"], None)
    results = {(each.dataset_type, each.dataset_config, each.metric_type): each for each in card.data.eval_results}
    figures = {"/".join(filter(None, ("test", *name))): each.metric_value for name, each in results.items()}
    expected = {name.replace("test/mean_", "test/all/mean_"): value for name, value in each_once(decision.test).items()}
    assert figures == pytest.approx(expected, abs=1e-4)
    assert "natural_train.tsv of babeltune | CC0-1.0 |" in card.content
    assert "## Limits" in card.content
    trial = json.loads((folder.trial(int(decision.trial[1:])) / "trial.json").read_text(encoding="utf-8"))
    assert f"* Text beyond {trial['student']['max_tokens']} tokens is cut." in card.content
    monkeypatch.setenv("BABELTUNE_HOME", cluster.storage)
    with fake_hub(monkeypatch) as hub:
        model = decision.registered.partition(" ")[0]
        command.prints("push", model, "me/searched", "--license", "cc0-1.0")
        hub_card = ModelCard(hub.files["me/searched/README.md"].decode())
    assert (hub_card.data.license, hub_card.data.eval_results) == ("cc0-1.0", card.data.eval_results)
    assert 'SentenceTransformer("me/searched")' in hub_card.content
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {name.removeprefix("me/searched/") for name in hub.files} == files


def test_a_promoted_model_brings_its_canary_vectors(promoted, command, monkeypatch):
    _, cluster, decision, out = promoted
    canary, model = read_canary(out / CANARY), SentenceTransformer(str(out), device="cpu")
    ours = model.encode(list(canary.sentences), normalize_embeddings=True)
    assert np.abs(ours - canary.vectors).max() < 1e-4
    digest = sha256_of(out / CANARY)
    assert f"(SHA-256 `{digest}`)" in (out / "README.md").read_text(encoding="utf-8")
    monkeypatch.setenv("BABELTUNE_HOME", cluster.storage)
    assert json.loads(command.prints("canary", out, decision.registered.partition(" ")[0], "--json"))["fits"] is True
    code, output, _ = command("canary", out, "bundled:all-MiniLM-L6-v2")
    assert code == 3
    assert "does not fit (--least 0.999)" in output


def test_the_card_compares_with_other_models_and_shows_three_sentences(promoted):
    folder, _, decision, out = promoted
    card, lines = (out / "README.md").read_text(encoding="utf-8"), (out / "README.md").read_text("utf-8").splitlines()
    baselines, metric = folder.baselines(), "dev/everyday/fra-eng/accuracy"
    assert "| metric | this model | untrained | teacher |" in lines
    scores = (decision.dev[metric], baselines["untrained"][metric], baselines["teacher"][metric])
    assert f"| {metric} | {' | '.join(f'{score:.4f}' for score in scores)} |" in lines
    size = json.loads(reports_of(folder, decision)[decision.report - 1])["metrics"]["model/parameters"]
    assert f"It has {size:,.0f} parameters, {4 * size / 1e6:.1f} MB in fp32. Its vectors have 384 dimensions." in lines
    section = card.partition("## Three sentences")[2].partition("## ")[0]
    shown = [line.split(" | ") for line in section.splitlines() if line.endswith(("| yes |", "| no |"))]
    assert len(shown) == 3
    model = SentenceTransformer(str(out), device="cpu")
    tasks = {task.left_languages[0] or task.subset[:3]: task for task in bitexts_of(folder)}
    for text, language, nearest, _, cosine, _ in shown:
        text, task = text.removeprefix("| "), tasks[language]
        similarities = model.similarity(model.encode([text]), model.encode(list(task.right[: len(task.left)])))[0]
        assert task.right[int(similarities.argmax())] == nearest
        assert float(similarities.max()) == pytest.approx(float(cosine), abs=1e-3)


def bitexts_of(folder):
    candidate = find_candidate(folder.id, folder.path.parents[1])
    return [task for task in dev_texts(candidate.prepared) if task.kind == "bitext"]


def reports_of(folder, decision):
    return (folder.trial(int(decision.trial[1:])) / "reports.jsonl").read_text(encoding="utf-8").splitlines()


def test_a_promotion_whose_example_sentences_are_gone_has_a_card_without_them(promoted):
    folder, _, decision, out = promoted
    candidate = find_candidate(folder.id, folder.path.parents[1])
    bare = replace(candidate, prepared=replace(candidate.prepared, folder=str(out / "nowhere")))
    facts = facts_of(bare, out, None)
    assert (facts.nearest, facts.dimension, facts.others) == ((), 384, folder.baselines())
    card = model_card(bare.sweep, bare.trial, bare.report, bare.prepared, decision, facts)
    assert "Three sentences" not in card
    assert "Its vectors have 384 dimensions." in card


def test_a_dry_run_registers_nothing_and_a_second_opening_is_warned_of(promoted):
    folder, cluster, decision, _ = promoted
    path = folder.path.parents[1] / "openings.jsonl"
    (opening,) = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert opening["tests"] == ["everyday"]
    assert opening["model"] == f"{folder.id}/{decision.trial}/{decision.report}"
    assert not any("opened" in reason for reason in decision.reasons)
    models = files_in(Path(cluster.storage) / "models")
    again = promote(folder.id, cluster, alias="candidate", dry_run=True)
    assert again.verdict == "promote"
    assert again.test == decision.test
    assert any("opened 2 times" in reason for reason in again.reasons)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    assert again.folder == again.registered == ""
    assert champion_of(cluster.mlflow, "searched", "candidate") is None
    assert files_in(Path(cluster.storage) / "models") == models


def files_in(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("alias", ["champion", "v1b", "latest-2", "größte", "a" * 255])
def test_an_alias_that_mlflow_takes_is_taken(tmp_path, alias):
    with pytest.raises(SweepError):
        promote(None, Cluster(storage=str(tmp_path)), alias=alias)


@pytest.mark.parametrize("alias", ["", "two words", "a/b", "v1", "V22", "latest", "Latest", "a" * 256])
def test_an_alias_that_mlflow_does_not_take_is_refused_at_once(promoted, alias):
    _, cluster, _, _ = promoted
    with pytest.raises(SpecError, match="an alias is letters, digits"):
        promote(None, cluster, alias=alias)
    with pytest.raises(MlflowException, match="alias"):
        open_client(cluster.mlflow).set_registered_model_alias("searched", alias, "1")


def test_an_out_folder_that_exists_is_left_alone(promoted):
    _, cluster, _, out = promoted
    before = sha256_of(out / "README.md")
    with pytest.raises(SpecError, match="exists already"):
        promote(None, cluster, out=out)
    assert sha256_of(out / "README.md") == before


def registered_nothing(cluster):
    assert champion_of(cluster.mlflow, "searched", "champion") is None
    assert not files_in(Path(cluster.storage) / "models")


def alter(folder, *, fix_manifest):
    """Changes one weight of the winner's checkpoint by much."""
    best = winner(folder)
    place = checkpoint_folder(folder.trial(int(best.name[1:])), best.best)
    path = place / "student.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if tensors[name].ndim == 2 and "project" in name)
    tensors[name][0, 0] += 1e4
    save_file(tensors, path)
    if fix_manifest:
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        manifest["files"][path.name] = sha256_of(path)
        (place / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_one_altered_weight_is_refused_with_exit_code_3_and_nothing_is_registered(copied_home, tmp_path):
    from typer.testing import CliRunner

    _, folder, cluster = copied_home
    alter(folder, fix_manifest=True)
    result = CliRunner().invoke(app, ["promote", folder.id, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 3, result.output
    decision = json.loads(result.stdout)
    assert decision["verdict"] == "refuse"
    assert "not reproduced" in decision["reasons"][0]
    assert decision["test"] == {}, "the sealed tests stay sealed"
    assert not (folder.path.parents[1] / "openings.jsonl").exists()
    assert not (tmp_path / "out").exists()
    registered_nothing(cluster)


def test_one_altered_weight_of_the_exported_folder_is_refused(copied, monkeypatch):
    """What is registered is what was scored: here the checkpoint is whole, and the export is not."""
    _, folder, cluster = copied

    def altering(candidate, place, *, untrained=False):
        export_model(candidate, place, untrained=untrained)
        if not untrained:
            path = next(path for path in place.rglob("model.safetensors") if "Dense" in str(path))
            tensors = load_file(path)
            name = next(name for name in tensors if tensors[name].ndim == 2)
            tensors[name][0, 0] += 100 * tensors[name].abs().max()
            save_file(tensors, path)

    monkeypatch.setattr("babeltune.promotion.promote.export_model", altering)
    decision = promote(folder.id, cluster)
    assert decision.verdict == "refuse"
    assert "not reproduced by the exported folder" in decision.reasons[0]
    registered_nothing(cluster)


@pytest.mark.trap(30)
def test_a_sealed_test_that_has_changed_since_training_is_not_opened(copied):
    _, folder, cluster = copied
    prepared = folder.read("prepared.json")
    (name,) = [name for name in prepared["digests"] if name.startswith("test/")]
    folder.write("prepared.json", {**prepared, "digests": {**prepared["digests"], name: "other"}})
    with pytest.raises(PromotionError, match=f"{name} has changed since {folder.id} was prepared"):
        promote(folder.id, cluster)
    assert not (folder.path.parents[1] / "openings.jsonl").exists()
    registered_nothing(cluster)


def test_a_model_no_better_than_the_untrained_student_is_said_to_be(copied):
    _, folder, cluster = copied
    candidate = find_candidate(f"{folder.id}/t0000", Path(cluster.storage))
    assert doubts_about(candidate) == []
    best = {"dev/everyday/accuracy": 1.0}
    folder.write("baselines.json", {**folder.read("baselines.json"), "scores": {"untrained": best}})
    (doubt,) = doubts_about(candidate)
    assert re.fullmatch(r"warning: dev/everyday/accuracy is 0\.\d+, no better than the untrained .* 1\.0000", doubt)


def test_a_registered_model_that_does_not_exist_is_a_wrong_name(promoted, tmp_path):
    _, cluster, _, _ = promoted
    with pytest.raises(UnknownNameError, match=r"there: models:/searched@champion; did you mean") as caught:
        fetch(cluster.mlflow, "models:/searched@champoin", tmp_path)
    assert caught.value.exit_code == 2


def test_a_checkpoint_that_differs_from_its_manifest_is_not_loaded(copied):
    _, folder, cluster = copied
    alter(folder, fix_manifest=False)
    with pytest.raises(CheckpointError, match="SHA-256"):
        promote(folder.id, cluster)
    registered_nothing(cluster)


def test_gates_that_do_not_hold_refuse_and_register_nothing(copied, tmp_path):
    sweep, folder, cluster = copied
    cluster = replace(cluster, notify=(teller(tmp_path / "events"),))
    floors = ({"times_chance": 1000}, {"times_untrained": 1e6}, {})
    gates = tuple(Gate(test="everyday", **each) for each in floors)
    folder.write("sweep.json", replace(sweep, promotion=Promotion(gates=gates)))
    decision = promote(folder.id, cluster)
    assert decision.verdict == "refuse"
    subsets = len(decision.chance)
    assert subsets >= 2
    assert sum("1000 x chance" in reason for reason in decision.reasons) == subsets
    above_zero = [key for key in decision.chance if decision.untrained[key] > 0]
    assert above_zero, "an untrained student that finds nothing in any language asks for nothing"
    assert sum("1e+06 x untrained" in reason for reason in decision.reasons) == len(above_zero)
    assert len(decision.reasons) == subsets + len(above_zero), "the third gate asks for nothing"
    registered_nothing(cluster)
    trial = f"{folder.id}/{decision.trial}"
    assert events_in(tmp_path / "events") == [("refusal", f"{trial} is not promoted: {decision.reasons[0]}")]


def test_a_named_trial_is_the_candidate_and_a_failed_one_is_none(copied):
    _, folder, cluster = copied
    storage = Path(cluster.storage)
    assert find_candidate(f"{folder.id}/t0000", storage).trial.number == 0
    with pytest.raises(SweepError, match="no checkpoint"):
        find_candidate(f"{folder.id}/t0001", storage)
    with pytest.raises(UnknownNameError, match="t0000, t0001, t0002, t0003"):
        find_candidate(f"{folder.id}/t0009", storage)


def test_without_mlflow_nothing_is_opened_or_written(copied, tmp_path):
    _, folder, cluster = copied
    with pytest.raises(PromotionError, match="cannot look up the run"):
        promote("searched", replace(cluster, mlflow="http://127.0.0.1:9"), out=tmp_path / "out")
    assert not (folder.path.parents[1] / "openings.jsonl").exists()
    assert not (tmp_path / "out").exists()


def test_a_trial_is_found_by_the_id_of_its_run(copied):
    _, folder, cluster = copied
    run = find_run(cluster.mlflow, "searched", folder.id, 2)
    assert trial_of_run(cluster.mlflow, run) == f"{folder.id}/t0002"
    with pytest.raises(PromotionError, match="cannot look up the run 0000"):
        promote("0" * 32, cluster)
    parent = mlflow.MlflowClient(cluster.mlflow).get_run(run).data.tags["mlflow.parentRunId"]
    with pytest.raises(PromotionError, match="is no trial of a sweep"):
        promote(parent, cluster)


def test_a_trial_scored_on_the_dev_sets_gives_what_was_logged(copied, tiny_file):
    _, folder, cluster = copied
    scores = evaluate_model(f"{folder.id}/t0000", str(tiny_file), cluster, test=False).scores
    logged = find_candidate(f"{folder.id}/t0000", Path(cluster.storage)).report.metrics
    assert scores["dev/everyday/accuracy"] == pytest.approx(logged["dev/everyday/accuracy"], abs=TOLERANCE)
    assert not (folder.path.parents[1] / "openings.jsonl").exists()
