"""Files that tasks read in parts: the same rows, digests, counts and errors as read in one process."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from any_source import any_source
from babeltune.data import file_shards, text_shards
from babeltune.data.shards import run_here
from babeltune.data.sources import read_source
from babeltune.data.text_shards import TextShards
from babeltune.errors import BabeltuneError
from shared_corpus import run_with_files

ROWS = [("a", "Good morning.", "Bonjour."), ("b", "It is «late».", "Il est tard."), ("a", "Yes", "Oui  ")] * 3
TABLE = "id\teng\tfra\n" + "".join("\t".join(row) + "\n" for row in ROWS)
BROKEN = TABLE.encode() + b"c\tone\nc\t \tempty\n\xff\tx\ty\n" + b"d\t" + b"long" * 20 + b"\tz\ne\tlast\tdernier"
QUOTED = "eng\tfra\n" + '"He said ""no"", twice."\t"Il a dit non."\n' * 4
RECORDS = [{"id": place, "t": {"en": english, "fr": french}} for place, (_, english, french) in enumerate(ROWS)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
COLUMNS = {"eng": "eng", "fra": "fra"}
INNER = {"eng": "t.en", "fra": "t.fr"}
DROP = {"on_error": "drop", "max_dropped": 1.0}

FILES = {
    "table.tsv": TABLE.encode(),
    "marked.tsv": b"\xef\xbb\xbf" + TABLE.replace("\n", "\r\n").encode(),
    "table.tsv.gz": gzip.compress(TABLE.encode()),
    "cut.tsv.gz": gzip.compress(TABLE.encode() * 99)[:-30],
    "broken.tsv": BROKEN,
    "quoted.tsv": QUOTED.encode(),
    "head.tsv": b"id\teng\tfra\n",
    "titled.tsv": b"My corpus\n\n" + TABLE.encode(),
    "repeated.tsv": TABLE.encode() * 3,
    "blanks.tsv": TABLE.replace("\teng\t", "\teng \t ", 1).encode(),
    "empty.tsv": TABLE.encode() + b"x\tone\t\nx\t\tun\na\tlast\tdernier\n",
    "wide.tsv": TABLE.encode("utf-16"),
    "t.jsonl": LINES.encode(),
    "wide.jsonl": LINES.encode("utf-16"),
    "broken.jsonl": (LINES + '{"id": 9\n[]\n{"t": {"en": "x"}}\n' + LINES).encode(),
    "eng.txt": "".join(f"{row[1]}\n" for row in ROWS).encode(),
    "fra.txt": "".join(f"{row[2]}\n" for row in ROWS).encode(),
    "short.txt": b"eins\nzwei\n\nvier\n",
    "deu.tsv": b"id\ttext\n2\tzwei\n1\teins\n7\tsieben\n2\tdoppelt\n",
    "kor.tsv": "id\ttext\n1\t하나\n3\t셋\n2\t둘\n".encode(),
}


def table(path, **more):
    return any_source(**{"name": "s", "path": path, "columns": COLUMNS, **more})


def joined(paths, **more):
    return any_source(name="s", paths=paths, **more)


SOURCES = [
    table("table.tsv"),
    table("table.tsv", id="id", where={"id": "a"}),
    table("table.tsv", columns={"eng": "eng", "fra": "French"}),
    table("table.tsv", columns={"eng": "1", "fra": "2"}, header=False),
    table("marked.tsv", id="id"),
    table("table.tsv.gz"),
    table("cut.tsv.gz"),
    table("broken.tsv"),
    table("broken.tsv", id="id", **DROP),
    table("broken.tsv", on_error="drop"),
    table("quoted.tsv"),
    table("quoted.tsv", quoted=True),
    table("quoted.tsv", quoted=False),
    table("head.tsv"),
    table("wide.tsv"),
    table("titled.tsv"),
    table("repeated.tsv"),
    table("blanks.tsv"),
    table("empty.tsv", where={"id": "a"}),
    table("empty.tsv", where={"id": "x"}),
    table("empty.tsv", where={"id": "a"}, **DROP),
    table("t.jsonl", format="jsonl", columns=INNER, id="id"),
    table("wide.jsonl", format="jsonl", columns=INNER),
    table("broken.jsonl", format="jsonl", columns=INNER),
    table("broken.jsonl", format="jsonl", columns=INNER, **DROP),
    table("t.parquet", format="parquet", columns=INNER, id="id"),
    table("t.parquet", format="parquet", columns={"eng": "t.en", "fra": "t.none"}),
    table("bytes.parquet", format="parquet"),
    table("bytes.parquet", format="parquet", **DROP),
    table("table.tsv", format="parquet"),
    joined({"eng": "eng.txt", "fra": "fra.txt"}, format="moses"),
    joined({"eng": "eng.txt", "deu": "short.txt"}, format="moses"),
    joined({"deu": "short.txt", "eng": "eng.txt"}, format="moses", **DROP),
    joined({"deu": "deu.tsv", "kor": "kor.tsv"}, id="id"),
    joined({"kor": "kor.tsv", "deu": "deu.tsv"}, id="id", **DROP),
    joined({"kor": "kor.tsv", "deu": "deu.tsv"}, join="line"),
]


def outcome(source, root, shards=None):
    """The rows and all that is said of them, or the error."""
    try:
        rows = read_source(source, root, others={}, longest=75, shards=shards)
    except BabeltuneError as error:
        return str(error)
    columns = {language: list(texts) for language, texts in rows.columns.items()}
    return columns, list(rows.ids), rows.digest, rows.dropped


@pytest.fixture
def folder(tmp_path):
    """All files; the second row of a Parquet file is not UTF-8."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    parquet.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "t.parquet", row_group_size=4)
    broken = {"eng": [b"one", b"\xff", b"three", None] * 3, "fra": ["un", "deux", "trois", "quatre"] * 3}
    parquet.write_table(pa.table(broken), tmp_path / "bytes.parquet", row_group_size=5)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("size", "run"), [(1, run_here), (40, run_with_files), (150, run_here)])
