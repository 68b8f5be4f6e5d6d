"""From text files to pairs: broken lines, repeats, interruptions, indices and clusters."""

import bz2
import functools
import gzip
import hashlib
import importlib
import io
import json
import lzma
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import ray
import torch

from babeltune.apps.filtering import select
from babeltune.apps.mining import index, mine, resumable_search, vectors
from babeltune.apps.mining.ray_search import both_ways_by_ray
from babeltune.apps.mining.resumable_search import ResumableSearch
from babeltune.apps.mining.sentences import LONGEST, read_pairs, read_sentences
from babeltune.apps.mining.vectors import EncodingModel, embed, model_at
from babeltune.data.stored_arrays import open_matrix
from babeltune.errors import DataError, SpecError
from babeltune.files import json_text, plain
from babeltune.schema.cluster import Cluster
from corpora import bundled
from searches import both_ways
from small_models import exported_student
from waiting import PATIENCE_S, wait_until
from workbooks import xlsx

pytestmark = pytest.mark.usefixtures("one_thread")
TOY = EncodingModel("toy", "digest")


def vector_of(text):
    """A direction that the words decide, whatever their case: `Six cats` and `SIX CATS` are translations."""
    seeds = [int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) for word in text.lower().split()]
    return sum((np.random.default_rng(seed).normal(size=16) for seed in seeds), np.zeros(16)).astype(np.float32)


@pytest.fixture
def encoded(monkeypatch):
    """The toy model, and the texts that it encoded."""
    encoded_texts = []

    def encode(self, texts):
        encoded_texts.extend(texts)
        return np.stack([vector_of(text) for text in texts])

    monkeypatch.setattr(EncodingModel, "encode", encode)
    monkeypatch.setattr(vectors, "SHARD", 8)
    return encoded_texts


def sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    words = [f"word{i}" for i in range(200)]
    return [" ".join(rng.choice(words, 6)) for _ in range(count)]


def write(path, lines):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return path


def toy(storage, progress=lambda *_: None):
    return mine.Encoding(models=(TOY, TOY), storage=storage, progress=progress)


def run(tmp_path, source, target, **settings):
    noted = []
    encoding = toy(tmp_path / "storage", lambda *a: noted.append(a))
    done = mine.mine(source, target, tmp_path / "out.tsv", mine.MiningSettings(**settings), encoding)
    return done, [line.split("\t") for line in (tmp_path / "out.tsv").read_text("utf-8").splitlines()], noted


# Reading


def test_broken_lines_are_counted_and_repeats_stand_once(tmp_path):
    lines = [
        "\ufeffone", b"\xff\xfe broken", "two\twith\ttabs", "", "   ", "a\0b", "one", "x" * (3 * LONGEST), "three\r",
        "line\u2028two", *sentences(90),
    ]  # fmt: skip
    for name in ("text.txt", "text.txt.gz"):
        spilled, counts = read_sentences(write(tmp_path / name, lines), tmp_path / "spill")
        assert spilled[:4] == ["one", "two with tabs", "three", "line two"]
        assert spilled[3] == "line two"
        assert (counts.read, counts.usable, counts.repeated) == (100, 94, 1)
        assert (counts.empty, counts.broken) == (2, {"not UTF-8": 1, "zero byte": 1, "too long": 1})
        places = "2 empty (first line 4), 1 not UTF-8 (line 2), 1 zero byte (line 6), 1 too long (line 8)"
        assert counts.faults() == f"1 repeated, {places}"


