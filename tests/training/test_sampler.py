import hashlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data import arrays
from babeltune.errors import TrainingError
from babeltune.schema.records import Sampling
from babeltune.training import epochs
from babeltune.training.epochs import DrawnPairs
from babeltune.training.sampler import Schedule, local_sizes, lots, own_rows


@pytest.fixture(scope="module", params=["drawn", "computed"], autouse=True)
def kind(request):
    """Every test holds for small corpora, whose epochs are arrays, and for large ones, whose epochs are functions."""
    before = epochs.COMPUTED_ABOVE
    epochs.COMPUTED_ABOVE = before if request.param == "drawn" else 0
    yield request.param
    epochs.COMPUTED_ABOVE = before


def schedule(sizes, *, weights=None, batch=8, pairs=200, seed=3, **sampling):
    groups = np.repeat(np.arange(len(sizes)), sizes).astype(np.int16)
    given = np.ones(len(groups), np.float32) if weights is None else np.asarray(weights, np.float32)
    return groups, Schedule(
        DrawnPairs(groups, given), Sampling(**sampling), global_batch=batch, total_pairs=pairs, seed=seed
    )


@pytest.mark.trap(37)
@given(
    sizes=st.lists(st.integers(2, 60), min_size=1, max_size=4),
    batch=st.integers(2, 16),
    pairs=st.integers(1, 300),
    mixed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_schedule_yields_as_many_batches_as_its_length_says_and_ends_at_its_pairs(sizes, batch, pairs, mixed):
    _, plan = schedule(sizes, batch=batch, pairs=pairs, batches="mixed" if mixed else "one_pair")
    seen = [len(plan.rows(step)) for step in range(len(plan))]
    assert sum(seen) in (pairs, pairs - 1)
    assert np.array_equal(np.cumsum(seen), plan.seen)
    assert all(seen)


def test_a_batch_holds_one_language_pair_unless_mixed():
    groups, plan = schedule([40, 40, 40], pairs=400)
    assert all(len(set(groups[plan.rows(step)])) == 1 for step in range(len(plan)))
    groups, mixed = schedule([40, 40, 40], pairs=400, batches="mixed")
    assert any(len(set(groups[mixed.rows(step)])) > 1 for step in range(len(mixed)))


def test_no_batch_repeats_a_pair_within_an_epoch_and_small_groups_give_small_batches():
    _, plan = schedule([5], batch=8, pairs=20)
    assert [len(set(plan.rows(step).tolist())) for step in range(len(plan))] == [5, 5, 5, 5]


@pytest.mark.trap(37)
def test_every_epoch_visits_every_pair_once_in_another_order():
    _, plan = schedule([32], batch=8, pairs=64)
    rows = np.concatenate([plan.rows(step) for step in range(8)])
    first, second = rows[:32], rows[32:]
    assert sorted(first) == sorted(second) == list(range(32))
    assert not np.array_equal(first, second)


@pytest.mark.trap(37)
def test_a_resumed_trial_sees_the_remaining_stream_from_any_step():
    _, whole = schedule([30, 50], pairs=300)
    stream = [whole.rows(step) for step in range(len(whole))]
    _, resumed = schedule([30, 50], pairs=300)
    for step in range(len(stream) - 1, len(stream) // 2, -1):
        assert np.array_equal(resumed.rows(step), stream[step])
    _, other = schedule([30, 50], pairs=300, seed=4)
    assert not np.array_equal(other.rows(0), stream[0]), "the seed decides the stream"


def test_a_given_order_sorts_every_epoch_of_a_language_pair():
    order = np.array([5, 1, 4, 1, 3, 9, 2, 2])
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int16)
    given = np.ones(8, np.float32)
    plan = Schedule(DrawnPairs(groups, given, order), Sampling(), global_batch=4, total_pairs=80, seed=3)
    batches = {tuple(plan.rows(step).tolist()) for step in range(len(plan))}
    assert batches == {(1, 3, 2, 0), (6, 7, 4, 5)}


def test_a_high_sampling_temperature_evens_out_the_languages():
    def share(temperature):
        groups, plan = schedule([4000, 400], batch=4, pairs=8000, temperature=temperature)
        return np.mean([groups[plan.rows(step)][0] == 1 for step in range(len(plan))])

    assert share(1.0) == pytest.approx(400 / 4400, abs=0.03)
    assert share(1e6) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("sizes", "weights", "pairs", "first", "share", "within"),
    [
        ([100], [3.0] * 50 + [1.0] * 50, 8000, 50, 0.75, 0.02),
        ([100, 100], [9.0] * 100 + [1.0] * 100, 20_000, 100, 0.5, 0.03),
    ],
)
def test_a_weight_decides_how_often_a_row_is_drawn_and_not_a_language_pair(sizes, weights, pairs, first, share, within):
    _, plan = schedule(sizes, weights=weights, batch=10, pairs=pairs)
    rows = np.concatenate([plan.rows(step) for step in range(len(plan))])
    assert np.mean(rows < first) == pytest.approx(share, abs=within)


