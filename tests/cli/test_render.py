"""What is printed: short, complete, and safe to print."""

import io
import re
import shutil
import sys
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from babeltune.cli import app, common
from babeltune.cli.render import method_document, show_decision, show_front, show_languages, show_method
from babeltune.cli.table import TrialsTable
from babeltune.cli.terminal_view import attach, live, picture
from babeltune.errors import SpecError, SweepError
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.gates import Decision
from babeltune.schema.base import number
from babeltune.stages import Stage, minutes, tell
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import Row, by_language
from babeltune.sweep.state.progress import SweepProgress, time_left
from waiting import PATIENCE_S, wait_until


def shown(value):
    console = Console(file=io.StringIO(), width=200)
    value(console) if callable(value) else console.print(value)
    return console.file.getvalue()


def test_numbers_and_times_are_short():
    assert [number(v) for v in (0.123456, 1e-5, 3, "priority", True)] == ["0.1235", "1e-05", "3", "priority", "True"]
    assert [minutes(s) for s in (0, 61.9, 3600)] == ["0:00", "1:01", "60:00"]


def test_a_table_shows_state_progress_objective_and_settings(tiny_file):
    sweep = read_sweep(tiny_file)
    rows = [
        Row(name="teacher", state="finished", metrics={"dev/everyday/accuracy": 0.5}),
        Row(name="t0001", state="running", params={"temperature": 0.05}, reports=1, step=10, seconds=61),
        Row(name="t0002", state="failed", params={"temperature": 0.2}, reason="loss is nan; [b]lower[/b] it\nmore"),
    ]
    text = shown(TrialsTable(rows, sweep, "dev/sts/spearman"))
    lines = text.splitlines()
    assert "everyday/accuracy" in lines[0]
    assert "sts/spearman" in lines[0]
    assert "0.5000" in lines[1]
    assert "1/2" in lines[2]
    assert "1:01" in lines[2]
    assert "temperature=0.05" in lines[2]
    assert "loss is nan; [b]lower[/b] it" in text, "a reason is text, not markup"
    assert "★" not in text
    assert "loss" not in lines[0].split(), "nothing says how it is doing"


def test_a_pruned_trial_shows_its_reason_unless_it_is_the_schedulers(tiny_file):
    rows = [
        Row(name="t0000", state="pruned", reason="collapsed: different dev sentences have a mean cosine of 0.9973"),
        Row(name="t0001", state="pruned", kind="pruned", reason="stopped by asha at report 2"),
    ]
    lines = shown(TrialsTable(rows, read_sweep(tiny_file))).splitlines()
    assert lines[3:] == ["t0000 (pruned): collapsed: different dev sentences have a mean cosine of 0.9973"]


def test_a_running_trial_shows_step_and_loss_and_a_trial_its_warning_and_front(tiny_file):
    rows = [
        Row(name="t0000", state="running", step=30, steps=120, loss=1.2345),
        Row(name="t0001", state="finished", reports=2, front=True, warning="labels are nearly flat"),
    ]
    lines = shown(TrialsTable(rows, read_sweep(tiny_file))).splitlines()
    assert "loss" in lines[0].split()
    assert "30/120" in lines[1]
    assert "1.234" in lines[1]
    assert lines[2].startswith("t0001 ★")
    assert lines[3] == "t0001 (finished): labels are nearly flat"


def test_a_front_shows_its_metrics_in_their_units():
    row = Row(
        name="t0003", state="finished", params={"seed": 1}, metrics={"dev/news/f1": 0.25, "model/parameters": 1e7}
    )
    lines = shown(lambda console: show_front(("dev/news/f1", "model/parameters"), [row], console)).splitlines()
    assert lines[0].split() == ["trial", "news/f1", "model/parameters", "settings"]
    assert lines[1].split() == ["t0003", "0.2500", "10,000,000", "seed=1"]


def test_languages_are_columns_behind_their_mean():
    scores = {"dev/news/accuracy": 0.5, "dev/news/fra-eng/accuracy": 0.6, "dev/news/deu-eng/accuracy": 0.4}
    others = {"dev/news/fra-eng/xsim": 0.1, "dev/newsletter/fra-eng/accuracy": 0.9, "dev/sts/eng/spearman": 0.7}
    rows = [Row(name="t0001", state="finished", metrics=scores | others), Row(name="t0002", state="failed")]
    found = by_language(rows, "dev/news/accuracy")
    assert found == {"t0001": {"mean": 0.5, "deu-eng": 0.4, "fra-eng": 0.6}, "t0002": {}}
    lines = shown(lambda console: show_languages(found, "dev/news/accuracy", console)).splitlines()
    assert lines[0].split() == ["news/accuracy", "of", "mean", "deu-eng", "fra-eng"]
    assert lines[1].split() == ["t0001", "0.5000", "0.4000", "0.6000"]
    assert lines[2].split() == ["t0002", "–", "–", "–"]


