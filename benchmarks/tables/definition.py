"""The definition of a table: its rows, its columns, and the order that the paper prints."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from babeltune.schema.records import Scalar

Record = Mapping[str, Any]  # a table's findings, as JSON has them
SEEDS = (0, 1, 2, 3, 4)  # seeds of every row
UNTRAINED = "untrained"  # the row of the student before its first step, which claims may name
START = "start"  # the row of the last model that is promoted first, which claims may name
PAIRS, MEGABYTES = "pairs", "model/megabytes"
"""Pairs that a training has seen, and the size of the exported folder, for `Table.logged`."""
SEARCH_SEED = 100  # the seed with which learning rates are compared, which is none of the table's


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant: the table's sweep file with small changes."""

    name: str
    settings: dict[str, Scalar] = field(default_factory=dict)
    """Searched settings and their values, such as `{"beta": 100.0}`."""
    when: dict[str, dict[str, Scalar | list[Scalar]]] = field(default_factory=dict)
    """Setting -> the values of others under which alone it exists; rows of the same sweep leave it out."""
    changes: tuple[str, ...] = ()
    """Words of `--set`, for what is no searched setting. Rows with the same words share a sweep."""
    rate: float | None = None  # the learning rate, if it is what the row is about. None: the best of the table's.

    def rates(self, table_rates: tuple[float, ...]) -> tuple[float, ...]:
        """The learning rates that are tried, of those that the table searches."""
        return table_rates if self.rate is None else (self.rate,)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One metric of the sealed sets."""

    metric: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An ordering that the paper prints: one row is above another."""

    better: str
    worse: str
    metrics: tuple[str, ...]  # each is judged on its own
    paper: str  # the place, and the figures that are printed there
    times: float = 1.0  # the first row is above this multiple of the other
    kind: Literal["above", "level"] = "above"  # `level`: the paper sees no difference
    margin: float = 0.01  # differences that count as none, for `level`


@dataclass(frozen=True, kw_only=True)
class Table:
    """A paper's table as it is run here."""

    name: str
    title: str
    paper: str  # the citation, and the tables of the paper
    budget: str  # what the paper trained, on what. Empty for a table of our own.
    ours: str  # what is trained here instead
    sweep: str  # the sweep file that each row changes
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    claims: tuple[Claim, ...]
    rates: tuple[float, ...]  # learning rates that each row is searched over, by the sweep's first objective
    from_scratch: bool = True
    """Rows that are both no better than the untrained student say nothing of an order. Not so of rows that begin with
    a trained model, which a loss may well harm."""
    logged: dict[str, str] = field(default_factory=dict)
    """Metric of the training or the model -> title, for columns beside the sealed sets'."""
    uses: dict[str, str] = field(default_factory=dict)
    """Metric of a column -> what a reader wants who asks for it. The page then says which row to take for each."""
    limits: str = ""  # what this budget cannot say, beside the choice of a row
    text: Callable[[Path, Path], None] | None = None
    """Writes text that no corpus has: from the folder of the corpora into one that sweep files call
    `${BABELTUNE_MADE}`."""
    before: tuple[str, ...] = ()  # sweep files whose best models are trained and promoted first
    start: str | None = None  # the model that the students of all rows begin with, such as `models:/NAME@champion`
    start_kind: Literal["static", "transformer"] = "static"
    start_name: str | None = None  # what the page calls the last model of `before`, which then has a row of its own
    distribution: tuple[str, ...] = ()
    """Rows of `laser3_co` with a queue. The page shows how similar their sentences are to the queue."""
    heat_map: bool = False
    """Whether the page shows the cosines of a few translations before and after the best training."""
    seeds: tuple[int, ...] = SEEDS

    def __post_init__(self) -> None:
        names = {UNTRAINED, *(row.name for row in self.rows)}
        if self.start_name:
            names.add(START)
        for claim in self.claims:
            if unknown := {claim.better, claim.worse} - names:
                raise ValueError(f"table {self.name} claims an order of {', '.join(unknown)}, which is no row")

    def groups(self) -> Iterator[tuple[Row, ...]]:
        """Rows that one sweep can hold."""
        by_changes: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            by_changes.setdefault(row.changes, []).append(row)
        yield from map(tuple, by_changes.values())
