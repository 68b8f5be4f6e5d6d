"""F1 of spans against its definition: conlleval's for entities, seqeval's rules for bare tags."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from babeltune.apps.transfer.formats import LABELS
from babeltune.apps.transfer.scores import average, entity_spans, score, span_f1, tag_spans


def entities_by_definition(tags):
    """Every stretch of words that is an entity by conlleval's rules, tried one by one."""
    kinds = [tag.partition("-")[2] for tag in tags]
    spans = []
    for start, end in itertools.combinations(range(len(tags) + 1), 2):
        inside = tags[start:end]
        if "O" in inside or len(set(kinds[start:end])) > 1 or any(tag.startswith("B") for tag in inside[1:]):
            continue
        before_is_same = start > 0 and tags[start - 1] != "O" and kinds[start - 1] == kinds[start]
        begins = tags[start].startswith("B") or not before_is_same
        goes_on = end < len(tags) and tags[end] == f"I-{kinds[start]}"
        if begins and not goes_on:
            spans.append((start, end, kinds[start]))
    return spans


def chunks_by_seqeval(tags):
    """`get_entities` of seqeval 0.0.12, which XTREME calls: rule for rule, where a tag's first letter is its prefix."""
    chunks, begin, previous, previous_type = [], 0, "O", ""
    for i, whole in enumerate([*tags, "O"]):
        tag, kind = whole[0], whole.split("-")[-1]
        end = previous in "ES" or (previous == "B" and tag in "BSO") or (previous == "I" and tag in "BSO")
        end = end or (previous != "O" and previous_type != kind)
        start = tag in "BS" or (previous in "ESO" and tag in "EI") or (tag != "O" and previous_type != kind)
        if end:
            chunks.append((begin, i, previous_type))
        if start:
            begin = i
        previous, previous_type = tag, kind
    return chunks


@given(st.lists(st.sampled_from(LABELS["ner"]), max_size=9))
def test_entities_are_conllevals(tags):
    assert entity_spans(tags) == entities_by_definition(tags)
    assert entity_spans(tags) == chunks_by_seqeval(tags)


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("I-PER I-PER O", [(0, 2, "PER")]),
        ("O I-LOC", [(1, 2, "LOC")]),
        ("B-PER I-LOC I-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
        ("B-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("", []),
    ],
)
def test_entities_of_tags_that_no_scheme_allows(tags, spans):
    assert entity_spans(tags.split()) == spans


@given(st.lists(st.sampled_from(["NOUN", "SCONJ", "SYM", "INTJ", "X", "CCONJ"]), max_size=9))
def test_chunks_of_parts_of_speech_are_seqevals(tags):
    assert tag_spans(tags) == chunks_by_seqeval(tags)


@given(
    st.lists(st.tuples(*[st.lists(st.sampled_from(LABELS["ner"]), min_size=4, max_size=4)] * 2), min_size=1, max_size=5)
)
def test_f1_counts_spans_over_all_sentences(rows):
    gold, predictions = [list(side) for side in zip(*rows, strict=True)]
    expected = {(i, *span) for i, tags in enumerate(gold) for span in entities_by_definition(tags)}
    predicted = {(i, *span) for i, tags in enumerate(predictions) for span in entities_by_definition(tags)}
    right = len(expected & predicted)
    precision = right / len(predicted) if predicted else 0.0
    recall = right / len(expected) if expected else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    scores = score("ner", gold, predictions)
    assert scores == pytest.approx({"f1": f1, "precision": precision, "recall": recall, "accuracy": scores["accuracy"]})
    words = [a == b for left, right_ in rows for a, b in zip(left, right_, strict=True)]
    assert scores["accuracy"] == pytest.approx(sum(words) / len(words))


def test_the_f1_of_parts_of_speech_is_not_their_accuracy():
    gold, predictions = [["NOUN", "NOUN", "VERB"]], [["NOUN", "VERB", "VERB"]]
    scores = score("pos", gold, predictions)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["f1"] == 0.0


def test_the_average_counts_each_language_the_same_and_no_spans_score_zero():
    assert average({"en": {"accuracy": 1.0}, "fr": {"accuracy": 0.5}}) == {"accuracy": 0.75}
    assert average({}) == {}
    assert span_f1([[]], [[]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0}
