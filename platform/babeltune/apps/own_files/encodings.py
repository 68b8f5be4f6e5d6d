"""Guesses which code page a text file has, if it is no Unicode: readers of sweep files take what is named."""

import hashlib
from pathlib import Path

from babeltune.data.file_readers import bounded_lines
from babeltune.data.text_streams import UNREADABLE, unpacked
from babeltune.errors import DataError, to_utf8

SAMPLE_BYTES = 1 << 18  # bytes of lines that are not UTF-8 from which the encoding is guessed
LINE_BYTES = 1 << 20  # a longer line decides no encoding
WESTERN = ("cp1252", "latin_1")
"""Taken if they explain the text as well as others do: most files that are not UTF-8 have one of these."""
CODE_PAGES = [
    *WESTERN, "cp1250", "cp1251", "koi8_r", "iso8859_2", "cp1253", "cp1254", "cp1255", "cp1256", "cp932", "euc_jp",
    "cp949", "euc_kr", "gb18030", "big5",
]  # fmt: skip


def encoding_of(path: Path) -> str | None:
    """The file's code page; None if it is UTF-8, UTF-16 or UTF-32. UTF-8 if most lines beyond ASCII are: the others are
    then broken rows."""
    good = bad = 0
    sample = bytearray()
    try:
        with unpacked(path) as file:
            if not file.peek(1):
                raise DataError(f"{path} is empty; name a file with text")
            for _, line, skipped in bounded_lines(file, path, hashlib.sha256(), LINE_BYTES):
                if b"\0" in line:
                    raise DataError(f"{path} is no text file: it holds zero bytes; export its text as UTF-8")
                if line.isascii() or skipped is not None:
                    continue
                try:
                    line.decode()
                    good += 1
                except UnicodeDecodeError:
                    bad += 1
                    if len(sample) < SAMPLE_BYTES:
                        sample += line
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}; fetch or pack the file again") from error
    return None if bad <= good else guessed(path, bytes(sample))


def guessed(path: Path, sample: bytes) -> str:
    """The code page that explains the text best."""
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=CODE_PAGES)
    best = matches.best()
    if best is None:
        raise DataError(f"{path} is not UTF-8, and no other encoding fits; name it with --encoding, or {to_utf8(b'')}")
    alike = {
        name
        for match in matches
        if match.chaos <= best.chaos + 0.02
        for name in (match.encoding, *match.could_be_from_charset)
    }
    return next((name for name in WESTERN if name in alike and _is_latin(sample, name)), best.encoding)


def _is_latin(sample: bytes, encoding: str) -> bool:
    """Whether the text has more plain letters than others, as languages of western Europe do."""
    text = sample.decode(encoding, errors="replace")
    letters = [character for character in text if character.isalpha()]
    return sum(character.isascii() for character in letters) > 0.7 * len(letters)
