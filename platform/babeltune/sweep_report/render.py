"""A page as HTML or Markdown. Every text is escaped; only the markup of the charts is passed on as it is."""

import itertools
import math
import re
from dataclasses import dataclass, replace
from html import escape
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.filters import do_mark_safe

from babeltune.sweep_report.document import CodeBlock, Figure, Items, Paragraph, ReportPage, ReportTable

Format = Literal["html", "md"]
MOST_COLUMNS = 9  # columns of a table on a page. One with more is folded: its other columns follow below.
KINDS = {Paragraph: "text", Items: "items", ReportTable: "table", Figure: "figure", CodeBlock: "code"}


@dataclass(frozen=True, kw_only=True)
class LiveNote:
    """The parts of a live page beside the report: a line above it, and the program that follows the sweep."""

    text: str
    news: str  # the words of a screen reader when it changes
    version: str  # the version of the records that the page was made from
    frozen: bool  # whether it no longer changes; then it has no program


def render(document: ReportPage, format_: Format, *, live: LiveNote | None = None) -> str:
    """The page as one self-contained text. A live page also asks its server for the program and the events."""
    environment = Environment(
        loader=PackageLoader("babeltune.sweep_report", "templates"),
        autoescape=format_ == "html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"kind": lambda block: KINDS[type(block)], "md": markdown, "fence": fence, "code": code}
    environment.filters |= {"folded": folded, "breakable": breakable, "slug": slug}
    text: str = environment.get_template(f"report.{format_}.j2").render(document=document, live=live)
    return text if format_ == "html" else re.sub(r"\n{3,}", "\n\n", text)


def folded(table: ReportTable) -> list[ReportTable]:
    """The table in parts that fit a page, each with the names of the rows: on paper nobody scrolls."""
    count = len(table.columns)
    parts = max(1, math.ceil((count - 1) / (MOST_COLUMNS - 1)))
    ends = [1 + (count - 1) * part // parts for part in range(parts + 1)]
    return [_part(table, first, end) for first, end in itertools.pairwise(ends)]


def _part(table: ReportTable, first: int, end: int) -> ReportTable:
    places = (0, *range(first, end))
    rows = [[row[place] for place in places] for row in table.rows]
    return replace(
        table,
        caption=table.caption + (", continued" if first > 1 else ""),
        columns=tuple(table.columns[place] for place in places),
        rows=tuple(map(tuple, rows)),
        left=frozenset(column for column, place in enumerate(places) if place in table.left),
    )


def slug(text: str) -> str:
    """A caption as a part of an element's id. The live page finds by it what has the focus."""
    return re.sub(r"\W+", "-", text.lower()).strip("-")


WHOLE = '<span class="whole">%s</span>'  # patterns that no line breaks in two


def breakable(text: str) -> str:
    """Words as HTML that may go on in the next line between the parts of a name, and never inside a number or rate."""
    rates = re.split(r"(\b[a-z]+/s(?=$|[\s,;)]))", escape(text))
    parts = [re.sub(r"([/_=]|\.(?=[A-Za-z]))", r"\1<wbr>", part) for part in rates[::2]]
    return do_mark_safe(
        "".join(part + (WHOLE % rate if rate else "") for part, rate in zip(parts, [*rates[1::2], ""], strict=True))
    )


SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~$])")  # characters that Markdown, or the HTML in it, could take for markup
QUOTED = re.compile(r"(`[^`]+`)")  # a command within a sentence


def code(text: str) -> str:
    """A sentence as HTML, in which what stands in backticks is code. Outside of it no date is broken in two."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # the last one is no code
        parts[-2:] = ["`".join(parts[-2:])]
    dates = [re.sub(r"\b\d{4}-\d\d-\d\d\b", WHOLE % r"\g<0>", part) for part in parts[::2]]
    codes = [f"<code>{part}</code>" for part in parts[1::2]]
    return do_mark_safe("".join(part for pair in zip(dates, [*codes, ""], strict=True) for part in pair))


def markdown(text: str) -> str:
    """A text as Markdown shows it, on one line."""
    parts = QUOTED.split(" ".join(text.split()))
    return "".join(part.replace("|", r"\|") if QUOTED.fullmatch(part) else _plain(part) for part in parts)


def _plain(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text).replace("&", "&amp;").replace("\\<", "&lt;")


def fence(text: str) -> str:
    """Enough backticks to enclose the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
