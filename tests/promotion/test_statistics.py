"""The statistics of a promotion, against scipy and by simulation."""

from functools import partial

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.promotion.statistics import (
    GroupedDifferences,
    draws,
    enough_draws,
    errors_of,
    expected_maximum,
    holm,
    mean_limits,
    p_of,
    paired_bootstrap,
    score_limits,
    selection,
    spearman_of,
    standard_error,
)


def limits_of(differences, step=1.0):
    return partial(mean_limits, [GroupedDifferences(sums=np.asarray(differences, float), step=step)], 1)


def mean_of(values):
    """The mean of the values in each draw, as a statistic."""
    return lambda counts: counts @ np.asarray(values, float) / len(values)


@pytest.mark.parametrize(("wins", "losses"), [(4, 0), (5, 0), (6, 0), (8, 2), (20, 8), (70, 60), (300, 240)])
def test_p_of_right_and_wrong_items_is_about_that_of_mcnemars_tests(wins, losses):
    """Between the exact test and the one without continuity correction, or near one of them."""
    p = p_of(limits_of([1] * wins + [-1] * losses + [0] * 1000))
    exact = scipy.stats.binomtest(wins, wins + losses).pvalue
    loose = scipy.stats.chi2.sf((wins - losses) ** 2 / (wins + losses), 1)
    assert 0.9 * loose < p < 1.1 * exact


def test_p_of_many_items_without_exception_is_next_to_nothing():
    assert p_of(limits_of([1] * 1000)) < 1e-100
    assert p_of(limits_of([0] * 1000)) == 1


@given(st.lists(st.sampled_from([-1, -0.5, 0, 0, 0.5, 1]), min_size=1, max_size=40), st.floats(0.5, 0.99))
@settings(max_examples=60)
def test_p_and_interval_of_right_and_wrong_items_say_the_same(differences, confidence):
    for limits in (limits_of(differences, 0.5), partial(score_limits, differences, (0.5, 1.0))):
        low, high = limits(errors_of(confidence))
        p = p_of(limits)
        if abs(p - (1 - confidence)) > 1e-4:
            assert (low > 0 or high < 0) == (p < 1 - confidence)


@given(st.lists(st.floats(-1, 2), min_size=2, max_size=20), st.floats(0.5, 0.999), st.integers(20, 400))
@settings(max_examples=60)
def test_p_and_interval_of_the_bootstrap_say_the_same(values, confidence, resamples):
    for interval in paired_bootstrap([(len(values), mean_of(values))], confidence=confidence, resamples=resamples):
        assert interval.low <= interval.high
        if abs(interval.p - (1 - confidence)) > 1e-9:
            assert (interval.low > 0 or interval.high < 0) == (interval.p < 1 - confidence)


@pytest.mark.parametrize(("share", "subsets"), [(0.5, 1), (0.02, 1), (0.1, 3)])
def test_equal_models_seldom_differ_also_where_few_items_do(share, subsets):
    """Rows of several languages rise and fall together here, as translations of one sentence do."""
    generator = np.random.default_rng(7)
    false_alarms, times = 0, 600
    for _ in range(times):
        rows = generator.choice([-1, 0, 1], size=150, p=(share / 2, 1 - share, share / 2)) * subsets
        low, high = mean_limits([GroupedDifferences(sums=rows.astype(float), step=1.0)], subsets, errors_of(0.95))
        false_alarms += low > 0 or high < 0
    assert false_alarms / times <= 0.07


def test_a_draw_has_as_many_items_as_there_are_and_is_the_same_for_the_same_seed(monkeypatch):
    monkeypatch.setattr("babeltune.promotion.statistics.CELLS", 100)
    blocks = list(draws(30, 50, seed=1))
    assert len(blocks) == 17
    counts = np.concatenate(blocks)
    assert counts.shape == (50, 30)
    assert (counts.sum(axis=1) == 30).all()
    assert np.array_equal(counts, np.concatenate(list(draws(30, 50, seed=1))))
    assert not np.array_equal(counts, np.concatenate(list(draws(30, 50, seed=2))))


