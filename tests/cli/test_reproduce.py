"""`babeltune demo`, `reproduce` and `--version` as people meet them."""

import pytest
from typer.testing import CliRunner

from babeltune.cli import app
from babeltune.cli.refit import show_reproduction
from babeltune.promotion.reproduce import MetricChange, Reproduction


def test_the_version_is_printed():
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith("babeltune 0.")


def test_the_demo_is_the_quickstart(monkeypatch):
    seen = []
    monkeypatch.setattr("babeltune.cli.sweeps.run_sweep", lambda sweep, *_, **__: seen.append(sweep.name))
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    assert seen == ["quickstart"]


@pytest.mark.parametrize(
    ("weights", "words"),
    [("equal", "the weights are equal"), ("not kept", "the weights were not compared, for no checkpoint is left")],
)
def test_an_identical_trial_says_what_was_compared(capsys, weights, words):
    objective = MetricChange(report=2, metric="dev/everyday/accuracy", recorded=0.5, again=0.5)
    found = Reproduction(
        trial="s/t0001", verdict="identical", reports=2, scores=14, objective=objective, interval=0.1, largest=None,
        weights=weights, changed=(),
    )  # fmt: skip
    show_reproduction(found)
    assert capsys.readouterr().out.startswith(f"s/t0001: identical; compared: 14 dev scores of 2 reports; {words}\n")
