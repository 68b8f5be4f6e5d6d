"""The records of the search and of promotion: what is searched, how, by what it is judged, and what it may cost.

Field names are the keys of the sweep file, and their docstrings are its reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from babeltune.schema.base import Number, Scalar, Strict

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
    """What the search seeks; with several, the scheduler watches the first."""

    metric: str
    """The metric's name, such as `dev/everyday/accuracy`; the message about a wrong one lists them all. After the
    first also what a model costs: `model/parameters` and `model/sentences_per_second`. The latter is
    measured before the search, once for each shape of students."""
    goal: Goal = "maximize"
    """Whether a high or a low value is better."""


@dataclass(frozen=True, kw_only=True)
class Scheduler(Strict):
    """Which trials are stopped early."""

    kind: Literal["asha", "pasha", "expected_regret", "none"] = "asha"
    """`asha` stops, at its rungs, those whose first objective is not among the best. `pasha` is ASHA whose last rung
    moves up only while the rungs rank the trials differently. `expected_regret` stops a trial whose last report is
    expected to gain less than `regret`. `none` stops nothing."""
    grace: int = 1
    """Reports that every trial may make."""
    reduction: int = 3
    """The share for `asha` and `pasha`: one trial in this many goes on at each rung."""
    regret: float = 0.001
    """The expected gain over the best trial that `expected_regret` gives up, in the first objective's unit."""
    finished: int = 3
    """Trials that make all their reports before `expected_regret` stops any."""


@dataclass(frozen=True, kw_only=True)
class Sampler(Strict):
    """How settings are proposed."""

    kind: Literal["tpe", "gp", "random", "grid", "nsga2"] = "tpe"
    """Optuna's tree-structured Parzen estimator; its Gaussian process, for one objective; draws at random; every
    combination of choices and whole numbers, in order; or NSGA-II (Deb et al. 2002), for several objectives."""
    multivariate: bool = False
    """Whether TPE models the settings together instead of one by one."""
    group: bool = False
    """Whether a `multivariate` TPE also models settings that exist under a condition, those that occur together in one
    model. Otherwise it draws these one by one."""
    population: int = 8
    """NSGA-II's trials in one generation."""
    startup: int = 8
    """Random trials before TPE or the Gaussian process models the results."""
    first_points: str | None = None
    """A portfolio, such as `static`: settings that were good on other text, proposed after `points`."""
    points: tuple[dict[str, Scalar], ...] = ()
    """Proposed first, in order; what a point leaves out is drawn."""
    warm_start: str | None = None
    """An earlier sweep whose finished trials inform the proposals."""


@dataclass(frozen=True, kw_only=True)
class Budget(Strict):
    """How much is spent. Does not decide what a trial's result is, so it is not part of a sweep's id."""

    trials: int = 8
    """Trials of the sweep, over all submissions."""
    unit: Literal["pairs", "compute"] = "pairs"
    """The unit in which trials are equally long: `training.pairs`, or `training.compute`, which is fair to students
    of unlike cost. Reports, and with them the scheduler's rungs, are equal shares of it."""
    minutes: float | None = None
    """No new trial starts after this much wall time of one submission; a resumed sweep has it anew."""
    workers: int | None = None
    """Workers per trial; absent: the cluster file's."""
    failures: float = 1.0
    """The sweep gives up once this share of its trials has failed: of five or more that ended, or of all at its end.
    Earlier failures do not count again once it is resumed."""


@dataclass(frozen=True, kw_only=True)
class Gate(Strict):
    """What a sealed bitext test must show, in each subset and direction averaged, before a model is promoted."""

    test: str
    """The name of a bitext task in `data.test`."""
    times_chance: float = 0.0
    """The least multiple of the accuracy of guessing, which is one over the candidates."""
    times_untrained: float = 0.0
    """The least multiple of the untrained student's score."""


@dataclass(frozen=True, kw_only=True)
class Keep(Strict):
    """Which checkpoints stay when trials end. It decides no result, so it is not part of a sweep's id.

    A trial keeps the checkpoints of its best and of its last report. Scores, settings and reports of all trials stay.
    """

    trials: int | None = None
    """How many of the best trials keep their checkpoints, by the first objective and finished ones first. The others
    lose theirs when they end, and cannot be promoted any more. Absent: all trials keep them."""
    optimizer: bool = True
    """Whether an ended trial keeps the state of its optimizer, about two thirds of a checkpoint. Nothing trains on from
    it. Stopped trials keep it in any case, for they are resumed."""


@dataclass(frozen=True, kw_only=True)
class Promotion(Strict):
    """Promotion's rules. They judge results and do not decide them, so they are not part of a sweep's id."""

    name: str | None = None
    """The registered model; the sweep's name when absent."""
    gates: tuple[Gate, ...] = ()
    """The sealed tests that a model must pass."""
    margin: float = 0.02
    """What a challenger may lose against the champion in any one subset of the sealed tests: accuracy or Spearman."""
    confidence: float = 0.95
    """Confidence of the intervals and tests that compare the two."""
    resamples: int = 10_000
    """The least number of bootstrap draws, by which graded pairs are compared."""