def test_a_file_that_holds_nothing_says_what_it_held(tmp_path):
    with pytest.raises(DataError, match=r"2 lines: 1 empty \(line 1\), 1 zero byte \(line 2\)"):
        read_sentences(write(tmp_path / "a.txt", ["", "\0"]), tmp_path / "spill")
    with pytest.raises(DataError, match=r"6 of 100 lines are broken \(6 not UTF-8\), more than 5%"):
        read_sentences(write(tmp_path / "b.txt", [b"\xff"] * 6 + ["", *sentences(93)]), tmp_path / "spill")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="the file is empty"):
        read_sentences(tmp_path / "empty.txt", tmp_path / "spill")
    with pytest.raises(DataError, match="does not exist"):
        read_sentences(tmp_path / "absent.txt", tmp_path / "spill")
    whole = write(tmp_path / "cut.gz", sentences(500)).read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.gz:\d+: cannot be read"):
        read_sentences(tmp_path / "cut.gz", tmp_path / "spill")


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_text_in_utf16_is_read_with_and_without_a_mark(encoded, tmp_path, codec):
    for mark in ("\ufeff", ""):
        raw = f"{mark}Bonjour.\tHello.\r\nMerci beaucoup.\tThank you.\r\n".encode(codec)
        (tmp_path / "t").write_bytes(raw)
        assert read_sentences(tmp_path / "t", tmp_path / "a")[0][:] == ["Bonjour. Hello.", "Merci beaucoup. Thank you."]
        assert read_pairs(tmp_path / "t", tmp_path / "b").source[:] == ["Bonjour.", "Merci beaucoup."]
        mine.encode(io.BytesIO(raw), TOY, tmp_path / "o.npy", lambda *_: None)
        assert encoded[-2:] == ["Bonjour.\tHello.", "Merci beaucoup.\tThank you."]


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst", "zip"])
def test_a_packed_file_is_recognised_by_its_content_and_not_by_its_name(tmp_path, name):
    text = sentences(60)
    (tmp_path / "plain.fra").write_bytes(packed(name, "".join(f"{line}\n" for line in text).encode()))
    assert read_sentences(tmp_path / "plain.fra", tmp_path / "spill")[0][:] == text


def packed(name, content):
    if name == "zst":
        return bytes(pa.Codec("zstd").compress(content, asbytes=True))
    if name == "zip":
        with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("corpus.fra", content)
        return file.getvalue()
    return {"gz": gzip, "bz2": bz2, "xz": lzma}[name].compress(content)


