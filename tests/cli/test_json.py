"""What each command prints with --json is what its schema says. Every command runs for real."""

import json
import os
import shutil
import signal
import subprocess
import sys

import jsonschema
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from babeltune.cli import app
from babeltune.cli.documents import DOCUMENTS, document_schema
from ports import free_port
from small_models import static_model
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("undrawn")
TEXT = [f"The {what} number {count} is here." for count in range(60) for what in ("boat", "house")]
OF_TEXT = [
    ("mine", "a.txt", "b.txt", "model", "--out", "mined.tsv"),
    ("score", "pairs.tsv", "model", "--out", "scored.tsv"),
    ("retrieve", "a.txt", "b.txt", "model", "--out", "nearest.tsv"),
    ("retrieve", "a.txt", "b.txt", "model", "--out", "nearest.tsv", "--gold", "b.txt"),
    ("encode", "model", "--out", "vectors.npy"),
    ("index", "model", "a.txt", "--out", "index"),
    ("search", "index", "a house", "--top", "2"),
    ("canary", "index", "model"),
    ("check", "model", "--queries", "a.txt", "--against", "b.txt"),
    ("filter", "pairs.tsv", "model", "--out", "filtered", "--tokens", "40,80", "--columns", "fra,eng"),
    ("init", "pairs.tsv", "--out", "made.yaml"),
    ("methods",),
    ("methods", "lealla"),
    ("schema", "sweep"),
    ("schema", "promote"),
    ("skill",),
    ("skill", "--out", "skills/babeltune/SKILL.md"),
    ("doctor",),
    ("clean", "--dry-run"),
]
OF_A_SWEEP = [
    ("status", "searched"),
    ("status", "searched/t0000"),
    ("show", "searched/t0002"),
    ("runs",),
    ("runs", "searched"),
    ("runs", "searched", "--front"),
    ("runs", "searched", "--languages"),
    ("runs", "searched", "--over", "temperature"),
    ("runs", "searched", "--by", "temperature"),
    ("runs", "searched/t0000"),
    ("logs", "searched"),
    ("report", "searched", "--out", "report.html"),
    ("study", "searched", "--out", "study.db"),
    ("resume", "searched"),
    ("refit", "searched", "--top", "1", "--write", "refit.yaml"),
    ("clean", "--dry-run", "--top", "1"),
    ("evaluate", "searched", "--model", "searched/t0000"),
    ("compare", "searched/t0000", "searched/t0002"),
    ("promote", "searched", "--dry-run"),
    ("promote", "searched", "--front", "--dry-run"),
    ("adapter", "model", "model", "--out", "adapted", "--sweep", "searched"),
    ("export", "model", "--out", "small", "--sweep", "searched", "--most-lost", "1"),
    ("reproduce", "searched/t0000"),
    ("note", "searched", "for the paper"),
    ("rename", "searched", "first"),
    ("archive", "first"),
    ("delete", "first", "--yes"),
]
PAGES = [("serve", "model"), ("ui", "searched"), ("watch", "searched")]
LONG = ["submit", "demo", "extend", "stop"]  # commands that train, in one test
ELSEWHERE = ["plan", "transfer", "push", "pause", "continue"]  # commands with a test of their own


