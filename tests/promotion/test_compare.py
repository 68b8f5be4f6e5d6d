"""Champion against challenger, from outcomes alone: the verdicts, their levels, and what is not comparable."""

import numpy as np
import pytest
import torch

from babeltune.data.prepared import TextTask
from babeltune.evaluation.evaluate import Lookup, evaluate
from babeltune.evaluation.sts import paired_cosine, spearman
from babeltune.promotion.compare import compare, conclusion_in_words, conclusion_of, outcomes
from babeltune.promotion.sealed_test_log import Openings
from babeltune.schema.records import Promotion
from bitexts import bitext_accuracy

RULES = Promotion(resamples=1000)


def bitext(subset, n, name="t"):
    rows = tuple(map(str, range(n)))
    return TextTask(name=name, kind="bitext", subset=subset, left=rows, right=rows)


def graded(scores, subset="eng"):
    rows = tuple(map(str, range(len(scores))))
    return TextTask(name="s", kind="sts", subset=subset, left=rows, right=rows, scores=tuple(scores))


def hits(forward, backward=None):
    return {"forward": list(forward), "backward": list(forward if backward is None else backward)}


def judged(champion, challenger, tasks, rules=RULES, on="test", **more):
    prefix = {f"test/{name}": each for name, each in champion.items()}
    other = {f"test/{name}": each for name, each in challenger.items()}
    if on == "dev":
        prefix, other = ({name.replace("test/", "dev/"): v for name, v in d.items()} for d in (prefix, other))
    return compare((prefix, other), tasks, rules, name="models:/m@champion (version 3)", on=on, **more)


def shares(generator, n, share):
    return (generator.random(n) < share).astype(int)


@pytest.mark.parametrize("candidates", ["nearest", "all"])
def test_outcomes_are_those_of_the_metrics(candidates):
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(40, 8)).astype(np.float32)
    vectors[20:] = vectors[:20] + 1.5 * vectors[20:]
    left, right = tuple(range(20)), tuple(range(20, 40))
    learnt = TextTask(name="x", kind="transfer", subset="a", left=left, labels=tuple("ab" * 10))
    tasks = [
        TextTask(name="t", kind="bitext", subset="a-b", left=left, right=right, k=2, candidates=candidates),
        TextTask(name="s", kind="sts", subset="a", left=left, right=right, scores=tuple(generator.random(20))),
        TextTask(name="c", kind="clustering", subset="a", left=left, labels=tuple("ab" * 10)),
        TextTask(name="x", kind="transfer", subset="b", left=right, labels=tuple("ab" * 10), fit=learnt),
    ]
    items = outcomes(tasks, Lookup(np.arange(len(vectors)), vectors), "test")
    assert set(items) == {"test/t/a-b/accuracy", "test/t/a-b/xsim_error", "test/s/a/spearman", "test/x/b/accuracy"}
    scores = evaluate(tasks, lambda ids: vectors[ids], "test")
    assert np.mean(items["test/x/b/accuracy"]["right"]) == scores["test/x/b/accuracy"]
    assert 0 < scores["test/x/b/accuracy"] < 1
    sides = items["test/t/a-b/accuracy"]
    assert (np.mean(sides["forward"]), np.mean(sides["backward"])) == bitext_accuracy(vectors[:20], vectors[20:])
    assert 0 < np.mean(sides["forward"]) < 1
    errors = items["test/t/a-b/xsim_error"]
    assert 0 < np.mean(errors["forward"]) == scores["test/t/a-b/xsim_error_forward"] < 1
    assert np.mean([*errors["forward"], *errors["backward"]]) == pytest.approx(scores["test/t/a-b/xsim_error"])
    assert items["test/s/a/spearman"]["cosine"] == list(paired_cosine(vectors[:20], torch.tensor(vectors[20:])))


def test_a_better_an_equal_and_a_worse_challenger_get_three_verdicts():
    generator = np.random.default_rng(1)
    tasks = [bitext("fra-eng", 500), bitext("kor-eng", 500)]
    old = {name: hits(shares(generator, 500, 0.6)) for name in ("t/fra-eng/accuracy", "t/kor-eng/accuracy")}
    new = {name: hits(np.maximum(v["forward"], shares(generator, 500, 0.2))) for name, v in old.items()}
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
    assert any(reason.endswith("no item differs") for reason in equal.reasons)
    assert sum("worse by more than the margin 0.02" in reason for reason in worse.reasons) == 2


def test_one_language_beyond_the_margin_refuses_a_challenger_better_in_the_mean():
    ones, zeros = [1] * 300, [0] * 300
    tasks = [bitext(f"{language}-eng", 300) for language in ("fra", "deu", "kor")]
    old = {"t/fra-eng/accuracy": hits(zeros), "t/deu-eng/accuracy": hits(zeros), "t/kor-eng/accuracy": hits(ones)}
    new = {**dict.fromkeys(old, hits(ones)), "t/kor-eng/accuracy": hits([0] * 30 + [1] * 270)}
    decided = judged(old, new, tasks)
    assert decided.verdict == "refuse"
    assert decided.overall[0].low > 0
    assert "kor-eng" in decided.reasons[1]
    assert judged(old, new, tasks, Promotion(margin=0.2, resamples=1000)).verdict == "promote"


