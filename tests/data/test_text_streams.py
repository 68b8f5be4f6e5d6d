"""Files are recognised by their first bytes: what packs them, how they are encoded, and what is no text."""

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import zipfile

import pyarrow as pa
import pytest

from babeltune.data import file_readers, text_streams
from babeltune.data.file_readers import Fault, numbered_lines
from babeltune.errors import DataError

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