def test_there_are_draws_enough_for_the_level_unless_they_would_be_too_many():
    assert enough_draws(0.05, 500, 10_000) == 10_000
    assert enough_draws(0.05 / 400, 500, 10_000) == 320_000
    assert enough_draws(0.05 / 400, 1_700_000, 10_000) == 10_000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=12))
@settings(max_examples=40)
def test_spearman_of_a_draw_is_scipys_of_the_repeated_items(items):
    x, y, counts = (np.array(column, float) for column in zip(*items, strict=True))
    repeated = counts.astype(int)
    a, b = np.repeat(x, repeated), np.repeat(y, repeated)
    correlation = spearman_of(x, y)(counts[None])[0]
    if len(set(a)) < 2 or len(set(b)) < 2:
        assert np.isnan(correlation)
    else:
        assert correlation == pytest.approx(scipy.stats.spearmanr(a, b).statistic)


@pytest.mark.parametrize("statistic", ["mean", "spearman"])
def test_the_bootstrap_interval_is_scipys(statistic):
    generator = np.random.default_rng(0)
    x, y, gold = generator.normal(size=(3, 200))
    x += gold
    y += 0.5 * gold
    if statistic == "mean":
        part = mean_of(x - y)

        def reference(a, b, _):
            return a.mean() - b.mean()
    else:
        first, second = spearman_of(x, gold), spearman_of(y, gold)

        def part(counts):
            return first(counts) - second(counts)

        def reference(a, b, c):
            return scipy.stats.spearmanr(a, c).statistic - scipy.stats.spearmanr(b, c).statistic

    interval, mean = paired_bootstrap([(200, part)], confidence=0.9, resamples=4000)
    expected = scipy.stats.bootstrap(
        (x, y, gold), reference, paired=True, vectorized=False, n_resamples=400, method="percentile",
        confidence_level=0.9, rng=1,
    ).confidence_interval  # fmt: skip
    assert interval.value == pytest.approx(reference(x, y, gold))
    assert interval.low == pytest.approx(expected.low, abs=0.04)
    assert interval.high == pytest.approx(expected.high, abs=0.04)
    assert mean == interval


def test_without_any_difference_the_score_interval_is_wilsons_of_a_share_of_nothing():
    for n in (5, 60, 1000):
        low, high = score_limits([0.0] * n, (1.0,), errors_of(0.95))
        expected = scipy.stats.binomtest(0, n).proportion_ci(0.95, method="wilson").high
        assert (low, high) == pytest.approx((-expected, expected))
    assert score_limits([0.0] * 60, (0.5, 1.0), errors_of(0.95))[0] < -expected


@pytest.mark.parametrize(("n", "gained", "lost"), [(20, 0.01, 0.03), (150, 0, 0.02), (150, 0.05, 0.07), (500, 0, 0.02)])
def test_a_loss_of_the_margin_is_seldom_said_to_be_excluded(n, gained, lost):
    """Of every outcome of n items with a mean of exactly -0.02, those whose interval lies above -0.02."""
    wrongly, total = 0.0, 0.0
    for wins in range(int(n * gained + 8 * (n * gained) ** 0.5) + 1):
        for losses in range(int(n * lost) + 1):
            counts = (wins, losses, n - wins - losses)
            share = scipy.stats.multinomial.pmf(counts, n, (gained, lost, 1 - gained - lost))
            low, high = score_limits([1.0] * wins + [-1.0] * losses + [0.0] * counts[2], (1.0,), errors_of(0.95))
            wrongly += share * (low > -0.02)
            total += share
            assert low < (wins - losses) / n < high
    assert total > 0.4
    assert wrongly < 0.03


