"""A promotion that cannot write what it was asked for, or is ended in the middle."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from audits import read_audit
from babeltune.errors import PromotionError, SpecError
from babeltune.files import sha256_of
from babeltune.promotion import promote as promotion
from babeltune.promotion.candidate import find_candidate
from babeltune.promotion.decisions import Move, intend, promotes, read_decisions, record_decision, settle
from babeltune.promotion.gates import Decision
from babeltune.promotion.promote import promote, recorded_run
from babeltune.promotion.sealed_test_log import read_openings
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.housekeeping import left_drafts
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.gather import gather
from babeltune.sweep_report.write import page
from babeltune.tracking.registry import champion_of
from kills import changes_below, kill_at, killed_at
from processes import command_line
from waiting import PATIENCE_S, wait_until


def weights(folder):
    return {sha256_of(path) for path in Path(folder).rglob("*.safetensors")}


@pytest.mark.usefixtures("one_scoring_process")
def test_a_folder_that_cannot_be_written_is_refused_before_a_test_is_opened(copied, tmp_path):
    _, folder, cluster = copied
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for out, why in [
        (tmp_path / "file" / "out", "cannot be written (File exists)"),
        (tmp_path / ("o" * 300), "cannot be written (File name too long)"),
        (Path("/proc/out"), "cannot be written"),
        (tmp_path / "dangling", "exists already"),
    ]:
        with pytest.raises((PromotionError, SpecError)) as caught:
            promote(folder.id, cluster, out=out)
        assert f"--out {out} {why}" in str(caught.value)
    assert read_openings(Path(cluster.storage)) == []
    assert champion_of(cluster.mlflow, "searched", "champion") is None


@pytest.mark.long
@pytest.mark.usefixtures("one_scoring_process")
def test_the_alias_moves_only_after_the_folder_that_was_asked_for_is_there(copied, tmp_path, monkeypatch):
    _, folder, cluster = copied
    out = tmp_path / "new" / "out"
    weigh = promotion.weigh

    def disturbed(*arguments):
        decision = weigh(*arguments)
        out.mkdir()
        (out / "of-somebody-else").touch()
        return decision

    with monkeypatch.context() as patch:
        patch.setattr(promotion, "weigh", disturbed)
        with pytest.raises(PromotionError, match=r"cannot be written .*no alias was moved"):
            promote(folder.id, cluster, out=out)
    assert champion_of(cluster.mlflow, "searched", "champion") is None
    assert [path.name for path in out.iterdir()] == ["of-somebody-else"]
    shutil.rmtree(out)

    with monkeypatch.context() as patch:
        patch.setattr("babeltune.tracking.registry.register", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            promote(folder.id, cluster, out=out)
    assert list(out.parent.iterdir()) == [], "the same command may be given again"

    decision = promote(folder.id, cluster, out=out)
    assert (decision.verdict, decision.folder) == ("promote", str(out))
    assert any("for 1 model " in reason and "count as one" in reason for reason in decision.reasons), "the killed one's"
    opened = len(read_openings(Path(cluster.storage)))
    again = promote(folder.id, cluster, out=tmp_path / "again")
    assert (again.verdict, again.folder, again.registered) == ("tie", str(tmp_path / "again"), "")
    assert {p.name: sha256_of(p) for p in out.rglob("*") if p.is_file()} == {
        p.name: sha256_of(p) for p in (tmp_path / "again").rglob("*") if p.is_file()
    }
    assert len(read_openings(Path(cluster.storage))) == opened
    assert champion_of(cluster.mlflow, "searched", "champion").version == "1"
    assert promote(folder.id, cluster, dry_run=True, out=tmp_path / "dry").verdict == "tie"
    assert not (tmp_path / "dry").exists()
    report = page(gather(folder), "md")
    assert "No sealed test was scored" not in report, "the two ties opened none"
    assert f"| {decision.test['test/everyday/accuracy']:.4f} |" in report


def register(folder, cluster, number, storage):
    """Registers a model and is killed at its write of this number after it has begun to record that."""
    candidate = find_candidate(folder.id, storage)
    model = storage / "models" / "of-this-test"
    model.mkdir(parents=True)
    (model / "README.md").write_text("# A model\n")
    facts = {"sweep": folder.id, "trial": candidate.name, "report": candidate.report.index}
    decision = Decision(verdict="promote", reasons=("it is good",), folder=str(model), **facts)
    begin = promotion.intend

    def intend(*arguments, **more):
        kill_at(number, changes_below(storage))
        return begin(*arguments, **more)

    promotion.intend = intend
    promotion.register_model(candidate, model, cluster, recorded_run(candidate, cluster), ("champion",), decision, None)


def recorded(folder, storage):
    """What is registered for the sweep, by its decisions and by the audit."""
    decisions, damaged = read_decisions(folder)
    assert damaged == []
    lines = [line.subject for line in read_audit(storage) if line.action == "promote"]
    return [record.decision.registered for record in decisions], lines


def test_a_promotion_that_is_killed_at_any_write_is_recorded_once_or_not_at_all(copy_of, tmp_path):
    """The next command finishes it if the alias has moved, and drops it if not."""
    moved = []
    for number in itertools.count(1):
        _, folder, cluster = copy_of(tmp_path / str(number))
        storage = Path(cluster.storage)
        killed = killed_at(None, lambda: register(folder, cluster, number, storage))  # noqa: B023
        champion = champion_of(cluster.mlflow, "searched", "champion")
        moved.append(champion is not None)
        expected = [f"models:/searched@champion (version {champion.version})"] if champion else []
        for _ in range(2):
            settle(StorageView(cluster))
            assert recorded(folder, storage) == (expected, expected), number
            assert not list((storage / "deciding").glob("*.json"))
        assert not [each for each in left_drafts(storage, 0.0) if not each.carry_out()]
        if not killed:
            break
    assert sorted(moved) == moved, "first the intent, then the alias"
    assert not moved[0]
    assert sum(moved) > 3


def test_a_promotion_that_goes_on_elsewhere_is_not_dropped(copied, monkeypatch):
    """Whether a process of another machine lives is not known. It has as long as its claim holds."""
    _, folder, cluster = copied
    view = StorageView(cluster)
    decision = Decision(verdict="promote", reasons=(), sweep=folder.id, trial="t0000", report=1, registered="m")
    monkeypatch.setattr("babeltune.promotion.decisions.lives", lambda process: None)
    intend(view, decision, move=Move(model="searched", alias="champion", version="1"))
    settle(view)
    assert len(list((view.folder / "deciding").iterdir())) == 1
    monkeypatch.setattr("babeltune.tracking.registry.CLAIM_S", -1.0)
    with FileLock(promotes(view.folder, "searched")):
        settle(view)
        assert len(list((view.folder / "deciding").iterdir())) == 1, "a process of this machine promotes that model"
        settle(view, promoting="searched")
    assert not list((view.folder / "deciding").iterdir())
    assert recorded(folder, view.folder) == ([], [])


@pytest.mark.parametrize("content", [b"", b'{"sweep": "s', b"[]", b"\xff\x00"])
def test_a_damaged_intent_stays_and_the_next_decision_is_recorded(content, copied, caplog):
    _, folder, cluster = copied
    view = StorageView(cluster)
    damaged = view.folder / "deciding" / "damaged.json"
    damaged.parent.mkdir(exist_ok=True)
    damaged.write_bytes(content)
    settle(view, promoting="searched")
    assert "deciding/damaged.json is damaged" in caplog.text
    decision = Decision(verdict="promote", reasons=(), sweep=folder.id, trial="t0000", report=1, registered="m")
    record_decision(view, folder, decision, dry_run=False)
    settle(view, promoting="searched")
    assert recorded(folder, view.folder) == (["m"], ["m"])
    assert [path.name for path in damaged.parent.glob("*.json")] == ["damaged.json"]
    assert damaged.read_bytes() == content, "nobody but its reader may know what it holds"


def test_a_tie_is_recorded_as_a_tie(copied):
    _, folder, cluster = copied
    for verdict, words in (("tie", "a tie"), ("refuse", "refused")):
        decision = Decision(verdict=verdict, reasons=(), sweep=folder.id, trial="t0000", report=1)
        record_decision(StorageView(cluster), folder, decision, dry_run=False)
        assert read_audit(Path(cluster.storage))[-1].subject == f"{folder.id}, {words}"
        assert read_decisions(folder)[0][-1].decision.verdict == verdict


def test_a_decision_about_scores_that_are_not_finite_is_read(tmp_path):
    folder = SweepFolder(tmp_path / "sweeps" / "s-0")
    scores = {"dev/a/accuracy": float("nan"), "dev/b/accuracy": 0.5}
    decision = Decision(verdict="refuse", reasons=("nan",), sweep="s-0", trial="t0000", report=1, dev=scores)
    record_decision(StorageView(Cluster(storage=str(tmp_path))), folder, decision, dry_run=True)
    (record,), damaged = read_decisions(folder)
    assert (damaged, record.decision.dev) == ([], {"dev/b/accuracy": 0.5})


def scorers(process):
    return [
        child
        for child in psutil.Process(process.pid).children()
        if "babeltune.promotion.fresh_scorer" in command_line(child)
    ]


def drafts(storage):
    return [path for name in ("models", "evaluations") for path in (storage / name).rglob("*") if path.is_dir()]


MOMENTS = {
    "its scorer starts": lambda storage: drafts(storage),
    "sealed tests are scored": lambda storage: (storage / "openings.jsonl").exists(),
}


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        ("evaluate", "sealed tests are scored"),
        pytest.param("promote", "its scorer starts", marks=pytest.mark.long),
        pytest.param("promote", "sealed tests are scored", marks=pytest.mark.long),
        pytest.param("evaluate", "its scorer starts", marks=pytest.mark.long),
    ],
)
def test_sigterm_leaves_no_draft_and_no_scorer(copied, tiny_file, tmp_path, command, moment):
    _, folder, cluster = copied
    storage = Path(cluster.storage)
    process, (scorer,) = begun(command, folder, storage, tiny_file, tmp_path, MOMENTS[moment])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) not in (0, -signal.SIGTERM)
    assert scorer.wait(timeout=PATIENCE_S) in (0, None)
    assert drafts(storage) == [storage / "models" / folder.id] * (command == "promote")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert "Traceback" not in (tmp_path / "words").read_text()
    assert champion_of(cluster.mlflow, "searched", "champion") is None


@pytest.mark.long
def test_a_promotion_that_is_killed_leaves_no_scorer(copied, tiny_file, tmp_path):
    _, folder, cluster = copied
    process, (scorer,) = begun("promote", folder, Path(cluster.storage), tiny_file, tmp_path, lambda _: True)
    process.kill()
    process.wait()
    assert scorer.wait(timeout=PATIENCE_S) in (0, None)


def begun(command, folder, storage, tiny_file, tmp_path, moment):
    """A command at this moment, and its scorer."""
    more = {
        "promote": ["promote", folder.id, "--out", tmp_path / "out"],
        "evaluate": ["evaluate", f"{folder.id}/t0000", "--with", tiny_file, "--test"],
    }
    with (tmp_path / "words").open("wb") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "babeltune.cli", *map(str, more[command])],
            env={**os.environ, "BABELTUNE_HOME": str(storage)},
            stdout=words,
            stderr=words,
        )
    wait_until(lambda: process.poll() is not None or moment(storage))
    children = wait_until(lambda: process.poll() is not None or scorers(process))
    assert process.poll() is None, (tmp_path / "words").read_text()
    return process, children