def test_a_loss_that_may_be_within_the_margin_is_not_called_worse():
    """23 of 800 lost: surely worse, by 0.029 and at least 0.017."""
    tasks = [bitext(f"{language}-eng", 800) for language in ("fra", "kor")]
    old = {"t/fra-eng/accuracy": hits([0] * 800), "t/kor-eng/accuracy": hits([1] * 800)}
    new = {"t/fra-eng/accuracy": hits([1] * 800), "t/kor-eng/accuracy": hits([0] * 23 + [1] * 777)}
    decided = judged(old, new, tasks)
    cell = decided.cells[1]
    assert cell.difference < -0.02 < cell.high < 0
    assert cell.p < 0.001
    assert decided.verdict == "tie"
    assert any("kor-eng" in reason and "is not excluded" in reason for reason in decided.reasons)


def test_a_language_too_small_to_exclude_a_loss_keeps_the_alias_where_it_is():
    tasks = [bitext("fra-eng", 500), bitext("kor-eng", 40)]
    coin = np.array([0, 1] * 20)
    old = {"t/fra-eng/accuracy": hits([0] * 500), "t/kor-eng/accuracy": hits(coin)}
    new = {"t/fra-eng/accuracy": hits([1] * 500), "t/kor-eng/accuracy": hits(coin[::-1])}
    decided = judged(old, new, tasks)
    assert decided.verdict == "tie"
    assert any("kor-eng" in reason and "is not excluded" in reason for reason in decided.reasons)


@pytest.mark.parametrize(("n", "verdict"), [(5, "tie"), (100, "tie"), (500, "promote")])
def test_a_language_always_right_excludes_no_more_than_its_size_allows(n, verdict):
    tasks = [bitext("fra-eng", 400), bitext("kor-eng", n)]
    old = {"t/fra-eng/accuracy": hits([0] * 400), "t/kor-eng/accuracy": hits([1] * n)}
    decided = judged(old, {**old, "t/fra-eng/accuracy": hits([1] * 400)}, tasks)
    assert decided.verdict == verdict, decided.reasons
    assert decided.cells[1].low < 0 < decided.cells[1].high
    assert any("kor-eng" in r and "is not excluded" in r for r in decided.reasons) == (verdict == "tie")


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
def test_a_fair_challenger_is_seldom_promoted(on, monkeypatch):
    """Two models that are equally good on every sentence, many times: at most 2.5 % are called better on sealed tests.

    On dev sets, the best of ten such challengers is taken each time."""
    monkeypatch.setattr("babeltune.promotion.statistics.DRAWN", 350 * 800)
    generator = np.random.default_rng(5)
    tasks = [bitext("fra-eng", 200), bitext("kor-eng", 150)]
    rules, promoted, times, among = Promotion(margin=0.5, resamples=400), 0, 120, 10 if on == "dev" else 1
    for _ in range(times):
        easy = {task.subset: generator.beta(2, 2, size=len(task.left)) for task in tasks}

        def model(easy=easy):
            return {
                f"t/{subset}/accuracy": hits(*(generator.random((2, len(p))) < p).astype(int).tolist())
                for subset, p in easy.items()
            }

        champion = model()
        best = max((model() for _ in range(among)), key=lambda m: np.mean([np.mean(v["forward"]) for v in m.values()]))
        promoted += judged(champion, best, tasks, rules, on, among=among).verdict == "promote"
    assert promoted / times <= 0.06
    if on == "dev":
        assert judged(champion, best, tasks, rules, on, among=among).reasons[-1].startswith("warning: without sealed")


