"""Every format is read, and every way in which text can be broken is an error with its place, or counted."""

import bz2
import csv
import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import socket
import string
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any_source import any_source
from babeltune.data import arrow_readers
from babeltune.data.corpus import build_corpus
from babeltune.data.sources import Rows, language_pairs, read_file, read_graded, read_source
from babeltune.data.text_keys import text_key
from babeltune.data.texts import Texts
from babeltune.errors import DataError
from babeltune.schema.records import Bitext, CsvSource, Data, MosesSource, PivotSource, Source, Sts, TsvSource
from waiting import PATIENCE_S
from workbooks import ods, xlsx

TABLE = "id\teng\tfra\na\tGood morning.\tBonjour.\nb\tThank you.\tMerci.\n"
ENGLISH, FRENCH = ["Good morning.", "Thank you."], ["Bonjour.", "Merci."]
RECORDS = [
    {"id": 1, "translation": {"en": "Good morning.", "fr": "Bonjour."}},
    {"id": 2, "translation": {"en": "Thank you.", "fr": "Merci."}},
]
COLUMNS = {"eng": "translation.en", "fra": "translation.fr"}


def put(folder: Path, name: str, content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return name


def table(path: str, **settings: object) -> Source:
    return any_source(**{"name": "s", "path": path, "columns": {"eng": "eng", "fra": "fra"}, **settings})


def json_lines(columns: dict[str, list[object]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def lines(folder: Path, **contents: str | bytes) -> Source:
    paths = {language: put(folder, f"{language}.txt", content) for language, content in contents.items()}
    return MosesSource(name="s", format="moses", paths=paths)


def read(source: Source, root: Path, **others: Rows) -> Rows:
    return read_source(source, root, others=others)


def refused(source: Source, root: Path, **others: Rows) -> str:
    with pytest.raises(DataError) as caught:
        read(source, root, **others)
    return str(caught.value)


def dropped(source: Source, root: Path) -> dict[str, int]:
    return read(dataclasses.replace(source, on_error="drop", max_dropped=1.0), root).dropped


# --- formats -------------------------------------------------------------------------------------------------------


class WhileReading:
    """A digest that lets another program write the file as soon as its content is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def update(self, block: bytes) -> None:
        os.utime(self.path, ns=(1, 1))


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz", "t.csv", "t.jsonl", "t.parquet", "t.xlsx", "t.ods"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, name):
    path, cells = tmp_path / name, [["eng", "fra"], *zip(ENGLISH, FRENCH, strict=True)]
    format_ = path.suffix[1:] if path.suffix != ".gz" else "tsv"
    if format_ == "parquet":
        parquet.write_table(pa.table({"eng": ENGLISH, "fra": FRENCH}), path)
    elif format_ in ("xlsx", "ods"):
        (xlsx if format_ == "xlsx" else ods)(path, sheet=cells)
    else:
        rows = "".join(("," if format_ == "csv" else "\t").join(row) + "\n" for row in cells)
        put(tmp_path, name, json_lines({"eng": ENGLISH, "fra": FRENCH}) if format_ == "jsonl" else rows)
    source = table(name, format=format_)
    assert len(list(read_file(source, path, ["eng", "fra"], hashlib.sha256(), 1000))) == 2
    with pytest.raises(DataError, match=r"was changed while it was read; let what writes it end"):
        list(read_file(source, path, ["eng", "fra"], WhileReading(path), 1000))


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz"])
def test_a_table_is_read_by_column_name_and_digested_unpacked(tmp_path, name):
    rows = read(table(put(tmp_path, name, TABLE), id="id"), tmp_path)
    assert rows.columns == {"eng": ENGLISH, "fra": FRENCH}
    assert rows.ids == ["a", "b"]
    assert rows.digest == hashlib.sha256(TABLE.encode()).hexdigest()
    assert rows.dropped == {}
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("content", "eng", "fra"),
    [
        pytest.param('eng\tfra\n"Yes\tOui"\n"a" b\tc\n', ['"Yes', '"a" b'], ['Oui"', "c"], id="quotes have no meaning"),
        pytest.param(b"\xef\xbb\xbfeng\tfra\r\nYes\tOui\r\n", ["Yes"], ["Oui"], id="windows line ends and a mark"),
        pytest.param(
            "eng\tfra\nYes\u2028indeed\x85\tOui\x1d!\n", ["Yes\u2028indeed"], ["Oui\x1d!"], id="unicode separators"
        ),
    ],
)
def test_only_tabs_and_line_ends_separate_the_texts_of_a_table(tmp_path, content, eng, fra):
    assert read(table(put(tmp_path, "t.tsv", content)), tmp_path).columns == {"eng": eng, "fra": fra}


def test_a_first_line_says_whether_it_or_the_encoding_has_to_be_mended(tmp_path):
    put(tmp_path, "latin.tsv", "eng\tfran\u00e7ais\nYes\tOui\n".encode("latin-1"))
    assert refused(table("latin.tsv"), tmp_path).endswith("; save the file as UTF-8, or name its encoding")
    put(tmp_path, "long.tsv", f"eng\t{'x' * 2_000_000}\nYes\tOui\n")
    assert refused(table("long.tsv"), tmp_path).endswith("; correct the file's first line")


def test_a_table_without_header_is_read_by_column_number(tmp_path):
    source = table(put(tmp_path, "t.tsv", "x\tYes\tOui\ny\tNo\tNon\n"), header=False, columns={"eng": "1", "fra": "2"})
    assert read(source, tmp_path).columns == {"eng": ["Yes", "No"], "fra": ["Oui", "Non"]}


@pytest.mark.parametrize("id_name", [None, "id"])
def test_a_filter_keeps_the_rows_that_have_its_values(tmp_path, id_name):
    put(tmp_path, "t.tsv", TABLE + "a\tGood day.\tBonne journée.\n")
    rows = read(table("t.tsv", where={"id": "a"}, id=id_name), tmp_path)
    assert rows.columns == {"eng": ["Good morning.", "Good day."], "fra": ["Bonjour.", "Bonne journée."]}
    assert rows.ids == (["a", "a"] if id_name else [])
    assert "no column 'ix'" in refused(table("t.tsv", where={"ix": "a"}), tmp_path)
    assert "has no rows" in refused(table("t.tsv", where={"id": "c"}), tmp_path)


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_json_lines_are_read_through_dotted_columns(tmp_path, name):
    path = put(tmp_path, name, "".join(json.dumps(record) + "\n" for record in RECORDS))
    rows = read(table(path, format="jsonl", columns=COLUMNS, id="id"), tmp_path)
    assert (rows.columns, rows.ids) == ({"eng": ENGLISH, "fra": FRENCH}, ["1", "2"])


def test_parquet_is_read_through_dotted_columns(tmp_path):
    parquet.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "t.parquet")
    rows = read(table("t.parquet", format="parquet", columns=COLUMNS, id="id"), tmp_path)
    assert (rows.columns, rows.ids) == ({"eng": ENGLISH, "fra": FRENCH}, ["1", "2"])
    assert rows.digest == hashlib.sha256((tmp_path / "t.parquet").read_bytes()).hexdigest()


def bomb(path: Path, rows: int, size: int, **kind: object) -> Source:
    """A small file of many large texts: each row has the same two."""
    texts = [pa.array(["Yes" * (size // 3)]), pa.array(["Oui" * (size // 3)])]
    once = [pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), text) for text in texts]
    columns = once if not kind else [each.cast(pa.string()) for each in once]
    parquet.write_table(pa.table(columns, ["eng", "fra"]), path, compression="zstd", **kind)
    return table(path.name, format="parquet")


PREFIXES = {"use_dictionary": False, "column_encoding": {"eng": "DELTA_BYTE_ARRAY", "fra": "DELTA_BYTE_ARRAY"}}


@pytest.mark.parametrize(
    ("rows", "bytes_"), [(40, 1 << 20), pytest.param(4000, arrow_readers.PARQUET_BYTES, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("at_a_time", [10, arrow_readers.ARROW_ROWS])
def test_a_parquet_file_of_a_few_bytes_that_fills_the_memory_is_refused(rows, bytes_, at_a_time, tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_readers, "PARQUET_BYTES", bytes_)
    monkeypatch.setattr(arrow_readers, "ARROW_ROWS", at_a_time)
    source = bomb(tmp_path / "t.parquet", rows, 1_000_000 if rows > 40 else 100_000)
    assert "MB of text and more in" in refused(source, tmp_path)


@pytest.mark.parametrize(
    ("rows", "memory"), [(120, 150 << 20), pytest.param(1000, arrow_readers.PARQUET_MEMORY, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("kind", [PREFIXES, {"use_dictionary": False, "data_page_size": 1 << 30}])
def test_a_parquet_file_whose_pages_are_too_large_is_refused(rows, memory, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_readers, "PARQUET_MEMORY", memory)
    source = bomb(tmp_path / "t.parquet", rows, 1_000_000, **kind)
    assert f"takes more than {memory >> 20} MB to read" in refused(source, tmp_path)


@pytest.mark.parametrize("kind", [PREFIXES, {}])
def test_parquet_with_many_equal_texts_and_few_values_of_a_column_is_read(kind, tmp_path):
    rows = [f"Sentence {i % 50} of this corpus." for i in range(20_000)]
    parquet.write_table(pa.table({"eng": rows, "fra": rows, "lang": ["fra"] * len(rows)}), tmp_path / "t", **kind)
    assert read(table("t", format="parquet", where={"lang": "fra"}), tmp_path).columns["eng"] == rows


def test_parquet_columns_of_each_kind_of_text_and_several_batches_are_read(tmp_path):
    texts = [f"text {i}" for i in range(10_050)]
    for kind in (pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.large_string()):
        content = pa.table({"eng": texts, "fra": pa.array(texts).cast(kind)})
        parquet.write_table(content, tmp_path / "t.parquet")
        assert read(table("t.parquet", format="parquet"), tmp_path).columns == {"eng": texts, "fra": texts}


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst", "zip"])
def test_a_packed_table_is_read_whatever_its_name(name, tmp_path):
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as file:
        file.writestr("t.tsv", TABLE)
    raw = TABLE.encode()
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zip": lambda _: archive.getvalue()}.get(
        name
    )
    put(tmp_path, "t.tsv", pack(raw) if pack else bytes(pa.Codec("zstd").compress(raw, asbytes=True)))
    assert read(table("t.tsv"), tmp_path).columns == {"eng": ENGLISH, "fra": FRENCH}


@pytest.mark.slow
def test_a_data_root_in_brackets_holds_files_and_data_sets(tmp_path, offline, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (root := tmp_path / "root [v2]").mkdir()
    (root / "news[2019]").mkdir()
    content = "".join(json.dumps(record) + "\n" for record in RECORDS)
    put(root / "news[2019]", "rows.jsonl", content)
    for _ in range(2):  # what `datasets` caches is no part of the folder
        assert read(hub("news[2019]"), root).columns == {"eng": ENGLISH, "fra": FRENCH}
    rows = read(table("news[2019]/rows.jsonl", format="jsonl", columns=COLUMNS), root)
    assert rows.columns == {"eng": ENGLISH, "fra": FRENCH}


@pytest.mark.slow
def test_a_data_set_whose_first_file_has_no_text_names_that_cause(tmp_path, offline, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "rows").mkdir()
    put(tmp_path / "rows", "a.jsonl", '{"translation": null}\n' * 50)
    put(tmp_path / "rows", "b.jsonl", '{"translation": {"fr": "Oui.", "en": "Yes."}}\n' * 50)
    words = refused(hub("rows", columns={"fra": "translation.fr", "eng": "translation.en"}), tmp_path)
    assert "a column of its first file has no text; correct its files" in words
    assert "that the hub can be reached" not in words


def test_moses_files_are_joined_by_line(tmp_path):
    rows = read(lines(tmp_path, eng="Good morning.\nThank you.\n", fra="Bonjour.\nMerci."), tmp_path)
    assert rows.columns == {"eng": ENGLISH, "fra": FRENCH}
    assert rows.ids == []


def test_several_tables_are_joined_on_their_id_in_the_first_ones_order(tmp_path):
    eng = put(tmp_path, "eng.tsv.gz", "id\ttext\n2\tThank you.\n1\tGood morning.\n9\tOnly here.\n")
    fra = put(tmp_path, "fra.tsv.gz", "id\ttext\n1\tBonjour.\n2\tMerci.\n")
    for on_error in ("fail", "drop"):  # an id that one file lacks is no broken row
        rows = read(TsvSource(name="s", paths={"eng": eng, "fra": fra}, id="id", on_error=on_error), tmp_path)
        assert rows.columns == {"eng": ENGLISH[::-1], "fra": FRENCH[::-1]}
        assert rows.ids == ["2", "1"]
        assert rows.dropped == {"id not in every file": 1}


def test_several_tables_are_joined_by_line(tmp_path):
    paths = {"eng": put(tmp_path, "e.tsv", "text\nYes\nNo\n"), "fra": put(tmp_path, "f.tsv", "text\nOui\nNon\n")}
    assert read(TsvSource(name="s", paths=paths, join="line"), tmp_path).columns["fra"] == ["Oui", "Non"]


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def hub(name: str, **settings: object) -> Source:
    return any_source(**{"name": "s", "format": "hub", "dataset": name, "columns": COLUMNS, "id": "id", **settings})


@pytest.mark.slow
def test_a_saved_data_set_is_read_by_split_with_its_translation_column(tmp_path, offline):
    features = datasets.Features(
        {"id": datasets.Value("int64"), "translation": datasets.Translation(languages=("en", "fr"))}
    )
    train = datasets.Dataset.from_list(RECORDS, features=features)
    datasets.DatasetDict({"train": train, "validation": train.select([1])}).save_to_disk(str(tmp_path / "saved"))
    assert read(hub("saved"), tmp_path).columns == {"eng": ENGLISH, "fra": FRENCH}
    rows = read(hub("saved", split="validation"), tmp_path)
    assert (rows.columns["fra"], rows.ids) == (["Merci."], ["2"])
    assert "did you mean 'validation'?" in refused(hub("saved", split="valid"), tmp_path)
    assert "did you mean 'translation.en'?" in refused(hub("saved", columns={"eng": "translation.eng"}), tmp_path)


@pytest.mark.slow
def test_a_single_saved_split_and_a_folder_of_files_are_read_as_data_sets(tmp_path, offline, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.Dataset.from_list(RECORDS).save_to_disk(str(tmp_path / "saved"))
    saved = read(hub("saved"), tmp_path)
    (tmp_path / "files").mkdir()
    parquet.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "files" / "train.parquet")
    loaded = read(hub("files"), tmp_path)
    assert saved.columns == loaded.columns == {"eng": ENGLISH, "fra": FRENCH}
    assert saved.digest == loaded.digest


@pytest.mark.slow
def test_a_data_set_that_cannot_be_reached_is_an_error_that_names_it(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert "'nobody/nothing' of source 's' cannot be loaded" in refused(hub("nobody/nothing"), tmp_path)


def test_a_data_sets_folder_is_read_anew_when_its_files_change(tmp_path, monkeypatch):
    """The cache of `datasets` tells folders apart by their last name and card alone."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    card = "---\nconfigs:\n- config_name: en-fr\n  data_files:\n  - split: test\n    path: test.jsonl\n---\n"
    source = hub("set", subset="en-fr", split="test", columns={"eng": "eng", "fra": "fra"}, id=None, revision="c0ffee")
    for text in ("first", "second"):
        for folder in ("one", "two"):
            (tmp_path / folder / "set").mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "set/README.md").write_text(card, encoding="utf-8")
            row = json.dumps({"eng": f"{text} {folder}", "fra": "f"})
            (tmp_path / folder / "set/test.jsonl").write_text(row + "\n", encoding="utf-8")
            assert list(read(source, tmp_path / folder).columns["eng"]) == [f"{text} {folder}"]


@pytest.mark.slow
def test_the_heavy_readers_are_imported_only_when_they_read():
    heavy = "{'pyarrow', 'datasets', 'pandas', 'torch'}"
    code = f"import babeltune.data.sources, sys; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- broken input --------------------------------------------------------------------------------------------------

BROKEN_ROWS = {
    "column count": (b"Yes\tOui\tSi", "3 columns in 'Yes | Oui | Si', where line 1 has 2"),
    "empty side": (b"Yes\t ", "nothing in 'fra'"),
    "not UTF-8": (
        b"Yes\tOu\xe9",
        r"'Yes\tOu\\xe9' at byte 6 (unexpected end of data); save the file as UTF-8, name its",
    ),
    "zero byte": (b"Y\0s\tOui", "text has no zero byte; correct it"),
}
BROKEN_JSON = {
    "not JSON": (b'{"eng": "Yes"', "each line is one JSON object"),
    "missing column": (b'{"eng": "Yes", "fre": "Oui"}', "no key 'fra'; keys: eng, fre; did you mean 'fre'?"),
    "not text": (b'{"eng": "Yes", "fra": 3}', "'fra' is '3', of type int"),
    "empty side": (b'{"eng": "Yes", "fra": null}', "nothing in 'fra'"),
    "not UTF-8": (b'{"eng": "Yes", "fra": "\\ud800"}', "half a surrogate pair"),
}


@pytest.mark.parametrize(
    ("suffix", "reason", "raw", "words"),
    [
        *(("tsv", reason, *row) for reason, row in BROKEN_ROWS.items()),
        *(("jsonl", reason, *row) for reason, row in BROKEN_JSON.items()),
    ],
)
def test_a_broken_row_is_an_error_with_file_and_line_or_dropped_and_counted(tmp_path, suffix, reason, raw, words):
    before, after = (b"eng\tfra\nA\tB\n", b"C\tD\n") if suffix == "tsv" else [b'{"eng": "A", "fra": "B"}\n'] * 2
    source = table(put(tmp_path, f"t.{suffix}", before + raw + b"\n" + after), format=suffix)
    message = refused(source, tmp_path)
    assert message.startswith(f"{tmp_path / 't'}.{suffix}:{3 if suffix == 'tsv' else 2}: {reason}: ")
    assert words in message
    assert "`on_error: drop` in source 's'" in message
    assert dropped(source, tmp_path) == {reason: 1}


@pytest.mark.parametrize(
    ("content", "way"),
    [
        ('[{"eng": "A", "fra": "B"}]', "`jq -c '.[]' FILE` makes them"),
        ('{"eng": "A", "fra": "B"}{"eng": "C", "fra": "D"}', "`jq -c . FILE` gives each object a line"),
        ('{\n"eng": "A",\n"fra": "B"\n}', "`jq -c . FILE` gives each object a line"),
        ('["A", "B"]', "`jq -c '.[]' FILE` makes them"),
    ],
)
def test_another_kind_of_json_says_how_it_becomes_lines(tmp_path, content, way):
    message = refused(table(put(tmp_path, "t.jsonl", content + "\n"), format="jsonl"), tmp_path)
    assert way in message
    assert "t.jsonl:1: not JSON" in message


@pytest.mark.parametrize("format", ["tsv", "csv", "jsonl"])
@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf16_is_read_with_and_without_a_mark(tmp_path, format, codec):
    text = {"tsv": "eng\tfra\nДа\tOui\n", "csv": "eng,fra\nДа,Oui\n", "jsonl": '{"eng": "Да", "fra": "Oui"}\n'}[format]
    for mark in ("\ufeff", ""):
        source = table(put(tmp_path, "t", (mark + text).encode(codec)), format=format)
        assert read(source, tmp_path).columns["eng"][:] == ["Да"]


def test_broken_parquet_rows_are_errors_with_file_and_row_or_counted(tmp_path):
    bad = pa.array([b"Oui", b"Ou\xe9", b"Non"]).view(pa.string())
    parquet.write_table(pa.table({"eng": ["Yes", "Yes", "No"], "fra": bad}), tmp_path / "t.parquet")
    source = table("t.parquet", format="parquet")
    assert f"{tmp_path / 't.parquet'}:2: not UTF-8" in refused(source, tmp_path)
    assert dropped(source, tmp_path) == {"not UTF-8": 1}
    parquet.write_table(pa.table({"eng": ["Yes", "No"], "fra": [1, 2]}), tmp_path / "n.parquet")
    assert "n.parquet:1: not text" in refused(table("n.parquet", format="parquet"), tmp_path)
    misspelt = table("t.parquet", format="parquet", columns={"eng": "eng", "fra": "fr"})
    assert "did you mean 'fra'" in refused(misspelt, tmp_path)
    put(tmp_path, "x.parquet", "not parquet at all")
    assert "cannot be read as Parquet" in refused(table("x.parquet", format="parquet"), tmp_path)


XML = {
    "tmx": '<tmx version="1.4"><header/><body>{}</body></tmx>',
    "xliff": '<xliff version="1.2"><file source-language="eng" target-language="fra"><body>{}</body></file></xliff>',
}
UNIT = {
    "tmx": '<tu><tuv xml:lang="eng"><seg>{}</seg></tuv><tuv xml:lang="fra"><seg>{}</seg></tuv></tu>',
    "xliff": '<trans-unit id="1"><source>{}</source><target>{}</target></trans-unit>',
}


@pytest.mark.parametrize(("format", "place"), [("xlsx", 3), ("ods", 3), ("tmx", 2), ("xliff", 2), ("hub", 2)])
def test_a_broken_row_of_a_workbook_a_unit_and_a_record_are_named_by_their_place(tmp_path, offline, format, place):
    texts = [["Yes", "Oui"], ["x" * 3000, "Non"], ["Bye", "Salut"]]
    path = tmp_path / f"t.{format}"
    if format in UNIT:
        path.write_text(XML[format].format("\n".join(UNIT[format].format(*row) for row in texts)), encoding="utf-8")
    elif format == "hub":
        datasets.Dataset.from_list([dict(zip(("eng", "fra"), row, strict=True)) for row in texts]).save_to_disk(path)
    else:
        (xlsx if format == "xlsx" else ods)(path, sheet=[["eng", "fra"], *texts])
    columns = {"eng": "eng", "fra": "fra"}
    source = hub(path.name, columns=columns, id=None) if format == "hub" else table(path.name, format=format)
    with pytest.raises(DataError, match=rf"{re.escape(path.name)}\S*:{place}: too long: .*has at most 1,000"):
        read_source(source, tmp_path, others={}, longest=1000)
    rows = read_source(dataclasses.replace(source, on_error="drop", max_dropped=1.0), tmp_path, others={}, longest=1000)
    assert rows.columns["fra"][:] == ["Oui", "Salut"]
    assert rows.dropped == {"too long": 1}
    assert f":{place}: " in rows.firsts["too long"]


def test_unequal_line_counts_are_an_error_that_names_both_files_or_counted(tmp_path):
    source = lines(tmp_path, eng="Yes\nNo\nMaybe\nNever\n", fra="Oui\nNon\n")
    words = f"{tmp_path / 'eng.txt'}:3: unequal line counts: {tmp_path / 'fra.txt'} ends after line 2"
    assert refused(source, tmp_path).startswith(words)
    assert dropped(source, tmp_path) == {"unequal line counts": 2}


def test_a_broken_line_of_a_moses_file_is_named_in_its_own_file(tmp_path):
    source = lines(tmp_path, eng=b"Yes\nNo\n", fra=b"Oui\n\xff\n")
    assert refused(source, tmp_path).startswith(f"{tmp_path / 'fra.txt'}:2: not UTF-8")
    assert dropped(source, tmp_path) == {"not UTF-8": 1}


def test_a_duplicate_id_in_an_id_join_is_an_error_or_its_first_row_counts(tmp_path):
    eng = put(tmp_path, "eng.tsv", "id\ttext\n1\tYes\n1\tYeah\n")
    fra = put(tmp_path, "fra.tsv", "id\ttext\n1\tOui\n")
    source = TsvSource(name="s", paths={"eng": eng, "fra": fra}, id="id")
    assert refused(source, tmp_path).startswith(f"{tmp_path / 'eng.tsv'}:3: duplicate id: '1' names an earlier row")
    assert dropped(source, tmp_path) == {"duplicate id": 1}


def test_files_that_share_no_id_leave_nothing(tmp_path):
    eng, fra = put(tmp_path, "e.tsv", "id\ttext\n1\tYes\n"), put(tmp_path, "f.tsv", "id\ttext\n2\tOui\n")
    message = refused(TsvSource(name="s", paths={"eng": eng, "fra": fra}, id="id"), tmp_path)
    assert message == "source 's' (e.tsv, f.tsv) has no rows left; dropped: 2 id not in every file"


def test_missing_files_folders_and_columns_are_errors_even_when_rows_are_dropped(tmp_path):
    (tmp_path / "data").mkdir()
    put(tmp_path / "data", "fra-eng.tsv", TABLE)
    for on_error in ("fail", "drop"):
        settings = {"on_error": on_error}
        assert "did you mean 'fra-eng.tsv'?" in refused(table("data/fra-en.tsv", **settings), tmp_path)
        assert "did you mean 'data'?" in refused(table("dota/fra-eng.tsv", **settings), tmp_path)
        assert "is a folder; name a file, such as fra-eng.tsv" in refused(table("data", **settings), tmp_path)
        message = refused(table("data/fra-eng.tsv", columns={"eng": "english", "fra": "fra"}, **settings), tmp_path)
        assert "fra-eng.tsv:1: no column 'english'; columns: id, eng, fra; did you mean 'eng'?" in message
        assert "is empty" in refused(table(put(tmp_path, "empty.tsv", ""), **settings), tmp_path)
        headless = table("data/fra-eng.tsv", header=False, columns={"eng": "1", "fra": "3"}, **settings)
        assert "no column '3'; columns: 0, 1, 2" in refused(headless, tmp_path)
        twice = table(put(tmp_path, "twice.tsv", "eng\teng\nYes\tYes\n"), columns={"eng": "eng"}, **settings)
        assert "2 columns are called 'eng'" in refused(twice, tmp_path)


def test_of_a_folder_only_files_of_text_are_proposed(tmp_path):
    (tmp_path / "data").mkdir()
    others = (".a.tsv", "a.py", "README.md", "model.safetensors", "run.log")
    for name in ("a.tsv", *others, "talks.fra", "talks.eng_Latn.gz"):
        put(tmp_path / "data", name, TABLE)
    words = "is a folder; name a file, such as a.tsv, talks.eng_Latn.gz, talks.fra;"
    assert words in refused(table("data"), tmp_path) + ";"


def test_a_cut_off_archive_is_an_error_with_file_and_line(tmp_path):
    packed = gzip.compress("".join(f"{i}\tx{i * i}\n" for i in range(5000)).encode())
    (tmp_path / "t.gz").write_bytes(packed[: len(packed) // 2])
    message = refused(table("t.gz", header=False, columns={"eng": "0", "fra": "1"}, on_error="drop"), tmp_path)
    assert "cannot be read: Compressed file ended" in message
    assert message.startswith(f"{tmp_path / 't.gz'}:")


def test_a_source_with_every_row_dropped_is_an_error_that_says_why(tmp_path):
    source = table(put(tmp_path, "t.tsv", "eng\tfra\nYes\t\nNo\n"), on_error="drop", max_dropped=1.0)
    assert refused(source, tmp_path) == "source 's' (t.tsv) has no rows left; dropped: 1 empty side, 1 column count"


def test_a_long_value_is_shortened_in_an_error(tmp_path):
    message = refused(table(put(tmp_path, "t.tsv", "eng\tfra\n" + "x" * 5000 + "\n")), tmp_path)
    assert len(message) < 400 + len(str(tmp_path))


# --- pivot ---------------------------------------------------------------------------------------------------------


def rows_of(ids: list[str] | None = None, **columns: list[str]) -> Rows:
    texts = {language: Texts.of(column) for language, column in columns.items()}
    return Rows(columns=texts, ids=Texts.of(ids or []), digest="d", dropped={})


PIVOT = PivotSource(name="p", format="pivot", left="a", right="b", join="eng", pairs=("fra-kor",))


def test_a_pivot_joins_on_equal_text_without_case_and_punctuation(tmp_path):
    a = rows_of(fra=["Oui", "Merci"], eng=["Yes.", "Thank you"])
    b = rows_of(kor=["고마워", "아니"], eng=["thank  you!", "No"])
    rows = read(PIVOT, tmp_path, a=a, b=b)
    assert rows.columns == {"fra": ["Merci"], "eng": ["Thank you"], "kor": ["고마워"]}


def test_a_pivot_joins_on_id(tmp_path):
    a, b = rows_of(["x", "y"], fra=["Oui", "Non"]), rows_of(["y", "z"], kor=["아니", "네"])
    by_id = dataclasses.replace(PIVOT, join="id")
    rows = read(by_id, tmp_path, a=a, b=b)
    assert (rows.columns, rows.ids) == ({"fra": ["Non"], "kor": ["아니"]}, ["y"])
    assert "'b' has no ids" in str(refused(by_id, tmp_path, a=a, b=rows_of(kor=["네"])))


def test_repeated_keys_of_a_pivot_use_every_row_without_exploding(tmp_path):
    a = rows_of(eng=["Yes"] * 50, fra=[f"f{i}" for i in range(50)])
    b = rows_of(eng=["yes!"] * 30, kor=[f"k{i}" for i in range(30)])
    rows = read(PIVOT, tmp_path, a=a, b=b)
    assert len(rows) == 50
    assert set(rows.columns["fra"]) == set(a.columns["fra"])
    assert set(rows.columns["kor"]) == set(b.columns["kor"])
    assert rows.dropped == {"further combinations of a repeated key": 50 * 30 - 50}


def test_a_pivot_without_its_sources_or_its_language_is_an_error(tmp_path):
    a = rows_of(eng=["Yes"], fra=["Oui"])
    assert "joins 'b', no source; sources: a" in refused(PIVOT, tmp_path, a=a)
    assert "which 'b' does not hold; allowed: id, kor" in refused(PIVOT, tmp_path, a=a, b=rows_of(kor=["네"]))
    assert "has no rows" in refused(PIVOT, tmp_path, a=a, b=rows_of(eng=["No"], kor=["아니"]))


# --- graded pairs --------------------------------------------------------------------------------------------------


def test_graded_pairs_are_read_by_column_name(tmp_path):
    put(tmp_path, "sts.tsv", "grade\tb\ta\n4.5\tB\tA\n-1e0\tD\tC\n")
    task = Sts(name="sts", path="sts.tsv", language="eng", sentence1="a", sentence2="b", score="grade")
    assert read_graded(task, tmp_path)[:3] == (["A", "C"], ["B", "D"], [4.5, -1.0])


@pytest.mark.slow
@pytest.mark.parametrize("format", ["jsonl", "parquet", "hub"])
def test_graded_pairs_may_be_in_any_one_file_or_data_set(tmp_path, format):
    rows = {"a": ["A", "C"], "b": ["B", "D"], "grade": [4.5, -1.0]}
    source = any_source(name="graded", format=format, **{"dataset" if format == "hub" else "path": "graded"})
    if format == "jsonl":
        put(tmp_path, "graded", json_lines(rows))
    elif format == "parquet":
        parquet.write_table(pa.table(rows), tmp_path / "graded")
    else:
        datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "graded"))
    task = Sts(name="sts", source=source, language="eng", sentence1="a", sentence2="b", score="grade")
    assert read_graded(task, tmp_path)[:3] == (["A", "C"], ["B", "D"], [4.5, -1.0])


@pytest.mark.parametrize("grade", ["nan", "inf", "five", "3,5"])
def test_a_grade_that_is_no_finite_number_is_an_error_with_file_and_line(tmp_path, grade):
    put(tmp_path, "sts.tsv", f"sentence1\tsentence2\tscore\nA\tB\t1\nA\tB\t{grade}\n")
    with pytest.raises(DataError, match=rf"sts\.tsv:3: 'score' is '{grade}'; a grade is a finite number"):
        read_graded(Sts(name="sts", path="sts.tsv", language="eng"), tmp_path)


def test_broken_and_empty_files_of_graded_pairs_are_errors(tmp_path):
    task = Sts(name="sts", path="sts.tsv", language="eng")
    put(tmp_path, "sts.tsv", "sentence1\tsentence2\tscore\nA\t\t1\n")
    with pytest.raises(DataError, match=r"sts\.tsv:2: empty side"):
        read_graded(task, tmp_path)
    put(tmp_path, "sts.tsv", "sentence1\tsentence2\tscore\n")
    with pytest.raises(DataError, match="has no rows"):
        read_graded(task, tmp_path)


# --- language pairs ------------------------------------------------------------------------------------------------


def pairs(rule: object, *languages: str, priority: tuple[str, ...] = ("eng",)) -> tuple[tuple[str, str], ...]:
    return language_pairs(TsvSource(name="s", pairs=rule), languages, priority)


def test_the_anchor_is_the_language_of_highest_priority_then_alphabetical():
    assert pairs("anchor", "kor", "fra", "eng") == (("eng", "kor"), ("eng", "fra"))
    assert pairs("anchor", "kor", "fra") == (("fra", "kor"),)
    assert pairs("anchor", "kor", "fra", priority=("eng", "kor")) == (("kor", "fra"),)
    assert pairs("all", "kor", "eng", "fra") == (("eng", "fra"), ("eng", "kor"), ("fra", "kor"))


def test_listed_pairs_may_be_written_either_way_round_and_hold_hyphens():
    assert pairs(("kor-eng", "eng-kor", "fra-kor"), "kor", "eng", "fra") == (("eng", "kor"), ("fra", "kor"))
    assert pairs(("zho-CN-sna-Latn",), "zho-CN", "sna-Latn") == (("sna-Latn", "zho-CN"),)
    with pytest.raises(DataError, match=r"no pair 'eng-kro'.*did you mean 'eng-kor'"):
        pairs(("eng-kro",), "kor", "eng")


# --- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.trap(35)
def test_a_key_ignores_case_punctuation_blanks_and_unicode_form():
    assert text_key("Don't  panic!") == text_key("DON’T PANIC…") == "dontpanic"
    assert text_key("Straße") == text_key("STRASSE")
    assert text_key("ＡＢＣ　株式会社㈱") == text_key("abc株式会社(株)")
    assert text_key("が") == text_key("が")
    assert text_key("soft\u00adhyphen\u200b") == "softhyphen"


def test_a_key_keeps_marks_digits_and_what_is_only_punctuation():
    assert text_key("कि") != text_key("की")
    assert text_key("café") != text_key("cafe")
    assert text_key("3.5") == "35"
    assert text_key("?!") != text_key("...")


def test_an_ascii_text_has_the_key_that_it_has_beside_other_letters():
    for code in range(128):
        text = f"A{chr(code)}b"
        assert text_key(text) + "é" == text_key(f"{text}é"), code
    assert text_key(" ？！ ") == text_key("?!")


@given(st.text(max_size=30))
@settings(max_examples=300, deadline=None)
def test_a_key_is_the_same_in_every_unicode_form_and_its_own_key(text):
    key = text_key(text)
    assert text_key(key) == key
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert text_key(unicodedata.normalize(form, text)) == key


@pytest.mark.slow
@given(
    st.lists(st.text(st.characters(categories=["Lu", "Ll", "Lo", "Nd"]), min_size=1, max_size=5), min_size=1), st.data()
)
@settings(max_examples=200, deadline=None)
def test_a_key_does_not_depend_on_what_stands_between_words(words, data):
    between = st.text(st.sampled_from(string.punctuation + " \t\u3000\u2019、。「」—«»"), max_size=3)
    spaced = "".join(word + data.draw(between) for word in words)
    assert text_key(spaced) == text_key(" ".join(words))


# --- Files that are not what they seem -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_line_beyond_memory_is_one_counted_row(tmp_path):
    """A gzip file of 389 KB whose one line has 400 MB, read by a process that may grow by 100 MB."""
    with gzip.open(tmp_path / "bomb.gz", "wb") as file:
        file.write(b"eng\tfra\nYes\tOui\n")
        for _ in range(400):
            file.write(b"x" * 1_000_000)
        file.write(b"\tfin\nNo\tNon\n")
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from babeltune.data.sources import read_source; from babeltune.schema.records import TsvSource\n"
        "size = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize() + 100_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
        "columns = {'eng': 'eng', 'fra': 'fra'}\n"
        "source = TsvSource(name='s', path='bomb.gz', columns=columns, on_error='drop', max_dropped=1.0)\n"
        "rows = read_source(source, Path(sys.argv[1]), others={})\n"
        "print({language: texts[:] for language, texts in rows.columns.items()}, rows.dropped)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'eng': ['Yes', 'No'], 'fra': ['Oui', 'Non']} {'too long': 1}\n"


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl", "parquet"])
def test_a_row_longer_than_the_limit_is_named_or_counted(tmp_path, suffix):
    texts = {"eng": ["Yes", "x" * 100, "No"], "fra": ["Oui", "y", "Non"]}
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        parquet.write_table(pa.table(texts), path)
    elif suffix == "jsonl":
        path.write_text(json_lines(texts))
    else:
        mark = "\t" if suffix == "tsv" else ","
        path.write_text("".join(mark.join(row) + "\n" for row in [tuple(texts), *zip(*texts.values(), strict=True)]))
    source = table(path.name, format=suffix)
    with pytest.raises(DataError, match=r"too long: 1\d\d bytes, and a line has at most 90 \(data.max_line_bytes\)"):
        read_source(source, tmp_path, others={}, longest=90)
    lenient = dataclasses.replace(source, on_error="drop", max_dropped=0.5)
    rows = read_source(lenient, tmp_path, others={}, longest=90)
    assert rows.columns == {"eng": ["Yes", "No"], "fra": ["Oui", "Non"]}
    assert rows.dropped == {"too long": 1}


def test_the_sweep_files_limit_reaches_train_dev_and_test(tmp_path):
    long = "x" * 60
    put(tmp_path, "long.tsv", f"eng\tfra\nYes\tOui\n{long}\tbon\n")
    put(tmp_path, "short.tsv", "eng\tfra\nA\tB\nC\tD\n")
    for place in ("train", "dev", "test"):
        names = {"train": "short.tsv", "dev": "short.tsv", "test": "short.tsv", place: "long.tsv"}
        sources = {key: dataclasses.replace(table(name), name=key) for key, name in names.items()}
        data = Data(
            train=(sources["train"],),
            dev=(Bitext(name="d", source=sources["dev"]),),
            test=(Bitext(name="t", source=sources["test"]),),
            max_line_bytes=50,
        )
        with pytest.raises(DataError, match=r"long.tsv:3: too long: .* at most 50"):
            build_corpus(data, tmp_path, 0)


def test_a_text_that_nobody_can_see_is_an_empty_side(tmp_path):
    for unseen in ("\u200b", "\u200d\ufeff", "\u3164 \u2800", "\u200e\u00ad"):
        source = table(put(tmp_path, "t.tsv", f"eng\tfra\nYes\t{unseen}\nNo\tNon\u200b\n"))
        assert "t.tsv:2: empty side" in refused(source, tmp_path)
    assert dropped(source, tmp_path) == {"empty side": 1}


def test_a_key_that_occurs_twice_is_a_broken_line(tmp_path):
    source = table(put(tmp_path, "t.jsonl", '{"eng": "Yes", "fra": "Oui", "eng": "No"}\n'), format="jsonl")
    assert "t.jsonl:1: repeated key: 'eng' occurs twice" in refused(source, tmp_path)
    inner = '{"eng": "Yes", "fra": "Oui", "more": {"a": 1, "a": 2}}\n{"eng": "No", "fra": "Non"}\n'
    assert dropped(table(put(tmp_path, "u.jsonl", inner), format="jsonl"), tmp_path) == {"repeated key": 1}


def test_json_that_is_nested_too_deeply_is_a_broken_line(tmp_path):
    deep = '{"eng": ' + "[" * 200_000 + "]" * 200_000 + ', "fra": "x"}\n{"eng": "No", "fra": "Non"}\n'
    source = table(put(tmp_path, "t.jsonl", deep), format="jsonl")
    assert "t.jsonl:1: not JSON: " in refused(source, tmp_path)
    assert dropped(source, tmp_path) == {"not JSON": 1}


def test_a_file_in_another_encoding_stops_although_broken_rows_are_dropped(tmp_path):
    words = ["café", "été", "oui"]
    rows = "".join(f"no {i}\t{words[i % 3]} {i}\n" for i in range(499))
    source = table(put(tmp_path, "t.tsv", ("eng\tfra\n" + rows).encode("latin-1")), on_error="drop")
    message = refused(source, tmp_path)
    assert "333 of 499 rows are broken (333 not UTF-8), more than max_dropped 0.05 allows" in message
    assert "raise `max_dropped`" in message
    most = dataclasses.replace(source, max_dropped=333 / 499)
    assert read(most, tmp_path).dropped == {"not UTF-8": 333}


def test_one_misread_file_among_many_stops_the_run(tmp_path):
    for name in "abcdefghijkl":
        words = "".join(f"{i}\t{'été' if name == 'c' and i % 2 else 'word'} {i}\n" for i in range(50))
        put(tmp_path, f"{name}.tsv", f"id\ttext\n{words}".encode("latin-1"))
    paths = {name: f"{name}.tsv" for name in "abcdefghijkl"}
    message = refused(TsvSource(name="s", paths=paths, id="id", on_error="drop"), tmp_path)
    assert f"25 of 50 rows of {tmp_path / 'c.tsv'} are broken (25 not UTF-8)" in message


def test_broken_lines_are_a_share_of_the_rows_and_not_of_all_files_lines(tmp_path):
    source = lines(tmp_path, eng=b"Yes\n" * 100, fra=b"Oui\n" * 94 + b"\xe9\n" * 6)
    assert "6 of 100 rows are broken" in refused(dataclasses.replace(source, on_error="drop"), tmp_path)


def test_csv_is_read_by_the_rules_of_csv(tmp_path):
    text = 'eng,fra\r\n"Yes, sir","Il dit ""oui"""\r\n"two\nlines",deux\r\n\r\nNo,Non\r\n'
    rows = read(table(put(tmp_path, "t.csv", text), format="csv"), tmp_path)
    assert rows.columns == {"eng": ["Yes, sir", "two\nlines", "No"], "fra": ['Il dit "oui"', "deux", "Non"]}
    semicolons = put(tmp_path, "s.csv", 'eng;fra\n"Yes; sir";Oui, monsieur\n')
    rows = read(table(semicolons, format="csv", delimiter=";"), tmp_path)
    assert rows.columns == {"eng": ["Yes; sir"], "fra": ["Oui, monsieur"]}


def test_a_broken_row_of_csv_is_named_by_its_first_line_and_reading_goes_on(tmp_path):
    text = b'eng,fra\n"two\nlines",deux\n"Yes"!,Oui\nA,B,C\nbad \xe9,mal\nNo,Non\n'
    source = table(put(tmp_path, "t.csv", text), format="csv")
    assert refused(source, tmp_path).startswith(f"{tmp_path / 't.csv'}:4: not CSV: ")
    assert dropped(source, tmp_path) == {"not CSV": 1, "column count": 1, "not UTF-8": 1}
    rows = read(dataclasses.replace(source, on_error="drop", max_dropped=1.0), tmp_path)
    assert rows.columns["fra"] == ["deux", "Non"]


@pytest.mark.parametrize(("longest", "reason"), [(300, "too long"), (1 << 20, "not CSV")])
def test_a_missing_quotation_mark_costs_one_row_and_not_the_rows_behind_it(tmp_path, longest, reason):
    words = [(f"word {i}", f"mot {i}") for i in range(200)]
    text = "eng,fra\n" + "".join(f"{a},{b}\n" for a, b in [*words[:100], ('"Yes', "Oui"), *words[100:]])
    source = table(put(tmp_path, "t.csv", text), format="csv", on_error="drop")
    rows = read_source(source, tmp_path, others={}, longest=longest)
    assert rows.dropped == {reason: 1}
    assert list(zip(*rows.columns.values(), strict=True)) == words


def test_a_blank_line_of_csv_keeps_its_place_where_lines_are_joined(tmp_path):
    paths = {"eng": put(tmp_path, "e.csv", "text\nYes\n\nNo\n"), "fra": put(tmp_path, "f.csv", "text\nOui\nBon\nNon\n")}
    source = CsvSource(name="s", format="csv", paths=paths, join="line", on_error="drop", max_dropped=0.5)
    rows = read(source, tmp_path)
    assert (rows.columns, rows.dropped) == ({"eng": ["Yes", "No"], "fra": ["Oui", "Non"]}, {"empty side": 1})


@pytest.mark.parametrize("minimal", [False, True])
def test_a_table_quoted_by_a_spreadsheet_is_refused_until_quoted_is_said(tmp_path, minimal):
    texts = [(f"Yes, {i}", f'Il dit "oui" {i}') for i in range(9)] + [("No", "Non")]
    with (tmp_path / "t.tsv").open("w", newline="") as file:
        quoting = csv.QUOTE_MINIMAL if minimal else csv.QUOTE_ALL
        writer = csv.writer(file, delimiter="\t", quoting=quoting)
        writer.writerow(["eng", "fra"])
        writer.writerows(texts)
    if not minimal:
        assert "1: column 'eng' is in quotation marks; say `quoted: true`" in refused(table("t.tsv"), tmp_path)
    headed = {"eng": "eng", "fra": "fra"} if minimal else {"eng": '"eng"', "fra": '"fra"'}
    message = refused(table("t.tsv", columns=headed), tmp_path)
    assert "are in quotation marks, as spreadsheets write them; say `quoted: true`, or `quoted: false`" in message
    rows = read(table("t.tsv", quoted=True), tmp_path)
    assert list(zip(*rows.columns.values(), strict=True)) == texts
    unquoted = read(table("t.tsv", columns=headed, quoted=False), tmp_path)
    assert unquoted.columns["fra"][0] == '"Il dit ""oui"" 0"'
    broken = table(put(tmp_path, "lines.tsv", 'eng\tfra\n"two\nlines"\tdeux\n'))
    assert "say `quoted: true`" in refused(broken, tmp_path), "a line break between quotation marks"


def test_text_with_quotations_is_not_taken_for_a_spreadsheets(tmp_path):
    rows = [f'"Go away, {i}!"\tRow {i}' for i in range(20)] + [f'He said, "no {i}".\tRow {i}' for i in range(40)]
    source = table(put(tmp_path, "t.tsv", "\n".join(["eng\tfra", *rows])))
    assert read(source, tmp_path).columns["eng"][0] == '"Go away, 0!"'


def test_texts_quoted_only_for_their_quotation_marks_are_warned_of(tmp_path, caplog):
    texts = [(f'He said "no, {i}", twice' if i % 4 == 0 else f"Yes, {i}", f"oui {i}") for i in range(40)]
    with (tmp_path / "t.tsv").open("w", newline="") as file:
        csv.writer(file, dialect="excel-tab").writerows([("eng", "fra"), *texts])
    read(table("t.tsv"), tmp_path)
    assert "in column 'eng' every text that holds quotation marks is quoted" in caplog.text
    assert "say `quoted: true`" in caplog.text
    caplog.clear()
    read(table("t.tsv", quoted=False), tmp_path)
    assert read(table("t.tsv", quoted=True), tmp_path).columns["eng"] == [text for text, _ in texts]
    assert not caplog.text


@pytest.mark.slow
def test_parquet_that_repeats_one_long_text_is_refused_before_memory_grows(tmp_path):
    """A file of some hundred bytes that says one text of 1 MB 20,000 times: 20 GB if each is a copy."""
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 1_000_000]))
    parquet.write_table(pa.table({"eng": repeated, "fra": ["y"] * 20_000}), tmp_path / "t.parquet", store_schema=False)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "import pyarrow.parquet; from babeltune.data.arrow_readers import parquet_rows; import hashlib\n"
        "size = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize() + 500_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
        "from babeltune.errors import DataError\n"
        "rows = parquet_rows(Path(sys.argv[1]), ['eng', 'fra'], None, hashlib.sha256())\n"
        "try: list(rows)\n"
        "except DataError as error: print(error)"
    )
    file = tmp_path / "t.parquet"
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "MB of text and more in" in done.stdout


