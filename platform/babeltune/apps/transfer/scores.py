"""Scores of predicted labels as XTREME's `evaluate.py` takes them: accuracy, and F1 of spans."""

import math
from collections.abc import Iterable, Mapping, Sequence

from babeltune.apps.transfer.formats import Task

MAIN: dict[Task, str] = {"xnli": "accuracy", "pawsx": "accuracy", "pos": "f1", "ner": "f1"}
"""The metric in XTREME's tables."""

Span = tuple[int, int, str]  # first word, one past the last, type


def entity_spans(tags: Sequence[str]) -> list[Span]:
    """The entities that IOB2 tags mark, as conlleval reads them.

    `B-` begins one; so does `I-` after `O` or after another type. An entity ends before any tag but `I-` of its type.
    """
    spans: list[Span] = []
    start, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, entity = tag.partition("-")
        if kind and not (prefix == "I" and entity == kind):
            spans.append((start, place, kind))
            kind = ""
        if not kind and prefix != "O":
            start, kind = place, entity
    return spans


def tag_spans(tags: Sequence[str]) -> list[Span]:
    """The chunks for XTREME's F1 of parts of speech: seqeval's chunks of tags without a prefix.

    A run of equal tags is one chunk, so `NOUN NOUN` is right only if both are. seqeval takes the S of `SCONJ` and
    `SYM` for the prefix of a chunk of one word."""
    spans: list[Span] = []
    for place, tag in enumerate(tags):
        if spans and spans[-1][1] == place and spans[-1][2] == tag and not tag.startswith("S"):
            spans[-1] = (spans[-1][0], place + 1, tag)
        else:
            spans.append((place, place + 1, tag))
    return spans


def span_f1(gold: Iterable[Sequence[Span]], predictions: Iterable[Sequence[Span]]) -> dict[str, float]:
    """Precision, recall and F1 over the spans of all sentences (micro average); a rate of nothing is 0."""
    true = predicted = right = 0
    for expected, spans in zip(gold, predictions, strict=True):
        true, predicted = true + len(expected), predicted + len(spans)
        right += len(set(expected) & set(spans))
    return {
        "f1": 2 * right / (true + predicted) if true + predicted else 0.0,
        "precision": right / predicted if predicted else 0.0,
        "recall": right / true if true else 0.0,
    }


def score(task: Task, gold: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """The metrics of a language; labels are one of a pair, or one of each word. Rates run from 0 to 1."""
    rows = zip(gold, predictions, strict=True)
    labels = [pair for expected, predicted in rows for pair in zip(expected, predicted, strict=True)]
    accuracy = {"accuracy": sum(expected == label for expected, label in labels) / len(labels)}
    if task in ("xnli", "pawsx"):
        return accuracy
    spans = entity_spans if task == "ner" else tag_spans
    return span_f1(map(spans, gold), map(spans, predictions)) | accuracy


def average(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the languages, each counting the same, as in XTREME's tables."""
    rows = list(scores.values())
    return {metric: math.fsum(row[metric] for row in rows) / len(rows) for metric in rows[0]} if rows else {}
