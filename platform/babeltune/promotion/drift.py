"""Whether texts differ from those that a model was trained on: their languages, lengths, unknown tokens and vectors.

A promoted folder holds the profile of a sample of its training text, a few hundred numbers. `babeltune check` compares
queries with it. Four tests share one level (Holm), and a difference must also be large enough to matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from babeltune.data.language_id import likeliest
from babeltune.data.prepared import Prepared
from babeltune.errors import BabeltuneError, SpecError
from babeltune.files import plain, write_json
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.promotion.readers import is_export
from babeltune.promotion.statistics import holm
from babeltune.schema.base import from_plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

FILE = "text_profile.json"  # the profile of the training text, in a promoted folder
SAMPLE = 2_000  # texts, at most, on each side of a comparison
FEWEST = 100  # texts, at least: fewer show only differences that nobody overlooks
LEVEL = 0.001  # the probability of any alarm if nothing has drifted: one in a thousand months
DRAWN = 9_999  # draws of each test: the least p is 1 / 10,000, a tenth of `LEVEL`
LEAST = {"languages": 0.05, "lengths": 0.05, "unknown tokens": 0.02, "vectors": 0.05}
"""The least difference of each kind that counts as drift."""
RARE = 0.01  # a language with a smaller share of the training text is new to the model
SHOWN = 5  # slices in a report


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The texts of one language, or of one range of lengths."""

    texts: int
    distance: float
    """The distance of their mean vector from the training text's mean, in its spread; what chance adds is taken off."""


NONE = Slice(texts=0, distance=0.0)  # the slice of a language or length that no text has


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The statistics of a sample of text."""

    texts: int
    languages: dict[str, Slice]  # the texts of each language, by py3langid's code
    lengths: dict[str, Slice]
    """The texts of each range of lengths, by its fewest characters. A range ends at root 2 times its begin."""
    unknown: int  # texts with a token that the tokenizer does not have
    mean: tuple[float, ...]  # the mean vector: [dim]
    spread: float  # the root of the mean squared distance of a text's vector from the mean


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Texts, one a row, as the tests see them."""

    languages: NDArray[np.str_]
    lengths: NDArray[np.int64]  # the fewest characters of each text's range
    unknown: NDArray[np.bool_]
    vectors: Vectors  # [texts, dim]

    def profile(self, center: Vectors | None = None, spread: float | None = None) -> Profile:
        """The profile. Distances of slices are from `center` in `spread`, by default its own."""
        mean = self.vectors.mean(axis=0)
        spread = float(np.sqrt(_variance(self.vectors))) if spread is None else spread
        center = mean if center is None else center
        groups = [
            {str(name): _slice(self.vectors[labels == name], center, spread) for name in np.unique(labels)}
            for labels in (self.languages, self.lengths)
        ]
        return Profile(
            texts=len(self.vectors),
            languages=groups[0],
            lengths=groups[1],
            unknown=int(self.unknown.sum()),
            mean=tuple(round(float(number), 6) for number in mean),
            spread=spread,
        )


@dataclass(frozen=True, kw_only=True)
class Test:
    """One kind of difference."""

    value: float
    """Languages: half the sum of the shares' differences. Lengths: the largest difference of the shares below a length.
    Unknown tokens: the difference of the shares of texts with one. Vectors: the distance of the means, in the training
    text's spread."""
    least: float
    """A smaller value is no drift."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the distance of the means."""
    p: float
    """The p of no difference, corrected for the number of tests."""
    drifted: bool


