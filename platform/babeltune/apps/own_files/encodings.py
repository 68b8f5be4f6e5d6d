"""Which encoding a text file has, and a UTF-8 copy of one that has another: the readers take UTF-8 alone."""

from __future__ import annotations

import gzip
import io
import shutil
from pathlib import Path
from typing import IO

from babeltune.errors import UTF_16, DataError, to_utf8

SAMPLE_BYTES = 1 << 18
"""Bytes of lines that are not UTF-8 from which the encoding is guessed."""
LINE_BYTES = 1 << 20
"""A longer line is read in parts; it decides no encoding."""
WESTERN = ("cp1252", "latin_1")
"""Taken where they explain the text as well as others do: most files that are not UTF-8 have one of these."""
CODE_PAGES = [
    *WESTERN, "cp1250", "cp1251", "koi8_r", "iso8859_2", "cp1253", "cp1254", "cp1255", "cp1256", "cp932", "euc_jp",
    "cp949", "euc_kr", "gb18030", "big5",
]  # fmt: skip
PACKED = {
    b"PK\x03\x04": "a ZIP file or an Excel workbook; save each sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save each sheet as CSV (UTF-8)",
    b"BZh": "packed with bzip2; unpack it with bunzip2",
    b"\xfd7zXZ": "packed with xz; unpack it with unxz",
    b"\x28\xb5\x2f\xfd": "packed with Zstandard; unpack it with unzstd",
    b"%PDF": "a PDF; export its text",
}
"""How files begin that hold no plain text, and what to do."""


def opened(path: Path) -> IO[bytes]:
    """The file's bytes; gzip is unpacked."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    return io.BufferedReader(gzip.GzipFile(path)) if packed else path.open("rb")


def refuse_packed(path: Path) -> None:
    """`DataError` for a file that is no text, with what to do about it."""
    with path.open("rb") as file:
        begin = file.read(8)
    for mark, words in PACKED.items():
        if begin.startswith(mark):
            raise DataError(f"{path} is {words}")
    if not begin:
        raise DataError(f"{path} is empty; name a file with text")


def encoding_of(path: Path) -> str:
    """The file's encoding. UTF-8 if most lines beyond ASCII are; the others are then broken rows."""
    good = bad = 0
    sample = bytearray()
    try:
        with opened(path) as file:
            if file.peek(2)[:2] in UTF_16:  # type: ignore[attr-defined]
                return "utf-16"
            while line := file.readline(LINE_BYTES):
                if b"\0" in line:
                    raise DataError(f"{path} is no text file: it holds zero bytes; export its text as UTF-8")
                if line.isascii() or len(line) == LINE_BYTES:
                    continue
                try:
                    line.decode()
                    good += 1
                except UnicodeDecodeError:
                    bad += 1
                    if len(sample) < SAMPLE_BYTES:
                        sample += line
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}; fetch or pack the file again") from error
    return "utf-8" if bad <= good else guessed(path, bytes(sample))


def guessed(path: Path, sample: bytes) -> str:
    """The code page that explains the text best."""
    from charset_normalizer import from_bytes

    found = from_bytes(sample, cp_isolation=CODE_PAGES)
    best = found.best()
    if best is None:
        raise DataError(f"{path} is not UTF-8, and no other encoding fits; name it with --encoding, or {to_utf8(b'')}")
    alike = {
        name
        for match in found
        if match.chaos <= best.chaos + 0.02
        for name in (match.encoding, *match.could_be_from_charset)
    }
    return next((name for name in WESTERN if name in alike and _is_latin(sample, name)), best.encoding)


def _is_latin(sample: bytes, encoding: str) -> bool:
    """Whether the text has more plain letters than others, as languages of western Europe do."""
    text = sample.decode(encoding, errors="replace")
    letters = [character for character in text if character.isalpha()]
    return sum(character.isascii() for character in letters) > 0.7 * len(letters)


def as_utf8(path: Path, encoding: str, work: Path) -> Path:
    """A copy of the file in UTF-8, in the folder `work`. Raises `DataError` where the bytes are not of the encoding."""
    copy = work / f"{len(list(work.iterdir()))}-{path.name.removesuffix('.gz')}"
    try:
        with (
            opened(path) as raw,
            io.TextIOWrapper(raw, encoding=encoding, newline="") as text,
            copy.open("w", encoding="utf-8", newline="") as out,
        ):
            shutil.copyfileobj(text, out)
    except LookupError as error:
        raise DataError(
            f"--encoding {encoding!r} is unknown to Python; say for example cp1252, or shift_jis"
        ) from error
    except UnicodeError as error:
        raise DataError(f"{path} is not {encoding}: {error}; name its encoding with --encoding") from error
    return copy
