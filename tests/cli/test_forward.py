"""What a command takes to a cluster that takes jobs, and what comes back of it."""

import base64
import io
import json
import sys
from pathlib import Path

import pytest

from babeltune.cli.forward import FORWARDED, MAX_SENT_BYTES, WRITTEN, Splitter, answering, packed, sent_name
from babeltune.errors import SpecError

BEGIN = "pip says things\nRunning entrypoint for job a-1: python x\n"


def returned(monkeypatch, tmp_path, command, *names):
    """What comes here if a command writes this on the head: both streams, and the files in a folder `here`."""
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir(exist_ok=True)
    log = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with monkeypatch.context() as there:
        there.chdir(tmp_path / "there")
        there.setenv(FORWARDED, "1")
        there.setattr(sys, "stdout", log)
        there.setattr(sys, "stderr", log)  # one stream, as a job's log is
        with answering():
            command()
    log.flush()
    text = BEGIN + log.buffer.getvalue().decode()
    monkeypatch.chdir(tmp_path / "here")
    out, err = io.StringIO(), io.StringIO()
    split = Splitter(out, err, names)
    for start in range(0, len(text), 1000):
        split.write(text[start : start + 1000])
    split.end()
    return out.getvalue(), err.getvalue()


def test_a_commands_streams_come_back_apart_and_in_order(monkeypatch, tmp_path):
    def command():
        print("a warning\nof two lines", file=sys.stderr)
        print('{"an": "answer"}')
        sys.stderr.write("a library\n")
        print("and more", end="")

    assert returned(monkeypatch, tmp_path, command) == (
        '{"an": "answer"}\nand more\n',
        "a warning\nof two lines\na library\n",
    )


def test_files_that_the_user_named_come_back_whole(monkeypatch, tmp_path):
    content = bytes(range(256)) * 1000

    def command():
        for name in ("report.html", "model/weights", "model/empty", "other"):
            path = tmp_path / "there" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"" if name.endswith("empty") else content)

    assert returned(monkeypatch, tmp_path, command, "report", "--out=report.html", "model") == ("", "")
    here = tmp_path / "here"
    assert sorted(path.name for path in here.rglob("*")) == ["empty", "model", "report.html", "weights"]
    assert (here / "report.html").read_bytes() == (here / "model" / "weights").read_bytes() == content
    assert (here / "model" / "empty").read_bytes() == b""