@dataclass(frozen=True, kw_only=True)
class SliceDrift:
    """A slice of the queries beside that of the training text."""

    name: str
    shares: tuple[float, float]
    """In the training text and in the queries."""
    distances: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The comparison of queries with the training text."""

    trained: int
    queries: int
    """Texts of both samples."""
    tests: dict[str, Test]
    slices: tuple[SliceDrift, ...]
    """The slices that add most to the distance from the training text, the worst first."""
    new_languages: tuple[str, ...]
    """Languages that less than `RARE` of the training text is in, and at least `LEAST` of the queries."""

    drifted: tuple[str, ...]
    """The kinds of drift."""
    sweep_pays: bool
    """Whether training on, with text such as the queries, can help: other meanings, words or languages than before can
    be learnt. More text of a trained language, or longer text, is no reason to train."""

    def words(self, model: str) -> str:
        """The drifts, and whether to train."""
        if not self.drifted:
            return "no drift; no sweep is needed"
        kinds = " and ".join((", ".join(self.drifted[:-1]), self.drifted[-1]) if self.drifted[1:] else self.drifted)
        if not self.sweep_pays:
            return f"drift of {kinds}: no reason to train, as meanings and words are those of before"
        new = f", in {', '.join(self.new_languages)}, too" if self.new_languages else ""
        start = "the model that it was exported from" if is_export(Path(model)) else model
        return f"drift of {kinds}: a warm sweep may pay: `student.start: {start}`, and such text in data.train{new}"


def sample_of(folder: str, texts: Sequence[str], stage: str) -> Sample:
    """The texts as the model in this folder sees them."""
    languages = likeliest(texts)
    lengths = np.array([len(text) for text in texts])
    return Sample(
        languages=np.array(languages),
        lengths=np.round(2 ** (np.floor(2 * np.log2(np.maximum(lengths, 1))) / 2)).astype(np.int64),
        unknown=_unknown(Path(folder), texts),
        vectors=encoder_of(folder, stage=stage)(list(texts), languages),
    )


def training_sample(folder: str, prepared: Prepared) -> Sample:
    """Training texts of a sweep, drawn at random."""
    return sample_of(folder, prepared.texts_of(prepared.some_trained(SAMPLE)), "encoding training text")


def write_profile(folder: Path, prepared: Prepared) -> None:
    """Puts the profile of the training text into a model's folder, unless that text is gone."""
    try:
        profile = training_sample(str(folder), prepared).profile()
    except (BabeltuneError, OSError, ValueError):  # a promotion does not fail for it
        return
    write_json(folder / FILE, plain(profile))


def read_profile(folder: Path) -> Profile | None:
    """The profile in a model's folder; None if there is none. Raises `SpecError` for a damaged one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        profile = from_plain(Profile, json.loads(path.read_text(encoding="utf-8")))
        if not np.isfinite([*profile.mean, profile.spread]).all() or any(
            sum(each.texts for each in side.values()) != profile.texts for side in (profile.languages, profile.lengths)
        ):
            raise ValueError("its numbers do not fit")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecError(f"{path} is damaged ({error}); promote the model again, or name its sweep: --sweep") from error
    return profile


def same_text(first: Profile, second: Profile) -> bool:
    """Whether two profiles are of the same texts, by the counts that no model's vectors change."""
    counts = [
        (
            {name: part.texts for name, part in each.languages.items()},
            {name: part.texts for name, part in each.lengths.items()},
        )
        for each in (first, second)
    ]
    return counts[0] == counts[1]


def drifts(trained: Profile, queries: Sample) -> Drift:
    """The drifts. Tests of counts are permutation tests; that of the means is by their covariance."""
    now = queries.profile(np.array(trained.mean, np.float32), trained.spread)
    pairs = {
        "languages": _counts(trained.languages, now.languages),
        "lengths": _counts(trained.lengths, now.lengths),
        "unknown tokens": np.array([[each.texts - each.unknown, each.unknown] for each in (trained, now)]),
    }
    results = {name: _permuted(counts, _below if name == "lengths" else _apart) for name, counts in pairs.items()}
    value, low, high, p = _means_apart(trained, queries.vectors)
    results["vectors"] = (value, p)
    p_of, tests = holm({name: p for name, (_, p) in results.items()}), dict[str, Test]()
    for name, (value, _) in results.items():
        is_drift = p_of[name] < LEVEL and value >= LEAST[name]
        tests[name] = Test(value=value, least=LEAST[name], p=p_of[name], drifted=is_drift)
    tests["vectors"] = replace(tests["vectors"], low=low, high=high)
    often = [name for name, each in now.languages.items() if each.texts >= LEAST["languages"] * now.texts]
    rare = [name for name in often if trained.languages.get(name, NONE).texts < RARE * trained.texts]
    new_languages = tuple(rare) if tests["languages"].drifted else ()
    drifted = tuple(name for name, test in tests.items() if test.drifted)
    return Drift(
        trained=trained.texts,
        queries=now.texts,
        tests=tests,
        slices=_worst(trained, now),
        new_languages=new_languages,
        drifted=drifted,
        sweep_pays=bool({"vectors", "unknown tokens"} & {*drifted} or new_languages),
    )


