"""`import babeltune as bt` in a notebook: quick to import, tables of runs, models that encode."""

import subprocess
import sys

import pandas as pd
import pytest

import babeltune as bt
from babeltune.errors import SpecError, UnknownNameError

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
    assert {"submit", "runs", "trial", "load", "report"} <= set(dir(bt))
    with pytest.raises(AttributeError, match="sumbit"):
        bt.sumbit  # noqa: B018


def test_the_runs_of_a_sweep_are_a_table_with_the_best_first(sweep):
    table = bt.runs(sweep)
    trials = table[table.index.str.startswith("t0")]
    scores = trials["dev/everyday/accuracy"].dropna()
    assert isinstance(table, pd.DataFrame)
    assert scores.is_monotonic_decreasing
    assert "untrained" in table.index
    assert any(name.startswith("setting.") for name in table.columns)
    assert trials.loc["t0001", "state"] == "failed"


def test_all_sweeps_are_a_table(sweep):
    table = bt.runs()
    assert table.loc[sweep, "state"] == "finished"
    assert table.loc[sweep, "best"].startswith("t0")


def test_a_trial_has_its_settings_and_its_curve(sweep):
    found = bt.trial(f"{sweep}/t0000")
    assert found.name == f"{sweep}/t0000"
    assert found.settings
    assert found.curve["pairs"].is_monotonic_increasing
    assert found.curve["dev/everyday/accuracy"].max() == found.metrics["dev/everyday/accuracy"]


def test_a_trial_of_an_unknown_sweep_or_number_is_refused(sweep):
    with pytest.raises(UnknownNameError):
        bt.trial(f"{sweep}/t9999")
    with pytest.raises(SpecError, match="name one of its trials"):
        bt.trial(sweep)


def test_a_trials_model_encodes(sweep):
    vectors = bt.load(f"{sweep}/t0000").encode(["Good morning.", "Bonjour."])
    assert vectors.shape[0] == 2
    assert (vectors**2).sum(axis=1) == pytest.approx([1, 1], abs=1e-4)


def test_a_report_is_written(sweep, tmp_path):
    file = bt.report(sweep, out=tmp_path / "a.md", format="md")
    assert file == tmp_path / "a.md"
    assert file.read_text(encoding="utf-8").startswith("#")


def test_a_file_that_cannot_be_run_is_refused_as_on_the_command_line(tmp_path):
    (tmp_path / "a.yaml").write_text("name: a\n")
    with pytest.raises(SpecError, match="method"):
        bt.submit(tmp_path / "a.yaml")


def test_a_registered_model_is_asked_of_the_cluster(tiny_file, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    with pytest.raises(SpecError, match=r"mlflow\.db has no models:/first@champion; there: none"):
        bt.submit(tiny_file, assignments=["student={start: 'models:/first@champion'}"])
