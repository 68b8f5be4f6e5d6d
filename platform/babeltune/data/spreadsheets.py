"""Reads sheets of XLSX and ODS workbooks, row by row, from a process with a limit to its memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from babeltune.data import read_progress
from babeltune.data.file_readers import Digest, Row, too_long
from babeltune.data.text_streams import names_in_archive, refuse_other
from babeltune.data.watched_process import exit_of, watched
from babeltune.errors import DataError, list_of, nearest, shortened

MEMORY = 1 << 30  # bytes of memory that reading a sheet may take. A million rows of two sentences take about half.
SHEETS = 3  # exit code of `sheet_process` if a sheet must be named


def workbook_format(path: Path) -> Literal["xlsx", "ods"] | None:
    """Which kind of workbook a file is, by its content."""
    names = set(names_in_archive(path))
    if {"xl/workbook.xml", "xl/workbook.bin"} & names:
        return "xlsx"
    return "ods" if {"content.xml", "mimetype"} <= names else None


def sheet_rows(path: Path, sheet: str | None, content: Digest, longest: int) -> Iterator[Row]:
    """The rows of a sheet with their numbers from 1, less empty ones. `sheet`: its name; None: the only one with cells.

    Raises `DataError` for what is no workbook, for a sheet that is not there, for one that takes more than `MEMORY`,
    and for a file that changes meanwhile."""
    with read_progress.unchanged(path):
        with read_progress.open_file(path) as raw:
            while block := raw.read(1 << 20):
                content.update(block)
        if workbook_format(path) is None:
            with path.open("rb") as raw:
                refuse_other(raw.read(512), path)
            raise DataError(f"{path} is no XLSX or ODS workbook; correct `format`, or save it again")
        with watched("sheet_process.py", str(path), sheet or "", memory=MEMORY) as process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout, 1):
                row = json.loads(line)
                length = max((len(cell.encode(errors="surrogatepass")) for cell in row), default=0)
                if row:
                    yield number, too_long(length, longest) if length > longest else row
            code, words = exit_of(process)
        if code:
            raise _refusal(path, sheet, code, words)


def _refusal(path: Path, sheet: str | None, code: int, cause: str) -> DataError:
    """The error of a process that ended with a code, and what it said."""
    sheets: list[str] = json.loads(cause.splitlines()[-1]) if code == SHEETS else []
    if code == SHEETS and sheet:
        near = nearest(sheet, sheets)
        return DataError(f"{path} has no sheet {shortened(sheet)} with cells; sheets: {list_of(sheets)}{near}")
    if code == SHEETS:
        way = f"name one: `sheet: {sheets[0]}` in a sweep file, or '{path.name}[{sheets[0]}]' for init"
        return DataError(f"{path} has {len(sheets)} sheets ({list_of(sheets)}); {way}")
    if code < 0 or "memory allocation" in cause:
        return DataError(f"{path} takes more than {MEMORY >> 20:,} MB to read; save the sheet as CSV (UTF-8)")
    words = (cause.strip().splitlines() or ["it ended"])[-1][:200]
    return DataError(f"{path} cannot be read as a workbook: {words}; save the sheet as CSV (UTF-8)")
