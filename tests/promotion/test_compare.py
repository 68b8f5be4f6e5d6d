"""Champion against challenger, from outcomes alone: the verdicts, their levels, and what is not comparable."""

import numpy as np
import pytest
import torch

from babeltune.data.prepared import TextTask
from babeltune.evaluation.metrics import bitext_accuracy, paired_cosine, spearman
from babeltune.promotion.compare import compare, outcomes
from babeltune.promotion.openings import Openings
from babeltune.records import Promotion

RULES = Promotion(resamples=1000)


def bitext(subset, n, name="t"):
    rows = tuple(map(str, range(n)))
    return TextTask(name=name, kind="bitext", subset=subset, left=rows, right=rows)


def graded(scores, subset="eng"):
    rows = tuple(map(str, range(len(scores))))
    return TextTask(name="s", kind="sts", subset=subset, left=rows, right=rows, scores=tuple(scores))


def found(forward, backward=None):
    return {"forward": list(forward), "backward": list(forward if backward is None else backward)}


def judged(champion, challenger, tasks, rules=RULES, on="test", **more):
    prefix = {f"test/{name}": each for name, each in champion.items()}
    other = {f"test/{name}": each for name, each in challenger.items()}
    if on == "dev":
        prefix, other = ({name.replace("test/", "dev/"): v for name, v in d.items()} for d in (prefix, other))
    return compare(prefix, other, tasks, rules, name="models:/m@champion (version 3)", on=on, **more)


def shares(generator, n, share):
    return (generator.random(n) < share).astype(int)


def test_outcomes_are_those_of_the_metrics():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(40, 8)).astype(np.float32)
    vectors[20:] = vectors[:20] + 1.5 * vectors[20:]
    left, right = tuple(range(20)), tuple(range(20, 40))
    tasks = [
        TextTask(name="t", kind="bitext", subset="a-b", left=left, right=right),
        TextTask(name="s", kind="sts", subset="a", left=left, right=right, scores=tuple(generator.random(20))),
        TextTask(name="c", kind="clustering", subset="a", left=left, labels=tuple("ab" * 10)),
    ]
    items = outcomes(tasks, vectors, "test")
    assert set(items) == {"test/t/a-b/accuracy", "test/s/a/spearman"}
    sides = items["test/t/a-b/accuracy"]
    assert (np.mean(sides["forward"]), np.mean(sides["backward"])) == bitext_accuracy(vectors[:20], vectors[20:])
    assert 0 < np.mean(sides["forward"]) < 1
    assert items["test/s/a/spearman"]["cosine"] == list(paired_cosine(vectors[:20], torch.tensor(vectors[20:])))


def test_a_better_an_equal_and_a_worse_challenger_get_three_verdicts():
    generator = np.random.default_rng(1)
    tasks = [bitext("fra-eng", 500), bitext("kor-eng", 500)]
    old = {name: found(shares(generator, 500, 0.6)) for name in ("t/fra-eng/accuracy", "t/kor-eng/accuracy")}
    new = {name: found(np.maximum(v["forward"], shares(generator, 500, 0.2))) for name, v in old.items()}
    better, equal, worse = judged(old, new, tasks), judged(old, old, tasks), judged(new, old, tasks)
    assert [each.verdict for each in (better, equal, worse)] == ["promote", "tie", "refuse"]
    (mean,) = better.overall
    assert mean.difference == pytest.approx(
        np.mean([np.mean(new[n]["forward"]) - np.mean(old[n]["forward"]) for n in new])
    )
    assert mean.low > 0
    assert worse.overall[0].difference == -mean.difference
    assert f"difference {mean.difference:+.4f}" in better.reasons[1]
    assert "the worst is" in better.reasons[-1]
    assert any("not distinguishable" in reason for reason in equal.reasons)
    assert sum("worse by more than the margin 0.02" in reason for reason in worse.reasons) == 2


