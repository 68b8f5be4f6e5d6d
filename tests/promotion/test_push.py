"""A model goes to a hub or a folder: what is sent, what its card says, and every refusal."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import save_file

from babeltune.errors import SpecError
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.model_card import hub_id, sealed_results, settings_of
from babeltune.promotion.push import folder_named
from babeltune.schema.records import Report
from fake_hub import fake_hub
from small_models import card_header

ROOT = Path(__file__).parents[2]
CARD = '# small\n\n```python\nSentenceTransformer("this-folder")\n```\n'


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A folder as promotion writes it, with what MLflow adds."""
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "model"
    (folder / "1_Dense").mkdir(parents=True)
    for name in ("", "1_Dense"):
        save_file({"rows": np.ones((3, len(name) + 1), np.float32)}, folder / name / "model.safetensors")
    (folder / "modules.json").write_text("[]")
    (folder / "MLmodel").write_text("flavors: {}")
    (folder / "README.md").write_text(card_header() + CARD, encoding="utf-8")
    return folder


@pytest.fixture
def hub(monkeypatch):
    with fake_hub(monkeypatch) as server:
        yield server


@pytest.mark.parametrize("file", ["model.safetensors", "1_Dense/model.safetensors"])
def test_weights_that_were_cut_off_go_nowhere(command, model, hub, tmp_path, file):
    weights = (model / file).read_bytes()
    (model / file).write_bytes(weights[: len(weights) // 2])
    for place in ("me/small", tmp_path / "out"):
        words = command.refuses("push", model, place, "--license", "mit")
        assert f"{model / file} is damaged (" in words
        assert "promote or export the model again" in words
    assert (hub.files, (tmp_path / "out").exists()) == ({}, False)


def test_all_files_go_in_one_commit_to_a_private_repository(command, model, hub):
    assert "4 files (apache-2.0) are in" in command.prints("push", model, "me/small", "--license", "apache-2.0")
    assert (hub.repositories, hub.commits) == ({"me/small": True}, 1)
    names = ["1_Dense/model.safetensors", "README.md", "model.safetensors", "modules.json"]
    assert sorted(hub.files) == [f"me/small/{name}" for name in names]
    for name in names:
        if name != "README.md":
            assert hub.files[f"me/small/{name}"] == (model / name).read_bytes()
    card = ModelCard(hub.files["me/small/README.md"].decode())
    assert 'SentenceTransformer("me/small")' in card.content
    assert (card.data.license, card.data.language) == ("apache-2.0", ["en", "fr"])
    (result,) = card.data.eval_results
    assert (result.dataset_config, result.metric_type, result.metric_value) == ("fra-eng", "accuracy", 0.9292)
    command.prints("push", model, "me/small", "--license", "mit", "--public")
    assert (hub.commits, hub.repositories) == (2, {"me/small": True}), "one that is there stays private"
    assert command("push", model, "me/open", "--license", "mit", "--public")[0] == 0
    assert hub.repositories["me/open"] is False


def test_a_folder_gets_the_same_files_and_keeps_its_snippet(command, model, tmp_path):
    command.prints("push", model, tmp_path / "out", "--license", "mit")
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")) == [
        "1_Dense/model.safetensors", "README.md", "model.safetensors", "modules.json"
    ]  # fmt: skip
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "license: mit" in text
    assert '"this-folder"' in text
    assert command("push", tmp_path / "out", tmp_path / "again")[0] == 0, "the licence is in the card now"
    assert "exists already" in command.refuses("push", model, tmp_path / "out", "--license", "mit")


def test_a_hub_that_refuses_or_is_away_is_one_line(command, model, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    words = command.refuses("push", model, "me/small", "--license", "mit", code=1)
    assert "did not take me/small" in words
    assert "401" in words
    assert "hf_wrong" not in words
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    words = command.refuses("push", model, "me/small", "--license", "mit", code=1)
    assert "http://127.0.0.1:9 did not take me/small (Connection refused)" in words
    assert hub.commits == 0
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN to one that may write" in command.refuses("push", model, "me/small", "--license", "mit")


@pytest.mark.parametrize("name", ["small", "a b/c", "a/b/c", "a/b--c", "-a/b", "", "me/x.git"])
def test_a_name_that_is_no_repository_and_no_path_is_refused(name):
    with pytest.raises(SpecError, match=r"is no OWNER/NAME of the hub .*, and a folder begins with \./ or /"):
        folder_named(name)


def test_a_model_without_a_card_a_licence_or_with_pickles_is_refused(command, model, tmp_path):
    out = tmp_path / "out"
    assert "--license apache-2.0" in command.refuses("push", model, out)
    assert "babeltune promote a-sweep/t0003" in command.refuses("push", "a-sweep/t0003", out, "--license", "mit")
    (model / "1_Dense" / "more.bin").write_bytes(b"pickle")
    assert "holds more.bin" in command.refuses("push", model, out, "--license", "mit")
    (model / "1_Dense" / "more.bin").unlink()
    (model / "README.md").write_text("---\na: [\n---\n")
    assert "has a broken header" in command.refuses("push", model, out, "--license", "mit")
    (model / "README.md").unlink()
    assert "has no README.md" in command.refuses("push", model, out, "--license", "mit")
    shutil.rmtree(model)
    assert command("push", model, out, "--license", "mit")[0] == 2
    assert not out.exists()


def test_figures_have_their_set_and_subset_and_stand_once():
    scores = {"d/fra-eng/accuracy": 0.5, "d/kor-eng/accuracy": 0.4, "d/accuracy": 0.45678, "s/eng/x": 1.0, "s/x": 1.0}
    results = sealed_results({f"test/{name}": value for name, value in scores.items()})
    figures = [(each.dataset_type, each.dataset_config, each.metric_type, each.metric_value) for each in results]
    assert figures == [
        ("d", "fra-eng", "accuracy", 0.5), ("d", "kor-eng", "accuracy", 0.4), ("d", None, "accuracy", 0.4568),
        ("s", "eng", "x", 1.0),
    ]  # fmt: skip


def test_a_loss_with_a_weight_of_zero_is_not_in_the_card():
    sweep = read_sweep(ROOT / "search_spaces/combined.yaml")
    weights = {"soft_contrastive": 0.5, "mse_distillation": 0.0, "translation_ranking": 0.25}
    trial, report = make_trial(sweep, 0, weights), Report(index=1, step=9, pairs=99, seconds=1.0, metrics={})
    settings = settings_of(sweep, trial, report)
    assert settings["soft_contrastive"] == 0.5
    assert "settings.soft_contrastive.tcm" in settings
    assert "settings.translation_ranking.hard_negatives" in settings, "a setting of zero is no weight"
    assert not [name for name in settings if "mse_distillation" in name or "lealla" in name]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("bundled:all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("intfloat/multilingual-e5-small@main", "intfloat/multilingual-e5-small"),
        ("models:/static@champion", None),
        ("/tmp", None),
        ("quickstart-9de3d7fafe", None),
    ],
)
def test_only_models_of_the_hub_are_base_models(name, model):
    assert hub_id(name) == model
