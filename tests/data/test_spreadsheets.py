"""Sheets of workbooks give rows of text: numbers and dates as people read them, one sheet, and little memory."""

import hashlib

import pytest

from any_source import any_source
from babeltune.apps.own_files.tables import read_table
from babeltune.data import spreadsheets
from babeltune.data.sources import read_source
from babeltune.data.spreadsheets import sheet_rows
from babeltune.errors import DataError
from workbooks import ods, xlsx

ROWS = [("eng", "fra", "count", "rate", "day"), ("Yes", "Oui", 3, 0.5, None), ("No", "Non", 4, 1.25, None)]
TEXTS = [["eng", "fra", "count", "rate", "day"], *(["Yes", "Oui", "3", "0.5"], ["No", "Non", "4", "1.25"])]


BOOKS = {"xlsx": xlsx, "ods": ods}


@pytest.mark.parametrize("kind", BOOKS)
def test_numbers_and_dates_of_a_sheet_are_read_as_people_see_them(kind, tmp_path):
    path = BOOKS[kind](tmp_path / "book", Texts=ROWS)
    rows = [row for _, row in sheet_rows(path, None, hashlib.sha256(), 1000)]
    assert rows[0] == TEXTS[0]
    assert rows[1:] == [[*row, "2025-01-01"] for row in TEXTS[1:]]


@pytest.mark.parametrize("kind", BOOKS)
def test_a_sweep_file_and_init_read_the_same_columns_of_a_workbook(kind, tmp_path):
    path = BOOKS[kind](tmp_path / "book", Texts=ROWS)
    source = any_source(name="s", format=kind, path="book", columns={"eng": "eng", "fra": "fra"})
    rows = read_source(source, tmp_path, others={})
    assert rows.columns == {"eng": ["Yes", "No"], "fra": ["Oui", "Non"]}
    table = read_table(str(path), header=True)
    assert (table.format, table.columns, table.sample[0][:4]) == (kind, tuple(ROWS[0]), ("Yes", "Oui", "3", "0.5"))


def test_an_old_workbook_says_how_to_save_it(tmp_path):
    (tmp_path / "book.xlsx").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(600))
    with pytest.raises(DataError, match="an old Excel workbook; save it as XLSX"):
        list(sheet_rows(tmp_path / "book.xlsx", None, hashlib.sha256(), 1000))


@pytest.mark.parametrize("kind", BOOKS)
def test_a_sheet_is_named_if_several_have_cells(kind, tmp_path):
    path = BOOKS[kind](tmp_path / "book", Texts=ROWS, Old=ROWS, Empty=[])
    with pytest.raises(DataError, match=r"2 sheets \(Texts, Old\); name one: `sheet: Texts`"):
        list(sheet_rows(path, None, hashlib.sha256(), 1000))
    assert len(list(sheet_rows(path, "Old", hashlib.sha256(), 1000))) == len(ROWS)
    with pytest.raises(DataError, match="no sheet 'Odl' with cells; sheets: Texts, Old"):
        list(sheet_rows(path, "Odl", hashlib.sha256(), 1000))


def test_a_workbook_that_fills_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(spreadsheets, "MEMORY", 60 << 20)
    path = xlsx(tmp_path / "book", Texts=[("x" * 1000, "y")] * 60_000)
    with pytest.raises(DataError, match="takes more than 60 MB to read; save the sheet as CSV"):
        list(sheet_rows(path, None, hashlib.sha256(), 10_000))
