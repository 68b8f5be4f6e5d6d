"""The command line as people and programs meet it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from audits import read_audit
from babeltune.cli import app, terminal_view
from babeltune.cli.common import registered
from babeltune.files import plain
from babeltune.method import load_method
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.sweep_yaml import spec_yaml
from babeltune.planning.warnings import about_memory, about_precision, about_queue
from babeltune.sweep.driver.run import driven_folder, only_driver
from babeltune.sweep.state.folder import SweepFolder, sweep_folders
from babeltune.sweep.sync.audit import SIGNAL
from every_method import GRADED
from made_sweeps import rewrite_ledger
from ports import free_port
from processes import ended
from toy_trials import groups_held
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("undrawn")
COMMANDS = sorted(get_command(app).commands)


@pytest.fixture
def home(searched, monkeypatch):
    """The default cluster's storage is the finished sweep's: (sweep's folder)."""
    _, folder = searched
    monkeypatch.setenv("BABELTUNE_HOME", str(folder.path.parents[1]))
    return folder


def test_the_commands_are_those_that_are_promised():
    sweeps = (
        "archive clean continue delete demo doctor extend init logs note pause plan refit rename resume runs schema "
        "show skill status stop submit"
    )
    models = (
        "adapter canary check compare encode evaluate export filter index methods mine promote push report reproduce "
        "retrieve score search serve study transfer ui watch"
    )
    assert sorted(f"{sweeps} {models}".split()) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_prints_json(command):
    result = CliRunner().invoke(app, [command, "--help"], terminal_width=200)
    assert result.exit_code == 0
    assert "--json" in result.output
    options = [p for p in get_command(app).commands[command].params if p.name != "help"]
    assert all(p.help for p in options), "every option says what it does"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("promote", "x", "--soup", "abc"), "--soup abc: must be a valid integer; `babeltune promote --help`"),
        (("plan", "x", "--trials=0"), "--trials=0: must be greater than or equal to 1; `babeltune plan --help`"),
        (("report", "x", "--format", "doc"), "--format doc: 'doc' is not one of 'html', 'md', 'png'; `babeltune"),
        (("promote", "x", "--sop", "3"), "No such option: --sop (Possible options: --json, --out, --soup); `babel"),
        (
            ("promote", "x", "--front", "--soup=2"),
            "Invalid value for --front: promotes several models, with aliases of their own; leave",
        ),
        (("promote", "x", "--front", "--alias=champion"), "Invalid value for --front: promotes several models"),
        (("promote", "x", "--soup"), "Option '--soup' requires an argument; `babeltune --help`"),
        (("plan",), "Missing argument 'FILE'; `babeltune plan --help` lists what it takes"),
    ],
)
def test_an_argument_that_no_command_takes_is_one_line(command, arguments, said):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("mine a b model --out o --threshold nan", "nan is no number"),
        ("mine a b model --out o --threshold inf", "inf is no number"),
        ("promot", "promote"),
        ("plan TINY --set training.pairs=many --no-calibrate", "training.pairs"),
        ("plan search_spaces", "search_spaces is a folder; name a file in it, such as"),
        ("plan TINY --cluster nosuch.yaml --no-calibrate", "no file 'nosuch.yaml'; shipped: clusters/aws.yaml"),
        ("plan search_spaces/quickstrat.yaml", "search_spaces/quickstart.yaml"),
        ("submit TINY --detach", "--detach"),  # no job is made
        ("submit TINY --insecure", "--insecure"),
        ("evaluate ./no/such/folder --with TINY", "no/such/folder"),
    ],
)
def test_a_wrong_name_or_value_is_named_with_what_is_right(command, home, tiny_file, monkeypatch, arguments, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = arguments.replace("TINY", str(tiny_file)).split()
    assert said in " ".join(command.refuses(*words).split())


def test_plan_prints_json_with_the_id_the_pairs_and_sampled_trials(command, tiny_file):
    plan = command.document("plan", tiny_file, "--samples", 2, "--no-calibrate")
    assert plan["id"].startswith("tiny-")
    assert len(plan["trials"]) == 2
    assert sum(plan["pairs"].values()) > 300
    out = command.prints("plan", tiny_file, "--trials", 7, "--yaml", "--no-calibrate")
    assert plan["id"] in out
    assert "trials: 7" in out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("config.teacher_temperature=0.05", "default, sample 0: labels are nearly hard (97% of"),
        ("config.teacher_temperature=0.2", ""),
        ("config.teacher_temperature=5", "default, sample 0: labels are nearly flat (100% of log N)"),
        ("config.labels=hard", ""),
        ("parameters.temperature={choice: [0.1, 0.11]}", "labels are nearly hard"),
    ],
)
def test_plan_warns_of_teachers_labels_that_are_nearly_hard_or_flat(command, tiny_file, given, said):
    code, out, err = command("plan", tiny_file, "--set", given, "--samples", 1, "--json", "--no-calibrate")
    assert code == 0
    assert json.loads(out)["warnings"] == [line for line in json.loads(out)["warnings"] if said and said in line]
    assert (said in " ".join(err.split()), "labels are nearly" in err) == (True, bool(said))


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_config_paper_reaches_a_trial_by_plan_and_submit(command, with_stores, tiny_file, monkeypatch, tmp_path):
    storage = with_stores(tmp_path / "storage")
    monkeypatch.setenv("BABELTUNE_HOME", str(storage))
    given = [f"--set={one}" for one in ("config=paper", "parameters={}", "training.pairs=64", "training.reports=1")]
    assert "config: paper" in command.document("plan", tiny_file, *given, "--trials", 1, "--no-calibrate")["spec"]
    command.prints("submit", tiny_file, *given, "--trials", 1, "--json")
    (folder,) = sweep_folders(storage)
    trial = json.loads((folder.trial(0) / "trial.json").read_text(encoding="utf-8"))
    assert trial["config"] == plain(load_method("soft_contrastive").Config.paper())
    err = command.refuses("submit", tiny_file, *given, "--set=method=combined", "--json")
    assert "method 'combined' has no Config.paper(); methods that have one: " in " ".join(err.split())


