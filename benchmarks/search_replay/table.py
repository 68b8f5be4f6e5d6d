"""The recorded table, and a surrogate that gives the reports of settings between the recorded ones.

A sampler proposes points that nobody trained. A Gaussian process, fitted to a corpus's settings, says what their
reports would be. `rank_correlation` is how far it can be trusted, by cross-validation."""

import gzip
import json
import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel
from sklearn.model_selection import KFold

from babeltune.planning.parameters import ordered
from babeltune.planning.rules import kind_of
from babeltune.planning.space import sample
from babeltune.schema.records import Parameter, Scalar, Sweep
from babeltune.training.compute import Work

TABLE = Path(__file__).with_name("table.json.gz")
FOLDS = 10
FIRST = 4  # points of a portfolio
DRAWN = 2000  # random settings that measure how rare good ones are

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """One setting as it was trained."""

    number: int
    params: dict[str, Scalar]
    objective: tuple[float, ...]  # at each report that it made
    pairs: tuple[int, ...]  # seen at each report
    operations: float  # operations of training on one pair
    bytes: float  # moved by training on one pair
    cpu_seconds: float  # CPU seconds of the training, reports included


@dataclass(frozen=True)
class Corpus:
    """The settings of one corpus."""

    name: str
    sweep: str  # the id of the sweep that they are trials of
    seed: int
    judged: int  # pairs that each report is scored on
    rates: tuple[float, float]  # 10^9 operations and bytes a second, by which compute is counted
    settings: tuple[Setting, ...]

    @property
    def reports(self) -> int:
        return max(len(setting.objective) for setting in self.settings)

    def curves(self) -> Floats:
        """Reports of each setting; one that ended early keeps its last value."""
        curves = [setting.objective or (0.0,) for setting in self.settings]
        return np.array([[*curve, *[curve[-1]] * (self.reports - len(curve))] for curve in curves])

    def standard_error(self, accuracy: float) -> float:
        """Of an accuracy on the pairs that reports are scored on."""
        return math.sqrt(accuracy * (1 - accuracy) / self.judged)


def read_table(path: Path = TABLE) -> dict[str, Corpus]:
    """The corpora of a table by name."""
    table = json.loads(gzip.decompress(path.read_bytes()))
    return {
        name: Corpus(
            name=name,
            sweep=corpus["sweep"],
            seed=corpus["seed"],
            judged=corpus["judged"],
            rates=tuple(table["rates"]),
            settings=tuple(
                Setting(**{**setting, "objective": tuple(setting["objective"]), "pairs": tuple(setting["pairs"])})
                for setting in corpus["settings"]
            ),
        )
        for name, corpus in table["corpora"].items()
    }


def features(parameters: Mapping[str, Parameter], params: Mapping[str, Scalar]) -> list[float]:
    """The setting as numbers from 0 to 1, logarithms for log ranges and choices."""
    numbers = []
    for name in ordered(parameters):
        parameter, value = parameters[name], params[name]
        kind = kind_of(parameter)
        values: Any = getattr(parameter, kind)
        scale: Callable[[float], float] = float if kind in ("float", "int") else math.log
        low, high, position = (scale(number) for number in (min(values), max(values), cast(float, value)))
        numbers.append((position - low) / (high - low))
    return numbers


def kernel_for(points: Floats, last: Floats) -> Kernel:
    """The kernel that explains the last report best."""
    kernel = ConstantKernel(1.0) * Matern(np.ones(points.shape[1]), (0.2, 20), nu=2.5) + WhiteKernel(1e-3, (1e-6, 0.3))
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)
    with warnings.catch_warnings():  # a setting without effect has its length at the bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        return process.fit(points, last).kernel_


def fitted(kernel: Kernel, points: Floats, curves: Floats) -> GaussianProcessRegressor:
    """A process with this kernel for all reports."""
    return GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(points, curves)


