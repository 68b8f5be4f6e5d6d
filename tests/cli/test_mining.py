"""mine, score, retrieve and encode as people and programs call them; what they do is judged in tests/mining."""

import gzip
import json
import os
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from babeltune.apps.mining.vectors import EncodingModel
from babeltune.cli import app
from babeltune.errors import BabeltuneError, DataError

TEXT = ["one cat", "two dogs run", "three old houses", "four"]


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Runs a command in an empty folder with a model whose vectors are the letters of a text."""

    def encode(self, texts):
        return np.array([[1 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts], np.float32)

    monkeypatch.setattr(EncodingModel, "encode", encode)
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "s.txt").write_text("\n".join([*TEXT, "", TEXT[0]]))
    (tmp_path / "t.txt").write_text("\n".join(text.upper() for text in TEXT))
    (tmp_path / "p.tsv").write_text("fra\teng\n" + "\n".join(f"{text}\t{text.upper()}" for text in TEXT))

    def run(*arguments, given=None):
        result = CliRunner().invoke(app, list(arguments), input=given)
        if isinstance(result.exception, BabeltuneError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return run


def test_mine_prints_a_summary_and_says_what_it_left_out(call, tmp_path):
    result = call("mine", "s.txt", "t.txt", "model", "--out", "o.tsv", "--json", "--margin", "distance")
    done = json.loads(result.stdout)
    assert (done["pairs"], done["source"]["repeated"], done["settings"]["margin"]) == (4, 1, "distance")
    assert "of 6 lines, 1 repeated, 1 empty" in result.stderr
    assert "searching" in result.stderr
    rows = [line.split("\t") for line in (tmp_path / "o.tsv").read_text().splitlines()]
    assert sorted((s, t) for _, s, t in rows) == sorted((text, text.upper()) for text in TEXT)


def test_ctrl_c_says_that_the_same_command_goes_on(call, monkeypatch):
    def interrupted(self, texts):
        raise KeyboardInterrupt

    whole = EncodingModel.encode
    monkeypatch.setattr(EncodingModel, "encode", interrupted)
    result = CliRunner().invoke(app, ["mine", "s.txt", "t.txt", "model", "--out", "o.tsv"])
    assert result.exit_code == 130
    assert "the same command again goes on where it was" in result.stderr
    monkeypatch.setattr(EncodingModel, "encode", whole)
    assert "4 pairs" in call("mine", "s.txt", "t.txt", "model", "--out", "o.tsv").stdout


def test_a_file_of_one_column_is_no_pairs(call):
    with pytest.raises(BabeltuneError, match="no column '1'"):
        call("score", "s.txt", "model", "--out", "o.tsv")


def test_score_reads_named_columns(call, tmp_path):
    result = call("score", "p.tsv", "model", "--out", "o.tsv", "--columns", "fra,eng", "--k", "2")
    assert "4 pairs, mean" in result.stdout
    rows = [line.split("\t")[1:] for line in (tmp_path / "o.tsv").read_text().splitlines()]
    assert rows == [[text, text.upper()] for text in TEXT]
    with pytest.raises(BabeltuneError, match="is not SOURCE,TARGET"):
        call("score", "p.tsv", "model", "--out", "o.tsv", "--columns", "fra")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("score", "p.tsv", "nosuch/model", "--columns", "fra,en", "--out", "o"), "p.tsv:1: no column 'en'; columns: "),
        (("score", "nosuch.tsv", "nosuch/model", "--out", "o"), "nosuch.tsv does not exist"),
        (("mine", "s.txt", "nosuch.txt", "nosuch/model", "--out", "o"), "nosuch.txt does not exist"),
        (("mine", "s.txt", "empty", "nosuch/model", "--out", "o"), "empty holds nothing to encode (the file is empty)"),
        (("score", "zeros", "nosuch/model", "--out", "o"), "zeros is no text file: it holds zero bytes"),
        (("mine", "p.tsv", "p.tsv", "nosuch/model", "--columns", "fra,en", "--out", "o"), "no column 'en'; columns: "),
        (("retrieve", "s.txt", "t.txt", "nosuch/model", "--gold", "g", "--out", "o"), "g does not exist"),
    ],
)
def test_a_wrong_file_or_column_is_named_before_the_model(arguments, words, call, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "zeros").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(BabeltuneError, match=re.escape(words)):
        call(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("mine", "s.txt", "t.txt", "model", "--out", "t.txt"),
        ("mine", "s.txt", "t.txt", "model", "--out", "./s.txt"),
        ("mine", "s.txt", "t.txt", "model", "--out", "link"),
        ("score", "p.tsv", "model", "--out", "p.tsv"),
        ("retrieve", "s.txt", "t.txt", "model", "--out", "s.txt"),
        ("retrieve", "s.txt", "t.txt", "model", "--gold", "t.txt", "--out", "t.txt"),
    ],
)
def test_no_file_that_is_read_is_overwritten(arguments, call, tmp_path):
    (tmp_path / "link").symlink_to("t.txt")
    content = [(tmp_path / name).read_bytes() for name in ("s.txt", "t.txt", "p.tsv")]
    with pytest.raises(BabeltuneError, match=f"--out {arguments[-1].removeprefix('./')} is a file that is read, too"):
        call(*arguments)
    assert [(tmp_path / name).read_bytes() for name in ("s.txt", "t.txt", "p.tsv")] == content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "fr,en\nOui.,Yes.\nNon.,No.\n"),
        ("a.tsv", "Oui.\tYes.\nNon.\tNo.\n"),
        ("a.txt", "source\ttarget\nOui.\tYes.\nNon.\tNo.\n"),
        ("a", '{"fr": "Oui.", "en": "Yes."}\n{"fr": "Non.", "en": "No."}\n'),
    ],
)
def test_a_table_without_columns_named_is_no_text(name, content, call, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(BabeltuneError, match=r"with the columns .*; say which of each file: --columns SOURCE,TARGET"):
        call("mine", name, "t.txt", "model", "--out", "o.tsv")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("score", "p.tsv", "nosuch/model", "--columns", "fr,en", "--out", "no/o"),
         ["--out no/o: there is no folder", "p.tsv:1: no column 'fr'", "p.tsv:1: no column 'en'"]),
        (("score", "nosuch.tsv", "nosuch/model", "--out", "."), ["--out . is a folder", "nosuch.tsv does not exist"]),
        (("mine", "s.tx", "t.tx", "nosuch/model", "--out", "."),
         ["--out . is a folder", "s.tx does not exist", "t.tx does not exist"]),
        (("retrieve", "s.txt", "t.tx", "nosuch/model", "--gold", "g", "--out", "no/o"),
         ["--out no/o: there is no folder", "t.tx does not exist", "g does not exist"]),
    ],
)  # fmt: skip
def test_all_that_is_wrong_is_said_at_once(arguments, lines, call):
    with pytest.raises(BabeltuneError) as caught:
        call(*arguments)
    said = str(caught.value).splitlines()
    assert len(said) == len(lines)
    for words, line in zip(lines, said, strict=True):
        assert line.startswith(words)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        "init x --out o.yaml",
        "score x nosuch/model --out o",
        "mine x t.txt nosuch/model --out o",
        "retrieve s.txt x nosuch/model --out o",
        "retrieve s.txt t.txt nosuch/model --gold x --out o",
        "filter x nosuch/model --out o --tokens 10",
        "transfer nosuch/model --task xnli --train x --test fr=p.tsv",
        "transfer nosuch/model --task xnli --train x --test fr=x --dev x",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_by_name_and_never_waited_for(arguments, kind, call, tmp_path):
    if kind == "pipe":
        os.mkfifo(tmp_path / "x")
    else:
        (tmp_path / "x").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"x is a pipe, socket or device, not a file; write what it gives into a file"):
        call(*arguments.split())


def test_a_pipe_that_the_shell_has_opened_is_read(call, tmp_path):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        file.write((tmp_path / "p.tsv").read_text(encoding="utf-8"))
    try:
        assert "pairs, mean" in call("score", f"/dev/fd/{reader}", "model", "--out", "o.tsv", "--k", "2").stdout
    finally:
        os.close(reader)


def test_retrieve_prints_the_precision_at_1(call, tmp_path):
    (tmp_path / "gold").write_text("1\n2\n3\n3\n1\n1\n")
    result = call("retrieve", "s.txt", "t.txt", "model", "--out", "o.tsv", "--gold", "gold", "--k", "9")
    assert "precision at 1 0.8000, 4 queries in o.tsv" in result.stdout
    assert "k is 9, but the number of different candidates is 4" in result.stderr
    assert "s.txt: of 6 lines, 1 repeated, 1 empty" in result.stderr
    assert len((tmp_path / "o.tsv").read_text().splitlines()) == 16
    assert "precision" not in call("retrieve", "s.txt", "t.txt", "model", "--out", "o.tsv").stdout


def test_encode_reads_standard_input(call, tmp_path):
    assert "4 vectors of 26 dimensions" in call("encode", "model", "--out", "v.npy", given="\n".join(TEXT)).stdout
    assert np.load(tmp_path / "v.npy").shape == (4, 26)


def test_a_pipe_and_a_link_as_output_stay_what_they_are(call, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        call("score", "p.tsv", "model", "--out", "pipe", "--k", "2")
        assert len(os.read(reader, 1 << 16).decode().splitlines()) == 4
    finally:
        os.close(reader)
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    call("score", "p.tsv", "model", "--out", "link", "--k", "2")
    assert (tmp_path / "link").is_symlink()
    assert len((tmp_path / "file").read_text().splitlines()) == 4


def test_the_name_of_an_output_is_printed_as_it_is(call):
    for name in ("out[fra].tsv", "a[/b].tsv", ":100: " + 200 * "x" + ".tsv"):
        printed = call("score", "p.tsv", "model", "--out", name.replace("/", "_"), "--k", "2").stdout
        assert printed.endswith(f"in {name.replace('/', '_')}\n")


def test_a_damaged_packed_input_is_named_with_its_line(call):
    whole = gzip.compress("\n".join(TEXT * 500).encode())
    for content in (whole[:-20], whole[:40] + b"\0" + whole[41:]):
        with pytest.raises(DataError, match=r"standard input:\d+: cannot be read: .*; fetch or pack the file again"):
            call("encode", "model", "--out", "v.npy", given=content)


def test_what_cannot_be_is_refused_with_exit_code_2(call, tmp_path):
    (tmp_path / "r.txt").write_text("\n".join(text.upper() for text in reversed(TEXT)))
    for words, arguments in (
        ("same sentences", ("mine", "t.txt", "r.txt", "model", "--out", "o")),
        ("does not exist", ("mine", "absent", "t.txt", "model", "--out", "o")),
        ("same sentences", ("mine", "t.txt", "t.txt", "model", "--out", "o")),
        ("no such folder", ("mine", "s.txt", "t.txt", "./nothing", "--out", "o")),
        (
            "leave out --cluster",
            ("mine", "s.txt", "t.txt", "model", "--out", "o", "--index", "ivf", "--cluster", "clusters/local.yaml"),
        ),
    ):
        with pytest.raises(BabeltuneError, match=words) as caught:
            call(*arguments)
        assert caught.value.exit_code == 2