def test_a_text_of_parquet_is_measured_in_bytes(tmp_path):
    parquet.write_table(pa.table({"eng": ["é" * 50, "No"], "fra": ["Oui", "Non"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="too long: 100 bytes"):
        read_source(table("t.parquet", format="parquet"), tmp_path, others={}, longest=90)


def test_a_path_that_no_system_can_open_is_one_line(tmp_path):
    assert "cannot be read: File name too long; correct the path" in refused(table("x" * 300), tmp_path)
    (tmp_path / "ring").symlink_to("ring")
    assert f"{tmp_path / 'ring'} is a link that leads to no file" in refused(table("ring/x.tsv"), tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "circle", "nowhere"])
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path, kind):
    place = tmp_path / "x.tsv"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(place))
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "circle":
        place.symlink_to(tmp_path / "y.tsv")
        (tmp_path / "y.tsv").symlink_to(place)
    else:
        place.symlink_to(tmp_path / "gone.tsv")
    for path in ("x.tsv", str(place)):
        message = refused(table(path), tmp_path)
        assert ("link" in message) if kind in ("circle", "nowhere") else ("file" in message)
    assert str(place) in message


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.csv", "eng,fra\nYes,Oui\n", "if this is CSV, say `format: csv`"),
        ("t.txt", "eng,fra\nYes,Oui\n", "if this is CSV, say `format: csv`"),
        ("t.txt", "eng;fra\nYes;Oui\n",
         'a semicolon stands between the columns, say `format: csv` and `delimiter: ";"`'),
        ("t.csv", " \n \n", "t.csv:1: the first line is blank; it must name the columns"),
        ("t.jsonl", '{"eng": "Yes"}\n', "say `format: jsonl`"),
        ("t.tsv", "engl\tfra\nYes\tOui\n", "columns: engl, fra; did you mean 'engl'?"),
    ],
)  # fmt: skip
def test_a_column_that_is_missing_because_of_the_format_names_the_format(tmp_path, name, content, expected):
    assert expected in refused(table(put(tmp_path, name, content)), tmp_path)
    parquet.write_table(pa.table({"eng": ["Yes"], "fra": ["Oui"]}), tmp_path / "t.parquet")
    assert "`format: parquet`" in refused(table("t.parquet"), tmp_path)


def test_a_table_in_another_encoding_says_how_to_save_it(tmp_path):
    source = table(put(tmp_path, "t.tsv", "eng\tfrançais\nYes\tDéjà\n".encode("cp1252")))
    assert "; save the file as UTF-8, or name its encoding" in refused(source, tmp_path)
    source = dataclasses.replace(source, encoding="cp1252", columns={"eng": "eng", "fra": "français"})
    assert read(source, tmp_path).columns["fra"][:] == ["Déjà"]
    assert "is not ascii" in refused(dataclasses.replace(source, encoding="ascii"), tmp_path)
