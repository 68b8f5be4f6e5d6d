"""Writes the rows of a sheet to standard output, a JSON list a line. `spreadsheets` runs it as a process of its own.

The whole sheet is in memory here, and a small file may hold a huge one. So `spreadsheets` watches the process.
It imports nothing of babeltune."""

import datetime
import json
import sys

from python_calamine import load_workbook

SHEETS = 3  # exit code if a sheet must be named; standard error lists those with cells


def text_of(cell: object) -> str:
    """A cell as text: whole numbers without a point, dates as ISO 8601 has them."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ") if cell.time() != datetime.time() else cell.date().isoformat()
    return str(cell)


def write(path: str, name: str) -> int:
    """Prints the rows of the chosen sheet. Returns `SHEETS` if the choice is not clear."""
    with open(path, "rb") as file:  # noqa: PTH123  (by a path, the ending would decide the format)
        book = load_workbook(file)
    # Without a name, the only sheet with cells is chosen.
    names = [name] if name in book.sheet_names else [] if name else list(book.sheet_names)
    filled = [each for each in names if book.get_sheet_by_name(each).total_height]
    if not filled and not name:
        return 0
    if len(filled) != 1:
        print(json.dumps(filled or list(book.sheet_names)), file=sys.stderr)
        return SHEETS
    for row in book.get_sheet_by_name(filled[0]).to_python(skip_empty_area=False):
        print(json.dumps([text_of(cell) for cell in row] if any(cell != "" for cell in row) else []))
    return 0


if __name__ == "__main__":
    sys.exit(write(sys.argv[1], sys.argv[2]))
