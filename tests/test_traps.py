"""The 43 correctness traps of METHODS, part 2: each has tests that fail if it is fallen into, or a reason for none.

A test names its traps by the marker `trap`: `pytest -m trap` runs them all, and `TRAPS` says what each is about."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

TRAPS = {
    1: "a gathered row's gradient counts once, beside terms that are not gathered",
    2: "the global rank, not the local one",
    3: "unequal last batches",
    4: "the order of several hard negatives",
    5: "a learnable temperature",
    6: "gradient caching: randomness, autocast, the plain loss",
    7: "small chunks keep every negative, and the number is logged",
    8: "repeats of a text, in the batch, over ranks and in the queue",
    9: "soft labels: sums, transposed columns, a teacher that nothing changes",
    10: "labels that are nearly flat",
    11: "small temperatures and half precision stay finite",
    12: "similarities of an evaluation are fp32",
    13: "the queue: positives, wraparound, empty, ranks, resume",
    14: "the pre-filter and equal M",
    15: "identities between losses with and without the positive below",
    16: "the gradient of CZ-NCE, and a single pair",
    17: "the margin: diagonal, both directions, before the scale",
    18: "training-only heads: trained, saved, not exported",
    19: "vectors that depend on padding, neighbours or precision",
    20: "the pooling that a model was made with",
    21: "prompts are explicit and recorded",
    22: "truncation by teacher and student is recorded",
    23: "order after sorting by length",
    24: "margins: k, candidates, centred vectors, direction",
    25: "xSIM with repeated texts and exact ties",
    26: "neighbours that faiss and stopes make up",
    27: "search in blocks equals search in one",
    28: "the BUCC threshold",
    29: "BUCC's ids",
    30: "F1 is not accuracy; direction; the data's digest",
    31: "averages over subsets, and what is missing from them",
    32: "Spearman: ties, constants, NaN",
    33: "k-means: starts, seeds, mean and deviation",
    34: "contrastive accuracy of a fixed pool",
    35: "overlap of training text with dev and test sets",
    36: "splits that share no sentence",
    37: "the sampler: length, ranks, epochs, resume",
    38: "trials are compared at equal pairs seen",
    39: "the best of many trials flatters",
    40: "losses of different settings cannot be compared",
    41: "word spans: words inside words, truncation, masks",
    42: "the caller's arrays stay as they are",
    43: "the positive logit is the row-wise product",
}

NOTES = {
    5: "no method learns its temperature: each is a setting",
    7: "gradients are cached, never accumulated",
    9: "a trial reads the teacher's vectors from a store and holds no teacher",
    11: "precisions are fp32 and bf16; nothing trains in fp16",
    22: "a pair with a side that is cut is counted, not left out",
    25: "`evaluate` scores on the CPU, wherever vectors were made",
    29: "gold names ids, so there is nothing to count from 0 or 1",
    35: "near-duplicates are counted, and removed where `data.overlap` is near",
}
"""Why a trap cannot occur in this code, or only in part; and what is left of it."""


def marked() -> dict[str, set[int]]:
    """Every test function of the files with the traps of its marker."""
    numbers_by_test = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                calls = [call for call in node.decorator_list if ast.unparse(call).startswith("pytest.mark.trap(")]
                numbers = {ast.literal_eval(argument) for call in calls for argument in call.args}
                mentions = {int(number) for number in re.findall(r"\bD(\d+)\b", ast.get_docstring(node) or "")}
                assert mentions <= numbers, (
                    f"{node.name} names D{mentions - numbers} in its docstring and not in its marker"
                )
                numbers_by_test[f"{path.relative_to(ROOT).as_posix()}::{node.name}"] = numbers
    return numbers_by_test


@pytest.mark.slow
def test_every_trap_has_a_test_or_a_reason_for_none():
    judged = set().union(*marked().values())
    assert list(TRAPS) == list(range(1, 44))
    assert judged <= set(TRAPS)
    assert set(NOTES) <= set(TRAPS)
    for number in TRAPS:
        assert number in judged or NOTES.get(number), f"trap {number}: mark its tests, or say why it cannot occur"


@pytest.mark.slow
def test_a_tests_name_has_at_most_80_characters():
    long = [name for name in marked() if len(name.partition("::")[2]) > 80]
    assert not long, "\n".join(long)
