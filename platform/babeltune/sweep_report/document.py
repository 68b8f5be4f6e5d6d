"""A report as a page: sections of text, tables, charts and code, which each format renders in its own way."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list of short texts."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """Rows of cells. The first cell of a row names it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})  # columns that hold words; others hold numbers, which stand to the right
    marked: int | None = None  # the row to point out


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows in words, and its numbers as a table."""

    title: str
    description: str
    svg: str
    table: ReportTable


@dataclass(frozen=True, kw_only=True)
class CodeBlock:
    """Text to copy."""

    label: str
    text: str
    folded: bool = False  # hidden until it is asked for


Block = Paragraph | Items | ReportTable | Figure | CodeBlock


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands under it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number that stands out, and what it is."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """The whole report."""

    title: str
    subtitle: str
    verdict: tuple[str, ...]  # two sentences: which trial is the best, and what to do with that
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    footer: str
