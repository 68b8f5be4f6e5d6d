"""The rule of `promote --prefer`."""

from dataclasses import replace

import pytest

from babeltune.errors import PromotionError, SpecError, UnknownNameError
from babeltune.promotion.selection_rule import full_name, preferred, read_rule
from babeltune.sweep.state.leaderboard import Row

KNOWN = [
    *("dev/tatoeba/accuracy", "dev/tatoeba/xsim_error", "dev/tatoeba/fra-eng/accuracy", "dev/tatoeba/kor-eng/accuracy"),
    *("dev/stsb/spearman", "dev/stsb/eng/spearman", "dev/mean_cosine"),
]


def row(name, accuracy, spearman, state="finished"):
    scores = {"dev/tatoeba/accuracy": accuracy, "dev/stsb/spearman": spearman, "dev/tatoeba/xsim_error": 1 - accuracy}
    return Row(name=name, state=state, metrics=scores, best=2)


ROWS = [row("t0", 0.9, 0.6), row("t1", 0.8, 0.75), row("t2", 0.7, 0.8), row("t3", 0.95, 0.9, "pruned")]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("stsb>=0.70, max tatoeba", "t1"),
        ("max tatoeba/accuracy", "t0"),
        ("min xsim_error, stsb >= 0.78", "t2"),
        ("dev/tatoeba/accuracy <= 0.85, max stsb", "t2"),
    ],
)
def test_the_rule_chooses_among_finished_trials(text, chosen):
    row, aim = preferred(ROWS, text)
    assert row.name == chosen
    assert (aim.metric, aim.goal) == (read_rule(text, row.metrics).metric, "minimize" if "min " in text else "maximize")


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("tatoeba", "dev/tatoeba/accuracy"),
        ("stsb", "dev/stsb/spearman"),
        ("xsim_error", "dev/tatoeba/xsim_error"),
        ("fra-eng", "dev/tatoeba/fra-eng/accuracy"),
        ("stsb/eng/spearman", "dev/stsb/eng/spearman"),
    ],
)
def test_a_metric_may_be_shortened(short, full):
    assert full_name(short, KNOWN) == full


def test_a_loss_chooses_nothing():
    low = Row(name="low", state="finished", metrics={"dev/tatoeba/accuracy": 0.2, "train/loss": 0.1}, best=1)
    high = Row(name="high", state="finished", metrics={"dev/tatoeba/accuracy": 0.9, "train/loss": 0.5}, best=1)
    for text in ("min loss", "min train/loss", "train/loss<=1, max tatoeba", "min soft_loss"):
        with pytest.raises(SpecError, match="do not compare"):
            preferred([low, high], text)


def test_a_model_may_be_chosen_by_its_size():
    sizes = {"t0": 300, "t1": 200, "t2": 100}
    rows = [replace(r, metrics={**r.metrics, "model/parameters": sizes.get(r.name, 1)}) for r in ROWS]
    assert preferred(rows, "tatoeba>=0.75, min parameters")[0].name == "t1"


def test_wrong_names_and_words_are_errors_that_say_what_to_write():
    with pytest.raises(UnknownNameError, match=r"'tatoba' is no metric; .*did you mean 'tatoeba'\?"):
        full_name("tatoba", KNOWN)
    both = [*KNOWN, "dev/ntrex/accuracy"]
    with pytest.raises(UnknownNameError, match=r"'accuracy' could be dev/tatoeba/accuracy, .*name one"):
        full_name("accuracy", both)
    for text in ("stsb>0.7, max tatoeba", "max", "stsb>=high, max tatoeba", "", "best tatoeba"):
        with pytest.raises(SpecError, match="neither a limit nor max METRIC or min METRIC; write bounds and one aim"):
            read_rule(text, KNOWN)
    for text in ("stsb>=0.7", "max stsb, max tatoeba"):
        with pytest.raises(SpecError, match=r"not [02]; write"):
            read_rule(text, KNOWN)
    with pytest.raises(PromotionError, match=r"none of 3 finished .* from 0\.6000 to 0\.8000, asked >=0\.95"):
        preferred(ROWS, "stsb>=0.95, max tatoeba")
    with pytest.raises(PromotionError, match="no trial has finished"):
        preferred(ROWS[3:], "max tatoeba")