def test_a_pipe_that_nobody_writes_is_said_and_then_read(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("babeltune.apps.mining.sentences.PIPE_WARNING_S", 0.0)
    reader, writer = os.pipe()  # as `<(…)` of a shell
    pipe = Path(f"/proc/self/fd/{reader}")
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(read_sentences, pipe, tmp_path / "spill")
        said = ""

        def is_said():
            nonlocal said
            said += capfd.readouterr().err
            return f"waiting for somebody to write to {pipe}, which is a pipe; Ctrl-C ends it" in said

        try:
            wait_until(is_said)
        finally:
            os.write(writer, b"Bonjour.\n")
            os.close(writer)
        assert reading.result(PATIENCE_S)[1].usable == 1
    os.close(reader)


CYRILLIC = ["Он пришёл.", "Спасибо.", "Доброе утро."]


def test_a_code_page_is_read_if_it_is_named(encoded, tmp_path):
    path = tmp_path / "t"
    path.write_bytes("".join(f"{text}\t{text}\n" for text in CYRILLIC).encode("cp1251"))
    with pytest.raises(DataError, match=r"t:1: not UTF-8: .*name its encoding"):
        read_pairs(path, tmp_path / "a")
    assert read_pairs(path, tmp_path / "a", codec="cp1251").source[:] == CYRILLIC
    assert read_sentences(path, tmp_path / "b", "cp1251")[0][0] == f"{CYRILLIC[0]} {CYRILLIC[0]}"
    mine.encode(io.BytesIO(path.read_bytes()), TOY, tmp_path / "o.npy", lambda *_: None, "cp1251")
    assert encoded[-1] == "\t".join([CYRILLIC[-1]] * 2)


@pytest.fixture
def translations(tmp_path):
    """Two sentences as TMX, PO, XLSX, Parquet and CSV: the files, and the names of their columns."""
    rows = [("eng", "fra"), ("Yes.", "Oui."), ("No.", "Non.")]
    units = "".join(
        f'<tu><tuv xml:lang="eng"><seg>{eng}</seg></tuv><tuv xml:lang="fra"><seg>{fra}</seg></tuv></tu>'
        for eng, fra in rows[1:]
    )
    (tmp_path / "t").write_text(f'<?xml version="1.0"?><tmx version="1.4"><body>{units}</body></tmx>')
    entries = "".join(f'msgid "{eng}"\nmsgstr "{fra}"\n\n' for eng, fra in rows[1:])
    (tmp_path / "p").write_bytes(gzip.compress(f'msgid ""\nmsgstr "Language: fra\\n"\n\n{entries}'.encode()))
    xlsx(tmp_path / "x", Sheet1=rows)
    parquet.write_table(pa.table({"eng": ["Yes.", "No."], "fra": ["Oui.", "Non."]}), tmp_path / "q")
    (tmp_path / "c.csv").write_text("\n".join(",".join(row) for row in rows))
    return tmp_path


@pytest.mark.parametrize("name", ["t", "p", "x", "q", "c.csv"])
def test_a_column_of_a_table_is_read_as_sentences(name, translations):
    for column, expected in (("fra", ["Oui.", "Non."]), ("msgid" if name == "p" else "eng", ["Yes.", "No."])):
        sentences, lines = read_sentences(translations / name, translations / "spill", column=column)
        assert (sentences[:], lines.faults()) == (expected, "")
    with pytest.raises(DataError, match="nosuch"):
        read_sentences(translations / name, translations / "spill", column="nosuch")
    if name != "c.csv":
        with pytest.raises(DataError, match=r"with the columns .*; say which of each file: --columns SOURCE,TARGET"):
            read_sentences(translations / name, translations / "spill")


def test_units_without_a_text_in_the_column_are_empty_and_refuse_no_file(translations):
    text = (translations / "t").read_text()
    (translations / "t").write_text(text.replace("</body>", '<tu><tuv xml:lang="eng"><seg>So.</seg></tuv></tu></body>'))
    sentences, lines = read_sentences(translations / "t", translations / "spill", column="fra")
    assert (sentences[:], lines.faults()) == (["Oui.", "Non."], "1 empty (line 1)")
    assert read_pairs(translations / "t", translations / "spill", ("eng", "fra")).lines.faults() == "1 empty (line 1)"


def test_a_workbook_of_one_column_needs_no_name(tmp_path):
    xlsx(tmp_path / "x", Sheet1=[("Bonjour à tous.",), ("Il est déjà parti.",)])
    assert read_sentences(tmp_path / "x", tmp_path / "spill")[0][:] == ["Bonjour à tous.", "Il est déjà parti."]


def test_pairs_come_by_position_or_by_the_names_of_the_first_line(tmp_path):
    rest = [f"{i}\tun\tuno" for i in range(6, 36)]
    path = write(
        tmp_path / "p.tsv", ["id\tfra\teng", "1\tun\tone", "2\tdeux\ttwo", "3\tseul", "4\t\tfour", "5\tun\tuno", *rest]
    )
    pairs = read_pairs(path, tmp_path / "spill", ("fra", "eng"))
    assert [(pairs.source[i], pairs.target[j]) for i, j in zip(pairs.sources, pairs.targets, strict=True)] == [
        ("un", "one"), ("deux", "two"), *[("un", "uno")] * 31,
    ]  # fmt: skip
    assert len(pairs.source) == 2
    assert (pairs.lines.read, pairs.lines.usable, pairs.lines.broken, pairs.lines.empty) == (
        35, 33, {"column count": 1}, 1,
    )  # fmt: skip
    assert [len(read_pairs(path, tmp_path / "spill", columns).sources) for columns in (None, ("1", "2"))] == [33, 34]
    with pytest.raises(DataError, match="no column 'deu'"):
        read_pairs(path, tmp_path / "spill", ("deu", "eng"))


MEMORY = "<tmx version='1.4'><header/><body>{}</body></tmx>"
UNIT = "<tu><tuv xml:lang='fr'><seg>{}</seg></tuv><tuv xml:lang='en'><seg>{}</seg></tuv></tu>"
CATALOGUE = 'msgid ""\nmsgstr "Language: en\\nContent-Type: text/plain; charset=UTF-8\\n"\n'
TWO = [("Oui, bien sûr.", 'He said "yes".'), ("Non ; merci", "No; thanks")]


def in_format(path, kind):
    """Writes two pairs in a format of files."""
    po = functools.partial(json.dumps, ensure_ascii=False)
    doubled = [[text.replace('"', '""') for text in pair] for pair in TWO]
    if kind == "parquet":
        parquet.write_table(pa.table({"fr": [a for a, _ in TWO], "en": [b for _, b in TWO]}), path)
        return
    text = {
        "csv": "".join(f'"{a}","{b}"\n' for a, b in doubled),
        "excel": "SEP=;\n" + "".join(f'"{a}";"{b}"\n' for a, b in doubled),
        "quoted": "".join(f'"{a}"\t"{b}"\n' for a, b in doubled),
        "jsonl": "".join(json.dumps({"fr": a, "en": b}) + "\n" for a, b in TWO),
        "tmx": MEMORY.format("".join(UNIT.format(*map(escape, pair)) for pair in TWO)),
        "po": CATALOGUE + "".join(f"\nmsgid {po(a)}\nmsgstr {po(b)}\n" for a, b in TWO),
    }[kind]
    path.write_text(text)


@pytest.mark.parametrize("kind", ["csv", "excel", "quoted", "jsonl", "parquet", "tmx", "po"])
def test_pairs_come_from_every_format_that_a_sweep_reads(tmp_path, kind):
    path = tmp_path / ("pairs.csv" if kind in ("csv", "excel") else "pairs")
    in_format(path, kind)
    pairs = read_pairs(path, tmp_path / "spill")
    assert list(zip(pairs.source[:], pairs.target[:], strict=True)) == TWO
    selected = select.read_pairs(str(path), None)
    assert list(zip(selected.source, selected.target, strict=True)) == TWO


def test_a_header_is_no_pair_and_a_first_row_that_may_be_one_is(tmp_path, caplog):
    rows = [f"Die Katze Nummer {i} schläft.,The cat number {i} sleeps.\n" for i in range(30)]
    path = tmp_path / "pairs.csv"
    path.write_text("".join(["Deutscher Satz,Englischer Satz\n", *rows]))
    assert len(read_pairs(path, tmp_path / "spill").sources) == 30
    assert not caplog.records
    path.write_text("".join(["Hallo,Hello\n", *rows]))
    assert read_pairs(path, tmp_path / "spill").source[0] == "Hallo"
    assert "the first row (Hallo, Hello) was taken for a pair" in caplog.text


def test_the_margins_that_mine_writes_are_no_text_to_score(tmp_path):
    path = tmp_path / "mined.tsv"
    path.write_text("".join(f"{margin}\t{a}\t{b}\n" for margin, (a, b) in zip((2.5, 1.25), TWO, strict=True)))
    pairs = read_pairs(path, tmp_path / "spill")
    assert list(zip(pairs.source[:], pairs.target[:], strict=True)) == TWO


def test_a_sheet_is_named_beside_its_workbook(tmp_path):
    xlsx(tmp_path / "book.xlsx", first=[["x", "y"]], second=[list(pair) for pair in TWO])
    assert read_pairs(tmp_path / "book.xlsx[second]", tmp_path / "spill", ("0", "1")).target[:] == [b for _, b in TWO]


def test_of_a_file_with_more_named_columns_two_are_to_be_said(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"id": "1", "fr": "Oui", "en": "Yes"}\n')
    with pytest.raises(DataError, match="has the columns id, fr, en; say which two: --columns SOURCE,TARGET"):
        read_pairs(path, tmp_path / "spill")
    assert read_pairs(path, tmp_path / "spill", ("fr", "en")).target[:] == ["Yes"]


@pytest.mark.parametrize("names", ["id,English,French", "source_lang,source,target", "text1,lang1,text2"])
def test_of_a_table_with_more_named_columns_two_are_to_be_said(tmp_path, names):
    path = tmp_path / "pairs.csv"
    path.write_text(names + "\n" + "".join(f"doc-{row},Hello there {row},Bonjour à tous {row}\n" for row in range(9)))
    listed = names.replace(",", ", ")
    with pytest.raises(DataError, match=f"has the columns {listed}; say which two: --columns SOURCE,TARGET"):
        read_pairs(path, tmp_path / "spill")
    second, third = names.split(",")[1:]
    assert read_pairs(path, tmp_path / "spill", (second, third)).target[8] == "Bonjour à tous 8"


# Mining


def test_known_pairs_are_found_best_first_whatever_surrounds_them(encoded, tmp_path):
    text = sentences(60)
    source = write(tmp_path / "s.txt", [*text[:40], *text[:5], "", b"\xff"])
    target = write(tmp_path / "t.txt.gz", [*reversed([line.upper() for line in text[:30]]), *text[40:]])
    done, rows, noted = run(tmp_path, source, target, margin="absolute", threshold=0.999)
    assert {(s, t) for _, s, t in rows} == {(line, line.upper()) for line in text[:30]}
    scores = [float(score) for score, _, _ in rows]
    assert scores == sorted(scores, reverse=True)
    assert done.pairs == 30
    assert done.source.repeated == 5
    assert done.source.broken == {"not UTF-8": 1}
    assert not list(mine.warnings_about(done))
    assert json.loads(json_text(done)) == json.loads(json.dumps(plain(done)))
    assert ("encoding sources", 40, 40) in noted
    assert noted[-1] == ("searching", 40 * 50, 40 * 50)
    assert [path.name for path in (tmp_path / "storage").iterdir()] == ["vectors"], "no text is left behind"


def test_an_interrupted_run_encodes_only_what_is_missing(encoded, tmp_path, monkeypatch):
    text = sentences(40)
    source, target = write(tmp_path / "s.txt", text), write(tmp_path / "t.txt", [line.upper() for line in text])
    shard, built = vectors.encode_shard, []

    def killed(*arguments):
        if len(built) == 3:
            raise KeyboardInterrupt
        built.append(arguments)
        return shard(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(vectors, "encode_shard", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, source, target)
    assert not (tmp_path / "out.tsv").exists()
    assert encoded == text[:24]
    encoded.clear()
    done, rows, noted = run(tmp_path, source, target)
    assert encoded == [*text[24:], *(line.upper() for line in text)]
    assert noted[2] == ("encoding sources", 24, 40)
    encoded.clear()
    again, same, _ = run(tmp_path, source, target)
    assert (encoded, again, same) == ([], done, rows)


def test_another_model_language_or_prompt_is_encoded_again(encoded, tmp_path):
    text, _ = read_sentences(write(tmp_path / "s.txt", sentences(3)), tmp_path / "spill")
    others = (EncodingModel("moved", "digest"), EncodingModel("toy", "x"), EncodingModel("toy", "digest", "query: "))
    models = (TOY, *others, EncodingModel("toy", "digest", None, "fra"))
    folders = {embed(text, model, tmp_path / "root", tmp_path)[0] for model in models}
    assert len(folders) == 4, "a model that only moved is the same"


def test_a_damaged_shard_is_encoded_again(encoded, tmp_path):
    text, _ = read_sentences(write(tmp_path / "s.txt", sentences(10)), tmp_path / "spill")
    first, _ = embed(text, TOY, tmp_path / "root", tmp_path)
    (first / "rows.bin").write_bytes(b"short")
    encoded.clear()
    assert embed(text, TOY, tmp_path / "root", tmp_path)[0] == first
    assert len(encoded) == 8
    assert np.array_equal(open_matrix(first).rows(np.arange(8)), np.stack([vector_of(line) for line in text[:8]]))


def test_the_same_text_on_both_sides_is_refused_and_few_sentences_are_said(encoded, tmp_path):
    source, target = write(tmp_path / "s.txt", sentences(3)), write(tmp_path / "t.txt", sentences(9, 1))
    with pytest.raises(DataError, match="hold the same sentences"):
        run(tmp_path, source, source)
    done, _, _ = run(tmp_path, source, target, margin="distance", threshold=9.0)
    warnings = list(mine.warnings_about(done))
    assert any("k is 4, but one side has only 3 different sentences" in words for words in warnings)
    assert any("no pair has a score above 9.0" in words for words in warnings)
    assert (tmp_path / "out.tsv").read_text() == ""


def test_a_ratio_around_cosines_that_are_not_positive_is_warned_of(encoded, tmp_path, monkeypatch):
    def encode(self, texts):
        return np.array([[1, 0.1 * len(text)] if "a" in text else [-1, 0] for text in texts], np.float32)

    monkeypatch.setattr(EncodingModel, "encode", encode)
    source, target = write(tmp_path / "s.txt", ["a", "aa"]), write(tmp_path / "t.txt", ["b", "bb"])
    done, _, _ = run(tmp_path, source, target, k=1)
    assert any("--margin distance" in words for words in mine.warnings_about(done))


def test_an_output_that_cannot_be_written_is_said_before_anything_is_encoded(encoded, tmp_path):
    source = write(tmp_path / "s.txt", sentences(3))
    with pytest.raises(SpecError, match="--out"):
        mine.mine(source, source, tmp_path / "no" / "out", mine.MiningSettings(), toy(tmp_path))
    assert not encoded


# Scoring and encoding


def test_scores_of_given_pairs_stand_in_order_and_are_those_of_mining(encoded, tmp_path):
    text = sentences(20)
    source, target = write(tmp_path / "s.txt", text), write(tmp_path / "t.txt", [line.upper() for line in text])
    _, mined, _ = run(tmp_path, source, target)
    lines = [*(f"{line}\t{line.upper()}" for line in text), "", f"{text[0]}\t{text[1].upper()}"]
    pairs = write(tmp_path / "p.tsv", lines)
    done = mine.score(pairs, tmp_path / "o.tsv", mine.MiningSettings(), toy(tmp_path / "storage"))
    rows = [line.split("\t") for line in (tmp_path / "o.tsv").read_text().splitlines()]
    assert [row[1:] for row in rows[:20]] == [[line, line.upper()] for line in text]
    of_mining, of_scoring = ({tuple(row[1:]): float(row[0]) for row in each} for each in (mined, rows[:20]))
    assert of_mining == pytest.approx(of_scoring, abs=2e-6)
    assert float(rows[20][0]) < min(float(row[0]) for row in rows[:20]), "a wrong pair scores lower"
    assert (done.pairs, done.lines.broken) == (21, {"column count": 1})


@pytest.mark.parametrize("count", [0, 1, 2500])
def test_lines_become_rows_of_a_numpy_file_as_they_come(encoded, tmp_path, count):
    lines = [f"{line}\n".encode() for line in sentences(count)]
    noted = []
    done = mine.encode(io.BytesIO(b"".join(lines)), TOY, tmp_path / "v.npy", lambda *a: noted.append(a))
    rows = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert (rows.shape, rows.dtype, done.rows) == ((count, 16), np.float32, count)
    assert np.array_equal(rows, np.array([vector_of(line.decode()) for line in lines]).reshape(count, 16))
    assert len(noted) == -(-count // mine.BATCH)


def test_a_line_that_is_not_utf8_keeps_its_row(encoded, tmp_path):
    done = mine.encode(io.BytesIO(b"one\n\xff\n\nlast" + b"\nmore" * 20), TOY, tmp_path / "v.npy", lambda *_: None)
    assert (done.rows, done.replaced) == (24, 1)
    assert encoded[1:5] == ["one", "\ufffd", "", "last"]
    with pytest.raises(DataError, match=r"standard input: 2 of 8 lines are broken \(2 not UTF-8\), more than 5%"):
        mine.encode(io.BytesIO(b"\xff\n" * 2 + b"a\n" * 6), TOY, tmp_path / "w.npy", lambda *_: None)
    assert not (tmp_path / "w.npy").exists()


def test_a_line_that_is_too_long_keeps_its_row_and_only_its_beginning(encoded, tmp_path):
    text = "one\n" + "é" * LONGEST + "\nx" + "é" * LONGEST + "\nmore" * 40
    done = mine.encode(io.BytesIO(text.encode()), TOY, tmp_path / "v.npy", lambda *_: None)
    assert (done.rows, done.too_long, done.replaced) == (43, 2, 0)
    assert [len(each.encode()) for each in encoded[-43:-40]] == [3, LONGEST, LONGEST - 1]


# Models


class Routed:
    """As a loaded sentence-transformers model with layers for two languages."""

    def encode(self, texts, *, prompt, task, **_):
        return np.full((len(texts), 2), len(task or ""))


def test_a_model_with_layers_for_each_language_gets_the_language(monkeypatch, tmp_path):
    monkeypatch.setattr("babeltune.promotion.fresh_scorer.open_model", lambda folder: Routed())
    (tmp_path / "2_Router").mkdir()
    (tmp_path / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "2_Router"}]))
    (tmp_path / "2_Router" / "router_config.json").write_text(json.dumps({"structure": {"fra": [], "eng": []}}))
    assert model_at(str(tmp_path), language="fra").encode(["a"]).tolist() == [[3, 3]]
    with pytest.raises(DataError, match="has layers for eng, fra; say whose"):
        model_at(str(tmp_path))
    with pytest.raises(DataError, match="'deu'; there are eng, fra"):
        model_at(str(tmp_path), language="deu")


