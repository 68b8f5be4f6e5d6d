"""Scores a student on named dev or test sets: text ids in, metrics by name out.

Every distinct sentence over all tasks is encoded once. A metric is named `<prefix>/<task>/<subset>/<metric>`; the mean
over a task's subsets is `<prefix>/<task>/<metric>`, and over the subsets of a group of tasks
`<prefix>/<group>/<metric>`. An objective can name any of them. Rates run from 0 to 1.

`metric_names.py` says which metrics each kind of task has.

`<prefix>/mean_cosine` is that of different texts, of all tasks, in the student's vectors. `<prefix>/zero_vectors`
appears only if texts of the tasks have a zero vector, and is their number. Such a text finds nothing, is never found,
and counts as an error. Its graded pairs are left out of correlations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from babeltune.data.prepared import IdTask, TextTask
from babeltune.errors import DataError, TrainingError
from babeltune.evaluation import bitext, knn, mining_f1, probing, retrieval, sts
from babeltune.evaluation.clustering import agreement
from babeltune.evaluation.knn import DistinctVectors
from babeltune.evaluation.metric_names import BIAS, FACTS, POOLED, Scores, each_with_each, metrics_of
from babeltune.method import Cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.float32]
    Embed = Callable[[NDArray[np.int64]], Rows]
    EncodeTexts = Callable[[list[str], list[str]], Rows]
    """Makes vectors from texts and their languages."""


def evaluate(
    tasks: Sequence[IdTask],
    embed: Embed,
    prefix: str = "dev",
    *,
    teacher: Embed | None = None,
    poll: Callable[[], None] = lambda: None,
    cuts: Sequence[Cut] = (),
) -> dict[str, float]:
    """The metrics of all tasks. `embed` gets the distinct text ids, ascending, in one call and returns [ids, dim].

    `teacher` does the same for the right sides of tasks with `right_model: teacher`. `poll` is called before each
    subset is scored; what it raises ends the evaluation. For each of `cuts` there are the metrics of the cut vectors
    too, under names that begin with the dimension: `dim128/dev/…`. Raises `TrainingError` with the metric's name when
    one is NaN, and `DataError` when two tasks share a name."""
    if not tasks:
        return {}
    lookup = embedded(tasks, embed, teacher)
    scores = score_vectors(tasks, lookup, prefix, poll=poll)
    for cut in cuts:
        scores |= score_vectors(tasks, lookup.cut(cut), f"{dimension(cut)}/{prefix}", poll=poll)
    return scores


def dimension(cut: Cut) -> str:
    """First part of the names of metrics of cut vectors, such as `dim128`."""
    return f"dim{cut.dim}"


def embedded(tasks: Sequence[IdTask], embed: Embed, teacher: Embed | None = None) -> Lookup:
    """The vectors of all texts of the tasks, each text encoded once by each model that has to."""
    for name, count in Counter((task.name, task.subset) for task in tasks).items():
        if count > 1:
            raise DataError(f"two tasks are named {'/'.join(name)!r}; give one of them another name")
    student = _embedded(tasks, "student", embed)
    if all(task.right_model == "student" for task in tasks):
        return student
    if teacher is None:
        names = ", ".join(dict.fromkeys(task.name for task in tasks if task.right_model == "teacher"))
        raise DataError(f"the right side of {names} is the teacher's to encode, and there is none; name one")
    others = _embedded(tasks, "teacher", teacher)
    if student.vectors.shape[1] != others.vectors.shape[1]:
        widths = f"{student.vectors.shape[1]} dimensions and the teacher's {others.vectors.shape[1]}"
        raise TrainingError(
            f"the student's vectors have {widths}, so they do not compare; set student.projection: teacher, or remove "
            "right_model"
        )
    return replace(student, others=others)


def _embedded(tasks: Sequence[IdTask], model: Literal["student", "teacher"], embed: Embed) -> Lookup:
    ids = np.unique(np.fromiter((text for task in tasks for text in task.texts_of(model)), np.int64))
    vectors = np.asarray(embed(ids), dtype=np.float32)
    if len(vectors) != len(ids):
        raise TrainingError(f"{len(vectors)} vectors came back for {len(ids)} texts; one per text id is needed")
    return Lookup(ids, vectors)


def score_vectors(
    tasks: Sequence[IdTask], lookup: Lookup, prefix: str, *, poll: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """`evaluate`, of vectors that are there."""
    scores: Scores = {}
    means: dict[str, list[tuple[float, int]]] = defaultdict(list)
    each_with_each = _sets_of_all_pairs(tasks)
    for task in tasks:
        poll()
        languages = (*task.left_languages, *task.right_languages) if task.name in each_with_each else ()
        places = [task.name, *filter(None, [task.group]), *(f"{task.name}/{language}" for language in languages)]
        for metric, value in _SCORERS[task.kind](task, lookup).items():
            scores[f"{prefix}/{task.name}/{task.subset}/{metric}"] = value
            if metric in metrics_of(task.kind, task.k) or metric in FACTS:
                for name in places:
                    means[f"{prefix}/{name}/{metric}"].append((value, len(task.left)))
    for name, values in means.items():
        scores[name] = math.fsum(value for value, _ in values) / len(values)
        place, _, metric = name.rpartition("/")
        if metric in POOLED:
            rows = sum(count for _, count in values)
            scores[f"{place}/{POOLED[metric]}"] = math.fsum(value * count for value, count in values) / rows
    scores[f"{prefix}/mean_cosine"] = knn.mean_cosine(lookup.vectors)
    if zeros := lookup.zeros():
        scores[f"{prefix}/zero_vectors"] = zeros
    _check_numbers(scores, lookup)
    return scores


def _sets_of_all_pairs(tasks: Sequence[IdTask]) -> Collection[str]:
    """The names of bitexts whose languages have means of their own."""
    pairs: dict[str, set[frozenset[str]]] = defaultdict(set)
    for task in tasks:
        if task.kind == "bitext":
            pairs[task.name].add(frozenset((*task.left_languages, *task.right_languages)))
    return each_with_each(pairs)


def evaluate_texts(
    tasks: Sequence[TextTask], encode: EncodeTexts, prefix: str = "test", *, teacher: EncodeTexts | None = None
) -> dict[str, float]:
    """`evaluate` for tasks in plain text: `encode` gets every distinct text of each language once, in order of
    appearance, and the languages."""
    numbered, lookup = embedded_texts(tasks, encode, teacher)
    return score_vectors(numbered, lookup, prefix)


def embedded_texts(
    tasks: Sequence[TextTask], encode: EncodeTexts, teacher: EncodeTexts | None = None
) -> tuple[list[IdTask], Lookup]:
    """`embedded` for tasks in plain text, and the tasks with numbers for texts."""
    numbers: dict[tuple[str, str], int] = {}

    def number(text: str, language: str) -> int:
        return numbers.setdefault((text, language), len(numbers))

    numbered = [task.mapped(number) for task in tasks]
    texts = list(numbers)

    def of_ids(encode: EncodeTexts) -> Embed:
        return lambda ids: encode([texts[i][0] for i in ids], [texts[i][1] for i in ids])

    return numbered, embedded(numbered, of_ids(encode), teacher and of_ids(teacher))


@dataclass
class Lookup:
    """The vectors of all texts, and what is made of them once for several subsets."""

    ids: NDArray[np.int64]
    vectors: Rows
    sides: dict[Sequence[int], DistinctVectors] = field(default_factory=dict)
    heads: dict[tuple[Sequence[int], tuple[str, ...]], probing.LinearHead | None] = field(default_factory=dict)
    others: Lookup | None = None  # the teacher's vectors, for the right sides that it encodes

    def cut(self, cut: Cut) -> Lookup:
        """The same texts with cut vectors, the teacher's too."""
        others = None if self.others is None else self.others.cut(cut)
        return Lookup(self.ids, cut(torch.from_numpy(self.vectors)).numpy(), others=others)

    def right(self, task: IdTask) -> Lookup:
        """Where the vectors of a task's right side are."""
        return self.others if task.right_model == "teacher" and self.others is not None else self

    def finite(self) -> bool:
        """Whether all vectors are finite."""
        return bool(np.isfinite(self.vectors).all()) and (self.others is None or self.others.finite())

    def zeros(self) -> int:
        """How many vectors are zero."""
        return int((~self.vectors.any(axis=1)).sum()) + (0 if self.others is None else self.others.zeros())

    def rows(self, texts: Sequence[int]) -> Rows:
        """[texts, dim] their vectors."""
        vectors: Rows = self.vectors[np.searchsorted(self.ids, np.asarray(texts, np.int64))]
        return vectors

    def side(self, texts: Sequence[int]) -> DistinctVectors:
        """The same, ready to be compared; a language of a multi-way set is made ready once."""
        if texts not in self.sides:
            self.sides[texts] = knn.side(self.rows(texts))
        return self.sides[texts]

    def head(self, task: IdTask) -> probing.LinearHead | None:
        """The linear head that has learnt a task's labels; one for all languages that are scored."""
        key = (task.left, task.labels)
        if key not in self.heads:
            self.heads[key] = probing.fit_head(self.rows(task.left), task.labels)
        return self.heads[key]


