"""`babeltune demo`, `reproduce` and `--version` as people meet them."""

from typer.testing import CliRunner

from babeltune.cli import app


def test_the_version_is_printed():
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith("babeltune 0.")


def test_the_demo_is_the_quickstart(monkeypatch):
    seen = []
    monkeypatch.setattr("babeltune.cli.local.run_sweep", lambda sweep, *_, **__: seen.append(sweep.name))
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    assert seen == ["quickstart"]