# Indices and clusters


@pytest.mark.parametrize(
    ("kind", "rows", "recall", "first"), [("ivf", 700, 0.9, 0.99), ("hnsw", 700, 0.99, 0.99), ("pq", 9_984, 0.8, 0.99)]
)
def test_what_an_index_finds_has_exact_scores_and_is_most_of_what_there_is(kind, rows, recall, first):
    """`first` of the nearest, which are translations, and `recall` of the four nearest; three of these are chance."""
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 16)).astype(np.float32)
    y = (x + 0.3 * rng.normal(size=x.shape)).astype(np.float32)
    matches, expected = index.through_index(x, y, 4, kind), both_ways(x, y, 4)
    for ours, exact in ((matches.forward, expected.forward), (matches.backward, expected.backward)):
        same = ours.index == exact.index
        shared = (ours.index[:, :, None] == exact.index[:, None]).any(-1)
        assert shared.float().mean() > recall
        assert same[:, 0].float().mean() > first
        assert torch.allclose(ours.cosine[same], exact.cosine[same], atol=1e-6)
        assert (ours.index >= 0).all()


@pytest.mark.trap(26)
def test_sentences_with_too_few_finds_in_an_index_are_searched_exactly(monkeypatch):
    """D26: faiss's -1 is nobody, and neither the last sentence nor a neighbour."""

    class Silent:
        def search(self, x, count):
            neighbours = np.full((len(x), count), -1)
            return np.zeros((len(x), count), np.float32), neighbours

    monkeypatch.setattr(index, "_filled", lambda kind, candidates, tell: Silent())
    x, y = (np.random.default_rng(seed).normal(size=(30, 8)).astype(np.float32) for seed in (0, 1))
    assert torch.equal(index.through_index(x, y, 3, "ivf").forward.index, both_ways(x, y, 3).forward.index)