@pytest.mark.parametrize("name", ["/tmp/x", "../x", "out/../../x"])
def test_a_head_writes_no_file_that_nobody_named(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    split = Splitter(io.StringIO(), io.StringIO(), ["out"])
    split.write(f"{BEGIN}\x1d{json.dumps(name)} {base64.b64encode(b'x').decode()}\n")
    split.end()
    assert list(tmp_path.iterdir()) == []


def test_a_file_too_large_for_a_log_stays_there_and_its_place_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr("babeltune.cli.forward.MAX_RETURNED_BYTES", 10)
    out, err = returned(monkeypatch, tmp_path, lambda: (tmp_path / "there" / "big").write_bytes(b"x" * 11), "big")
    assert out == ""
    start, place = err.rstrip("\n").split("; it is on the head: ")
    assert start == "big is too large to come back"
    assert Path(place).read_bytes() == b"x" * 11


def test_the_arguments_go_with_the_files_and_variables_that_they_name(monkeypatch, tmp_path):
    (tmp_path / "own.yaml").write_text("data:\n  root: ${DATA}\nteacher: {model: '${MODELS}/x', token: ${A_TOKEN}}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more.yaml").write_text("seed: 1\n")
    monkeypatch.chdir(tmp_path)
    for name in ("DATA", "MODELS", "A_TOKEN", "UNNAMED"):
        monkeypatch.setenv(name, f"/{name}")
    whole = str(tmp_path / "folder" / "more.yaml")
    call = packed(
        ["submit", "own.yaml", "--with", "folder/more.yaml", f"--spec={whole}", "--cluster", "c.yaml"], "c.yaml"
    )
    assert call.arguments == (
        *("submit", "own.yaml", "--with", "folder/more.yaml", "--spec=more.yaml", "--cluster", "c.yaml"),
    )
    assert set(call.files) == {"own.yaml", "folder/more.yaml", "more.yaml"}
    assert call.variables == {"MODELS": "/MODELS"}, "the head has data of its own, and no secret is sent"


def test_a_file_that_was_there_and_is_written_anew_comes_back(monkeypatch, tmp_path):
    old, same = (tmp_path / "there" / name for name in ("report.html", "same.html"))

    def command():
        old.write_text("new, and longer")

    (tmp_path / "there").mkdir()
    old.write_text("old")
    same.write_text("same")
    returned(monkeypatch, tmp_path, command, "report.html", "same.html")
    assert (tmp_path / "here" / "report.html").read_text() == "new, and longer"
    assert not (tmp_path / "here" / "same.html").exists()


def test_the_file_of_a_language_goes_along(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("fr.tsv").write_text("un\tdeux\n")
    call = packed(["transfer", "m", "--test", "fr=fr.tsv", "--set", "training.pairs=5"], "c.yaml")
    assert call.files == {"fr.tsv": b"un\tdeux\n"}
    assert call.arguments == ("transfer", "m", "--test", "fr=fr.tsv", "--set", "training.pairs=5")


def test_a_long_setting_is_no_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    setting = f"parameters={{temperature: {{choice: [{', '.join(['0.05'] * 60)}]}}}}"
    assert packed(["submit", "--set", setting, f"--set={setting}"], "c.yaml").arguments[2] == setting


def test_the_workbook_of_a_named_sheet_goes_along(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("book.xlsx").write_bytes(b"PK")
    whole = tmp_path / "book.xlsx"
    call = packed(["init", "book.xlsx[Sheet 2]", f"{whole}[one]", "missing.xlsx[one]"], "c.yaml")
    assert call.arguments == ("init", "book.xlsx[Sheet 2]", "1/book.xlsx[one]", "missing.xlsx[one]")
    assert call.files == {"book.xlsx": b"PK", "1/book.xlsx": b"PK"}


def test_a_folder_that_an_output_goes_to_is_there_on_the_head(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("reports/of").mkdir(parents=True)
    call = packed(["report", "sweep/t0003", "--out", "reports/r.html", "--study=reports/of/s.db", "x.html"], "c.yaml")
    assert call.files == {"reports/.folder": b"", "reports/of/.folder": b""}
    assert call.arguments[3:5] == ("reports/r.html", "--study=reports/of/s.db")


def test_two_files_of_one_name_keep_apart(monkeypatch, tmp_path):
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "x.yaml")
        paths[-1].write_text(folder)
    call = packed(map(str, paths), "c.yaml")
    assert [call.files[name] for name in call.arguments] == [b"a", b"b"]


def test_what_is_too_large_to_go_along_is_refused(monkeypatch, tmp_path):
    with (tmp_path / "text.tsv").open("wb") as file:
        file.truncate(MAX_SENT_BYTES + 1)
    words = r"text.tsv is too large to go along: a command takes 64 MiB to a cluster; copy"
    with pytest.raises(SpecError, match=words):
        packed(["mine", str(tmp_path / "text.tsv")], "c.yaml")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "modules.json").write_text("[]")
    with pytest.raises(SpecError, match="is a model on this machine; copy it to the cluster and name its whole path"):
        packed(["evaluate", str(tmp_path / "model")], "c.yaml")


@pytest.mark.parametrize(
    ("given", "sent"), [("a/b.yaml", "a/b.yaml"), ("/a/b.yaml", "b.yaml"), ("../b.yaml", "b.yaml")]
)
def test_a_file_keeps_its_users_name_below_the_folder(given, sent):
    assert sent_name(given) == sent


def test_what_a_cut_off_command_left_is_in_no_file_that_comes_back(monkeypatch, tmp_path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    line = f"{WRITTEN}{json.dumps('o.tsv')} {base64.b64encode(b'half').decode()}\n"
    Splitter(io.StringIO(), io.StringIO(), ["o.tsv"]).write(BEGIN + line)  # it is killed before its end
    assert not list(Path().iterdir())
    split = Splitter(io.StringIO(), io.StringIO(), ["o.tsv"])
    split.write(BEGIN + line)
    split.end()
    assert Path("o.tsv").read_bytes() == b"half"
    assert [path.name for path in Path().iterdir()] == ["o.tsv"]