@pytest.mark.parametrize("drawn", [2000, 2_000_000])
def test_the_level_of_the_best_of_many_is_within_reach_of_a_clear_difference(monkeypatch, drawn):
    """Accuracies need no draws. Graded pairs need draws enough for the level."""
    monkeypatch.setattr("babeltune.promotion.statistics.DRAWN", drawn)
    old, new = ({"t/fra-eng/accuracy": hits([right] * 100)} for right in (0, 1))
    decided = judged(old, new, [bitext("fra-eng", 100)], on="dev", among=400)
    assert decided.verdict == "promote", decided.reasons
    assert decided.overall[0].p < 1e-20
    gold = np.arange(60.0)
    noisy = np.random.default_rng(0).normal(size=60)
    graded_too = [{"s/eng/spearman": {"cosine": list(cosine)}} for cosine in (noisy, gold)]
    decided = judged(*graded_too, [graded(gold)], on="dev", among=40)
    assert decided.verdict == ("tie" if drawn == 2000 else "promote")


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_the_words_the_interval_and_p_of_a_mean_agree(kinds):
    """Of one to three kinds of task, and of small differences: some beyond chance, some not."""
    generator = np.random.default_rng(kinds)
    conclusions = set()
    for _ in range(40):
        tasks, old, new = [], {}, {}
        for subset, n in (("fra-eng", 60), ("kor-eng", 60), ("deu-eng", 45)):
            tasks.append(bitext(subset, n))
            name = f"t/{subset}/accuracy"
            old[name], new[name] = (hits(*(generator.random((2, n)) < p).astype(int)) for p in (0.5, 0.58))
        if kinds > 1:
            gold = generator.normal(size=80)
            tasks.append(graded(gold))
            old["s/eng/spearman"], new["s/eng/spearman"] = (
                {"cosine": list(gold + scale * generator.normal(size=80))} for scale in (1.2, 1)
            )
        if kinds > 2:
            rows = tuple(map(str, range(50)))
            tasks.append(TextTask(name="x", kind="transfer", subset="fra", left=rows, labels=("a",) * 50))
            old["x/fra/accuracy"], new["x/fra/accuracy"] = ({"right": shares(generator, 50, p)} for p in (0.5, 0.7))
        decided = judged(old, new, tasks)
        assert len(decided.overall) == kinds
        for cell in (*decided.overall, *decided.cells):
            assert cell.low <= cell.difference <= cell.high
            assert (cell.p <= 0.05) == (cell.low > 0 or cell.high < 0), cell
            assert conclusion_of(cell) == ("better" if cell.low > 0 else "worse" if cell.high < 0 else "undecided")
        conclusions |= {conclusion_of(mean) for mean in decided.overall}
        worse = judged(new, old, tasks).overall[0]
        assert worse.p == pytest.approx(decided.overall[0].p), "either order says the same"
    assert conclusions >= {"better", "undecided"}


def test_what_is_said_of_a_difference_names_chance_and_equality():
    coin = [0, 1] * 30
    old = {"t/fra-eng/accuracy": hits(coin)}
    cases = {"better": [1] * 60, "worse": [0] * 60, "may be chance": [1, 1, *coin[2:]], "no item differs": coin}
    for words, right in cases.items():
        mean = judged(old, {"t/fra-eng/accuracy": hits(right)}, [bitext("fra-eng", 60)]).overall[0]
        assert conclusion_in_words(mean).endswith(f", 60 items: {words}")
        assert mean.differing == sum(a != b for a, b in zip(coin, right, strict=True))


def test_without_a_set_of_single_items_nothing_is_distinguishable():
    task = TextTask(name="c", kind="clustering", subset="a", left=("a", "b"), labels=("x", "y"))
    decided = judged({}, {}, [task])
    assert decided.verdict == "tie"
    assert (
        "can be compared item by item with models:/m@champion (version 3); name a bitext, STS or" in decided.reasons[0]
    )


def test_where_every_test_is_contaminated_the_reason_says_so():
    decided = judged({}, {}, [], contaminated=["tatoeba", "sib"])
    assert decided.verdict == "tie"
    assert (
        "tatoeba, sib is contaminated and decides nothing; name another bitext, STS or transfer" in decided.reasons[0]
    )


def test_a_challenger_can_win_by_zero_shot_transfer():
    tasks = [
        TextTask(name="sib", kind="transfer", subset=language, left=tuple(map(str, range(200))), labels=("a",) * 200)
        for language in ("fra", "kor")
    ]
    names = [f"sib/{task.subset}/accuracy" for task in tasks]
    old, new = ({name: {"right": [1] * right + [0] * (200 - right)} for name in names} for right in (120, 180))
    decided = judged(old, new, tasks)
    assert decided.verdict == "promote", decided.reasons
    assert decided.overall[0].name == "mean transfer accuracy"
    assert judged(new, old, tasks).verdict == "refuse"
    both = [*tasks, bitext("fra-eng", 300)]
    equal = {"t/fra-eng/accuracy": hits([1] * 300)}
    decided = judged({**old, **equal}, {**new, **equal}, both)
    assert [mean.name for mean in decided.overall] == ["mean bitext accuracy", "mean transfer accuracy"]
    assert decided.verdict == "promote"


def test_the_warning_grows_with_every_model_that_is_looked_at():
    def warned(times, models):
        return Openings(times=times, models=models, first="2026-01-01 by ada", last="2026-01-02 by bob").warning(0.95)

    assert warned(1, 1) == ""
    assert "opened 2 times, for 2 models" in warned(2, 2)
    assert "of 2 looks" in warned(2, 2)
    assert "up to 10%" in warned(2, 2)
    assert "up to 40%; take fresh test sets" in warned(10, 10)
    assert "of 2 looks" in warned(10, 2), "a model that is opened again, such as after a kill, shows nothing new"
    assert "opened 2 times, for 1 model" in warned(2, 1)
    assert "probability" not in warned(2, 1)