def test_the_sample_that_an_index_learns_from_is_bounded():
    assert index.training_size(700, 16) == (17, 700)
    for count in (10**6, 10**7, 10**9):
        lists, trained = index.training_size(count, 384)
        assert trained * 384 <= index.TRAINING
        assert index.FEWEST * lists <= trained
    assert index.training_size(10**7, 384)[0] == int(4 * 10**3.5)


def test_an_index_says_how_far_it_is(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(index, "BLOCK", 16)
    noted = []
    x, y = (np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32) for rows in (30, 40))
    index.through_index(x, y, 2, "hnsw", lambda *a: noted.append(a))
    assert [done for done, _ in noted] == [16, 32, 40, 56, 70, 86, 100, 116, 132, 140]
    assert {of for _, of in noted} == {140}


def test_an_index_without_faiss_or_text_enough_is_refused_with_the_way_out(monkeypatch, tmp_path):
    x = np.ones((40, 8), np.float32)
    with pytest.raises(DataError, match=r"'pq' needs 9,984 sentences .* --index exact"):
        index.through_index(x, x, 2, "pq")

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(DataError, match=r"pip install 'babeltune\[faiss\]'"):
        run(tmp_path, tmp_path / "s", tmp_path / "t", index="ivf")


@pytest.mark.long
def test_blocks_on_a_cluster_give_the_neighbours_of_one_process_also_resumed(
    ray_cluster, encoded, tmp_path, monkeypatch
):
    sides = []
    for name, seed in (("s", 0), ("t", 1)):
        text, _ = read_sentences(write(tmp_path / name, sentences(30, seed)), tmp_path / f"{name}.spill")
        sides.append(embed(text, TOY, tmp_path / "root", tmp_path))
    sides = tuple(sides)
    noted = []

    def stop(*counts):
        noted.append(counts)
        if len(noted) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(resumable_search, "EVERY", 0.0)
    monkeypatch.setattr(resumable_search, "SHARE", 1e9)
    with pytest.raises(KeyboardInterrupt):
        both_ways_by_ray(ResumableSearch(tmp_path, sides, 4, size=(16, 16)), sides, stop, PATIENCE_S)
    search = ResumableSearch(tmp_path, sides, 4, size=(16, 16))
    matches = both_ways_by_ray(search, sides, lambda *a: noted.append(a), PATIENCE_S)
    whole = both_ways(*(open_matrix(*side) for side in sides), 4)
    assert torch.equal(matches.forward.index, whole.forward.index)
    assert torch.equal(matches.backward.index, whole.backward.index)
    assert noted[-1] == (900, 900)
    assert len(noted) == 4, "no block is searched twice"


