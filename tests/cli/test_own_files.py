"""`babeltune init` as people and programs meet it."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from rich.table import Table

import babeltune
from babeltune.cli.common import console, say
from babeltune.errors import LONGEST_LINE, printable
from babeltune.planning.sweep_file import read_sweep
from corpora import bundled

BUNDLED = Path(babeltune.__file__).parent / "bundled" / "natural_train.tsv"


def test_init_says_what_it_found_and_what_to_do_next(command, tmp_path):
    code, out, err = command("init", BUNDLED, "--out", tmp_path / "own.yaml")
    assert code == 0
    assert "eng in 'eng'" in out
    assert f"next: babeltune plan {tmp_path / 'own.yaml'}" in out
    assert "not used: column 'id'" in err
    assert read_sweep(tmp_path / "own.yaml").name == "own"


def test_init_prints_json_for_programs(command, tmp_path):
    out = command.prints(
        "init", BUNDLED, "--out", tmp_path / "own.yaml", "--columns", "fra=fra", "--columns", "eng=eng", "--json"
    )
    made = json.loads(out)
    assert made["path"] == str(tmp_path / "own.yaml")
    assert made["splits"]["fra-eng"]["dev"] >= 20
    assert list(made["splits"]) == ["fra-eng"], "of the three languages of the file"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--columns", "fra"), "write CODE=COLUMN"),
        (("--columns", "klingon=fra,eng=eng"), "is no code of a language"),
        (("--encoding", "cp9999"), "unknown to Python"),
        (("--out", "own.txt"), "ends in .yaml"),
        (("--out", "nowhere/own.yaml"), "there is no folder"),
        ((str(BUNDLED),), "named twice"),
        (("dta/pairs.csv",), "holds no 'dta'; correct the path"),
    ],
)
def test_a_wrong_option_of_init_is_one_line_and_exit_code_2(given, words, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("init", BUNDLED, *given)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert not out
    assert not list(tmp_path.iterdir())


def test_a_table_of_numbers_has_no_column_of_text(command, tmp_path):
    parquet.write_table(pa.table({"n": [1, 2]}), tmp_path / "n.parquet")
    err = command.refuses("init", tmp_path / "n.parquet", "--out", tmp_path / "own.yaml")
    assert "n.parquet: it was read as parquet and holds no column of text" in err


def test_a_line_that_is_a_list_and_an_archive_that_is_empty_say_so(command, tmp_path):
    lists = tmp_path / "lists.jsonl"
    lists.write_text('["Bonjour, à tous", "Hello"]\n' * 30, encoding="utf-8")
    zipfile.ZipFile(tmp_path / "none.zip", "w").close()
    for file, words in ((lists, "has a JSON list in each line"), (tmp_path / "none.zip", "is an empty ZIP archive")):
        err = command.refuses("init", file, "--out", tmp_path / "own.yaml")
        assert words in err


@pytest.mark.long
def test_a_full_sweep_file_is_written_from_another_folder(tmp_path):
    (tmp_path / "own.tsv").write_bytes(BUNDLED.read_bytes())
    command = [sys.executable, "-m", "babeltune.cli"]
    done = subprocess.run([*command, "init", "own.tsv"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"own.tsv", "my_sweep.yaml", "my_sweep_data"}


@pytest.fixture
def mistaken(tmp_path, monkeypatch):
    """A folder with a file where a folder is wanted, a damaged workbook and a link to nothing."""
    monkeypatch.chdir(tmp_path)
    Path("afile").touch()
    Path("dangling").symlink_to("nothing")
    Path("pairs.tsv").write_text("fra\teng\n" + "".join(f"un {i}\tone {i}\n" for i in range(40)))
    with zipfile.ZipFile("book.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    whole = Path("book.xlsx").read_bytes()
    Path("book.xlsx").write_bytes(whole.replace(b"PK\x01\x02", b"PK\x09\x09", 1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan ~nouser/x.yaml", "a path begins with ~ and a name that is no user's here; write the whole path"),
        ("init ~nouser/x.tsv", "a path begins with ~ and a name that is no user's here; write the whole path"),
        ("skill --out afile/SKILL.md", "--out afile/SKILL.md: afile cannot be made"),
        ("init book.xlsx", "book.xlsx"),
        ("init pairs.tsv --encoding hex", "encoding 'hex' is unknown to Python; name another"),
        ("filter pairs.tsv model --out dangling --tokens 9", "--out dangling exists already"),
        ("filter pairs.tsv model --out afile/x --tokens 9", "--out afile/x: afile cannot be made"),
    ],
)
def test_a_mistake_is_no_defect_of_ours(mistaken, command, words, said):
    code, out, err = command(*words.split())
    assert (code, out) == (2, ""), err
    assert said in err
    assert "a defect of babeltune" not in err


def test_a_number_with_thousands_of_digits_is_refused(command, tiny_file):
    err = command.refuses("plan", tiny_file, "--set", 'training.pairs="1e5000"')
    assert "training.pairs" in err
    assert "a defect of babeltune" not in err


def test_an_error_holds_no_picture_for_its_line_number():
    screen = console(stderr=True)
    with screen.capture() as captured:
        screen.print("news.tsv:100: column count: a :ok: b", markup=False)
    assert captured.get() == "news.tsv:100: column count: a :ok: b\n"


@pytest.mark.long
def test_two_messy_tables_are_a_trained_sweep_without_an_edit(tmp_path):
    rows = list(zip(*bundled(400, "fra", "rus", "eng").values(), strict=True))
    french = [f"{fra}\t{eng}\n" for fra, _, eng in rows]
    russian = [f"{i}\t{rus}\t{eng}\t{i % 2}\n" for i, (_, rus, eng) in enumerate(rows)]
    (tmp_path / "clients.tsv").write_bytes("".join([*french, *french[:30], "\n"]).encode("cp1252", "replace"))
    head = "Nr\tRussian text\tEnglish text\tok\n"
    (tmp_path / "export.tsv").write_text("".join([head, *russian, "broken\n"]), encoding="utf-16")

    def run(*arguments):
        command = [sys.executable, "-m", "babeltune.cli", *arguments]
        environment = {**os.environ, "BABELTUNE_HOME": str(tmp_path / "storage")}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    plan, submit = json.loads(run("init", "clients.tsv", "export.tsv", "--json"))["next"]
    run(*shlex.split(plan)[1:])
    run(*shlex.split(submit)[1:], "--set", "budget.trials=2")
    found = json.loads(run("status", "my_sweep", "--json"))
    assert found["state"] == "finished"
    trials = [row for row in found["leaderboard"] if row["name"].startswith("t0")]
    assert len(trials) == 2
    assert max(row["metrics"]["dev/mine/accuracy"] for row in trials if row["state"] == "finished") > 0.1


def test_no_escape_of_a_file_reaches_the_terminal(tmp_path, capfd):
    from babeltune.cli.common import console

    console().print("head\x1b[31m \u202eabc", markup=False)
    console().print(Table("a\x1b]0;title\x07", box=None))
    written = capfd.readouterr().out
    assert "\x1b" not in written
    assert "\u202e" not in written
    assert "head\\x1b[31m \\u202eabc" in written


HOSTILE = "z\x1b[31m\u202e\x9b2J" + "long" * 2_500
"""A name that paints a terminal, turns the writing around, and fills the screen."""
DATA = "data: {train: [{name: a, path: a.tsv, columns: {fra: fra, eng: eng}}], split: {pairs: 20}}\n"
METHOD, OBJECTIVES = "method: soft_contrastive\n", "objectives: [{metric: dev/accuracy}]\n"
WHOLE = f"name: a\n{METHOD}{OBJECTIVES}{DATA}"


def files_with(name, folder):
    """A file of each kind that has the name somewhere, and the commands that read it."""
    quoted = json.dumps(name)
    files = {
        "head.tsv": f"{name}\teng\n" + "oui\tyes\n" * 3,
        "head.csv": f"{name},{name}\n" + "oui,yes\n" * 3,
        "row.tsv": f"fra\teng\n{name}\t{name}\t{name}\n",
        "key.jsonl": f'{{{quoted}: "oui", "eng": {quoted}}}\n' * 3,
        "twice.jsonl": f"{{{quoted}: 1, {quoted}: 2}}\n" * 3,
        "text.txt": f"{name}\n" * 3,
        "memory.tmx": f'<tmx version="1.4"><body><tu><tuv xml:lang="{name[9:]}"><seg>x</seg></tuv></tu></body></tmx>',
        "catalogue.po": f'msgid ""\nmsgstr ""\n"Language: {name}\\n"\n\nmsgid "a"\nmsgstr "b"\n',
    }
    spec = {
        "key.yaml": f"{WHOLE}? {quoted}\n: 1\n",
        "inner.yaml": f"{WHOLE}training: {{? {quoted} : 1}}\n",
        "name.yaml": WHOLE.replace("name: a\nm", f"name: {quoted}\nm"),
        "method.yaml": WHOLE.replace("soft_contrastive", quoted),
        "teacher.yaml": f"{WHOLE}teacher: {{model: {quoted}}}\n",
        "source.yaml": WHOLE.replace("{name: a", f"{{name: {quoted}"),
        "path.yaml": WHOLE.replace("a.tsv", quoted),
        "column.yaml": WHOLE.replace("fra: fra", f"fra: {quoted}"),
        "metric.yaml": WHOLE.replace("dev/accuracy", quoted),
        "tag.yaml": f"name: !{name[9:]} a\n",
    }
    for file, content in {**files, **spec}.items():
        (folder / file).write_text(content, encoding="utf-8")
    parquet.write_table(pa.table({name: ["oui"] * 3, f"{name}2": [1, 2, 3]}), folder / "head.parquet")
    yield from (("init", folder / file, "--out", folder / "own.yaml") for file in (*files, "head.parquet"))
    yield from (("plan", folder / file) for file in spec)
    yield ("plan", folder / "name.yaml", "--cluster", folder / "key.yaml")
    yield ("plan", folder / "name.yaml", "--set", f"{name}=1")
    yield from ((command, name[:99]) for command in ("status", "show", "stop", "promote", "report", "methods"))


def test_a_hostile_name_in_any_file_neither_paints_nor_fills_the_terminal(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in files_with(HOSTILE, tmp_path):
        code, out, err = command(*arguments)
        words = f"{arguments[0]} {str(arguments[1])[-20:]!r}: {(out + err)[:300]!r}"
        assert code in (1, 2), words
        assert "defect of babeltune" not in err, words
        assert printable(out + err) == out + err, words
        assert max(map(len, (out + err).splitlines())) <= LONGEST_LINE + len("warning: "), words


def test_json_has_control_characters_by_its_own_escapes(capsys):
    say({"name": "a\x9b\u202eé"}, True, lambda: None)
    assert capsys.readouterr().out == '{\n  "name": "a\\u009b\\u202eé"\n}\n'
