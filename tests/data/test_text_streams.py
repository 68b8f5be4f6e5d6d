"""Files are recognised by their first bytes: what packs them, how they are encoded, and what is no text."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zipfile

import pyarrow as pa
import pytest

from babeltune.apps.mining.sentences import read_sentences
from babeltune.apps.transfer.formats import read_examples
from babeltune.data import file_readers, text_streams
from babeltune.data.eval_sets import read_eval
from babeltune.data.file_readers import Fault, numbered_lines
from babeltune.data.read_progress import counting_bytes
from babeltune.errors import DataError
from babeltune.schema.records import BeirSource, Data, Retrieval

TEXT = "Bonjour, ça va ?\nДобрый день.\n你好。\n" * 300
LINES = TEXT.splitlines()


def zipped(**files):
    with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def lines(path, content, **options):
    path.write_bytes(content)
    return [
        raw if isinstance(raw, Fault) else raw.decode()
        for _, raw in numbered_lines(path, hashlib.sha256(), 99, **options)
    ]


PACKED = {
    "gzip": gzip.compress(TEXT.encode()),
    "two gzip members": gzip.compress(TEXT[:6000].encode()) + gzip.compress(TEXT[6000:].encode()),
    "bzip2": bz2.compress(TEXT.encode()),
    "xz": lzma.compress(TEXT.encode()),
    "two xz streams": lzma.compress(TEXT[:6000].encode()) + b"\0" * 8 + lzma.compress(TEXT[6000:].encode()),
    "zstandard": bytes(pa.Codec("zstd").compress(TEXT.encode(), asbytes=True)),
    "zip": zipped(corpus=TEXT),
    "gzip of UTF-16": gzip.compress(TEXT.encode("utf-16")),
    "carriage returns": TEXT.replace("\n", "\r").encode(),
    "carriage returns in UTF-16": TEXT.replace("\n", "\r").encode("utf-16-le"),
    "Windows": TEXT.replace("\n", "\r\n").encode(),
    **{codec: TEXT.encode(codec) for codec in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")},
}


@pytest.mark.parametrize("name", PACKED)
def test_the_same_lines_come_from_every_packing_and_encoding(tmp_path, name):
    assert lines(tmp_path / "no.ending", PACKED[name]) == LINES


def tar_of(content):
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        archive.addfile(entry := tarfile.TarInfo("a"), io.BytesIO(content[: entry.size]))
    return file.getvalue()


REFUSED = {
    "tar": (tar_of(b""), "is a tar archive; unpack it"),
    "tar.gz": (gzip.compress(tar_of(b"")), "is a tar archive; unpack it"),
    "zip of two": (zipped(a="a", b="b"), r"is a ZIP archive of 2 files \(a, b\); unpack it, and name one"),
    "xlsx": (zipped(**{"xl/workbook.xml": ""}), "is an Excel workbook; in a sweep file say `format: xlsx`"),
    "docx": (zipped(**{"word/document.xml": ""}), "is a Word document; save it as text"),
    "parquet": (b"PAR1", "is Parquet; in a sweep file say `format: parquet`"),
    "pdf": (b"%PDF-1.7", "is a PDF; export its text"),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1", "is an old Excel workbook; save it as XLSX"),
    "packed twice": (gzip.compress(gzip.compress(b"a")), "is packed twice; unpack it once"),
    "cut gzip": (gzip.compress(bytes(range(256)) * 99)[:200], "cannot be read"),
    "cut xz": (lzma.compress(TEXT.encode())[:-40], "cannot be read"),
    "cut zstandard": (PACKED["zstandard"][:40], "cannot be read"),
    "damaged zip": (PACKED["zip"][:-60], "is a damaged ZIP archive"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_text_is_refused_by_what_it_is(tmp_path, name):
    content, expected = REFUSED[name]
    with pytest.raises(DataError, match=f"text.fra.*{expected}"):
        lines(tmp_path / "text.fra", content)


def test_a_few_zero_bytes_do_not_make_text_utf16(tmp_path):
    content = ("An ordinary line of text.\n" * 200).encode().replace(b"line", b"l\0ne", 3)
    assert lines(tmp_path / "t", content)[3:] == ["An ordinary line of text."] * 197
    assert lines(tmp_path / "short", b"Hello\n\0x\n\n") == ["Hello", "\0x", ""]


def test_a_code_page_is_read_if_it_is_named(tmp_path):
    assert lines(tmp_path / "t", "Où ?\nЖ".encode("cp1251", "ignore"), encoding="cp1251") == ["O ?", "Ж"]
    with pytest.raises(DataError, match="encoding 'cp9999' is unknown to Python; name another: `encoding: cp1252`"):
        lines(tmp_path / "t", b"x", encoding="cp9999")


def test_a_line_without_end_is_refused_and_never_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(file_readers, "NO_TEXT_BYTES", 1 << 20)
    with pytest.raises(DataError, match=r"t:2: 1 MB without the end of a line; give text, a row a line"):
        lines(tmp_path / "t", gzip.compress(b"a\n" + b"b" * (3 << 20)))


def test_xz_that_asks_for_much_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_streams, "XZ_MEMORY", 1 << 20)
    with pytest.raises(DataError, match="takes more than 1 MB to unpack; pack it with `xz -6`"):
        lines(tmp_path / "t", PACKED["xz"])


def beir(folder):
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    for name, key in (("corpus", "d"), ("queries", "q")):
        (folder / f"{name}.jsonl").write_text(f'{{"_id": "{key}", "text": "Bonjour."}}\n')
    source = BeirSource(name="s", format="beir", path=".")
    return lambda: read_eval([Retrieval(name="s", language="fra", source=source)], folder)


def examples(folder):
    (folder / "xnli.tsv").write_text("Il dort.\tIl court.\tneutral\n" * 9)
    return lambda: read_examples(str(folder / "xnli.tsv"), "xnli", "fr")


def sentences(folder):
    (folder / "fra.txt").write_text("Il dort.\n" * 9)
    return lambda: read_sentences(folder / "fra.txt", folder / "spill")


@pytest.mark.parametrize("reader", [beir, examples, sentences])
def test_text_of_every_command_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, reader):
    read, opened = reader(tmp_path), text_streams.open_file
    assert read()

    def written_meanwhile(path):
        os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
        return opened(path)

    monkeypatch.setattr(text_streams, "open_file", written_meanwhile)
    with pytest.raises(DataError, match=r"was changed while it was read; let what writes it end"):
        read()


def test_a_packed_file_that_is_still_written_is_said_to_change_and_not_to_be_damaged(tmp_path):
    path, packed = (
        tmp_path / "a.gz",
        gzip.compress(b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(10_000))),
    )
    path.write_bytes(packed[:150_000])

    def read_while_written():
        rows = numbered_lines(path, hashlib.sha256(), 99)
        next(rows)
        path.write_bytes(packed[:190_000])
        list(rows)

    with pytest.raises(DataError, match=r"was changed while it was read"):
        read_while_written()


def test_a_file_that_grows_between_two_readings_of_a_corpus_is_refused(tmp_path):
    path = tmp_path / "fra.txt"
    path.write_text("Un.\n")

    def rows():
        return len(list(numbered_lines(path, hashlib.sha256(), 99)))

    with counting_bytes(Data(train=()), tmp_path, lambda *_: None):
        assert rows() == rows() == 1
        path.write_text("Un.\nDeux.\n")
        with pytest.raises(DataError, match=r"was changed while it was read"):
            rows()
    assert rows() == 2, "another corpus reads what there is now"
