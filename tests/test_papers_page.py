"""Each row of the page of the papers has a command that exists and shows its item, or says what is missing."""

import ast
import dataclasses
import functools
import itertools
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml

from babeltune.method import load_method
from babeltune.planning.goals import dev_metrics
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Parameter
from benchmarks import bought, filtered
from benchmarks.tables.__main__ import TABLES
from benchmarks.tables.departures import DEPARTURES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
PAPERS = ("Park et al. 2024", "Tan et al. 2023", "Mao and Nakagawa 2023", "Li", "Chen et al. 2023")
GROUPS = ["Losses and equations", "Data", "Training", "Models", "Evaluation", "Tables and figures"]
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")[1:6]}
ROWS = {
    paper: [
        (item, command)
        for item, command in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
        if item not in ("item", "---")
    ]
    for paper, section in SECTIONS.items()
}
ITEMS = [row for rows in ROWS.values() for row in rows]
LEAST = {"Park et al. 2024": 100, "Tan et al. 2023": 80, "Mao and Nakagawa 2023": 80, "Li": 35, "Chen et al. 2023": 40}
"""Rows of each paper below which something was lost."""
LISTS = ("babeltune methods ", "babeltune submit ", "babeltune plan ", "babeltune evaluate ")
"""Commands that may have names of settings or scores behind them."""
COMMANDS = ("babeltune ", "make table TABLE=", "python -m benchmarks.", "python -m pytest tests/")
NUMBER = r"(?:\d+(?:\.\d+)*|[A-F])(?!\w)"
PLACES = re.compile(
    r"\b(section|equation|table|figure|footnote|appendix|algorithm)"
    rf"(?:s ({NUMBER}(?:(?:, | and | to ){NUMBER})*)| ({NUMBER}|\"[^\"]+\"))"
)
PRINTED = {
    "Park et al. 2024": {"equation": 7, "table": 13, "figure": 1, "footnote": 5, "appendix": "ABC"},
    "Tan et al. 2023": {"equation": 3, "table": 9, "figure": 4, "footnote": 14, "appendix": "ABC", "algorithm": 1},
    "Mao and Nakagawa 2023": {"equation": 5, "table": 8, "figure": 4, "footnote": 8, "appendix": "ABCDEF"},
    "Li": {"table": 2, "figure": 3},
    "Chen et al. 2023": {"equation": 7, "table": 1, "figure": 3},
}
"""What each paper numbers, and how far."""
HEADINGS = {
    "Park et al. 2024": ["3", "4.1", "4.2", "5.1", "5.2", "5.3"],
    "Tan et al. 2023": ["1", "2", "2.1", "2.2", "3.1", "3.2", "3.3", "3.4", "4.1", "4.2", "5.1", "5.2", "5.3"],
    "Mao and Nakagawa 2023": ["1", "2", "3.1", "3.2", "3.3", "4.2"],
    "Li": ["3", "3.1", "3.2", "4", "5.1", "5.2", "5.3", "5.4", "5.5.1", "5.5.2", "6"],
    "Chen et al. 2023": [
        "Introduction",
        "Concatenated Contextual Embedding Encoder",
        "Multi-Level Contrastive Learning",
        "Cross-Zero NCE",
        "Results on Xtreme Benchmark",
    ],
}
"""The sections of each paper that describe an item."""


def commands_of(cell):
    """Each command of a cell, with the names that stand behind it."""
    commands = []
    for span in re.findall(r"`([^`]+)`", cell):
        if span.startswith(COMMANDS):
            commands.append((span, []))
        else:
            assert commands, f"{span} stands before any command"
            commands[-1][1].append(span)
    return commands


def places_of(item):
    """The numbered places that an item names: `tables 7 to 10` are four."""
    for kind, several, one in PLACES.findall(item):
        if one:
            yield kind, one.strip('"')
        for first, last in re.findall(rf"({NUMBER})(?: to ({NUMBER}))?", several):
            yield from ((kind, str(n)) for n in range(int(first), int(last) + 1)) if last else [(kind, first)]


def same(value, written):
    """Whether a setting has the value that the page writes, or is a list that holds it."""
    try:
        plain = yaml.safe_load(written)
    except yaml.YAMLError:
        plain = written
    if isinstance(value, tuple | list):
        return list(value) == plain or plain in value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(written) == value
    return value == plain


def within(parameter, written):
    """Whether a search may propose this value."""
    for name in ("float", "int", "log_float", "log_int"):
        if (bounds := getattr(parameter, name)) is not None:
            return bounds[0] <= float(written) <= bounds[1]
    return any(same(value, written) for value in parameter.choice or (parameter.const,))


def setting(sweep, key):
    """The value, or the search, that a sweep has for a key of its file; a setting of the method needs no section."""
    if key in sweep.parameters:
        return sweep.parameters[key]
    value = sweep
    for part in key.split("."):
        if isinstance(value, dict):
            value = value[part]
        elif isinstance(value, tuple):
            value = value[int(part)]
        else:
            value = getattr(value, part)
    return value