@pytest.mark.parametrize("width", [80, 160, 200])
@pytest.mark.parametrize("pairs", [12, 36])
def test_any_number_of_languages_fits_the_terminal_with_whole_numbers(width, pairs):
    scores = {"mean": 0.5, **{f"{chr(97 + i // 6)}{chr(97 + i % 6)}a-eng": i / 100 for i in range(pairs)}}
    found = {f"t{number:04d}": scores for number in range(30)}
    console = Console(file=io.StringIO(), width=width)
    show_languages(found, "dev/news/accuracy", console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    below = next((line for line in lines if line.startswith("aba-eng")), None)
    if below is None:
        assert {line.split()[0] for line in lines[1:]} == set(found)
    else:
        shown_trials = lines[0].split()[2:]
        assert below.split() == ["aba-eng", *["0.0100"] * len(shown_trials)]
        assert lines[-1] == f"{30 - len(shown_trials)} more in a wider terminal, or with --json"


def test_the_time_left_is_that_of_what_this_submission_has_to_do():
    search = Stage(name="searching", done=2, of=6, begun=100.0, time=130.0, first=2)
    half = [Row(name="t0002", state="running", step=50, steps=100)]
    assert time_left(replace(search, name="tokenizing"), half, 160.0) == "", "the search has not begun"
    assert time_left(search, [Row(name="t0002", state="running", step=1, steps=100)], 160.0) == ""
    assert time_left(search, half, 160.0) == " · about 7:00 left"
    assert time_left(replace(search, first=2.25), half, 160.0) == " · about 14:00 left", "a quarter is older"
    assert time_left(replace(search, done=6), [], 160.0) == "", "nothing is left to do"


def test_a_terminal_shows_stage_bar_time_and_trials(searched, monkeypatch):
    sweep, folder = searched
    progress = SweepProgress(sweep, folder, stage="searching", done=3, of=4, ended=3, started=100.0)
    with monkeypatch.context() as patch:
        patch.setattr("babeltune.cli.terminal_view.time.monotonic", lambda: 165.0)
        drawn = shown(picture(progress))
    assert f"{folder.id} · searching 3/4 · 1:05 gone" in drawn
    assert "t0002" in drawn
    assert "untrained" in drawn
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    with live(console) as watch:
        watch(progress)
        wait_until(lambda: "searching 3/4" in console.file.getvalue())
    progress.latest = "no room; waiting"
    assert "no room; waiting" in shown(picture(progress))


@pytest.mark.parametrize("end", [None, SweepError("no room"), KeyboardInterrupt()])
def test_a_live_view_leaves_no_part_of_a_frame_however_it_ends(searched, monkeypatch, end):
    sweep, folder = searched
    monkeypatch.setenv("TERM", "xterm")
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    console = Console(stderr=True, force_terminal=True)
    with suppress(SweepError, KeyboardInterrupt), live(console) as watch:
        watch(SweepProgress(sweep, folder, stage="searching", done=3, of=4))
        print("a library's warning", file=sys.stderr)
        wait_until(lambda: "searching 3/4" in terminal.getvalue())
        if end is not None:
            raise end
    left = re.sub(r"\x1b\[\?1049h.*?\x1b\[\?1049l", "", terminal.getvalue(), flags=re.DOTALL)
    assert re.sub(r"\x1b\[[?\w]*", "", left) == "a library's warning\n"


def test_lines_about_a_long_step_become_rarer_the_longer_it_takes():
    assert [common.line_interval_s(gone) for gone in (0, 30, 200, 10_000)] == [2, 2, 10, 60]
    lines, gone = 0, 0.0
    while gone < 10 * 3600:
        lines, gone = lines + 1, gone + common.line_interval_s(gone)
    assert lines < 700, "a log of ten hours can be read"


def test_a_step_that_says_nothing_still_moves(monkeypatch):
    lines = []
    monkeypatch.setattr(common, "METER_EVERY_S", 0.02)
    monkeypatch.setattr(common, "say_line", lines.append)
    monkeypatch.setattr(common, "err", Console(file=io.StringIO()))
    with common.steps_shown("reading the sweep"):
        tell("exporting the checkpoint")
        wait_until(lambda: len(lines) > 3)
    assert lines[0] == "exporting the checkpoint"
    assert set(lines[1:]) == {"exporting the checkpoint · 0:00 gone"}


@pytest.mark.parametrize(
    ("step", "arguments", "first"),
    [
        ("promotion.model_names.model_folder", "mine a.txt b.txt model --out o", "loading the model"),
        ("promotion.model_names.model_folder", "score a.tsv model --out o", "loading the model"),
        ("promotion.model_names.model_folder", "retrieve a.txt b.txt model --out o", "loading the model"),
        ("promotion.model_names.model_folder", "encode model --out o", "loading the model"),
        ("apps.filtering.filter.filter_corpus", "filter a.tsv model --out o --tokens 10", "reading the corpus"),
        ("apps.transfer.formats.read_examples", "transfer model --task xnli --train a.tsv --test fr=b.tsv",
         "reading the examples"),
        ("apps.own_files.init.init", "init a.tsv", "reading the files"),
        ("apps.sweep_plan.machine_of", "plan search_spaces/quickstart.yaml", "planning the sweep"),
        ("promotion.promote.promote", "promote", "reading the sweep"),
        ("promotion.sweep_scores.evaluate_in_sweep", "evaluate s --model model", "loading the model"),
        ("promotion.sweep_scores.compare_models", "compare a b", "loading the models"),
        ("promotion.reproduce.reproduce", "reproduce s/t0000", "reading the trial"),
        ("sweep.sync.housekeeping.everything", "clean", "listing the storage"),
        ("cli.report.sweep_folder", "report", "making the report"),
        ("cli.refit.sweep_folder", "refit", "reading the sweep"),
    ],
)  # fmt: skip
def test_every_command_shows_that_it_works_while_a_step_says_nothing(step, arguments, first, monkeypatch, tmp_path):
    for name in ("a.txt", "b.txt", "a.tsv"):
        (tmp_path / name).write_text("One sentence.\tUne phrase.\n", encoding="utf-8")
    shutil.copytree("search_spaces", tmp_path / "search_spaces")
    monkeypatch.chdir(tmp_path)
    lines = []
    monkeypatch.setattr(common, "METER_EVERY_S", 0.02)
    monkeypatch.setattr(common, "say_line", lines.append)

    def silent(*_, **__):
        wait_until(lambda: len(lines) > 1)
        raise SpecError("it ends")

    monkeypatch.setattr(f"babeltune.{step}", silent)
    result = CliRunner().invoke(app, arguments.split())
    assert str(result.exception) == "it ends", result.output
    assert set(lines) == {f"{first} · 0:00 gone"}


def test_a_decision_shows_its_reasons_scores_and_no_folder_when_refused():
    decision = Decision(
        verdict="refuse",
        reasons=("test/t/fra-eng/accuracy is 0.1, needed 0.2",),
        sweep="s-1",
        trial="t0001",
        report=2,
        test={"test/t/fra-eng/accuracy": 0.1},
        chance={"test/t/fra-eng/accuracy": 0.04},
    )
    text = shown(lambda console: show_decision(decision, console))
    assert text.startswith("refuse s-1 t0001")
    assert "needed 0.2" in text
    assert "0.1000" in text
    assert "0.0400" in text
    assert "model:" not in text
    assert "next:" not in text
    registered = "models:/s@champion (version 1)"
    promoted = replace(decision, verdict="promote", reasons=(), folder="out", registered=registered)
    last = shown(lambda console: show_decision(promoted, console)).split("next: ")[1]
    assert last.startswith("`babeltune serve s@champion` · `babeltune index s@champion FILES --out my-index`")


def test_a_method_shows_every_setting_with_its_source():
    document = method_document("soft_contrastive")
    assert "2024" in document.paper
    for setting in document.settings:
        assert setting.source, f"{setting.name} cites nothing"
    text = shown(lambda console: show_method(document, console))
    assert all(setting.name in text for setting in document.settings)


def test_without_a_terminal_progress_is_printed_as_lines(tiny_file, tmp_path):

    console = Console(file=io.StringIO(), width=120)
    with live(console) as watch:
        progress = SweepProgress(read_sweep(tiny_file), SweepFolder(tmp_path))
        watch(progress)
        progress.note("no room; waiting")
        progress.progress("encoding with the teacher", 3, 9)
        wait_until(lambda: "encoding with the teacher 3/9" in console.file.getvalue())
    lines = console.file.getvalue().splitlines()
    assert any("encoding with the teacher 3/9" in line for line in lines)
    (messages,) = (line for line in lines if "no room; waiting" in line)
    assert re.fullmatch(r"\[\d+:\d\d\] no room; waiting", messages)
    assert progress.latest == "", "it was in another stage"
    assert "no room; waiting" in SweepFolder(tmp_path).log.read_text(encoding="utf-8")


def test_attaching_without_a_terminal_prints_lines_until_the_sweep_ends(tiny_file, tmp_path):
    from babeltune.sweep.driver.run import only_driver

    folder = SweepFolder(tmp_path / "sweeps" / "tiny-0123456789")
    folder.path.mkdir(parents=True)
    folder.write("sweep.json", read_sweep(tiny_file))
    console = Console(file=io.StringIO(), width=120)
    ended = threading.Event()

    def watch():
        attach(folder, console)
        ended.set()

    with only_driver(folder):
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        wait_until(console.file.getvalue)
        assert not ended.is_set()
    assert ended.wait(PATIENCE_S)
    assert console.file.getvalue().startswith("tiny-0123456789")