def _unknown(folder: Path, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Which texts have a token that the tokenizer does not have; none of a tokenizer that has no such token."""
    path = folder / "tokenizer.json"
    model = json.loads(path.read_text(encoding="utf-8"))["model"] if path.is_file() else {}
    if not (model.get("unk_token") or model.get("unk_id") is not None):
        return np.zeros(len(texts), bool)
    tokenizer = Tokenizer.from_file(str(path))
    number = model.get("unk_id") if model.get("unk_token") is None else tokenizer.token_to_id(model["unk_token"])
    return np.array([number in each.ids for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)])


def _variance(vectors: Vectors) -> float:
    """The mean squared distance from the mean."""
    return float(np.square(vectors - vectors.mean(axis=0)).sum(axis=1).mean())


def _slice(vectors: Vectors, center: Vectors, spread: float) -> Slice:
    apart = float(np.square(vectors.mean(axis=0) - center).sum()) - _variance(vectors) / len(vectors)
    return Slice(texts=len(vectors), distance=round(float(np.sqrt(max(0.0, apart))) / max(spread, 1e-12), 4))


def _counts(trained: dict[str, Slice], now: dict[str, Slice]) -> NDArray[np.int64]:
    """[2, slices] texts of each slice on both sides, lengths in their order."""
    names = sorted(trained.keys() | now.keys(), key=lambda name: (len(name), name))
    return np.array([[side[name].texts if name in side else 0 for name in names] for side in (trained, now)])


def _apart(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half the sum of absolute differences (total variation) of [..., slices] differences."""
    half: NDArray[np.float64] = np.abs(shares).sum(axis=-1) / 2
    return half


def _below(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest difference of cumulated shares (Kolmogorov and Smirnov)."""
    largest: NDArray[np.float64] = np.abs(np.cumsum(shares, axis=-1)).max(axis=-1)
    return largest


def _permuted(
    counts: NDArray[np.int64], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> tuple[float, float]:
    """The statistic of [2, slices] counts, and its p by random exchanges of texts between both sides."""
    both, sizes = counts.sum(axis=0), counts.sum(axis=1)
    value = float(statistic(counts[1] / sizes[1] - counts[0] / sizes[0]))
    random = np.random.default_rng(0)
    drawn = random.multivariate_hypergeometric(both, int(sizes[1]), size=DRAWN, method="marginals")
    others = statistic(drawn / sizes[1] - (both - drawn) / sizes[0])
    return value, (int((others >= value - 1e-12).sum()) + 1) / (DRAWN + 1)


def _means_apart(trained: Profile, vectors: Vectors) -> tuple[float, float, float, float]:
    """The distance of both means in the spread, without what chance adds; its 95 % interval; and the p of none."""
    # By chance the means of that many texts differ as a normal vector with the queries' covariance (the central limit
    # theorem). It is drawn along the axes of that covariance. The training text is taken to vary alike.
    spread = max(trained.spread, 1e-12)
    centred = (vectors - vectors.mean(axis=0)).astype(np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(vectors) * (1 / len(vectors) + 1 / trained.texts))
    variances = np.maximum(variances, 0)
    apart = (vectors.mean(axis=0, dtype=np.float64) - np.array(trained.mean)) @ axes
    moves = np.random.default_rng(0).standard_normal((DRAWN, len(variances))) * np.sqrt(variances)
    square, chance = float(np.square(apart).sum()), float(variances.sum())
    p = (int((np.square(moves).sum(axis=1) >= square).sum()) + 1) / (DRAWN + 1)
    low, high = np.quantile(np.square(moves + apart).sum(axis=1) - 2 * chance, (0.025, 0.975))
    value, low, high = (float(np.sqrt(max(0.0, each))) / spread for each in (square - chance, low, high))
    return value, low, high, p


def _worst(trained: Profile, now: Profile) -> tuple[SliceDrift, ...]:
    """Slices by how much more of the text, times its distance, they have than before."""
    changes = []
    kinds = {"language": (trained.languages, now.languages), "characters from": (trained.lengths, now.lengths)}
    for kind, (before, after) in kinds.items():
        for name in after:
            pair = before.get(name, NONE), after[name]
            shares = pair[0].texts / trained.texts, pair[1].texts / now.texts
            changes.append(
                SliceDrift(name=f"{kind} {name}", shares=shares, distances=(pair[0].distance, pair[1].distance))
            )
    changes.sort(key=lambda each: each.shares[0] * each.distances[0] - each.shares[1] * each.distances[1])
    return tuple(changes[:SHOWN])