def test_rows_of_subsets_of_one_length_are_drawn_together():
    """Three languages of the same sentences are no more evidence than one."""
    values = np.random.default_rng(0).normal(size=300)
    one, _ = paired_bootstrap([(300, mean_of(values))], confidence=0.95, resamples=2000)
    *_, mean = paired_bootstrap([(300, mean_of(values))] * 3, confidence=0.95, resamples=2000)
    assert (mean.low, mean.high) == pytest.approx((one.low, one.high))
    others = [(300, mean_of(np.random.default_rng(seed).normal(size=300))) for seed in range(3)]
    *_, apart = paired_bootstrap(others, confidence=0.95, resamples=2000)
    assert apart.high - apart.low == pytest.approx((one.high - one.low) / 3**0.5, rel=0.15)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=50)
def test_holms_correction_steps_down(p):
    names = [str(i) for i in range(len(p))]
    corrected = holm(dict(zip(names, p, strict=True)))
    order = np.argsort(p, kind="stable")
    expected = np.minimum(1, np.maximum.accumulate([(len(p) - rank) * p[i] for rank, i in enumerate(order)]))
    assert [corrected[str(i)] for i in order] == pytest.approx(list(expected))


@pytest.mark.trap(39)
def test_the_best_of_n_equal_trials_looks_better_by_the_expected_maximum():
    """Trap D39: about 1.5 standard errors for ten trials, 2.2 for fifty."""
    assert expected_maximum(1) == pytest.approx(0, abs=1e-6)
    assert expected_maximum(2) == pytest.approx(1 / np.pi**0.5, abs=1e-5)
    generator = np.random.default_rng(0)
    for n in (10, 50):
        assert expected_maximum(n) == pytest.approx(generator.normal(size=(40_000, n)).max(axis=1).mean(), abs=0.02)


@pytest.mark.trap(39)
def test_a_shrunken_value_undoes_what_selection_gains():
    generator = np.random.default_rng(0)
    error, biases, naive = 0.01, [], []
    for _ in range(300):
        truth = generator.normal(0.8, 0.01, size=20)
        scores = truth + generator.normal(0, error, size=20)
        best = int(scores.argmax())
        naive.append(scores[best] - truth[best])
        biases.append(selection("dev/t/accuracy", scores[best], list(scores), error).shrunken - truth[best])
    assert np.mean(naive) > 0.01
    assert abs(np.mean(biases)) < 0.003
    alike = selection("dev/t/accuracy", 0.9, [0.9] * 5, 0.02)
    assert alike.shrunken == 0.9
    assert selection("dev/t/accuracy", 0.9, [0.9], 0.02).inflation == 0
    assert selection("dev/t/accuracy", 0.9, [0.9, 0.8], 0.02).shrunken == pytest.approx(0.9 - 0.02 / np.pi**0.5)
    of_ten = selection("dev/t/xsim_error", 0.1, [0.1, 0.2], 0.02, among=10, goal="minimize")
    assert (of_ten.among, of_ten.inflation) == (10, expected_maximum(10) * 0.02)
    assert of_ten.shrunken == pytest.approx(0.1 + of_ten.inflation), "a low error flatters, too"


def test_standard_errors_are_those_of_simulated_scores():
    generator = np.random.default_rng(0)
    shares = generator.binomial(1000, 0.95, size=5000) / 1000
    assert standard_error("dev/t/accuracy", 0.95, 1000) == pytest.approx(shares.std(), rel=0.05)
    assert standard_error("dev/t/accuracy", 0.95, 1000) == pytest.approx(0.0069, abs=1e-4)
    gold = generator.normal(size=(150, 300))
    cosines = gold + generator.normal(size=gold.shape)
    values = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(gold, cosines, strict=True)]
    assert standard_error("dev/s/spearman", float(np.mean(values)), 300) == pytest.approx(np.std(values), rel=0.2)
    assert standard_error("dev/t/ari", 0.5, 100) is None
