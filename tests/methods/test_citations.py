"""Each setting names its place in the paper, and the printed value is found there.

`citations.tsv` is the one table. A row says where a citation stands (`method.field` or a file), the paper's number or
whose choice the value is, the place as printed, and what is printed there (` | ` between several things). `derived` has
the numbers that our text states beside the citation and that the paper does not print, such as a mean of printed ones.
"""

import ast
import csv
import io
import re
import tokenize
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest

from babeltune.cli.render import method_document
from babeltune.method import available, load_method
from babeltune.planning.space import fields_of
from benchmarks.tables.__main__ import TABLES

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT.parent / "shared" / "papers"
NUMBER = r"(?:\d+(?:\.\d+)*|[A-C])(?!\w)"
PLACE = re.compile(
    rf"\b(?:sections?|equations?|tables?|figures?|footnotes?|appendix|algorithm) {NUMBER}"
    rf"(?:(?:, | and ){NUMBER})*|\bsection \"[^\"]+\"",
    re.IGNORECASE,
)
OTHERS = ("the authors' code", "fairseq", "sentence-transformers", "LaBSE", "ours")
"""Where a value comes from that no paper prints. Its field says so in these words."""
AUTHORS = r"Artetxe|Khodak|Thakur|Yang|Guzmán|Devlin|Steele|Leskovec|Kusupati|xSIM\+\+ \(Chen"
OTHER_PAPERS = re.compile(rf"(?:{AUTHORS}).{{0,60}}?(?:{PLACE.pattern})", re.IGNORECASE | re.DOTALL)
"""Citations of works that are not among the five papers."""

with (Path(__file__).parent / "citations.tsv").open(encoding="utf-8", newline="") as opened:
    ROWS = list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))
PRINTED = [row for row in ROWS if row["source"] not in OTHERS]
METHODS = sorted(name for name, place in available().items() if place.startswith("babeltune_methods."))
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in chain(
        *((ROOT / folder).rglob("*.yaml") for folder in ("search_spaces", "clusters")),
        *((ROOT / folder).rglob("*.py") for folder in ("platform", "methods", "benchmarks")),
        (ROOT / "search_spaces").rglob("*.md"),
        ROOT.glob("README.md"),
    )
)


def table(where):
    """The rows of one setting or file."""
    return [row for row in ROWS if row["where"] == where]


def places_in(text):
    """The places that a text names, in small letters (an appendix keeps its letter)."""
    plain = re.sub(r"\s*\n\s*#?\s*", " ", OTHER_PAPERS.sub("", text))
    return {match.group()[0].lower() + match.group()[1:] for match in PLACE.finditer(plain)}


# --- What is cited --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_each_setting_of_a_method_names_its_place_or_whose_choice_it_is(name):
    for setting in method_document(name).settings:
        rows, source = table(f"{name}.{setting.name}"), setting.source
        assert rows, f"{name}.{setting.name} has no row in citations.tsv"
        assert places_in(source) == {row["place"] for row in rows if row["place"]}, (name, setting)
        text = source.casefold()
        for row in rows:
            assert row["source"] not in OTHERS or row["source"].casefold() in text, (row, text)


def test_the_table_has_no_setting_and_no_file_that_is_gone():
    names = {f"{name}.{field}" for name in METHODS for field in fields_of(load_method(name))}
    assert {row["where"] for row in ROWS} <= names | set(FILES)


@pytest.mark.slow
def test_each_place_that_a_file_names_is_in_the_table():
    for file in FILES:
        table_places = {row["place"] for row in table(file) if row["place"]}
        of_fields = {row["place"] for row in ROWS if row["where"].startswith(f"{Path(file).stem}.")}
        places = places_in((ROOT / file).read_text("utf-8"))
        assert places <= (table_places | of_fields if file.startswith("methods/") else table_places), file
        assert table_places <= places, file


def test_methods_prints_the_corrected_places(capsys):
    from babeltune.cli.program import app

    for name in METHODS:
        app(["methods", name], standalone_mode=False)
        printed = re.sub(r"\s+", "", capsys.readouterr().out)
        for row in PRINTED:
            if row["where"].startswith(f"{name}."):
                assert re.sub(r"\s+", "", row["place"])[1:] in printed, row


# --- Which numbers stand beside a citation --------------------------------------------------------------------------

