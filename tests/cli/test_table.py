"""The table of trials at the widths that terminals have, and the live view around it."""

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from babeltune.cli.render import show_leaderboard
from babeltune.cli.table import TrialsTable, running_first
from babeltune.cli.terminal_view import _Attached, picture
from babeltune.files import plain
from babeltune.planning.sweep_file import read_sweep
from babeltune.stages import Stage
from babeltune.sweep.driver.run import only_driver
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.progress import SweepProgress, doing_words, read_stage, running_words, sweep_document
from made_sweeps import add_trial, make_sweep

METRIC = "dev/everyday/accuracy"
PARAMS = {"temperature": 0.0123456, "training.learning_rate": 0.00123456, "student.width": 512, "queue": 65536}
REASON = "step 1234: loss is nan; lower training.learning_rate or raise the temperature, then submit again"


@pytest.fixture
def rows():
    """Finished, pruned, failed and running trials, and a baseline with a long name."""
    scored = {METRIC: 0.876543, "model/parameters": 12_345_678, "model/sentences_per_second": 12345.6}
    best = Row(
        name="t0117", state="finished", params=PARAMS, metrics=scored, reports=5, step=12345, steps=12345,
        seconds=4321, best=5, curve=(0.1, 0.5, 0.7, 0.8, 0.876543),
    )  # fmt: skip
    return [
        best,
        replace(best, name="t0003", state="pruned", kind="pruned", reason="stopped by asha at report 2"),
        Row(name="paraphrase-multilingual-MiniLM-L12-v2", state="finished", metrics=scored),
        replace(best, name="t0120", state="running", loss=1.234567, step=777),
        Row(name="t0118", state="failed", params=PARAMS, reason=REASON, kind="refused"),
        replace(best, name="t0121", state="running", loss=1.5, metrics={}, best=None, curve=()),
    ]


def shown(value, width, **more):
    console = Console(file=io.StringIO(), width=width, **more)
    console.print(value)
    return console.file.getvalue()


@pytest.mark.parametrize("costs", [False, True])
@pytest.mark.parametrize("width", [80, 90, 120, 160, 200])
def test_a_table_folds_nothing_at_any_width(rows, tiny_file, width, costs):
    lines = shown(TrialsTable(rows, read_sweep(tiny_file), costs=costs), width).splitlines()
    table = lines[: len(rows) + 1]
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in table[1:]][0:2] == ["t0117", "t0003"], "a line each"
    assert all("0.8765" in table[place] for place in (1, 2, 3, 4)), "the objective is never left out"
    whole = {"temperature=0.01235", "learning_rate=0.001235", "training.learning_rate=0.001235", "width=512"}
    whole |= {"student.width=512", "queue=65536", "…"}
    for line in (table[1], table[2], table[4]):
        settings = [word for word in line.split() if "=" in word or word == "…"]
        assert settings
        assert set(settings) <= whole, "a setting is shown whole or not at all"
    reason = " ".join(lines[len(rows) + 1 :])
    assert f"t0118 (failed): {REASON}" in " ".join(reason.split())
    assert "asha" not in reason


def test_a_wide_table_has_what_a_narrow_one_leaves_out(rows, tiny_file):
    def titles(width):
        return shown(TrialsTable(rows, read_sweep(tiny_file), costs=True), width).splitlines()[0].split()

    assert {"report", "step", "time", "loss", "curve", "size", "sentences/s"} <= set(titles(200))
    assert {"trial", "state", "settings"} <= set(titles(80))
    assert not {"size", "sentences/s", "time"} & set(titles(80))
    assert titles(80)[-2].endswith("accuracy"), "of a long title the end is kept"


@pytest.mark.parametrize("width", [120, 160, 200])
def test_titles_that_end_alike_differ(rows, tiny_file, width):
    other = "dev/everyday/fra-eng/accuracy"
    scored = [replace(row, metrics={**row.metrics, other: 0.5}) for row in rows]
    head = shown(TrialsTable(scored, read_sweep(tiny_file), other, costs=True), width).splitlines()[0].split()
    assert len({title for title in head if title.endswith("accuracy")}) == 2, head


def test_a_sweep_with_several_objectives_keeps_them_all(rows, tiny_file):
    two = read_sweep(tiny_file, assignments=[f"objectives=[{{metric: {METRIC}}}, {{metric: dev/sts/spearman}}]"])
    starred = [replace(row, front=True, metrics={**row.metrics, "dev/sts/spearman": 0.7123}) for row in rows]
    lines = shown(TrialsTable(starred, two), 80).splitlines()
    assert lines[1].startswith("t0117 ★")
    assert "0.8765" in lines[1]
    assert "0.7123" in lines[1]


def test_running_trials_stand_first_and_then_the_best(rows, tiny_file):
    names = [row.name for row in running_first(rows)]
    assert names[:4] == ["t0120", "t0121", "t0117", "t0003"]
    many = running_first([*(replace(rows[0], name=f"t{number:04d}") for number in range(100)), *rows])
    lines = shown(TrialsTable(many, read_sweep(tiny_file), height=12), 80).splitlines()
    assert len(lines) <= 12, "the second line of a reason counts, too"
    assert lines[-1].endswith("submit again"), "it is whole"
    assert [line.split()[0] for line in lines[1:3]] == ["t0120", "t0121"], "the newest is on the screen"
    assert any(re.match(r"… and \d+ more", line) for line in lines)


