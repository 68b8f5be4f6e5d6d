"""The records of the search and of promotion: what is searched, how, by what it is judged, and what it may cost.

Field names are the keys of the sweep file, and their docstrings are its reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from babeltune.schema.base import Number, Scalar, Strict, Tagged
from babeltune.schema.bounds import NAME_WORDS, Bound, a_name, at_least, is_name, part, positive, share, within

Goal = Literal["maximize", "minimize"]


@dataclass(frozen=True, kw_only=True)
class Parameter(Strict):
    """One searched setting. Exactly one of the kinds is given; `when` makes it conditional."""

    float: tuple[Number, Number] | None = None
    """The ends of a range of numbers."""
    int: tuple[Number, Number] | None = None
    """The ends of a range of whole numbers."""
    log_float: tuple[Number, Number] | None = None
    """The ends of a range of numbers, drawn by their logarithm."""
    log_int: tuple[Number, Number] | None = None
    """The ends of a range of whole numbers, drawn by their logarithm."""
    choice: tuple[Scalar, ...] | None = None
    """The values to choose from."""
    const: Scalar = None
    """A single value, which is not searched."""
    when: dict[str, Scalar | tuple[Scalar, ...]] = field(default_factory=dict)
    """The values of other settings under which this one exists, such as `{method: lealla}`."""


@dataclass(frozen=True, kw_only=True)
class Objective(Strict):
    """The goals of the search; with several, the scheduler watches the first."""

    metric: str
    """The metric's name, such as `dev/everyday/accuracy`; the message about a wrong one lists them all. After the
    first also what a model costs: `model/parameters` and `model/sentences_per_second`. The latter is
    measured before the search, once for each shape of students."""
    goal: Goal = "maximize"
    """Whether a high or a low value is better."""


@dataclass(frozen=True, kw_only=True)
class AnyScheduler(Strict):
    """Which trials are stopped early."""

    KIND = "kind"
    kind: str
    """`asha` stops, at its rungs, those whose first objective is not among the best. `pasha` is ASHA whose last rung
    moves up only while the rungs rank the trials differently. `expected_regret` stops a trial whose last report is
    expected to gain less than `regret`. `none` stops nothing."""
    grace: Annotated[int, at_least(1)] = 1
    """Reports that every trial may make."""
    reduction: Annotated[int, at_least(2)] = 3
    """The share for `asha` and `pasha`: one trial in this many goes on at each rung."""


@dataclass(frozen=True, kw_only=True)
class Halving(AnyScheduler):
    """Stops at rungs the trials whose first objective is not among the best, or nothing."""

    kind: Literal["asha", "pasha", "none"] = "asha"


@dataclass(frozen=True, kw_only=True)
class ExpectedRegret(AnyScheduler):
    """Stops a trial whose last report is expected to gain less than `regret`."""

    kind: Literal["expected_regret"] = "expected_regret"
    regret: Annotated[float, at_least(0)] = 0.001
    """The expected gain over the best trial that is given up, in the first objective's unit."""
    finished: Annotated[int, at_least(3)] = 3
    """Trials that make all their reports before any is stopped."""


Scheduler = Annotated[Halving | ExpectedRegret, Tagged()]


@dataclass(frozen=True, kw_only=True)
class AnySampler(Strict):
    """How settings are proposed."""

    KIND = "kind"
    kind: str
    """Optuna's tree-structured Parzen estimator; its Gaussian process, for one objective; draws at random; every
    combination of choices and whole numbers, in order; or NSGA-II (Deb et al. 2002), for several objectives."""
    startup: Annotated[int, at_least(0)] = 8
    """Random trials before TPE or the Gaussian process models the results."""
    first_points: str | None = None
    """A portfolio, such as `static`: settings that were good on other text, proposed after `points`."""
    points: tuple[dict[str, Scalar], ...] = ()
    """Proposed first, in order; what a point leaves out is drawn."""
    warm_start: Annotated[str | None, Bound(f"a sweep's name or id: {NAME_WORDS}", is_name)] = None
    """An earlier sweep whose finished trials inform the proposals."""