@functools.cache
def sweep_of(line):
    """The sweep of a command's files and assignments. Registered models are any folder."""
    words = shlex.split(line)[2:]
    overlays, assignments = (
        [value for name, value in itertools.pairwise(words) if name == option] for option in ("--with", "--set")
    )
    return read_sweep(
        ROOT / words[0],
        overlays=[ROOT / overlay for overlay in overlays],
        assignments=assignments,
        fetch=lambda _: str(ROOT / "docs"),
    )


@functools.cache
def evaluated(line):
    """A sweep with the data that `evaluate --with` scores."""
    words = shlex.split(line)
    return read_sweep(ROOT / "search_spaces/static.yaml", overlays=[ROOT / words[words.index("--with") + 1]])


@functools.cache
def names_of_tests(path):
    """The names of a file's tests, without those that a plain `pytest` leaves out."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    left_out = {"pytest.mark.long", "pytest.mark.chaos"}
    return {test.name for test in tests if not left_out & {ast.unparse(mark) for mark in test.decorator_list}}


def check_sweep(sweep, names):
    """Settings are those of the sweep, and scores are of its sealed sets or of the overlay's."""
    as_dev = dataclasses.replace(sweep, data=dataclasses.replace(sweep.data, dev=sweep.data.test))
    for name in names:
        if name.startswith("test/"):
            assert name.replace("test/", "dev/", 1) in dev_metrics(as_dev)
            continue
        key, equals, written = name.partition("=")
        value = setting(sweep, key)
        if equals:
            assert within(value, written) if isinstance(value, Parameter) else same(value, written), name


def check_method(name, names):
    """Settings are fields of the method, with the page's value as their default."""
    config = load_method(name).Config()
    for each in names:
        key, equals, written = each.partition("=")
        assert hasattr(config, key), each
        assert not equals or same(getattr(config, key), written), each


@pytest.mark.parametrize(("item", "command"), ITEMS)
def test_an_item_of_a_paper_has_a_command_that_exists_or_is_missing(item, command):
    """That commands of babeltune parse is a test of all pages: `test_docs.py`."""
    if command.startswith("missing"):
        assert len(command.removeprefix("missing: ")) > 10, "a reason"
        return
    commands = commands_of(command)
    assert commands
    for line, names in commands:
        assert line.startswith(LISTS) or not names
        if line.startswith("make"):
            assert line.removeprefix("make table TABLE=") in TABLES
        if line.startswith("python -m pytest"):
            path, _, name = line.split()[3].partition("::")
            assert name in names_of_tests(path), line
        if line.startswith("babeltune methods"):
            check_method(line.split()[2], names)
        if line.startswith(("babeltune submit", "babeltune plan")):
            check_sweep(sweep_of(line), names)
        if line.startswith("babeltune evaluate") and "bought" not in line:
            check_sweep(evaluated(line), names)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_has_its_rows_in_six_groups_and_none_twice(paper):
    assert re.findall(r"^### (.+)$", SECTIONS[paper], re.MULTILINE) == GROUPS
    assert [item for item, count in Counter(item for item, _ in ROWS[paper]).items() if count > 1] == []
    assert len(ROWS[paper]) >= LEAST[paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_numbered_place_of_a_paper_has_a_row_and_every_row_a_place(paper):
    assert [item for item, _ in ROWS[paper] if not PLACES.search(item)] == []
    places = {place for item, _ in ROWS[paper] for place in places_of(item)}
    printed = {("section", heading) for heading in HEADINGS[paper]} | {
        (kind, str(n))
        for kind, last in PRINTED[paper].items()
        for n in (last if isinstance(last, str) else range(1, last + 1))
    }
    assert sorted(places) == sorted(printed)


def test_every_table_of_a_paper_is_on_the_page_or_leads_there():
    """Tables that go on longer, or look into a reason, are linked from the others' pages."""
    shown = set(re.findall(r"TABLE=(\w+)", PAGE))
    for paper in ("park", "tan", "mao", "li", "chen"):
        assert shown & {name for name in TABLES if name.startswith(paper)}


def test_a_departure_from_print_links_its_table_or_says_how_to_run_it():
    """A page that was written since is linked, so that no measured effect is called unmeasured."""
    section = PAGE.partition("\n## Departures from print\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .+ \| .+ \| (.+?) \|$", section, re.MULTILINE)[1:]
    measured = {path.stem for path in (ROOT / "docs/measured/tables").glob("*.json")}
    for cell in rows[1:]:
        linked, to_run = re.findall(r"\(tables/(\w+)\.md\)", cell), re.findall(r"TABLE=(\w+)", cell)
        assert set(linked) <= measured
        assert set(to_run) <= TABLES.keys() - measured, f"{cell} was run: link its page"
        assert linked or to_run or len(cell.removeprefix("not: ")) > 10, "a reason"
    assert {table.name for table in DEPARTURES} <= set(re.findall(r"(?:TABLE=|tables/)(\w+)", section))


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
    scores = dict.fromkeys(bought.COLUMNS.values(), 0.83974)
    lines = bought.table({"rows": {"LaBSE": {"scores": scores}}}).splitlines()
    place = lines.index("| LaBSE, printed | 0.926 | 0.954 | 0.960 | 0.952 |  |  |  |")
    assert lines[place + 1].startswith("| LaBSE, here | 0.840 | 0.840 |"), "figures are rounded"
    assert any(line.startswith("| mUSE | not measured |") for line in lines)
