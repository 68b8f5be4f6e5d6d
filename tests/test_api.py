"""`import babeltune as bt` in a notebook: quick to import, tables of runs, models that encode."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import babeltune
import babeltune as bt
from babeltune import api
from babeltune.cli import app
from babeltune.errors import BabeltuneWarning, SpecError, UnknownNameError
from babeltune.files import json_text, plain
from babeltune.planning.sweep_file import read_sweep
from small_models import static_model

pytestmark = pytest.mark.slow


@pytest.fixture
def sweep(searched, monkeypatch):
    """The id of a finished sweep in the default storage."""
    _, folder = searched
    monkeypatch.setenv("BABELTUNE_HOME", str(folder.path.parents[1]))
    return folder.id


def test_importing_babeltune_loads_none_of_what_it_needs_later():
    program = "import sys, babeltune; print(*sorted({'torch', 'ray', 'pandas', 'pydantic'} & set(sys.modules)), '.')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["."]
    assert {*api.__all__} == {*babeltune._OF_API} <= set(dir(bt))
    with pytest.raises(AttributeError, match="sumbit"):
        bt.sumbit  # noqa: B018


def test_the_runs_of_a_sweep_are_a_table_with_the_best_first_and_so_are_all_sweeps(sweep):
    table = bt.runs(sweep)
    trials = table[table.index.str.startswith("t0")]
    scores = trials["dev/everyday/accuracy"].dropna()
    assert isinstance(table, pd.DataFrame)
    assert scores.is_monotonic_decreasing
    assert "untrained" in table.index
    assert any(name.startswith("setting.") for name in table.columns)
    assert trials.loc["t0001", "state"] == "failed"
    sweeps = bt.runs()
    assert sweeps.loc[sweep, "state"] == "finished"
    assert sweeps.loc[sweep, "best"].startswith("t0")


def test_a_trial_has_its_settings_and_its_curve_and_an_unknown_one_is_refused(sweep):
    page = bt.trial(f"{sweep}/t0000")
    assert page.name == f"{sweep}/t0000"
    assert page.settings
    assert page.curve["pairs"].is_monotonic_increasing
    assert page.curve["dev/everyday/accuracy"].max() == page.metrics["dev/everyday/accuracy"]
    with pytest.raises(UnknownNameError):
        bt.trial(f"{sweep}/t9999")
    with pytest.raises(SpecError, match="name one of its trials"):
        bt.trial(sweep)


def test_a_report_is_written_and_a_trials_model_encodes(sweep, tmp_path):
    file = bt.report(sweep, out=tmp_path / "a.md", format="md")
    assert file == tmp_path / "a.md"
    assert file.read_text(encoding="utf-8").startswith("#")
    vectors = bt.load(f"{sweep}/t0000").encode(["Good morning.", "Bonjour."])
    assert vectors.shape[0] == 2
    assert (vectors**2).sum(axis=1) == pytest.approx([1, 1], abs=1e-4)


def test_a_file_that_cannot_be_run_is_refused_as_on_the_command_line(tmp_path):
    (tmp_path / "a.yaml").write_text("name: a\n")
    with pytest.raises(SpecError, match="method"):
        bt.submit(tmp_path / "a.yaml")


def test_a_registered_model_is_asked_of_the_cluster(tiny_file, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    with pytest.raises(SpecError, match=r"mlflow\.db has no models:/first@champion; there: none"):
        bt.submit(tiny_file, assignments=["student={start: 'models:/first@champion'}"])


@pytest.fixture
def stages():
    """A progress callback, with the stages that it was called with."""

    class Stages(list):
        def __call__(self, stage, done, of):
            assert (type(stage), type(done), type(of)) == (str, int, int)
            self.append(stage)

    return Stages()


def said(*arguments):
    """What a command prints as JSON, and its exit code."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return json.loads(result.stdout), result.exit_code


def as_json(record):
    return json.loads(json_text(plain(record), default=str))


def test_a_plan_is_that_of_the_command_line_and_says_how_far_it_is(tiny_file, tmp_path, monkeypatch, stages):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    plan = bt.plan(tiny_file, assignments=["budget.trials=3"], calibrate=False, samples=1, progress=stages)
    document, _ = said("plan", tiny_file, "--set", "budget.trials=3", "--no-calibrate", "--samples", 1)
    assert as_json(plan) == document
    assert "reading the corpus" in stages
    assert 0 < plan.detectable < 1
    assert len(plan.trials) == 1
    assert plan.pairs
    of_record = bt.plan(read_sweep(tiny_file, assignments=["budget.trials=3"]), calibrate=False, samples=1)
    assert of_record == plan
    with pytest.raises(SpecError, match="samples -1 must be from 0 to 1,000"):
        bt.plan(tiny_file, samples=-1)


