"""Opens a path as a stream of UTF-8, whatever packs it and however its text is encoded. All readers open text here.

The first bytes of a file say what it is, and never its name. A file that holds no text is refused by what it is."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import itertools
import lzma
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from babeltune.data.read_progress import open_file, unchanged
from babeltune.errors import DataError, list_of, shortened

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SAMPLE_BYTES = 1 << 16  # bytes at the begin of a file that say how it is packed, encoded, and split into lines
XZ_MEMORY = 1 << 27  # bytes of memory for unpacking xz. Its highest preset takes half of it.
ODD = {"Cn", "Co", "Cs", "Cc"}
"""Unicode categories that text lacks: unassigned and private characters, halves of pairs, control characters."""
ODD_SHARE, ASCII_SHARE = 0.01, 0.01
"""UTF-16 and UTF-32 are believed below the first share of odd characters, and above the second one of blanks, line
ends, digits and Latin letters. A few zero bytes within UTF-8 pass neither."""
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
"""Errors of a stream whose file is damaged, or that the disk does not give."""
REFUSED = {
    b"PAR1": "Parquet; in a sweep file say `format: parquet`",
    b"ARROW1": "an Arrow file; write it as Parquet",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save it as XLSX, or each sheet as CSV (UTF-8)",
    b"%PDF": "a PDF; export its text",
    b"{\\rtf": "rich text (RTF); save it as text (UTF-8)",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    b"Rar!": "a RAR archive; unpack it",
    b"\x1f\x9d": "packed with compress; unpack it with uncompress",
    b"\x5d\x00\x00\x80\x00\xff": "packed with lzma; unpack it with unlzma",
    b"\x04\x22\x4d\x18": "packed with LZ4; unpack it with unlz4",
    b"SQLite format 3\0": "an SQLite database; export a table as CSV (UTF-8)",
    b"\x93NUMPY": "a NumPy array; give text",
    b"\x89PNG": "a picture; give text",
    b"\xff\xd8\xff": "a picture; give text",
    b"\x7fELF": "a program; give text",
}
"""How files begin that hold no plain text: what they are, and what to do."""


class Chunks(io.RawIOBase):
    """A stream of bytes that come in pieces."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._rest = iter(chunks), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


@contextmanager
def unpacked(path: Path, encoding: str | None = None) -> Iterator[io.BufferedReader]:
    """The text of a file as `text_stream` gives it. Raises `DataError` if the file changes meanwhile."""
    with unchanged(path), open_file(path) as raw:
        yield text_stream(raw, path, encoding)


def text_stream(raw: IO[bytes], name: object, encoding: str | None = None) -> io.BufferedReader:
    """The text as UTF-8: unpacked (gzip, bzip2, xz, Zstandard, a ZIP archive of one file), decoded, and with line feeds
    if bare carriage returns end its lines.

    UTF-8, UTF-16 and UTF-32 are recognised, with or without a byte order mark. Another encoding must be named.
    Raises `DataError` for what is no text. The stream raises it for bytes that are not of the encoding."""
    stream, begin = sampled(raw)
    unpack = next((unpack for mark, unpack in UNPACKERS.items() if begin.startswith(mark)), None)
    if unpack is not None:
        stream, begin = sampled(unpack(stream, name))
    if not begin:
        return stream
    refuse_other(begin, name)
    encoding = encoding or unicode_encoding(begin)
    if encoding is not None:
        stream, begin = sampled(Chunks(transcoded(stream, encoding, name)))
    if b"\r" in begin[:-1] and b"\n" not in begin:
        stream = io.BufferedReader(Chunks(chunk.replace(b"\r", b"\n") for chunk in chunks_of(stream)), SAMPLE_BYTES)
    return stream


def sampled(raw: IO[bytes] | io.RawIOBase) -> tuple[io.BufferedReader, bytes]:
    """The stream and its first bytes, which are read again."""
    if isinstance(raw, io.BufferedReader) and raw.seekable():
        return raw, raw.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
    source = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw), SAMPLE_BYTES)
    begin = source.read(SAMPLE_BYTES)
    return io.BufferedReader(Chunks(itertools.chain([begin], chunks_of(source))), SAMPLE_BYTES), begin


def chunks_of(stream: IO[bytes]) -> Iterator[bytes]:
    """The rest of a stream, in pieces."""
    return iter(lambda: stream.read(SAMPLE_BYTES), b"")


# --- Packed files --------------------------------------------------------------------------------------------------


def _xz_chunks(raw: io.BufferedReader, name: object) -> Iterator[bytes]:
    """The content of one or more xz streams."""
    data, part = raw.read(SAMPLE_BYTES), lzma.LZMADecompressor(memlimit=XZ_MEMORY)
    try:
        while data:
            yield part.decompress(data, SAMPLE_BYTES)
            while not part.eof and not part.needs_input:
                yield part.decompress(b"", SAMPLE_BYTES)
            data = (part.unused_data.lstrip(b"\0") if part.eof else b"") or raw.read(SAMPLE_BYTES)
            if part.eof and data:
                part = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
    except lzma.LZMAError as error:
        if "emory" not in str(error):
            raise
        raise DataError(f"{name} takes more than {XZ_MEMORY >> 20} MB to unpack; pack it with `xz -6`") from error
    if not part.eof:
        raise EOFError("the compressed data end too early")


def _zstandard(raw: io.BufferedReader, name: object) -> io.RawIOBase:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")  # type: ignore[no-any-return]


