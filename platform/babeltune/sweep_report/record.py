"""Everything that a sweep's report shows, as frozen records. `gather.py` reads them; nothing here does."""

from dataclasses import dataclass
from typing import Literal

from babeltune.promotion.decisions import DecisionRecord
from babeltune.promotion.statistics import Selection
from babeltune.schema.records import Goal, Objective
from babeltune.sweep.state.examples import ExampleSentences
from babeltune.sweep.state.leaderboard import Row

MOST_ROWS = 200  # trials that tables and charts show at most, the best first
Z95 = 1.96  # standard errors on each side of a 95 % interval


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One line of the leaderboard: a trial or a baseline, with the standard error of its first objective."""

    row: Row
    is_baseline: bool
    value: float | None  # the first objective, at the best report
    error: float | None  # standard error of `value`; None if the metric's error is not known
    interval: tuple[float, float] | None  # the 95 % interval of `value`


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity of one trial over the course of its training."""

    trial: str
    x: tuple[float, ...]  # pairs seen, or counted seconds of compute
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One quantity of the training that is no objective, such as the labels' entropy, for several trials."""

    name: str
    meaning: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, kw_only=True)
class LanguageScore:
    """A dev metric of one subset, such as `dev/everyday/fra-eng/accuracy`, of several models."""

    metric: str
    values: tuple[tuple[str, float], ...]  # model and value, the winner first


@dataclass(frozen=True, kw_only=True)
class LanguagePair:
    """A pair of languages in the training text."""

    name: str
    pairs: int


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """A source of training text: the rows that it had, and the pairs that were left of it."""

    name: str
    steps: tuple[tuple[str, int], ...]  # cleaning step and what was left after it, in order
    synthetic: bool


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How many texts of a dev or test set have a near-duplicate in the training text."""

    name: str
    texts: int
    near: int
    share: float
    judged: str  # why the set cannot gate; empty if it can


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The data on which the sweep was trained and scored."""

    pairs: tuple[LanguagePair, ...] = ()
    sources: tuple[SourceRows, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    sealed: tuple[str, ...] = ()  # the names of the sealed test sets


@dataclass(frozen=True, kw_only=True)
class SweepCost:
    """The cost of the sweep."""

    states: tuple[tuple[str, int], ...]  # state and number of trials
    training_s: float  # seconds of training and evaluation, added up over trials
    worker_s: float  # the same, times each trial's workers
    pairs: int  # pairs seen by all trials
    compute_s: float | None  # counted seconds of compute; None if trials are as long as their pairs
    wall_s: float | None  # seconds from the first line of the log to the last; pauses between submissions included


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The inputs that give the result again: sweep file, code, versions, data and weights."""

    spec: str  # the sweep file, defaults written out
    file: str  # a name for it
    id: str  # the id that a sweep of this file gets: the sweep's own, unless changes were accepted while it went on
    code: tuple[tuple[str, str], ...]  # distribution and digest of its code; also the commit and the data's digest
    versions: tuple[tuple[str, str], ...]
    digests: tuple[tuple[str, str], ...]  # digest of each source and evaluation set
    weights: tuple[tuple[str, str], ...]  # file and SHA-256 of the winner's checkpoint
    changes: tuple[str, ...]  # changes that were accepted while the sweep went on


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """A sweep's results, ready to be shown."""

    sweep: str
    name: str  # the sweep's present name
    note: str  # the sweep's note; empty if it has none
    description: str
    methods: tuple[str, ...]
    state: str
    made_at: str  # when this report was made: UTC, such as `2026-01-31 12:00`
    objectives: tuple[Objective, ...]
    standings: tuple[Standing, ...]  # best first
    winner: Standing
    selection: Selection | None  # the standard error of the winner's value, and the luck of the best of all trials
    unit: Literal["pairs", "compute"]
    curves: tuple[Curve, ...]  # the first objective of each trial that a chart can show, best first
    scored: int  # trials that have a value
    languages: tuple[LanguageScore, ...]
    examples: ExampleSentences  # a few translations before and after the best trial
    searched: tuple[str, ...]  # names of the settings that vary
    logarithmic: frozenset[str]  # parameters that are searched on a logarithmic scale
    at_ends: tuple[str, ...]  # the best trial's values that are at an end of their range, in words
    importance: tuple[tuple[str, float], ...]
    front_metrics: tuple[tuple[str, Goal], ...]
    front: tuple[str, ...]  # trials on the Pareto front of these metrics
    decisions: tuple[DecisionRecord, ...]
    diagnostics: tuple[Diagnostic, ...]
    data: DataFacts
    cost: SweepCost
    provenance: Provenance
    notes: tuple[str, ...]  # the files that could not be read, and the problems of single trials

    @property
    def objective(self) -> Objective:
        return self.objectives[0]

    @property
    def trials(self) -> tuple[Standing, ...]:
        return tuple(each for each in self.standings if not each.is_baseline)

    @property
    def baselines(self) -> tuple[Standing, ...]:
        return tuple(each for each in self.standings if each.is_baseline)