@pytest.mark.long
@pytest.mark.usefixtures("offline")
def test_a_cluster_mines_the_file_that_one_process_mines(ray_cluster, tmp_path, monkeypatch):
    """Its workers encode three shards a side with a real model, and search nine blocks."""
    sides = list(bundled(40, "fra", "eng", name="natural_dev").values())
    files = [write(tmp_path / f"{number}.txt", side) for number, side in enumerate(sides)]
    folder = exported_student(tmp_path, [*sides[0], *sides[1]], 300, max_tokens=32)
    model, settings = model_at(str(folder)), mine.MiningSettings(margin="distance")
    monkeypatch.setattr(vectors, "SHARD", 16)
    monkeypatch.setattr(mine, "ResumableSearch", functools.partial(ResumableSearch, size=(16, 16)))

    def mined(name, cluster):
        noted = []
        more = {"progress": lambda *a: noted.append(a), "cluster": cluster}
        encoding = mine.Encoding(models=(model, model), storage=tmp_path / f"{name}.storage", **more)
        done = mine.mine(*files, tmp_path / name, settings, encoding)
        assert noted[-1] == ("searching", done.source.usable * done.target.usable, noted[-1][2])
        assert [what for what, _, _ in noted].count("searching") == 9
        return replace(done, out=""), (tmp_path / name).read_bytes()

    here = mined("here.tsv", None)
    address = ray.get_runtime_context().gcs_address
    remote = mined("there.tsv", Cluster(address=address, storage=str(tmp_path / "cluster"), worker_groups=1))
    assert remote == here
    assert here[0].pairs == len(here[1].splitlines()) > 10