class Surrogate:
    """The reports and costs of a corpus's settings, recorded or not."""

    def __init__(self, corpus: Corpus, sweep: Sweep) -> None:
        self.corpus, self.sweep = corpus, sweep
        self._points = np.array([features(sweep.parameters, setting.params) for setting in corpus.settings])
        self._kernel = kernel_for(self._points, corpus.curves()[:, -1])
        self._process = fitted(self._kernel, self._points, corpus.curves())

    def curves(self, settings: Sequence[Mapping[str, Scalar]]) -> Floats:
        """The reports of these settings, `[settings, reports]`."""
        points = np.array([features(self.sweep.parameters, params) for params in settings])
        curves: Floats = np.clip(self._process.predict(points).reshape(len(points), -1), 0, 1)
        return curves

    def seconds(self, params: Mapping[str, Scalar]) -> list[float]:
        """Counted seconds from one report to the next: of recorded settings with as many pairs a batch, as wide."""
        settings = self.corpus.settings
        sizes = [name for name in params if name in ("student.width", "training.global_batch")]
        alike = [
            setting for setting in settings if all(setting.params[name] == params[name] for name in sizes)
        ] or settings
        a_pair = statistics.median(
            Work(setting.operations, setting.bytes).seconds(self.corpus.rates) for setting in alike
        )
        pairs = max((setting.pairs for setting in settings), key=len)
        return [a_pair * (after - before) for before, after in zip((0, *pairs), pairs, strict=False)]

    def drawn(self, stream: int) -> list[dict[str, Scalar]]:
        """Many random settings; other ones for another stream."""
        sweep = replace(self.sweep, seed=self.corpus.seed + stream)
        return [sample(sweep, number) for number in range(DRAWN)]

    @property
    def best(self) -> float:
        """The best last report that was recorded. The surrogate's own maximum is a setting that nobody trained, and
        lies too high: among many settings it finds the one whose value it overestimates most."""
        return float(self.corpus.curves()[:, -1].max())

    @property
    def enough(self) -> float:
        """One standard error below the best."""
        return self.best - self.corpus.standard_error(self.best)

    def share_enough(self) -> float:
        """The share of random settings that are good enough."""
        return float((self.curves(self.drawn(1))[:, -1] >= self.enough).mean())

    def rank_correlation(self) -> tuple[float, float]:
        """Spearman's, of predicted and recorded values of settings left out: at the last report, and at all reports.
        The kernel is that of all settings."""
        curves = self.corpus.curves()
        predicted = np.empty_like(curves)
        for train, test in KFold(min(FOLDS, len(curves)), shuffle=True, random_state=0).split(self._points):
            predicted[test] = fitted(self._kernel, self._points[train], curves[train]).predict(self._points[test])
        last = spearmanr(predicted[:, -1], curves[:, -1]).statistic
        return float(last), float(spearmanr(predicted.ravel(), curves.ravel()).statistic)


def portfolio(surrogates: Sequence[Surrogate], count: int) -> list[dict[str, Scalar]]:
    """Recorded settings that are good on these corpora together, the most useful first.

    Each is the one that brings the best of the chosen nearest to each corpus's best, on average over the corpora, in
    standard errors."""
    params_by_number = {
        setting.number: setting.params for surrogate in surrogates for setting in surrogate.corpus.settings
    }
    candidates = list(params_by_number.values())
    regrets = [
        (surrogate.best - surrogate.curves(candidates)[:, -1]) / surrogate.corpus.standard_error(surrogate.best)
        for surrogate in surrogates
    ]
    table, places = np.maximum(regrets, 0), list[int]()
    left = np.full(len(surrogates), np.inf)
    for _ in range(min(count, len(candidates))):
        place = int(np.minimum(left[:, None], table).mean(axis=0).argmin())
        if place in places:
            break
        places.append(place)
        left = np.minimum(left, table[:, place])
    return [candidates[place] for place in places]
