"""The command that writes a report, and the report at the end of a sweep."""

import os
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from babeltune.cli.common import say_line
from babeltune.promotion.decisions import record_decision
from babeltune.promotion.gates import Decision
from babeltune.sweep.driver.mlflow_reader import track
from babeltune.sweep.driver.recorder import close_tracker
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import winner
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.live import LivePage
from babeltune.sweep_report.write import report_again, report_at_the_end
from made_sweeps import rewrite_ledger

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def home(copied_home):
    """The default cluster's storage is a copy of the finished sweep's: (sweep's folder)."""
    return copied_home[1]


def test_a_report_goes_into_the_sweeps_folder(command, home):
    code, out, err = command("report")
    path = home.path / "report.html"
    assert (code, err) == (0, "")
    assert out == f"report: {path}\n"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_report_goes_into_the_file_that_is_named(command, home, tmp_path):
    out_file = tmp_path / "mine.md"
    said = command.document("report", home.id, "--out", out_file, "--format", "md")
    assert said["path"] == str(out_file)
    assert said["winner"] == winner(home).name
    assert out_file.read_text(encoding="utf-8").startswith("# Sweep searched\n")
    assert not (home.path / "report.md").exists()


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["no-such-sweep"], 2, "no sweep 'no-such-sweep'"),
        (["searched", "--out", "{tmp}/none/report.html"], 2, "there is no folder {tmp}/none; make it, or name"),
        (["searched", "--out", "{tmp}"], 2, "--out {tmp} is a folder; name a file in it"),
        (["searched", "--out", "/proc/report.html"], 2, "/proc takes no file"),
        (["searched", "--out", "{tmp}/report.pdf"], 2, "--out {tmp}/report.pdf does not end in .html; rename it"),
        (["searched", "--format", "pdf"], 2, "'pdf' is not one of"),
    ],
    ids=["unknown sweep", "no folder", "a folder", "unwritable", "another format", "unknown format"],
)
def test_a_report_that_cannot_be_made_says_why_in_one_line(command, home, tmp_path, given, code, words):
    found, out, err = command("report", *(each.format(tmp=tmp_path) for each in given))
    assert (found, out) == (code, "")
    assert words.format(tmp=tmp_path) in " ".join(err.split())
    assert "Traceback" not in err


def test_a_sweep_without_a_finished_trial_is_one_line(command, home):
    rewrite_ledger(home, lambda line: {**line, "event": "stop"} if line["event"] == "end" else line)
    err = command.refuses("report", code=1)
    assert f"sweep {home.id} has no finished trial" in err
    assert err.count("\n") == 1


def test_a_damaged_trial_is_warned_of_and_the_report_is_made(command, home):
    rewrite_ledger(home, lambda line: None if (line["event"], line.get("number")) == ("propose", 1) else line)
    code, _, err = command("report")
    assert code == 0
    assert "t0001" in err
    assert (home.path / "report.html").is_file()


def artifacts(cluster):
    client = MlflowClient(cluster.mlflow)
    runs = client.search_runs(
        [each.experiment_id for each in client.search_experiments()], "tags.`babeltune.role` = 'sweep'"
    )
    return [file.path for run in runs for file in client.list_artifacts(run.info.run_id)]


def test_the_report_of_a_finished_sweep_is_an_artifact_of_its_run_and_is_made_once(copied):
    _, folder, cluster = copied
    path = report_at_the_end(folder, cluster, say_line)
    assert path == folder.path / "report.html"
    assert artifacts(cluster) == ["corpus.json", "report.html"]
    made = path.stat().st_mtime_ns
    assert report_at_the_end(folder, cluster, say_line) == path
    assert path.stat().st_mtime_ns == made
    later = path.stat().st_mtime + 60
    os.utime(folder.path / "state.json", (later, later))
    report_at_the_end(folder, cluster, say_line)
    assert path.stat().st_mtime_ns > made, "a sweep that went on gets a new one"


def test_a_report_has_what_was_decided_since_and_the_live_page_notices(copied):
    _, folder, cluster = copied
    (folder.path / "report.html").unlink(missing_ok=True)
    report_again(folder.id, cluster, say_line)
    assert not (folder.path / "report.html").exists(), "a sweep without a report gets none"
    report_at_the_end(folder, cluster, say_line)
    page = LivePage(folder)
    before = page.snapshot().version
    decided = Decision(verdict="refuse", reasons=("a gate does not hold",), sweep=folder.id, trial="t0000", report=1)
    record_decision(StorageView(cluster), folder, decided, dry_run=False)
    assert page.snapshot().version != before
    report_again(folder.id, cluster, say_line)
    assert "a gate does not hold" in (folder.path / "report.html").read_text(encoding="utf-8")


def test_a_report_that_fails_is_one_line_and_fails_no_sweep(copied, capfd):
    _, folder, cluster = copied
    (folder.path / "report.html").unlink(missing_ok=True)
    (folder.path / "report.html").mkdir()
    assert report_at_the_end(folder, cluster, say_line) is None
    err = capfd.readouterr().err
    assert err.startswith("report: ")
    assert "Error" not in err.split()[1], "a message has no name of a class"
    assert err.count("\n") == 1


def test_a_tracking_server_that_is_away_is_one_line_and_the_report_is_there(copied, capfd, tmp_path):
    _, folder, cluster = copied
    (folder.path / "report.html").unlink(missing_ok=True)
    (tmp_path / "file").touch()
    away = replace(cluster, mlflow=f"sqlite:///{tmp_path}/file/mlflow.db")
    assert report_at_the_end(folder, away, say_line) == folder.path / "report.html"
    err = capfd.readouterr().err
    assert "does not take the report" in err
    assert err.count("\n") == 1


def test_after_an_outage_resume_also_gives_mlflow_the_report(command, copied, tmp_path):
    sweep, folder, cluster = copied
    (folder.path / "report.html").unlink(missing_ok=True)
    away = replace(cluster, mlflow="http://127.0.0.1:9")  # the discard port: nothing listens
    close_tracker(track(away.mlflow, folder, sweep.name, lambda place, _: place.name), folder, 0)
    assert folder.read("tracking.json")["unsent_bytes"] > 0
    path = report_at_the_end(folder, away, say_line)
    assert path is not None
    back = replace(cluster, mlflow=f"sqlite:///{tmp_path}/back/mlflow.db")
    file = tmp_path / "back.yaml"
    file.write_text(f"storage: {back.storage}\nmlflow: {back.mlflow}\n", encoding="utf-8")
    made = path.stat().st_mtime_ns
    for _ in range(2):  # the second time it is there already
        command.prints("resume", folder.id, "--cluster", file)
        assert sorted(artifacts(back)) == ["corpus.json", "report.html"]
    assert path.stat().st_mtime_ns == made


def test_submitting_a_finished_sweep_again_ends_with_the_reports_place(command, home, tiny_file):
    overlay = home.path.parents[2] / "searched.yaml"
    from conftest import SEARCHED

    overlay.write_text(SEARCHED, encoding="utf-8")
    assert f"report: {home.path / 'report.html'}\nnext: " in command.prints("submit", tiny_file, "--with", overlay)
    assert SweepFolder(home.path).state() == "finished"