def test_an_error_in_a_sweep_file_names_file_line_key_and_the_nearest_name(command, tiny_file, tmp_path):
    text = tiny_file.read_text(encoding="utf-8").replace("  kind: none", "").replace("{kind: none}", "{knid: none}")
    path = tmp_path / "broken.yaml"
    path.write_text(text, encoding="utf-8")
    line = 1 + text.splitlines().index("scheduler: {knid: none}")
    code, out, err = command("plan", path, "--no-calibrate")
    assert (code, out) == (2, "")
    assert [words for words in (f"{path}:{line}", "knid", "kind") if words not in err] == []
    assert "Traceback" not in err


def test_plan_says_what_auto_finds_in_a_sample(command, tiny_file):
    auto = ("--set", "config={teacher_temperature: auto, own_share: 0.4}", "--samples", 1)
    plan = command.document("plan", tiny_file, *auto, "--no-calibrate")
    (words,) = plan["temperatures"]
    begun, _, ended = words.partition("about ")
    assert begun == "default, sample 0: teacher_temperature "
    assert 0.15 < float(ended.split(":")[0]) < 0.35
    assert words.endswith("a share of 0.4 in a sample of 32 pairs")
    assert not plan["warnings"]
    shown = " ".join(command("plan", tiny_file, *auto)[1].split())
    assert words in shown
    assert "about" in shown.partition("time ")[2], "the time is measured all the same"
    unreachable = ("--set", "config={teacher_temperature: auto, own_share: 0.001}", "--samples", 0)
    plan = command.document("plan", tiny_file, *unreachable, "--no-calibrate")
    assert "own_share 0.001 cannot be had" in plan["warnings"][0]


def test_plan_counts_the_graded_pairs_and_times_steps_with_them(command, tiny_file):
    shown = " ".join(command.prints("plan", tiny_file, *(f"--set={each}" for each in GRADED), "--samples", 1).split())
    assert "graded sts 100; 32 pairs a step, weight 1 dev" in shown
    assert "about" in shown.partition("time ")[2]