def test_a_file_read_in_parts_gives_the_same_rows_or_the_same_error(folder, monkeypatch, size, run):
    read = []

    def noted(function, arguments, *, gpu=False):
        assert len(arguments) <= 3, "no more parts lie on the disk at once"
        read.append(len(arguments))
        return run(function, arguments)

    monkeypatch.setattr(file_shards, "PART_BYTES", size)
    monkeypatch.setattr(text_shards, "WINDOW", 3)
    whole = [outcome(source, folder, TextShards(noted, folder / "stores")) for source in SOURCES]
    assert not read, "small files are read by the driver"
    monkeypatch.setattr(file_shards, "MANY_BYTES", 0)
    parts = []
    for source, expected in zip(SOURCES, whole, strict=True):
        assert outcome(source, folder, TextShards(noted, folder / "stores")) == expected
        parts.append(len(read))
        read.clear()
    assert sum(map(bool, parts)) == len(SOURCES) - 5, "all but quoted text, and what the driver finds broken before"
    assert not list((folder / "stores").iterdir())


def test_rows_that_where_leaves_out_stop_nothing_and_are_not_counted(folder):
    columns, _, _, dropped = outcome(table("empty.tsv", where={"id": "a"}), folder)
    assert columns["fra"][-1] == "dernier"
    assert not dropped
    assert "empty.tsv:" in outcome(table("empty.tsv", where={"id": "x"}), folder)


def test_names_with_blanks_around_them_are_columns(folder):
    assert outcome(table("blanks.tsv"), folder)[0] == outcome(table("table.tsv"), folder)[0]


@pytest.mark.slow
def test_each_error_and_each_count_of_broken_rows_is_among_the_sources(folder):
    outcomes = [outcome(source, folder) for source in SOURCES]
    errors = " ".join(each for each in outcomes if isinstance(each, str))
    phrases = ("column count", "in quotation marks", "no rows", "cannot be read", "not JSON", "ends after line")
    for words in phrases:
        assert words in errors
    reasons = {reason for each in outcomes if not isinstance(each, str) for reason in each[3]}
    assert reasons >= {"too long", "not UTF-8", "empty side", "column count", "unequal line counts", "duplicate id"}


def test_a_packed_file_that_ends_too_early_is_named_with_its_last_line(tmp_path, monkeypatch):
    draw = random.Random(0)
    content = b"eng\tfra\n" + b"".join(b"%x\t%x\n" % (draw.getrandbits(99), draw.getrandbits(99)) for _ in range(9000))
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(content)[:-9000])
    whole = outcome(table("t.tsv.gz"), tmp_path)
    assert "cannot be read: " in whole
    assert int(whole.split(":")[1]) > 5000
    monkeypatch.setattr(file_shards, "MANY_BYTES", 0)
    monkeypatch.setattr(file_shards, "PART_BYTES", 1 << 14)
    assert outcome(table("t.tsv.gz"), tmp_path, TextShards(run_here, tmp_path / "stores")) == whole