@pytest.mark.usefixtures("one_scoring_process")
def test_a_model_is_evaluated_and_compared_as_by_the_commands(sweep, tiny_file, stages):
    scores = bt.evaluate(f"{sweep}/t0000", data=tiny_file, progress=stages).scores
    assert said("evaluate", f"{sweep}/t0000", "--with", tiny_file) == (as_json(scores), 0)
    assert "evaluating" in " ".join(stages)
    in_sweep = bt.evaluate(f"{sweep}/t0000", sweep=sweep).scores
    assert in_sweep["dev/everyday/accuracy"] == pytest.approx(scores["dev/everyday/accuracy"])
    comparison = bt.compare(f"{sweep}/t0000", f"{sweep}/t0002", progress=stages)
    assert said("compare", f"{sweep}/t0000", f"{sweep}/t0002") == (as_json(comparison), 0)
    with pytest.raises(SpecError, match="give one"):
        bt.evaluate(f"{sweep}/t0000")
    with pytest.raises(UnknownNameError, match="t9999"):
        bt.compare(f"{sweep}/t0000", f"{sweep}/t9999")


@pytest.mark.usefixtures("one_scoring_process")
def test_a_promotion_decides_as_the_command_does(copied_home, stages):
    folder = copied_home[1]
    dry = bt.promote(folder.id, dry_run=True, progress=stages)
    document, code = said("promote", folder.id, "--dry-run")
    changing = ("openings", "reasons")  # the second time is another opening
    expected = {key: value for key, value in as_json(dry).items() if key not in changing}
    assert {key: value for key, value in document.items() if key not in changing} == expected
    assert (code, document["openings"]) == (dry.exit_code, dry.openings + 1)
    assert "exporting the checkpoint" in stages
    assert not dry.registered
    openings = (folder.path.parents[1] / "openings.jsonl").read_text(encoding="utf-8")
    assert len(openings.splitlines()) == 2  # each opening is recorded
    with pytest.raises(SpecError, match="--alias 'v1'"):
        bt.promote(folder.id, alias="v1")


@pytest.mark.usefixtures("one_scoring_process")
def test_what_goes_wrong_beside_a_promotion_is_a_warning(copied_home, monkeypatch):
    folder = copied_home[1]
    report = folder.path / "report.html"
    report.write_text("of before", encoding="utf-8")
    monkeypatch.setattr("babeltune.sweep_report.write.write_report", lambda *_: 1 / 0)
    with pytest.warns(BabeltuneWarning, match="report: ZeroDivisionError") as caught:
        bt.promote(folder.id, dry_run=True)
    assert caught[0].filename == __file__
    result = CliRunner().invoke(app, ["promote", folder.id, "--dry-run", "--json"])
    assert "report: ZeroDivisionError" in result.stderr
    assert "sweep_report" not in result.stderr


@pytest.mark.usefixtures("one_scoring_process")
def test_a_static_model_is_exported_unless_it_loses_too_much(sweep, tmp_path, stages):
    done = bt.export(
        static_model(tmp_path / "static"), tmp_path / "small", bits=4, sweep=sweep, most_lost=1.0, progress=stages
    )
    assert (done.folder, done.bits, done.format) == (str(tmp_path / "small"), 4, "static")
    assert Path(done.folder, "model.safetensors").is_file()
    assert stages
    refused = bt.export(tmp_path / "static", tmp_path / "other", sweep=sweep, most_lost=-1.0)
    assert refused.folder is None
    assert not (tmp_path / "other").exists()
    for wrong in ({"bits": 5}, {"format": "tflite"}, {"dim": 0}):
        with pytest.raises(SpecError, match="bits 4 or 8, and a dim of at least 1"):
            bt.export(tmp_path / "static", tmp_path / "new", sweep=sweep, **wrong)
    with pytest.raises(SpecError, match="exists already"):
        bt.export(tmp_path / "static", tmp_path / "small", sweep=sweep)


def test_a_cluster_that_takes_jobs_is_the_command_lines(tmp_path):
    file = tmp_path / "jobs.yaml"
    file.write_text("address: http://127.0.0.1:8265\nstorage: /mnt/x\nmlflow: http://127.0.0.1:5000\n")
    for call in (lambda: bt.promote("x", cluster=file), lambda: bt.compare("a", "b", cluster=file)):
        with pytest.raises(SpecError, match="takes jobs only; use the command line"):
            call()
