"""Each row of the page of the papers has a command that exists, or says what is missing."""

import re
from pathlib import Path

import pytest

from benchmarks import bought, filtered
from benchmarks.tables.__main__ import TABLES

PAGE = (Path(__file__).parents[1] / "docs/papers.md").read_text(encoding="utf-8")
ITEMS = [
    (item, command)
    for section in PAGE.split("\n## ")[1:6]
    for item, command in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    if item not in ("item", "---")
]


@pytest.mark.parametrize(("item", "command"), ITEMS)
def test_an_item_of_a_paper_has_a_command_that_exists_or_is_missing(item, command):
    """That commands of babeltune parse is a test of all pages: `test_docs.py`."""
    commands = re.findall(r"`([^`]+)`", command)
    if command.startswith("missing"):
        assert len(command) > 20, "a reason"
        return
    assert commands
    for line in commands:
        assert line.startswith(("babeltune ", "make table TABLE=", "python -m benchmarks."))
        if line.startswith("make"):
            assert line.removeprefix("make table TABLE=") in TABLES


def test_every_table_of_a_paper_is_on_the_page_or_leads_there():
    """Tables that go on longer, or look into a reason, are linked from the others' pages."""
    assert len(ITEMS) > 45
    shown = set(re.findall(r"TABLE=(\w+)", PAGE))
    for paper in ("park", "tan", "mao", "li", "chen"):
        assert shown & {name for name in TABLES if name.startswith(paper)}


def test_the_figures_of_models_to_buy_are_those_of_the_record():
    record = bought.FIGURES.read() if bought.FIGURES.record.exists() else {"rows": {}}
    assert bought.FIGURES.shown(record) == PAGE
    for row in record["rows"].values():
        assert set(row["scores"]) == set(bought.COLUMNS.values())


def test_the_figures_of_filtered_text_are_those_of_the_record():
    record = filtered.FIGURES.read() if filtered.FIGURES.record.exists() else {"rows": {}}
    assert filtered.FIGURES.shown(record) == PAGE
    for row in record["rows"].values():
        assert tuple(subset["asked"] for subset in row["subsets"]) == filtered.SIZES


def test_figures_of_a_row_stand_under_its_printed_ones():
    scores = dict.fromkeys(bought.COLUMNS.values(), 0.5)
    lines = bought.table({"rows": {"LaBSE": {"scores": scores}}}).splitlines()
    place = lines.index("| LaBSE, printed | 0.926 | 0.954 | 0.960 | 0.952 |  |  |  |")
    assert lines[place + 1].startswith("| LaBSE, here | 0.500 | 0.500 |")
    assert any(line.startswith("| mUSE | not measured |") for line in lines)