def test_equal_reasons_share_a_line(tiny_file):
    failed = [Row(name=f"t{number:04d}", state="failed", reason=REASON) for number in range(5)]
    lines = shown(TrialsTable(failed, read_sweep(tiny_file)), 200).splitlines()
    assert lines[6:] == [f"t0000, t0001, t0002 and 2 more (failed): {REASON}"]


def test_no_color_is_respected_on_a_terminal(rows, tiny_file, monkeypatch):
    def printed():
        console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
        console.print(TrialsTable(rows, read_sweep(tiny_file)))
        return console.file.getvalue()

    color = re.compile(r"\x1b\[[0-9;]*3[0-7]")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert color.search(printed())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not color.search(printed())


@pytest.fixture
def folder(tiny_file, tmp_path):
    made = make_sweep(tmp_path, read_sweep(tiny_file), state="running")
    made.write("baselines.json", {"scores": {"teacher": {METRIC: 0.5}}})
    add_trial(made, 0, [0.2, 0.6], "finished", temperature=0.1)
    add_trial(made, 1, [0.3], temperature=0.07)
    return made


def test_the_live_view_fits_its_height_with_running_trials_first(folder):
    progress = SweepProgress(folder.sweep(), folder, stage="searching", done=1, of=2, ended=1)
    lines = shown(picture(progress, 24), 80).splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith(f"{folder.id} · searching 1/2")
    titles = next(place for place, line in enumerate(lines) if line.startswith("trial"))
    assert titles == 2, "the bar has a line of its own"
    assert [line.split()[0] for line in lines[titles + 1 : titles + 4]] == ["t0001", "t0000", "teacher"]


@pytest.mark.parametrize("height", [9, 14, 24])
def test_the_live_view_fits_its_height_if_its_stage_and_message_wrap(folder, height):
    for number in range(2, 30):
        add_trial(folder, number, [0.1], "failed", REASON, temperature=0.1 + number)
    progress = SweepProgress(folder.sweep(), folder, done=9535, of=9535, ended=1)
    progress.stage = "encoding with the teacher sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
    progress.latest = "worker group 2 of 2 is lost: its node did not answer for 60 s; its trial t0001 begins anew"
    lines = shown(picture(progress, height), 80).splitlines()
    assert len(lines) <= height
    assert len("".join(lines[:2])) > 80, "the stage wraps"
    assert any(line.startswith("t0001") for line in lines), "the running trial is on the screen"
    assert height < 24 or f"(failed): {REASON}" in " ".join(" ".join(lines).split())


def test_an_attached_view_fits_the_terminals_height_if_its_stage_wraps(folder):
    for number in range(2, 30):
        add_trial(folder, number, [0.1], "finished", temperature=0.1 + number)
    progress = SweepProgress(folder.sweep(), folder)
    progress.progress("encoding with the teacher sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", 1, 9)
    console = Console(file=io.StringIO(), width=80, height=14)
    console.print(_Attached(folder, folder.sweep()))
    assert len(console.file.getvalue().splitlines()) == 14


def test_status_shows_running_trials_first_and_the_stage_of_its_driver(command, folder, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(folder.path.parents[1]))
    with only_driver(folder):
        SweepProgress(folder.sweep(), folder).progress("encoding with the teacher", 30, 120)
        code, out, _ = command("status", folder.id)
        stage = sweep_document(folder).stage
    assert code == 0
    assert "encoding with the teacher 30/120" in out
    assert out.index("t0001") < out.index("t0000")
    assert (stage.name, stage.done, stage.of) == ("encoding with the teacher", 30, 120)
    assert sweep_document(folder).stage is None, "its driver is gone"


def test_a_running_trial_says_that_it_evaluates_how_fast_and_how_long(folder):
    stage = Stage(name="evaluating", done=1200, of=3000, begun=100.0, time=104.0)
    progress = {"step": 30, "steps": 60, "loss": 1.5, "stage": plain(stage)}
    (folder.trial(1) / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    words = "evaluating 1,200/3,000 · 300 sentences/s · about 0:06 left"
    with only_driver(folder):
        assert running_words(leaderboard(folder)) == f" · running t0001 50% ({words})"
        drawn = shown(picture(SweepProgress(folder.sweep(), folder, stage="searching", done=1, of=2)), 80)
    assert f"t0001 (running): {words}" in drawn
    (folder.trial(1) / "progress.json").write_text('{"step": 30, "stage": {"of": "another"}}', encoding="utf-8")
    assert running_words(leaderboard(folder)) == " · running t0001"


def test_a_stage_is_written_at_its_beginning_and_end(folder):
    assert read_stage(folder) is None
    assert doing_words(folder, []) == "running", "the last line of the log"
    progress = SweepProgress(folder.sweep(), folder)
    for done in range(1, 101):
        progress.progress("tokenizing", done, 100)
        if done == 1:
            assert read_stage(folder).done == 1
    assert (read_stage(folder).name, read_stage(folder).done) == ("tokenizing", 100)
    folder.write("stage.json", {"of": "another version"})
    assert read_stage(folder) is None


def test_a_leaderboard_keeps_the_best_first(folder):
    console = Console(file=io.StringIO(), width=80)
    show_leaderboard(folder, console)
    names = [line.split()[0] for line in console.file.getvalue().splitlines()[1:4]]
    assert names == ["t0000", "teacher", "t0001"]