def _bitext(task: IdTask, lookup: Lookup) -> Scores:
    pairs = len(task.left)
    rights = lookup.right(task)
    left, right = lookup.side(task.left), rights.side(task.right[:pairs])
    matches = bitext.match(left, right, task.k, task.candidates)
    turned = matches.turned()
    forward, backward = bitext.accuracy(matches.forward), bitext.accuracy(matches.backward)
    in_text = task.compare == "text"
    forth, back = (task.right, task.left) if in_text else (None, None)
    error = bitext.xsim(matches, forth and forth[:pairs], task.margin)
    scores = {
        "accuracy": (forward + backward) / 2,
        "accuracy_forward": forward,
        "accuracy_backward": backward,
        "f1": bitext.weighted_f1(matches.forward),
        "xsim_error": (error + bitext.xsim(turned, back, task.margin)) / 2,
        "xsim_error_forward": error,
    }
    if len(task.right) > pairs:
        among_changed = knn.nearest_both_ways(left, rights.side(task.right), task.k, task.candidates)
        scores["xsimpp_error"] = bitext.xsim(among_changed, forth, task.margin)
    flipped = (bitext.share_of_flipped_margins(matches) + bitext.share_of_flipped_margins(turned)) / 2
    return scores | ({"xsim_flipped": flipped} if flipped and task.margin == "ratio" else {})


