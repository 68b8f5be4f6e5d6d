"""Who may move an alias when two promotions meet that know nothing of one another: one server and two storages."""

import threading
import time

import pytest

from babeltune.errors import PromotionError
from babeltune.tracking import registry
from babeltune.tracking.mlflow_client import open_client
from babeltune.tracking.registry import champion_of, whole_sections
from registering import register
from waiting import PATIENCE_S

TAG = "babeltune.claim.champion"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A store with one run: (address, run)."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = open_client(uri)
    experiment = client.create_experiment("e", artifact_location=str(folder / "artifacts"))
    return uri, client.create_run(experiment).info.run_id


@pytest.fixture
def models(tmp_path):
    for name in ("first", "mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    return tmp_path


def claims(uri, name):
    return {v.version: v.tags[TAG] for v in open_client(uri).search_model_versions(f"name = '{name}'") if TAG in v.tags}


def test_of_two_promotions_that_both_saw_the_old_champion_only_one_moves_the_alias(server, models, monkeypatch):
    uri, run = server
    register(uri, "race", models / "first", run, "champion", {}, replaces=None)
    looked, outcomes, expect = [], [], registry._expect

    def slow(uri, name, alias, expected, version):
        """The other one comes when the first has just seen the old champion."""
        expect(uri, name, alias, expected, version)
        if not looked:
            looked.append(version)
            with pytest.raises(PromotionError, match=f"version {version} of race is being promoted"):
                register(uri, "race", models / "theirs", run, "champion", {}, replaces="1")
            outcomes.append("turned away")

    monkeypatch.setattr(registry, "_expect", slow)
    new_version = register(uri, "race", models / "mine", run, "champion", {}, replaces="1")
    assert outcomes == ["turned away"]
    assert champion_of(uri, "race", "champion").version == new_version
    assert claims(uri, "race") == {}
    with pytest.raises(PromotionError, match="another promotion came in between"):
        register(uri, "race", models / "theirs", run, "champion", {}, replaces="1")
    assert claims(uri, "race") == {}


def test_however_two_promotions_interleave_at_most_one_succeeds(server, models):
    uri, run = server
    register(uri, "threads", models / "first", run, "champion", {}, replaces=None)
    done, barrier = [], threading.Barrier(2)

    def promote(model):
        barrier.wait()
        try:
            done.append(register(uri, "threads", models / model, run, "champion", {}, replaces="1"))
        except PromotionError:
            done.append(None)

    threads = [threading.Thread(target=promote, args=(model,)) for model in ("mine", "theirs")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(done) == 2
    moved = [version for version in done if version is not None]
    assert len(moved) < 2
    assert champion_of(uri, "threads", "champion").version == (moved or ["1"])[0]


def test_the_claim_of_a_promotion_that_died_ends(server, models):
    uri, run = server
    register(uri, "died", models / "first", run, "champion", {}, replaces=None)
    client = open_client(uri)
    dead = client.create_model_version("died", "runs:/elsewhere", tags={TAG: str(time.time())}).version
    with pytest.raises(PromotionError, match=f"version {dead} of died is being promoted .* ends after 300 s"):
        register(uri, "died", models / "mine", run, "champion", {}, replaces="1")
    client.set_model_version_tag("died", dead, TAG, str(time.time() - registry.CLAIM_S - 1))
    version = register(uri, "died", models / "mine", run, "champion", {}, replaces="1")
    assert champion_of(uri, "died", "champion").version == version


CARD = "# m\n\nAn encoder.\n" + "\n".join(f"## {name}\n\n{text}\n" for name, text in (
    ("Dev sets", "a" * 300), ("Settings", "b" * 800), ("Training pairs", "c" * 100), ("More", "d" * 5000)
))  # fmt: skip


def test_a_card_that_is_too_long_keeps_whole_sections_and_names_the_others():
    assert whole_sections(CARD, 10_000) == CARD
    short = whole_sections(CARD, 1000)
    assert len(short) <= 1000
    assert short.startswith("# m\n\nAn encoder.\n")
    assert [line for line in short.splitlines() if line.startswith("## ")] == ["## Dev sets", "## Training pairs"]
    assert "a" * 300 in short
    assert "bbb" not in short
    assert short.endswith("MLflow takes 1000 characters. `README.md` of the version also has: Settings, More.")


def test_the_description_of_a_version_is_its_card_in_whole_sections(server, tmp_path):
    uri, run = server
    (tmp_path / "README.md").write_text(f"---\nlicense: mit\n---\n{CARD}", encoding="utf-8")
    version = register(uri, "described", tmp_path, run, "champion", {}, replaces=None)
    text = open_client(uri).get_model_version("described", version).description
    assert text.endswith("also has: More.")
    assert "b" * 800 in text
    assert "license" not in text