def test_one_language_that_loses_more_than_the_margin_refuses_a_challenger_that_is_better_in_the_mean():
    ones, zeros = [1] * 300, [0] * 300
    tasks = [bitext(f"{language}-eng", 300) for language in ("fra", "deu", "kor")]
    old = {"t/fra-eng/accuracy": found(zeros), "t/deu-eng/accuracy": found(zeros), "t/kor-eng/accuracy": found(ones)}
    new = {**dict.fromkeys(old, found(ones)), "t/kor-eng/accuracy": found([0] * 30 + [1] * 270)}
    decided = judged(old, new, tasks)
    assert decided.verdict == "refuse"
    assert decided.overall[0].low > 0
    assert "kor-eng" in decided.reasons[1]
    assert judged(old, new, tasks, Promotion(margin=0.2, resamples=1000)).verdict == "promote"


def test_a_language_too_small_to_exclude_a_loss_keeps_the_alias_where_it_is():
    tasks = [bitext("fra-eng", 500), bitext("kor-eng", 40)]
    coin = np.array([0, 1] * 20)
    old = {"t/fra-eng/accuracy": found([0] * 500), "t/kor-eng/accuracy": found(coin)}
    new = {"t/fra-eng/accuracy": found([1] * 500), "t/kor-eng/accuracy": found(coin[::-1])}
    decided = judged(old, new, tasks)
    assert decided.verdict == "tie"
    assert any("kor-eng" in reason and "is not excluded" in reason for reason in decided.reasons)


def test_graded_pairs_are_compared_by_the_difference_of_spearman():
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 6, size=800).astype(float)
    noisy, clean = (list(gold + generator.normal(scale=scale, size=800)) for scale in (3, 1.5))
    decided = judged({"s/eng/spearman": {"cosine": noisy}}, {"s/eng/spearman": {"cosine": clean}}, [graded(gold)])
    (cell,) = decided.cells
    assert decided.verdict == "promote"
    assert (cell.champion, cell.challenger) == pytest.approx((spearman(gold, noisy), spearman(gold, clean)))
    assert cell.low < cell.difference < cell.high


@pytest.mark.parametrize("on", ["test", "dev"])
def test_a_fair_challenger_is_seldom_promoted(on):
    """Two models that are equally good on every sentence, many times: at most 2.5 % are called better on sealed tests.

    On dev sets, the best of ten such challengers is taken each time."""
    generator = np.random.default_rng(5)
    tasks = [bitext("fra-eng", 200), bitext("kor-eng", 150)]
    rules, promoted, times, among = Promotion(margin=0.5, resamples=400), 0, 120, 10 if on == "dev" else 1
    for _ in range(times):
        easy = {task.subset: generator.beta(2, 2, size=len(task.left)) for task in tasks}

        def model(easy=easy):
            return {
                f"t/{subset}/accuracy": found(*(generator.random((2, len(p))) < p).astype(int).tolist())
                for subset, p in easy.items()
            }

        champion = model()
        best = max((model() for _ in range(among)), key=lambda m: np.mean([np.mean(v["forward"]) for v in m.values()]))
        promoted += judged(champion, best, tasks, rules, on, among=among).verdict == "promote"
    assert promoted / times <= 0.06
    if on == "dev":
        assert judged(champion, best, tasks, rules, on, among=among).reasons[-1].startswith("warning: without sealed")


def test_without_a_set_of_single_items_nothing_is_distinguishable():
    task = TextTask(name="c", kind="clustering", subset="a", left=("a", "b"), labels=("x", "y"))
    decided = judged({}, {}, [task])
    assert decided.verdict == "tie"
    assert "name a bitext or STS task" in decided.reasons[0]


def test_the_warning_grows_with_every_opening():
    def warned(times):
        return Openings(times=times, models=2, first="2026-01-01 by ada", last="2026-01-02 by bob").warning(0.95)

    assert warned(1) == ""
    assert "opened 2 times, for 2 models" in warned(2)
    assert "up to 10%" in warned(2)
    assert "up to 40%; take fresh test sets" in warned(10)
