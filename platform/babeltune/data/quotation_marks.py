"""Finds the columns of a table whose fields a spreadsheet has put in quotation marks. Used by `sources`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from babeltune.data.file_readers import Fault, Row
from babeltune.errors import DataError

log = logging.getLogger(__name__)
QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""A field as spreadsheets quote it: quotation marks around it, and doubled within."""
QUOTED_LEAST = 3
"""This many quoted fields of a column are no chance. A spreadsheet quotes all, or each with a comma or a mark."""
QUOTED_SHARE = 0.5
"""More of a column's fields than this are not quoted by chance. In text with quotations it is a few in a hundred."""


@dataclass
class Quotes:
    """How many fields of a column are quoted, and how."""

    total: int = 0
    wrapped: int = 0  # fields in quotation marks
    bare: int = 0  # fields that a spreadsheet would have quoted, and that are not
    marked: int = 0  # fields with a quotation mark
    doubled: int = 0  # fields in quotation marks with doubled marks inside

    def see(self, text: str) -> None:
        """Counts a field."""
        self.total += 1
        if '"' not in text:
            self.bare += "," in text
            return
        self.marked += 1
        if QUOTED.fullmatch(text):
            self.wrapped += 1
            self.doubled += '""' in text[1:-1]
        else:
            self.bare += 1

    def add(self, other: Quotes) -> None:
        """Adds the counts of another part of the same column."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


@dataclass
class QuotedColumns:
    """The counts of each column of a table."""

    names: Sequence[str]
    columns: list[Quotes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = self.columns or [Quotes() for _ in self.names]

    def see(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Passes the rows on, and counts the quotation marks of each column."""
        for line, values in rows:
            yield line, values
            if not isinstance(values, Fault):
                for column, text in zip(self.columns, values, strict=True):
                    column.see(text)

    def refuse(self, path: Path) -> None:
        """Raises `DataError` if a spreadsheet has put quotation marks around the fields.

        If only texts with quotation marks are quoted, and all of these, a warning says so: published corpora have such
        remains too."""
        for name, column in zip(self.names, self.columns, strict=True):
            many = column.wrapped >= QUOTED_LEAST
            if many and (not column.bare or column.wrapped > QUOTED_SHARE * column.total):
                raise DataError(
                    f"{path}: {column.wrapped:,} of {column.total:,} fields of column {name!r} are in quotation marks, "
                    "as spreadsheets write them; say `quoted: true`, or `quoted: false` if the marks belong to the text"
                )
        remains = [
            name
            for name, column in zip(self.names, self.columns, strict=True)
            if column.doubled >= QUOTED_LEAST and column.marked == column.wrapped
        ]
        if remains:
            log.warning(
                "%s: in column %s every text that holds quotation marks is quoted, with doubled marks inside; say "
                "`quoted: true` to read them, or `quoted: false` to keep the marks without this warning",
                path,
                " and ".join(map(repr, remains)),
            )


def refuse_quoted(path: Path, names: Sequence[str], rows: Iterable[Row]) -> Iterator[Row]:
    """The same rows. Raises `DataError` at their end if a spreadsheet has put quotation marks around the fields."""
    quotes = QuotedColumns(names)
    yield from quotes.see(rows)
    quotes.refuse(path)