@pytest.mark.trap(3, 37)
def test_ranks_share_out_a_global_batch_without_gap_or_overlap():
    rows = np.arange(11)
    for world in (1, 2, 4):
        parts = [own_rows(rows, rank, world) for rank in range(world)]
        assert np.array_equal(np.concatenate(parts), rows)
        assert [len(p) for p in parts] == local_sizes(11, world)


@pytest.mark.trap(38)
def test_milestones_are_equal_shares_of_the_pairs_whatever_the_batch():
    for batch in (4, 8, 32):
        _, plan = schedule([200], batch=batch, pairs=400)
        ends = [plan.seen[m - 1] for m in plan.milestones(4)]
        assert ends[-1] == 400
        assert all(abs(end - 100 * (i + 1)) < batch for i, end in enumerate(ends))


def test_a_language_pair_of_one_row_is_left_out():
    groups, plan = schedule([30, 1], pairs=200)
    assert all(set(groups[plan.rows(step)]) == {0} for step in range(len(plan)))


def test_no_rows_is_an_error_that_says_what_to_do():
    with pytest.raises(TrainingError, match=r"data\.train"):
        schedule([])


def test_only_the_pairs_that_are_named_take_part():
    groups = np.repeat(np.arange(3), 30).astype(np.int16)
    weights = np.where(np.arange(90) % 2, 1, 2).astype(np.float32)
    settings = {"global_batch": 8, "total_pairs": 400, "seed": 3}
    only = np.concatenate([np.arange(5, 30), np.arange(70, 90)])
    plan = Schedule(DrawnPairs(groups, weights, only=only), Sampling(), **settings)
    seen = np.concatenate([plan.rows(step) for step in range(len(plan))])
    assert set(seen.tolist()) == set(only.tolist())
    every = Schedule(DrawnPairs(groups, weights, only=np.arange(90)), Sampling(), **settings)
    plain = Schedule(DrawnPairs(groups, weights), Sampling(), **settings)
    assert all(np.array_equal(every.rows(step), plain.rows(step)) for step in range(len(plain)))
    with pytest.raises(TrainingError, match=r"two training pairs that the method can use; give data\.train"):
        Schedule(DrawnPairs(groups, weights, only=np.array([1, 40])), Sampling(), **settings)


def test_lots_are_even_and_depend_on_seed_step_use_place_and_position_alone():
    places, positions = np.divmod(np.arange(100_000), 40)
    drawn = lots(1, 2, 0, places, positions)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert np.abs(np.histogram(drawn, 20, (0, 1))[0] / 5000 - 1).max() < 0.06
    for lag in (1, 40, 41):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 0.015
    rest = lots(1, 2, 0, places[777:], positions[777:])
    assert np.array_equal(rest, drawn[777:]), "ranks draw what one rank does"
    others = [lots(*arguments, places, positions) for arguments in ((2, 2, 0), (1, 3, 0), (1, 2, 1))]
    assert all(abs(np.corrcoef(drawn, other)[0, 1]) < 0.015 for other in others)


