"""Pairs of a user's file of any format that `init` reads, for the commands that score them."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from babeltune.apps.own_files.headers import TYPES
from babeltune.apps.own_files.tables import Table, is_parquet, named_sheet, read_table
from babeltune.data.file_readers import MAX_LINE_BYTES, Digest, Row, file_at
from babeltune.data.sources import read_file
from babeltune.data.spreadsheets import workbook_format
from babeltune.data.text_streams import text_name
from babeltune.data.translation_files import format_in
from babeltune.errors import DataError, list_of
from babeltune.schema.base import made_of
from babeltune.schema.records import Source, TsvSource

log = logging.getLogger(__name__)
Columns = tuple[str, str]
"""The names of the source's and the target's column, or their numbers from 0 in a file without a header."""
NUMBER = TYPES["number"]
TABLES = ("tsv", "csv", "moses", "xlsx", "ods")
"""Formats that may lack a header. `moses` is text in which no delimiter was seen."""


def file_named(name: str) -> Path:
    """The file of a name; `book.xlsx[Sheet2]` is `book.xlsx`. Raises `DataError` if it is not there."""
    return file_at(str(named_sheet(name, Path(name))[0]), once=True)


def pair_rows(
    name: str, columns: Sequence[str] | None, content: Digest, codec: str | None, longest: int = MAX_LINE_BYTES
) -> Iterator[Row]:
    """Line, and the source and the target or what is wrong with them. The first two columns, or those that are named:
    `mine` names one. `codec`: the file's code page; None: it is in Unicode.

    A first row that is surely a header is none of the pairs. One that may be is a pair, and a warning names it.

    Raises `DataError` for a file that cannot be read, and for columns that it does not have."""
    path = file_named(name)
    header = columns is not None and not all(map(str.isdigit, columns))
    # A pipe can be read once only, so that nothing is seen of it before.
    table = read_table(name, encoding=codec, header=header if columns else None) if path.is_file() else None
    if table is not None and table.header and table.guessed:
        words = ", ".join(table.columns)
        log.warning("%s: the first row (%s) was taken for a pair; if it is a header, name its --columns", name, words)
        table = read_table(name, encoding=codec, header=False)
    if table is None or table.format == "moses":
        source: Source = TsvSource(name=name, header=header, quoted=False, encoding=codec)
    else:
        source = made_of(Source, {**vars(table), "name": name, "columns": {}, "encoding": codec})
    return read_file(source, path, columns or two_columns(name, table), content, longest)


def check_pairs(name: str, columns: Columns | None, codec: str | None) -> None:
    """Raises `DataError` for a file that cannot be read, and for columns that it does not have. A pipe is not read."""
    if file_named(name).is_file():
        next(pair_rows(name, columns, hashlib.sha256(), codec), None)


def only_column(name: str, codec: str | None) -> str | None:
    """The column of a table; None for text, whose lines are all read. Delimited text is a table if it has a header, or
    its name says so.

    Raises `DataError` if there are several."""
    path = file_named(name)
    if not path.is_file():
        return None
    is_table = bool(is_parquet(path) or workbook_format(path) or format_in(path, codec))
    try:
        table = read_table(name, encoding=codec)
    except DataError:
        if is_table:
            raise
        return None  # it is read as lines, which says what is wrong
    if table.format in ("tsv", "csv"):
        is_named = text_name(path).lower().endswith((".tsv", ".csv"))
        is_table = len(table.columns) > 1 and (is_named or (table.header and not table.guessed))
    if not is_table and table.format != "jsonl":
        return None
    if len(table.columns) > 1:
        words = f"{name} is {table.format.upper()} with the columns {list_of(table.columns)}"
        raise DataError(f"{words}; say which of each file: --columns SOURCE,TARGET (index: --column)")
    return table.columns[0]


def two_columns(name: str, table: Table | None) -> Columns:
    """The columns that nobody has named: the only two of text beside numbers, such as the margins that `mine` writes,
    else the first two of a table without a header. Raises `DataError` if others have names, too."""
    if table is None or table.format == "moses":
        return "0", "1"
    names = table.columns if table.header else tuple(map(str, range(len(table.columns))))
    if len(names) != 2 and table.format not in TABLES:
        raise DataError(f"{name} has the columns {list_of(names)}; say which two: --columns SOURCE,TARGET")
    cells = zip(*table.sample, strict=True)
    text = [each for each, column in zip(names, cells, strict=False) if not all(map(NUMBER.fullmatch, column))]
    if table.header and len(text) > 2:
        raise DataError(f"{name} has the columns {list_of(names)}; say which two: --columns SOURCE,TARGET")
    best = text if len(text) == 2 else [*names, "1"]
    return best[0], best[1]
