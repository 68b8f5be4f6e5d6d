"""Sheets of workbooks give rows of text: numbers and dates as people read them, one sheet, and little memory."""

import hashlib
import zipfile

import pytest

from babeltune.apps.own_files.tables import read_table
from babeltune.data import spreadsheets
from babeltune.data.sources import read_source
from babeltune.data.spreadsheets import sheet_rows
from babeltune.errors import DataError
from babeltune.schema.records import Source

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
DATE = 45658
"""Excel's number of 1 January 2025."""
ROWS = [("eng", "fra", "count", "rate", "day"), ("Yes", "Oui", 3, 0.5, None), ("No", "Non", 4, 1.25, None)]
TEXTS = [["eng", "fra", "count", "rate", "day"], *(["Yes", "Oui", "3", "0.5"], ["No", "Non", "4", "1.25"])]


def xlsx(path, **sheets):
    """A workbook; a cell of None is a date."""

    def cell(value):
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
        return f"<c><v>{value}</v></c>" if value is not None else f'<c s="1"><v>{DATE}</v></c>'

    parts = {
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}"><Relationship Id="r" Type="{RELATIONS}/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheets>'
        + "".join(f'<sheet name="{name}" sheetId="{i}" r:id="r{i}"/>' for i, name in enumerate(sheets, 1))
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}">'
        + "".join(
            f'<Relationship Id="r{i}" Type="{RELATIONS}/worksheet" Target="worksheets/s{i}.xml"/>'
            for i in range(1, len(sheets) + 1)
        )
        + f'<Relationship Id="rs" Type="{RELATIONS}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": f'<styleSheet xmlns="{MAIN}"><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
        "</styleSheet>",
    }
    for i, rows in enumerate(sheets.values(), 1):
        lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
        parts[f"xl/worksheets/s{i}.xml"] = f'<worksheet xmlns="{MAIN}"><sheetData>{lines}</sheetData></worksheet>'
    return packed(path, parts)


def ods(path, **sheets):
    def cell(value):
        if isinstance(value, str):
            return f'<table:table-cell office:value-type="string"><text:p>{value}</text:p></table:table-cell>'
        if value is None:
            return '<table:table-cell office:value-type="date" office:date-value="2025-01-01"/>'
        return f'<table:table-cell office:value-type="float" office:value="{value}"/>'

    tables = "".join(
        f'<table:table table:name="{name}">'
        + "".join(f"<table:table-row>{''.join(map(cell, row))}</table:table-row>" for row in rows)
        + "</table:table>"
        for name, rows in sheets.items()
    )
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    content = f"<office:document-content {spaces}><office:body><office:spreadsheet>{tables}"
    content += "</office:spreadsheet></office:body></office:document-content>"
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    return packed(path, {"mimetype": kind, "META-INF/manifest.xml": "<manifest/>", "content.xml": content})


def packed(path, parts):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


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
    source = Source(name="s", format=kind, path="book", columns={"eng": "eng", "fra": "fra"})
    rows = read_source(source, tmp_path, others={})
    assert rows.columns == {"eng": ["Yes", "No"], "fra": ["Oui", "Non"]}
    table = read_table(str(path), header=True)
    assert (table.format, table.columns, table.sample[0][:4]) == (kind, tuple(ROWS[0]), ("Yes", "Oui", "3", "0.5"))


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