@pytest.mark.slow
def test_a_weight_of_any_size_takes_no_more_memory_and_keeps_its_ratio():
    for large in (1e3, 1e7, 1e30):
        tracemalloc.start()
        _, plan = schedule([2000], weights=[large] * 1000 + [large / 3] * 1000, batch=10, pairs=40_000)
        rows = np.concatenate([plan.rows(step) for step in range(len(plan))])
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 20e6
        assert np.mean(rows < 1000) == pytest.approx(0.75, abs=0.02)


def test_a_language_pair_of_few_rows_makes_no_schedule_of_steps_that_never_come():
    tracemalloc.start()
    _, plan = schedule([1_000_000, 2], batch=10_000, pairs=100_000_000)
    assert tracemalloc.get_traced_memory()[1] < 200e6  # at two pairs a step, 50 million steps were laid out
    tracemalloc.stop()
    assert int(plan.seen[-1]) in (100_000_000, 99_999_999)


@pytest.mark.slow
def test_a_small_corpus_is_drawn_as_by_earlier_versions(kind):
    draw = np.random.default_rng(5)
    groups = draw.integers(0, 3, 500).astype(np.int16)
    digest = hashlib.sha256()
    for weights in (np.ones(500), np.full(500, 40.0), draw.choice([0.3, 1, 2.5], 500), draw.choice([5.0, 90.0], 500)):
        for order in (None, draw.integers(0, 20, 500)):
            for only in (None, np.flatnonzero(draw.random(500) < 0.7)):
                for batches in ("one_pair", "mixed"):
                    pairs = DrawnPairs(groups, weights.astype(np.float32), order, only)
                    plan = Schedule(pairs, Sampling(batches=batches), global_batch=16, total_pairs=2000, seed=3)
                    for step in range(len(plan)):
                        digest.update(plan.rows(step).tobytes())
    earlier = "71c9f2ca79cec43e4f2566f569b8d2c061f111a627a2c9eedc71a8fe49164135"
    assert (digest.hexdigest() == earlier) == (kind == "drawn")


def test_a_weight_decides_how_often_each_row_of_a_source_occurs_in_an_epoch():
    weights = [2.5] * 40 + [0.5] * 60 + [1.0] * 20
    _, plan = schedule([120], weights=weights, batch=10, pairs=1000)
    stream = plan.streams[0]
    seen = [np.bincount(stream.epoch(number)[:], minlength=120) for number in range(200)]
    assert {*np.unique(np.stack(seen)[:, :40])} == {2, 3}
    assert {*np.unique(np.stack(seen)[:, 40:100])} == {0, 1}
    assert {*np.unique(np.stack(seen)[:, 100:])} == {1}
    assert np.abs(np.mean(seen, axis=0) - weights).max() < 0.15


def test_the_memory_of_a_large_corpus_order_does_not_depend_on_its_pairs():
    def most(pairs):
        groups, weights = np.zeros(pairs, np.int16), np.ones(pairs, np.float32)
        groups[pairs // 2 :], weights[pairs // 4 :] = 1, 1.5
        tracemalloc.start()
        plan = Schedule(DrawnPairs(groups, weights), Sampling(), global_batch=64, total_pairs=10_000, seed=3)
        for step in range(len(plan)):
            plan.rows(step)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    small, large = most(arrays.PART), most(8 * arrays.PART)
    assert large < 1.1 * small


def test_the_order_is_computed_above_four_million_pairs_only(kind):
    if kind == "drawn":
        pairs = epochs.COMPUTED_ABOVE + 1
        facts = np.zeros(pairs, np.int16), np.ones(pairs, np.float32)
        for some, made in ((pairs - 1, epochs.DrawnStream), (pairs, epochs.ComputedStream)):
            drawn = DrawnPairs(*(each[:some] for each in facts))
            plan = Schedule(drawn, Sampling(), global_batch=64, total_pairs=64, seed=3)
            assert [type(stream) for stream in plan.streams] == [made]