def closed(part):
    """The schema without keys that it does not name: what a record gains must be in it."""
    if isinstance(part, list):
        return [closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    inner = {key: closed(value) for key, value in part.items()}
    return {**inner, "additionalProperties": False} if isinstance(part.get("properties"), dict) else inner


def check(command, text):
    document = json.loads(text)
    jsonschema.Draft202012Validator(closed(document_schema(command))).validate(document)
    return document


def run(*arguments, codes=(0,)):
    """The document of a command, which its schema takes."""
    result = CliRunner().invoke(app, [*arguments, "--json"], input="\n".join(TEXT[:8]))
    assert result.exit_code in codes, (arguments, result.output, result.exception)
    return check(arguments[0], result.stdout)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with texts, pairs, and a static model with random vectors."""
    place = tmp_path_factory.mktemp("files")
    static_model(place / "model")
    french = [f"Le bateau numéro {number} est là-bas, {text.split()[1]}." for number, text in enumerate(TEXT)]
    (place / "a.txt").write_text("\n".join(french), encoding="utf-8")
    (place / "b.txt").write_text("\n".join(TEXT), encoding="utf-8")
    rows = "\n".join("\t".join(row) for row in zip(french, TEXT, strict=True))
    (place / "pairs.tsv").write_text(f"fra\teng\n{rows}\n", encoding="utf-8")
    return place


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    """A copy of the folder, in which the test stands."""
    shutil.copytree(files, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))


def test_every_command_has_a_schema_and_a_test():
    commands = set(get_command(app).commands)
    assert set(DOCUMENTS) == commands
    assert {call[0] for call in (*OF_TEXT, *OF_A_SWEEP, *PAGES)} | {*LONG, *ELSEWHERE} == commands


def test_a_schema_is_one_and_says_what_a_key_means():
    for command in DOCUMENTS:
        jsonschema.Draft202012Validator.check_schema(document_schema(command))
    assert "no difference" in document_schema("compare")["$defs"]["Cell"]["properties"]["p"]["description"]
    result = CliRunner().invoke(app, ["schema", "promotes"])
    assert "'promotes' is no kind of file (sweep, cluster) and no command; did you mean 'promote'?" in str(
        result.exception
    )


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_commands_on_text_print_what_their_schemas_say():
    assert not faults(OF_TEXT, codes=(0, 4), doctor=(0, 1))


def faults(calls, codes, doctor=()):
    """What is wrong with the documents of these commands. `doctor` ends with 1 on a machine that lacks something."""
    wrong = []
    for call in calls:
        try:
            run(*call, codes=doctor if call == ("doctor",) else codes)
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            wrong.append(f"{' '.join(call)}: {error}")
    return wrong


@pytest.mark.usefixtures("here")
def test_a_plan_prints_what_its_schema_says(tiny_file):
    assert run("plan", str(tiny_file))["estimate"]["total_s"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("here", "one_scoring_process", "ray_cluster", "copied_home")
def test_commands_on_a_sweep_print_what_their_schemas_say():
    assert not faults(OF_A_SWEEP, codes=(0, 3))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("call", PAGES, ids=[call[0] for call in PAGES])
def test_a_page_says_where_it_is_as_its_schema_says(call, searched, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(searched[1].path.parents[1]))
    command = [sys.executable, "-P", "-m", "babeltune.cli", *call, "--port", str(free_port()), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert check(call[0], "".join(iter(lambda: process.stdout.readline().rstrip(), "}")) + "}")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_S)


@pytest.mark.usefixtures("here", "one_scoring_process", "copied_home")
def test_a_promoted_model_is_pushed_as_the_schema_says():
    decision = run("promote", "searched")
    assert run("push", decision["folder"], "./pushed", "--license", "apache-2.0")["license"] == "apache-2.0"


@pytest.mark.long
@pytest.mark.usefixtures("here", "ray_cluster")
def test_commands_that_train_print_what_their_schemas_say(with_stores, tiny_file, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(with_stores(tmp_path / "home")))
    sweep = run("submit", str(tiny_file))
    assert sweep["state"] == "finished"
    assert run("extend", "--trials", "3", sweep["sweep"])["leaderboard"]
    run("refit", sweep["sweep"], "--top", "1", "--seeds", "1", "--pairs", "1x")
    command = [sys.executable, "-P", "-m", "babeltune.cli", "submit", str(tiny_file), "--set", "budget.trials=500"]
    driver = subprocess.Popen([*command, "--set", "name=endless"], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: running("endless"))
        assert run("stop", "endless", codes=(0, 1))["sweep"].startswith("endless")
        driver.wait(PATIENCE_S)
    finally:
        driver.poll() is None and os.killpg(driver.pid, signal.SIGKILL)
    assert run("demo")["state"] == "finished"


def running(name):
    result = CliRunner().invoke(app, ["status", name, "--json"])
    return result.exit_code == 0 and json.loads(result.stdout)["state"] == "running"