@dataclass(frozen=True, kw_only=True)
class Tpe(AnySampler):
    """Optuna's tree-structured Parzen estimator."""

    kind: Literal["tpe"] = "tpe"
    multivariate: bool = False
    """Whether the settings are modelled together instead of one by one."""
    group: bool = False
    """Whether a `multivariate` TPE also models settings that exist under a condition, those that occur together in one
    model. Otherwise it draws these one by one."""


@dataclass(frozen=True, kw_only=True)
class PlainSampler(AnySampler):
    """A sampler without options of its own."""

    kind: Literal["gp", "random", "grid"] = "random"


@dataclass(frozen=True, kw_only=True)
class Nsga2(AnySampler):
    """NSGA-II (Deb et al. 2002), for several objectives."""

    kind: Literal["nsga2"] = "nsga2"
    population: Annotated[int, at_least(2)] = 8
    """Trials in one generation."""


Sampler = Annotated[Tpe | PlainSampler | Nsga2, Tagged()]


@dataclass(frozen=True, kw_only=True)
class Budget(Strict):
    """How much is spent. Does not decide what a trial's result is, so it is not part of a sweep's id."""

    trials: Annotated[int, within(1, 1e6)] = 8
    """Trials of the sweep, over all submissions."""
    unit: Literal["pairs", "compute"] = "pairs"
    """The unit in which trials are equally long: `training.pairs`, or `training.compute`, which is fair to students
    of unlike cost. Reports, and with them the scheduler's rungs, are equal shares of it."""
    minutes: Annotated[float | None, positive] = None
    """No new trial starts after this much wall time of one submission; a resumed sweep has it anew."""
    workers: Annotated[int | None, within(1, 1e5)] = None
    """Workers per trial; absent: the cluster file's."""
    failures: Annotated[float, part] = 1.0
    """The sweep gives up once this share of its trials has failed: of five or more that ended, or of all at its end.
    Earlier failures do not count again once it is resumed."""


@dataclass(frozen=True, kw_only=True)
class Gate(Strict):
    """The least score of a sealed bitext test, in each subset and direction averaged, before a model is promoted."""

    test: str
    """The name of a bitext task in `data.test`."""
    times_chance: Annotated[float, at_least(0)] = 0.0
    """The least multiple of the accuracy of guessing, which is one over the candidates."""
    times_untrained: Annotated[float, at_least(0)] = 0.0
    """The least multiple of the untrained student's score."""


@dataclass(frozen=True, kw_only=True)
class Keep(Strict):
    """Which checkpoints stay when trials end. It decides no result, so it is not part of a sweep's id.

    A trial keeps the checkpoints of its best and of its last report. Scores, settings and reports of all trials stay.
    """

    trials: Annotated[int | None, within(1, 1e6)] = None
    """How many of the best trials keep their checkpoints, by the first objective and finished ones first. The others
    lose theirs when they end, and cannot be promoted any more. Absent: all trials keep them."""
    optimizer: bool = True
    """Whether an ended trial keeps the state of its optimizer, about two thirds of a checkpoint. Nothing trains on from
    it. Stopped trials keep it in any case, for they are resumed."""


@dataclass(frozen=True, kw_only=True)
class Promotion(Strict):
    """Promotion's rules. They judge results and do not decide them, so they are not part of a sweep's id."""

    name: Annotated[str | None, a_name] = None
    """The registered model; the sweep's name when absent."""
    gates: tuple[Gate, ...] = ()
    """The sealed tests that a model must pass."""
    margin: Annotated[float, share] = 0.02
    """The most that a challenger may lose against the champion in any one subset of the sealed tests: accuracy or
    Spearman."""
    confidence: Annotated[float, Bound("at least 0.5 and below 1", lambda value: 0.5 <= value < 1)] = 0.95
    """Confidence of the intervals and tests that compare the two."""
    resamples: Annotated[int, at_least(100)] = 10_000
    """The least number of bootstrap draws, by which graded pairs are compared."""