def _zip(raw: io.BufferedReader, name: object) -> io.RawIOBase:
    """The only file of a ZIP archive."""
    if not raw.seekable():
        raise DataError(f"{name} is a ZIP archive that comes through a pipe; unpack it")
    try:
        archive = zipfile.ZipFile(raw)
    except zipfile.BadZipFile as error:
        words = "or if it is an Excel workbook, save each sheet as CSV (UTF-8)"
        raise DataError(f"{name} is a damaged ZIP archive ({error}); fetch it again, {words}") from error
    members = [each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
    names = [each.filename for each in members]
    if (office := office_kind(names)) is not None:
        raise DataError(f"{name} is {office}")
    if not members:
        raise DataError(f"{name} is an empty ZIP archive; fetch it again")
    if len(members) != 1:
        raise DataError(f"{name} is a ZIP archive of {len(members)} files ({list_of(names)}); unpack it, and name one")
    if members[0].flag_bits & 1:
        raise DataError(f"{name} is a ZIP archive with a password; unpack it")
    return archive.open(members[0])  # type: ignore[return-value]


def text_name(path: Path) -> str:
    """The name of a file's text: without the ending of a packed file; of a ZIP archive the name of its only file."""
    path = next((Path(name) for name in names_in_archive(path) if not name.endswith("/")), path)
    return unpacked_name(path.name)


def names_in_archive(path: Path) -> list[str]:
    """The names of the files in a ZIP archive; none for what is no archive, or a damaged one."""
    with contextlib.suppress(OSError, zipfile.BadZipFile):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return archive.namelist()
    return []


def unpacked_name(name: str) -> str:
    """A file's name without the ending of what packed it."""
    return re.sub(r"\.(gz|bz2|xz|zst|zip)$", "", name, flags=re.IGNORECASE)


def office_kind(names: list[str]) -> str | None:
    """The kind of an archive with these files, and the next step, if an office program wrote it."""
    if "xl/workbook.xml" in names or "xl/workbook.bin" in names:
        return "an Excel workbook; in a sweep file say `format: xlsx`, or save a sheet as CSV (UTF-8)"
    if "word/document.xml" in names:
        return "a Word document; save it as text (UTF-8)"
    if "content.xml" in names and "mimetype" in names:
        return (
            "an OpenDocument file; if it is a spreadsheet, say `format: ods` in a sweep file, or save it as CSV (UTF-8)"
        )
    return None


Unpack = Callable[[io.BufferedReader, object], io.RawIOBase]
UNPACKERS: dict[bytes, Unpack] = {
    b"\x1f\x8b": lambda raw, _: gzip.GzipFile(fileobj=raw),  # type: ignore[dict-item, return-value]
    b"BZh": lambda raw, _: bz2.BZ2File(raw),  # type: ignore[dict-item, return-value]
    b"\xfd7zXZ": lambda raw, name: Chunks(_xz_chunks(raw, name)),
    b"\x28\xb5\x2f\xfd": _zstandard,
    b"PK\x03\x04": _zip,
    b"PK\x05\x06": _zip,
}


def refuse_other(begin: bytes, name: object) -> None:
    """Raises `DataError` for a file that is no text, by its first bytes."""
    for mark, words in REFUSED.items():
        if begin.startswith(mark):
            raise DataError(f"{name} is {words}")
    if begin[257:262] == b"ustar":
        raise DataError(f"{name} is a tar archive; unpack it (`tar -xf`), and name a file of it")
    if any(begin.startswith(mark) for mark in UNPACKERS):
        raise DataError(f"{name} is packed twice; unpack it once")


# --- Encodings -----------------------------------------------------------------------------------------------------


def unicode_encoding(begin: bytes) -> str | None:
    """UTF-16 or UTF-32, by a byte order mark or the zero bytes of blanks and line ends. None: neither."""
    if begin.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" not in begin or is_text_with_zeros(begin):
        return None
    shares = {name: odd_share(begin, name) for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")}
    best = min(shares, key=shares.__getitem__)
    return best if shares[best] < ODD_SHARE else None


def is_text_with_zeros(begin: bytes) -> bool:
    """Whether the bytes are UTF-8 with a zero here and there. Of UTF-16 in Latin script almost half of them are zero,
    and in other scripts many are control characters, or no UTF-8."""
    rest = begin.replace(b"\0", b"").translate(None, b"\t\n\r")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(rest)
    except UnicodeDecodeError:
        return False
    return 4 * begin.count(0) < len(begin) and (not rest or min(rest) >= 32)


def odd_share(begin: bytes, encoding: str) -> float:
    """The share of characters that text lacks, if the bytes are of the encoding; 1 if they cannot be."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(begin, final=len(begin) < SAMPLE_BYTES)
    except UnicodeDecodeError:
        return 1.0
    latin = sum(character < "\x80" for character in text)
    if not any(map(str.isalnum, text)) or "\0" in text or latin < ASCII_SHARE * len(text):
        return 1.0
    return sum(unicodedata.category(each) in ODD and each not in "\t\n\r\f\v" for each in text) / len(text)


def transcoded(stream: IO[bytes], encoding: str, name: object) -> Iterator[bytes]:
    """The content as UTF-8. Raises `DataError` for an encoding that Python lacks, and bytes that are not of it."""
    try:
        if not codecs.lookup(encoding)._is_text_encoding:  # such as hex, which gives no text
            raise LookupError(encoding)
        decoder = codecs.getincrementaldecoder(encoding)()
        for chunk in chunks_of(stream):
            yield decoder.decode(chunk).encode()
        yield decoder.decode(b"", final=True).encode()
    except LookupError as error:
        words = f"{name}: encoding {shortened(encoding)} is unknown to Python"
        raise DataError(f"{words}; name another: `encoding: cp1252` in a sweep file, else --encoding") from error
    except UnicodeError as error:
        raise DataError(f"{name} is not {encoding}: {error}; name its encoding, or save it as UTF-8") from error