def test_half_precision_is_warned_of_where_the_processor_would_emulate_it(tiny_file, monkeypatch):
    sweep = read_sweep(tiny_file, assignments=["training.precision=bf16"])
    monkeypatch.setattr("babeltune.memory.emulates_bf16", lambda: False)
    assert not [*about_precision(sweep)]
    monkeypatch.setattr("babeltune.memory.emulates_bf16", lambda: True)
    assert "--set training.precision=fp32" in next(iter(about_precision(sweep)))
    assert not [*about_precision(read_sweep(tiny_file))]


def test_a_value_for_a_searched_setting_is_warned_of(command, tiny_file):
    code, _, err = command("plan", tiny_file, "--set", "training.learning_rate=1e-3", "--no-calibrate")
    assert code == 0
    assert "training.learning_rate is among" in err
    assert "--set 'parameters.training.learning_rate={const: VALUE}'" in " ".join(err.split())
    fixed = "parameters.training.learning_rate={const: 1e-3}"
    soft = ("--set", "config.teacher_temperature=0.2")
    assert "warning" not in command("plan", tiny_file, "--set", fixed, *soft, "--no-calibrate")[2]


def test_a_student_that_this_machine_cannot_hold_is_warned_of(tiny_file):
    assert not [*about_memory(read_sweep(tiny_file))]
    huge = read_sweep(tiny_file, assignments=["parameters.student.width={choice: [32, 98304]}"])
    assert "M weights" in next(iter(about_memory(huge)))


def test_trials_that_would_all_be_alike_are_warned_of(command, tiny_file):
    alike = command("plan", tiny_file, "--set", "parameters={}", "--no-calibrate")[2]
    assert "nothing is searched, so all 2 trials are one and the same" in " ".join(alike.split())
    assert "one and the same" not in command("plan", tiny_file, "--no-calibrate")[2]


@pytest.mark.parametrize(
    ("assignments", "longest"),
    [
        ([], "65,536"),
        (["parameters.queue={choice: [512, 4096]}"], "4,096"),
        (["parameters.queue={const: 1787}"], None),
        (["parameters={variant: {const: co}}", "config={queue: 1788}"], "1,788"),
        (["parameters={variant: {choice: [laser3, in_batch]}}"], None),
        (["parameters={}", "method=mse_distillation"], None),
    ],
)
def test_a_queue_that_the_text_cannot_fill_is_warned_of(assignments, longest):
    sweep = read_sweep("search_spaces/laser3_co.yaml", assignments=assignments)
    words = [f"laser3_co has a queue of up to {longest} entries, and the training text 1,787 distinct"] * bool(longest)
    assert [found[: len(words[0])] for found in about_queue(sweep, 1787)] == words


def test_plan_warns_of_such_a_queue(command, tiny_file):
    for queue, expected in ((100, False), (5000, True)):
        fixed = ["--set", "parameters={}", "--set", "method=laser3_co", "--set", f"config={{queue: {queue}}}"]
        code, _, err = command("plan", tiny_file, *fixed, "--no-calibrate")
        assert code == 0
        assert ("a queue of up to 5,000 entries" in " ".join(err.split())) == expected


def test_what_is_there_but_no_file_is_not_called_absent(command, tmp_path):
    (tmp_path / "itself.yaml").symlink_to("itself.yaml")
    for path in ("/dev/null", tmp_path / "itself.yaml"):
        err = command.refuses("plan", path, "--no-calibrate")
        assert f"{path} is neither a file nor a link to one" in " ".join(err.split())


def test_workers_that_would_share_a_gpu_are_refused_before_anything_starts(command, tiny_file, tmp_path):
    shared = tmp_path / "shared.yaml"
    shared.write_text("name: shared\ngpus_per_worker: 0.5\n", encoding="utf-8")
    for name in ("plan", "submit"):
        code, out, err = command(name, tiny_file, "--set", "budget.workers=2", "--cluster", shared)
        assert (code, out) == (2, "")
        assert "cluster 'shared': gpus_per_worker: 0.5 with 2 workers: NCCL does not connect workers on one GPU" in err


def test_a_storage_that_is_a_file_is_not_called_empty(command, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "file"))
    for name in ("runs", "status"):
        assert "file is not a folder" in " ".join(command.refuses(name).split())