def _mining(task: IdTask, lookup: Lookup) -> Scores:
    candidates = _mined(task, lookup)
    fit_pairs = _mined(task.fit, lookup) if task.fit is not None else {}
    broken = not lookup.finite()
    scores: Scores = {}
    for how, pairs in candidates.items():
        best_threshold = mining_f1.fitted_threshold(pairs, task.gold)
        scores[f"f1_{how}_oracle"] = math.nan if broken else mining_f1.mining_f1(pairs, task.gold, best_threshold)
        if task.fit is not None:
            fitted = mining_f1.fitted_threshold(fit_pairs[how], task.fit.gold)
            scores[f"f1_{how}"] = math.nan if broken else mining_f1.mining_f1(pairs, task.gold, fitted)
    return scores


def _mined(task: IdTask, lookup: Lookup) -> dict[str, mining_f1.Scored]:
    """Candidate pairs of rows: each text is searched for once, and none that its side repeats is a candidate."""
    lefts, rights = (tuple(dict.fromkeys(side)) for side in (task.left, task.right))
    rows = [{text: row for row, text in reversed(list(enumerate(side)))} for side in (task.left, task.right)]
    candidates = mining_f1.candidates(lookup.side(lefts), lookup.right(task).side(rights), task.k, task.margin)
    in_rows = {
        how: {(rows[0][lefts[i]], rows[1][rights[j]]): score for (i, j), score in pairs.items()}
        for how, pairs in candidates.items()
    }
    return {how: mining_f1.without_repeated(pairs, task.left, task.right) for how, pairs in in_rows.items()}


def _sts(task: IdTask, lookup: Lookup) -> Scores:
    cosines = sts.paired_cosine(lookup.rows(task.left), lookup.rows(task.right))
    defined = cosines != knn.UNDEFINED
    grades, cosines = np.asarray(task.scores)[defined], cosines[defined]
    return {"spearman": sts.spearman(grades, cosines), "pearson": sts.pearson(grades, cosines)}


def _clustering(task: IdTask, lookup: Lookup) -> Scores:
    return agreement(lookup.rows(task.left), task.labels)


def _transfer(task: IdTask, lookup: Lookup) -> Scores:
    head = lookup.head(task.fit or task)
    rows = lookup.rows(task.left)
    if head is None or not np.isfinite(rows).all():
        return {"accuracy": math.nan, "macro_f1": math.nan}
    predicted = head(rows)
    return {"accuracy": probing.accuracy(task.labels, predicted), "macro_f1": probing.macro_f1(task.labels, predicted)}


def _retrieval(task: IdTask, lookup: Lookup) -> Scores:
    names = metrics_of(task.kind, task.k)
    if not lookup.finite():
        return dict.fromkeys(names, math.nan)
    ranked = _ranked(task, lookup, max(retrieval.TOP, task.k))
    judged = retrieval.judgements(len(task.left), task.gold, task.scores)
    gained = retrieval.gains(ranked, judged)
    values = (
        retrieval.ndcg(gained, judged),
        retrieval.reciprocal_rank(gained),
        retrieval.recall(gained, judged, task.k),
    )
    scores = {name: float(value.mean()) for name, value in zip(names, values, strict=True)}
    if task.mixed:
        same_language = np.array([language == task.left_languages[0] for language in task.right_languages])
        scores[BIAS] = retrieval.same_language_bias(ranked, judged, same_language)
    return scores


def _ranked(task: IdTask, lookup: Lookup, depth: int) -> NDArray[np.int64]:
    """[queries, depth] the nearest documents of each query, best first, without the query itself."""
    rows = np.searchsorted(lookup.ids, np.asarray(task.right, np.int64))
    nearest = knn.nearest(lookup.rows(task.left), lookup.vectors, rows, depth + bool(task.own_documents))
    index: NDArray[np.int64] = nearest.index.numpy()
    if not task.own_documents:
        return index
    itself = index == np.asarray(task.own_documents)[:, None]
    last = np.argsort(itself, axis=1, kind="stable")  # the others keep their order
    return np.take_along_axis(index, last, axis=1)[:, : index.shape[1] - 1]


_SCORERS: dict[str, Callable[[IdTask, Lookup], Scores]] = {
    "bitext": _bitext,
    "mining": _mining,
    "sts": _sts,
    "clustering": _clustering,
    "transfer": _transfer,
    "retrieval": _retrieval,
}


def _check_numbers(scores: Scores, lookup: Lookup) -> None:
    for name, value in scores.items():
        if math.isnan(value):
            reason = (
                "all vectors or all grades are alike" if lookup.finite() else "some sentence vectors are not finite"
            )
            raise TrainingError(f"metric {name!r} is NaN: {reason}, so this trial has no score")