WORDS = {"three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
DIGITS = re.compile(r"(?<![\w.^-])(-?\d{1,3}(?:,\d{3})+(?!\d|,\d)|-?\d+(?:\.\d+)?(?:e-?\d+)?)([kM]?)(?![\w^])")
YEAR = re.compile(r"(?<!\S)(?:19\d|20[0-3])\d\b")
CLAUSE = re.compile(r"; |\. (?=[A-Z`\d(-])|\.$")


def numbers(text, *, words=False):
    """The numbers of a text, `1e03`, `1,000` and `1k` alike. A part of a name, such as of `SIB-200`, is no number."""
    values = {
        float(digits.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6}[unit] for digits, unit in DIGITS.findall(text)
    }
    return values | {float(WORDS[word]) for word in re.findall(r"[a-z]+", text.lower()) if words and word in WORDS}


def clauses(text):
    """Pieces that each make one statement: sentences, their halves, and parentheses that hold a number of their own."""
    plain = re.sub(r"\s+", " ", YEAR.sub("", OTHER_PAPERS.sub("", text)).replace("et al.", "et al")).strip()
    inner = [match.group(1) for match in re.finditer(r"\(([^()]*)\)", plain) if numbers(PLACE.sub("", match.group(1)))]
    for one in inner:
        plain = plain.replace(f"({one})", "")
    return [piece for whole in (plain, *inner) for piece in CLAUSE.split(whole) if piece]


def numbers_of(rows):
    """The numbers that the rows have."""
    return {number for row in rows for number in numbers(f"{row['printed']} | {row['derived']}", words=True)}


def strangers(text, rows):
    """The clauses with a number that the rows do not have: those of the clause's places and of the others it names.

    A clause that names neither may have any number of the rows."""
    unsupported = []
    for clause in clauses(text):
        places = places_in(clause)
        cited_rows = [
            row
            for row in rows
            if (row["place"] in places if row["place"] else row["source"].casefold() in clause.casefold())
        ]
        stated = numbers(PLACE.sub("", clause), words=bool(places))
        if missing := stated - numbers_of(cited_rows or rows):
            unsupported.append((clause, sorted(missing)))
    return unsupported


def settings():
    """Method, field, default, and what the field's docstring says."""
    for name in METHODS:
        noted = {setting.name: setting.source for setting in method_document(name).settings}
        for field in fields(load_method(name).Config):
            yield name, field.name, field.default, noted[field.name]


def comments(text):
    """The comments of a YAML file without its commands: what stands behind a line's value, and blocks of whole lines as
    one text."""
    block = []
    for line in [*text.splitlines(), ""]:
        code, _, comment = re.sub(r"(?:^|(?<=\s))#(?=\s)", "\0", line, count=1).partition("\0")
        if comment and not code.strip():
            block += [] if comment.strip().startswith("babeltune ") else [comment.strip()]
            continue
        if block:
            yield "", " ".join(block)
            block = []
        if comment:
            yield code, comment.strip()


def code_texts(text):
    """The docstrings of a Python file, and its comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.removeprefix("#")


def test_each_number_of_a_settings_docstring_is_of_its_place_in_the_table():
    for name, field, _, noted in settings():
        assert not strangers(noted, table(f"{name}.{field}")), (name, field)


def test_each_numeric_default_and_preset_is_in_the_table():
    for name, field, default, _ in settings():
        config = load_method(name).Config
        presets = [getattr(config, preset, config)() for preset in ("paper", "authors_code")]
        for value in (default, *(getattr(preset, field) for preset in presets)):
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert value in numbers_of(table(f"{name}.{field}")), (name, field, value)


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("search_spaces/papers/")])
def test_each_number_in_a_papers_sweep_file_is_of_its_place_in_the_table(file):
    rows = table(file)
    for code, comment in comments((ROOT / file).read_text("utf-8")):
        assert not strangers(comment, rows), (file, comment)
        if re.search(r"choice|const|hard_negatives|pairs", code) and places_in(comment):
            of_place = [row for row in rows if row["place"] in places_in(comment)]
            assert numbers(code.split("when:")[0]) <= numbers_of(of_place), (file, code, comment)


@pytest.mark.slow
def test_each_number_beside_a_citation_in_the_code_is_of_that_place():
    for file in FILES:
        if file.endswith(".py"):
            rows = [row for row in ROWS if row["where"] == file or row["where"].startswith(f"{Path(file).stem}.")]
            for text in code_texts((ROOT / file).read_text("utf-8")):
                if PLACE.search(" ".join(text.split())):
                    cited = [clause for clause in strangers(text, rows) if places_in(clause[0])]
                    assert not cited, (file, cited)


@pytest.mark.parametrize("name", [name for name, one in TABLES.items() if one.budget])
def test_each_number_that_an_order_of_a_papers_table_cites_is_of_that_place(name):
    number = table(f"benchmarks/tables/{name}.py")[0]["source"]
    rows = [row for row in ROWS if row["where"].startswith("benchmarks/tables/") and row["source"] == number]
    for claim in TABLES[name].claims:
        assert places_in(claim.paper) <= {row["place"] for row in rows}, claim
        assert not [clause for clause in strangers(claim.paper, rows) if places_in(clause[0])], claim


# --- What is printed ------------------------------------------------------------------------------------------------


def paper(number):
    """The paper's lines that are not blank, or a skip that says why."""
    files = sorted(PAPERS.glob(f"{number}_*.txt"))
    if not files:
        pytest.skip(f"the papers' texts are not in {PAPERS}")
    return [" ".join(line.split()) for line in files[0].read_text("utf-8").splitlines() if line.strip()]


HEADING = re.compile(r"(?:#+ \**|Appendix )?(?:(\d(?:\.\d)*|[A-F](?:\.\d)*) )?[A-Z][^.]{2,90}$")
CAPTION = re.compile(r"(Table|Figure) (\d+)[:.] ")
PROSE = 300  # characters above which a line is a paragraph and no row of a table


def numbered(line):
    """The number or letter of the section whose heading this line is."""
    match = HEADING.fullmatch(line)
    return match.group(1) if match else None


def section(lines, number):
    """From the heading with this number or name to the next one that is not below it."""
    if number.startswith('"'):
        start = next(i for i, line in enumerate(lines) if line.startswith("#") and number.strip('"') in line)
        end = next(i for i in range(start + 1, len(lines)) if lines[i].startswith("#"))
        return lines[start:end]
    start = next(i for i, line in enumerate(lines) if numbered(line) == number)
    others = ((i, numbered(lines[i])) for i in range(start + 1, len(lines)))
    end = next((i for i, other in others if other and not other.startswith(f"{number}.")), len(lines))
    return lines[start:end]


def equation(lines, number):
    """The lines around the one that ends with the equation's number."""
    at = re.compile(rf"(?:\({number}\)|\\tag\{{{number}\}})\s*(?:\$\$)?$")
    start = next(i for i, line in enumerate(lines) if at.search(line))
    return lines[max(0, start - 2) : start + 2]


def footnote(lines, number):
    """The note, which stands behind its own number, three times in a row or raised."""
    raised = str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    at = re.compile(rf"(?<!\d)(?:{str(number) * 3}(?=[A-Za-z])|^{raised}(?!\d))(.{{10,160}})")
    return [next(match.group(1) for line in lines if (match := at.search(line)))]


def captioned(lines, kind, number, *, on_top):
    """The caption, and a table's rows: those before it, or behind it where the paper sets captions on top."""
    captions = [caption and caption.groups() for caption in map(CAPTION.match, lines)]
    at = captions.index((kind, number))
    if kind == "Figure":
        return lines[at : at + 1]
    steps = range(at + 1, len(lines)) if on_top else range(at - 1, -1, -1)
    stop = next(i for i in steps if captions[i] or numbered(lines[i]) or len(lines[i]) > PROSE)
    return lines[at:stop] if on_top else lines[stop + 1 : at + 1]


def stretch(number, place):
    """What the paper prints at that place: the union where it names several."""
    lines, (kind, names) = paper(number), place.split(" ", 1)
    if names.startswith('"'):
        return " ".join(section(lines, names))
    parts = []
    for one in re.split(r", | and ", names):
        if kind.startswith(("section", "appendix")):
            parts += section(lines, one)
        elif kind.startswith("equation"):
            parts += equation(lines, one)
        elif kind.startswith("footnote"):
            parts += footnote(lines, one)
        elif kind == "algorithm":
            start = next(i for i, line in enumerate(lines) if line.startswith(f"Algorithm {one} "))
            parts += lines[start : lines.index("```", start + 2)]
        else:
            parts += captioned(lines, kind.rstrip("s").capitalize(), one, on_top=number == "003")
    return " ".join(parts)


def prints(text, value):
    """Whether the text has the value, and not as a part of a longer number."""
    before = r"(?<![\d.])" if value[0].isdigit() else ""
    after = r"(?!\d|\.\d)" if value[-1].isdigit() else ""
    return re.search(before + re.escape(value) + after, text) is not None


@pytest.mark.needs_papers
@pytest.mark.parametrize("where", sorted({row["where"] for row in PRINTED}))
def test_the_paper_prints_the_value_at_the_place(where):
    for row in PRINTED:
        if row["where"] == where:
            text = stretch(row["source"], row["place"])
            for value in row["printed"].split(" | "):
                assert prints(text, value), (row, text[:2000])


@pytest.mark.needs_papers
def test_a_value_is_not_found_at_another_place():
    """What the places were before they were corrected: the check would have refused each."""
    wrong = [
        ("001", "section 3.1", r"\tau = 0.05"),
        ("001", "section 3.1", "N=4096"),
        ("001", "table 6", "4096"),
        ("001", "section 5.2", r"\sigma = 0.9"),
        ("001", "table 2", "BLEU"),
        ("002", "section 3.2", "Distillation-first"),
        ("002", "section 3.3", "1e03"),
        ("002", "table 2", "24 256 8"),
        ("000", "section 4.2", r"\lambda=0.1"),
    ]
    assert not [row for row in wrong if prints(stretch(*row[:2]), row[2])]