def test_an_unknown_method_sweep_trial_or_metric_names_the_nearest(command, home):
    for arguments, near in (
        (("methods", "soft_contrastiv"), "soft_contrastive"),
        (("status", "serched"), "searched"),
        (("promote", "searchd"), "searched"),
        (("evaluate", "searchd/t0000", "--with", "search_spaces/quickstart.yaml"), "searched"),
        (("runs", "searched", "--sort", "dev/everyday/acuracy"), "dev/everyday/accuracy"),
    ):
        assert f"did you mean '{near}'" in command.refuses(*arguments)
    assert "t0003" in command.refuses("promote", "searched/t0042")


def test_methods_are_listed_and_described(command):
    assert {"soft_contrastive", "mse_distillation", "translation_ranking"} <= set(command.document("methods"))
    settings = command.document("methods", "soft_contrastive")["settings"]
    assert {setting["name"] for setting in settings} >= {"temperature", "labels"}
    assert command("methods")[0] == command("methods", "mse_distillation")[0] == 0


def test_status_and_runs_show_the_finished_sweep(command, home):
    document = command.document("status")
    assert (document["sweep"], document["state"]) == (home.id, "finished")
    names = {row["name"] for row in document["leaderboard"]}
    assert names == {"t0000", "t0001", "t0002", "t0003", "teacher", "untrained"}
    assert "do not compare" in " ".join(command("runs", "searched", "--sort", "train/loss")[2].split())
    rows = command.document("runs", "searched", "--sort", "dev/sts/spearman")
    scores = [row["metrics"].get("dev/sts/spearman", -2) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert [document["sweep"] for document in command.document("runs")] == [home.id]
    for arguments in (("status",), ("runs",), ("runs", "searched")):
        assert "t000" in command.prints(*arguments)


def test_runs_shows_every_language_pair_of_the_objective(command, home):
    best = command.document("runs", "searched", "--languages")[0]
    pairs = {name: value for name, value in best["scores"].items() if name != "mean"}
    assert len(pairs) > 1
    assert best["scores"]["mean"] == pytest.approx(sum(pairs.values()) / len(pairs))
    assert set(pairs) <= set(command.prints("runs", "searched", "--languages").split())
    assert "is a table of its own" in " ".join(command.refuses("runs", "searched", "--languages", "--front").split())


@pytest.mark.usefixtures("one_scoring_process")
def test_a_trial_compared_with_itself_is_not_distinguishable(command, home):
    found = command.document("compare", "searched/t0000", "searched/t0000")
    assert (found["sweep"], found["first"], found["second"]) == (home.id, "searched/t0000", "searched/t0000")
    assert set(found["verdicts"]) == {"equal"}
    assert "has no trial 't0042'" in " ".join(command.refuses("compare", "searched/t0000", "searched/t0042").split())


def test_a_sweep_that_does_not_run_cannot_be_stopped(command, home):
    assert "finished" in command.refuses("stop", "searched", code=1)
    assert not home.stop_request.exists()


def drive(folder, until):
    """Another driver of the sweep, until then."""

    def hold():
        with only_driver(folder):
            driving.set()
            wait_until(until)

    driving, thread = threading.Event(), threading.Thread(target=hold)
    thread.start()
    assert driving.wait(PATIENCE_S)
    return thread


@pytest.fixture
def watching(monkeypatch):
    """Is set once a command watches a sweep that another driver has."""
    begun, attach = threading.Event(), terminal_view.attach

    def noted(*arguments):
        begun.set()
        return attach(*arguments)

    monkeypatch.setattr(terminal_view, "attach", noted)
    return begun


@pytest.mark.long
def test_a_sweep_that_runs_elsewhere_is_followed_and_stopped(command, copied_home, tiny_file, watching):
    sweep, folder, _ = copied_home
    again = tiny_file.parent / "again.yaml"
    again.write_text(spec_yaml(sweep), encoding="utf-8")
    other = drive(folder, watching.is_set)
    code, out, err = command("submit", again, "--json")
    other.join(PATIENCE_S)
    assert code == 0, err
    assert f"sweep {folder.id} is running in another process; showing it" in " ".join(err.split())
    assert json.loads(out)["state"] == "finished"
    other = drive(folder, folder.stop_request.exists)
    code, out, err = command("stop", folder.id, "--json")
    other.join(PATIENCE_S)
    assert f"asked sweep {folder.id} to stop" in err
    assert (code, json.loads(out)) == (0, {"sweep": folder.id, "stopped": True})
    answered = threading.Event()
    other = drive(folder, answered.is_set)
    code, out, _ = command("stop", folder.id, "--wait", "0")
    answered.set()
    other.join(PATIENCE_S)
    assert code == 1
    assert "has not yet" in " ".join(out.split())


@pytest.fixture
def watched(command, copied_home, tiny_file, watching):
    """Submits a sweep that another driver has until it is watched, and leaves in this state: what that came to."""
    sweep, folder, _ = copied_home
    again = tiny_file.parent / "again.yaml"
    again.write_text(spec_yaml(sweep), encoding="utf-8")

    def submit(state, *options, **more):
        other = drive(folder, watching.is_set)
        folder.set_state(state, **more)
        code, out, err = command("submit", again, *options)
        other.join(PATIENCE_S)
        return folder, code, out, " ".join(err.split())

    return submit


def test_who_watched_a_sweep_fails_as_it_did(watched):
    folder, code, out, err = watched("failed", reason="all of the first 5 trials failed")
    assert code == 1
    assert f"sweep {folder.id} failed: all of the first 5 trials failed" in err
    assert "promote" not in out


@pytest.mark.parametrize(("state", "ends"), [("stopped", 0), ("interrupted", 130)])
def test_who_watched_a_sweep_leaves_it_as_it_was_left_and_ends_as_its_driver(watched, state, ends):
    folder, code, out, err = watched(state, "--trials", 9)
    assert (code, folder.state()) == (ends, state)
    assert "not taken while it runs: budget.trials: 4 → 9" in err
    assert "showing it" in err
    assert f"{state}; nothing is lost: `babeltune resume {folder.id}" in out


def test_of_two_submits_at_one_moment_the_second_shows_the_first(watched, monkeypatch):
    looks = []

    def late(*arguments):
        """Sees no driver at its first look."""
        looks.append(arguments)
        return driven_folder(*arguments) if len(looks) > 1 else None

    monkeypatch.setattr("babeltune.sweep.driver.run.driven_folder", late)
    _, code, _, err = watched("stopped")
    assert code == 0, err
    assert "is running in another process; showing it" in err
    assert len(looks) == 3, "one for the refusal, one to show it"


def test_who_watches_a_sweep_waits_until_it_has_begun(copied, monkeypatch):
    _, folder, _ = copied
    looks, is_driven = [], terminal_view.is_driven
    monkeypatch.setattr(terminal_view, "is_driven", lambda folder: looks.append(folder) or is_driven(folder))
    begun = folder.path / "sweep.json"
    begun.rename(folder.path / "later")
    with only_driver(folder):
        thread = threading.Thread(target=terminal_view.attach, args=(folder, Console()))
        thread.start()
        wait_until(lambda: len(looks) > 3)
        assert thread.is_alive()
        (folder.path / "later").rename(begun)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    begun.unlink()
    assert terminal_view.attach(folder, Console()) == folder, "its driver has died before it began"


@pytest.mark.long
def test_who_watched_a_sweep_goes_on_with_it_once_its_driver_is_gone(watched):
    folder, code, _, err = watched("running")
    assert code == 0, err
    assert f"the driver of sweep {folder.id} is gone; going on with it" in err
    assert folder.state() == "finished"


def test_resuming_a_finished_sweep_shows_it_and_adds_nothing(command, home):
    before = (home.path / "results.jsonl").read_bytes(), (home.path / "sweep.json").stat().st_mtime_ns
    assert command.document("resume", "searched")["state"] == "finished"
    after = (home.path / "results.jsonl").read_bytes(), (home.path / "sweep.json").stat().st_mtime_ns
    assert after == before, "nor is it the latest sweep now"


def test_extend_wants_more_trials_than_the_sweep_has(command, home):
    for trials in (1, 4):
        err = command.refuses("extend", "searched", "--trials", trials)
        assert f"--trials {trials}: sweep {home.id} has a budget of 4 trials; give more" in " ".join(err.split())
    for name in ("extend", "resume"):
        assert "must be from 1 to 1,000,000" in command.refuses(name, "searched", "--trials", 10**20)
    err = command.refuses("resume", "searched", "--trials", 3)
    assert f"--trials 3: sweep {home.id} has a budget of 4; give no less" in " ".join(err.split())


def test_extend_names_the_trials_that_are_missing(command, copied_home):
    """A budget that was raised by an extension which was then refused."""
    sweep, folder, _ = copied_home
    folder.write("sweep.json", replace(sweep, budget=replace(sweep.budget, trials=5)))
    err = " ".join(command.refuses("extend", "searched", "--trials", 5).split())
    assert f"; `babeltune resume {folder.id}` trains the missing 1 trial" in err


def test_a_file_that_asks_for_fewer_trials_than_were_asked_for_says_so(command, copied_home, tmp_path):
    sweep = copied_home[0]
    file = tmp_path / "searched.yaml"
    file.write_text(spec_yaml(sweep), encoding="utf-8")
    code, _, err = command("submit", file, "--trials", 3, "--json")
    assert (code, "taken: budget.trials: 4 → 3" in err) == (0, True), err
    code, _, err = command("submit", file, "--trials", 3, "--json")
    assert (code, "taken" in err) == (0, False), err


@pytest.mark.parametrize("begun", [True, False])
def test_a_signal_in_any_phase_of_a_sweep_names_the_command_that_goes_on(command, copied, monkeypatch, tmp_path, begun):
    sweep, folder, cluster = copied
    monkeypatch.setenv("BABELTUNE_HOME", cluster.storage if begun else str(tmp_path / "new"))
    monkeypatch.setattr("babeltune.cli.run_here.show_taken", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    file = tmp_path / "searched.yaml"
    file.write_text(spec_yaml(sweep), encoding="utf-8")
    err = command.refuses("submit", file, code=130)
    resume = f"`babeltune resume {folder.id}` goes on from what is saved"
    assert f"interrupted; {resume if begun else 'nothing has begun yet; the same command begins it'}" in err


def test_a_finished_sweep_is_not_trained_on_unasked(command, copied_home, tmp_path):
    sweep, folder, _ = copied_home
    file = tmp_path / "searched.yaml"
    file.write_text(spec_yaml(sweep), encoding="utf-8")
    said = " ".join(command.refuses("submit", file, "--trials", 6).split())
    assert "is finished with 4 trials, and this asks for 6; `babeltune extend --trials 6 " in said
    assert (folder.state(), folder.sweep().budget.trials, len(folder.trials())) == ("finished", 4, 4)


@pytest.mark.parametrize("name", ["extend", "resume"])
def test_a_sweep_that_runs_is_not_extended(command, copied_home, name):
    folder = copied_home[1]
    with only_driver(folder):
        code, _, err = command(name, folder.id, "--trials", 9)
    assert code == 1
    assert f"babeltune {name} {folder.id} --trials 9" in " ".join(err.split())


def test_a_log_that_was_damaged_is_shown_all_the_same(command, copied_home):
    folder = copied_home[1]
    with folder.log.open("ab") as log:
        log.write(b"\xff\xfe\n")
    assert "t0000 begins" in command.prints("logs", folder.id)


def test_logs_tell_what_the_driver_did(command, home):
    out = command.prints("logs", "searched")
    assert "t0000 begins" in out
    assert "t0000 finished after 2 reports dev/everyday/accuracy" in out
    assert "t0001 failed" in out
    assert out.splitlines()[-1].endswith(" finished")
    code, followed, err = command("logs", "searched", "--follow")
    assert (code, followed, err) == (0, out, f"sweep {home.id}: finished\n")
    assert command.document("logs", "searched") == {"sweep": home.id, "state": "finished", "log": out}


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]"])
def test_a_damaged_sweep_does_not_hide_the_others(command, copied_home, content):
    folder = copied_home[1]
    damaged = folder.path.with_name("damaged-0123456789")
    damaged.mkdir()
    (damaged / "sweep.json").write_bytes(content)
    code, out, err = command("runs", "--json")
    assert code == 0
    assert [document["sweep"] for document in json.loads(out)] == [folder.id]
    assert "sweep damaged-0123456789 is left out" in " ".join(err.split())
    code, out, err = command("status", "damaged-0123456789")
    assert (code, out) == (1, "")
    assert "sweep.json is damaged" in " ".join(err.split())
    shutil.rmtree(folder.path)
    code, out, err = command("runs")
    assert (code, out) == (0, ""), "there is one, although it cannot be read"


def test_who_follows_a_log_learns_that_its_driver_is_gone(command, copied_home):
    folder = copied_home[1]
    folder.set_state("running")
    ended = {"event": "end", "number": 0}
    rewrite_ledger(folder, lambda line: {**ended, "event": "start"} if ended.items() <= line.items() else line)
    rows = command.document("status", folder.id)["leaderboard"]
    assert {row["name"]: row["state"] for row in rows}["t0000"] == "stopped"
    goes_on = f"its driver is gone; `babeltune resume {folder.id}` goes on\n"
    assert command("status", folder.id)[2] == goes_on
    code, out, err = command("logs", folder.id, "--follow")
    assert code == 0
    assert out.splitlines()[-1].endswith(" running")
    assert err == f"sweep {folder.id}: interrupted: {goes_on}"


def test_a_setting_without_a_file_to_set_it_in_is_refused(command, home):
    err = command.refuses("resume", home.id, "--set", "training.pairs=1")
    assert "--set: it changes a sweep file; name one with --spec FILE" in " ".join(err.replace("│", " ").split())


def test_a_sweep_that_another_version_began_is_not_resumed_under_another_id(command, copied_home):
    _, folder, cluster = copied_home
    folder.path.rename(folder.path.with_name("searched-0123456789"))
    assert "another version" in command.refuses("resume", "searched", code=1)
    assert [f.id for f in sweep_folders(Path(cluster.storage))] == ["searched-0123456789"]


@pytest.mark.usefixtures("one_scoring_process")
def test_a_trial_and_an_exported_folder_are_evaluated_alike(command, home, tiny_file, tmp_path):
    from babeltune.promotion.candidate import export_model, find_candidate

    of_trial = command.document("evaluate", "searched/t0002", "--with", tiny_file)
    candidate = find_candidate("searched/t0002", home.path.parents[1])
    assert of_trial["dev/everyday/accuracy"] == pytest.approx(
        candidate.report.metrics["dev/everyday/accuracy"], abs=3e-3
    )
    export_model(candidate, tmp_path / "model")
    assert command.document("evaluate", tmp_path / "model", "--with", tiny_file) == pytest.approx(of_trial)
    out = command.prints("evaluate", tmp_path / "model", "--with", tiny_file, "--prompt", "a b c d e: ", "--json")
    assert json.loads(out) != pytest.approx(of_trial)


@pytest.mark.usefixtures("one_scoring_process")
def test_evaluate_on_sealed_tests_records_the_opening(command, copied_home, tiny_file):
    folder = copied_home[1]
    out = command.prints("evaluate", "searched/t0002", "--with", tiny_file, "--test", "--json")
    assert all(name.startswith(("test/everyday/", "test/mean_cosine")) for name in json.loads(out))
    (opening,) = (folder.path.parents[1] / "openings.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(opening)["tests"] == ["everyday"]


def test_evaluate_refuses_pickled_weights_before_any_test_is_opened(command, tiny_file, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    dense = tmp_path / "model" / "2_Dense"
    dense.mkdir(parents=True)
    (tmp_path / "model" / "model.safetensors").touch()
    (dense / "pytorch_model.bin").touch()
    err = command.refuses("evaluate", tmp_path / "model", "--with", tiny_file, "--test")
    assert "has pickled weights, 2_Dense/pytorch_model.bin" in err
    assert not list(tmp_path.rglob("openings.jsonl"))


def test_the_installed_command_answers():
    command = [str(Path(sys.executable).with_name("babeltune")), "methods", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "soft_contrastive" in json.loads(done.stdout)


# With processes of their own


def wait_for(condition, process):
    def lives():
        assert process.poll() is None, process.communicate()[1]

    wait_until(condition, meanwhile=lives, every=0.1)


@pytest.mark.long
def test_ctrl_c_leaves_a_sweep_resumable_and_a_cluster_that_runs_goes_on_with_it(
    searched, ray_cluster, tiny_file, tmp_path
):
    _, folder = searched
    storage = tmp_path / "storage"
    storage.mkdir()
    (storage / "stores").symlink_to(folder.path.parents[1] / "stores")
    environment = {**os.environ, "BABELTUNE_HOME": str(storage), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "babeltune.cli", "submit", str(tiny_file), "--json"]
    command += ["--set", "training.pairs=9600", "--set", "training.reports=10", "--trials", "1"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: any(f.trial(0).joinpath("reports.jsonl").exists() for f in sweep_folders(storage)), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    sweep = sweep_folders(storage)[0]
    assert f"babeltune resume {sweep.id}" in err
    assert "Traceback" not in err
    assert not out
    assert sweep.state() == "interrupted"
    assert [(line.action, line.through) for line in read_audit(storage)] == [("submit", ""), ("stop", SIGNAL)]
    before = reports_of(sweep)
    assert 1 <= len(before) < 10
    there, held = tmp_path / "there.yaml", groups_held()
    there.write_text(f"address: {ray.get_runtime_context().gcs_address}\nstorage: {storage}\nworker_groups: 1\n")
    resume = ("-m", "babeltune.cli", "resume", sweep.id, "--cluster", there, "--json")
    done = ended(sys.executable, *resume, env=environment)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["state"] == "finished"
    row = next(r for r in document["leaderboard"] if r["name"] == "t0000")
    assert (row["state"], row["reports"]) == ("finished", 10)
    after = reports_of(sweep)
    assert after[: len(before)] == before, "what was done is kept"
    assert [p.name for p in sweep.trials()] == ["t0000"]
    assert groups_held() == held, "the cluster is left as it was"


def reports_of(sweep: SweepFolder):
    lines = (sweep.trial(0) / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["metrics"]["dev/everyday/accuracy"] for line in lines]


def test_ui_refuses_a_port_that_is_taken(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = command("ui", "--port", str(port))
    assert (code, out) == (1, "")
    assert f"--port {port}: 127.0.0.1:{port} cannot be used" in err


def test_ui_serves_the_runs_on_this_machine_only(home, loopback_only):
    port = free_port()
    command = [sys.executable, "-m", "babeltune.cli", "ui", "--port", str(port), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}"

        def answers():
            try:
                return urllib.request.urlopen(f"{url}/health", timeout=30).status == 200
            except OSError:
                return False

        wait_for(answers, process)
        said = "".join(iter(lambda: process.stdout.readline().rstrip(), "}")) + "}"
        page = json.loads(said)["url"]
        assert page.startswith(f"{url}/#/experiments/")
        assert "workflowType=machine_learning&viewStateShareKey=" in page
        asked = urllib.request.Request(
            f"{url}/api/2.0/mlflow/experiments/search",
            data=json.dumps({"max_results": 10}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            names = [e["name"] for e in json.load(answer)["experiments"]]
        assert "searched" in names
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_S)


def test_a_registered_model_needs_no_models_before_its_name(tmp_path, monkeypatch):
    (tmp_path / "folder@home").mkdir()
    monkeypatch.chdir(tmp_path)
    assert registered("static@champion") == "models:/static@champion"
    for name in ("folder@home", "models:/static@champion", "team/model@main", "static/t0003", None):
        assert registered(name) == name
    said = "NAME@ALIAS"
    for name, command in get_command(app).commands.items():
        for each in command.params:
            if said in (getattr(each, "help", "") or "") and name != "serve":  # which knows the alias that it follows
                assert each.callback(None, each, "a@b") == "models:/a@b", (name, each.name)


@pytest.mark.parametrize(
    "words", [("export", "a@best", "--out", "x"), ("check", "a@best", "--queries", "t.txt"), ("push", "a@best", "./x")]
)
def test_an_alias_that_there_is_not_is_one_line(words, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "t.txt").write_text("".join(f"Boat {number}.\n" for number in range(100)), encoding="utf-8")
    code, said, line = command(*words)
    assert (code, said, line.count("\n")) == (2, "", 1)
    assert "has no models:/a@best" in line
    assert "`babeltune promote` registers one" in line
