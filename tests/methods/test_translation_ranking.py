import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toy_batches
from babeltune.errors import MethodError, TrainingError
from babeltune.method import load_method, make_config, tokens_from
from babeltune.method.distributed import ProcessGroup
from babeltune_methods.translation_ranking import Config, TranslationRanking
from toy_batches import gaussian


def batch_of(n, k=0, mask=None, source_ids=None, target_ids=None):
    mined = {"negatives": tokens_from([[2 * n + i] for i in range(n * k)]), "negatives_mask": mask} if k else {}
    return toy_batches.batch_of(n, source_ids=source_ids, target_ids=target_ids, **mined)


def run(config, vectors, batch):
    return toy_batches.run(TranslationRanking(config, student_dim=4, teacher_dim=1), vectors, batch)


def printed(config, s, t, h, mask, source_ids, target_ids):
    """The loss from the equation, with loops."""
    n = len(s)

    def phi(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        lengths = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
        return math.exp(dot / lengths / config.temperature)

    def direction(a, b, ids, hard):
        total = 0.0
        for i in range(n):
            columns = [j for j in range(n) if j == i or not (config.mask_duplicates and ids[j] == ids[i])]
            below = sum(phi(a[i], b[j]) for j in columns)
            if hard:
                below += sum(phi(a[i], h[i][k]) for k in range(config.hard_negatives) if mask[i][k])
            total -= math.log(phi(a[i], b[i]) / below)
        return total / n

    forward = direction(s, t, target_ids, True)
    if config.direction == "forward":
        return forward
    return (forward + direction(t, s, source_ids, False)) / 2


CONFIGS = st.builds(
    Config,
    temperature=st.sampled_from([0.01, 0.05, 1.0]),
    direction=st.sampled_from(["forward", "both"]),
    hard_negatives=st.sampled_from([0, 1, 2, 3]),
    mask_duplicates=st.booleans(),
)


@pytest.mark.trap(4)
@settings(max_examples=60, deadline=None)
@given(CONFIGS, st.integers(2, 6), st.integers(0, 1000))
def test_the_loss_is_the_printed_equation(config, n, seed):
    k, generator = config.hard_negatives, random.Random(seed)
    vectors = gaussian(2 * n + n * k, 4, seed)
    mask = [[generator.random() < 0.7 for _ in range(k)] for _ in range(n)]
    ids = [generator.choices(range(3), k=n) for _ in range(2)]
    loss, _ = run(config, vectors, batch_of(n, k, mask, *ids))
    h = [vectors[2 * n + i * k : 2 * n + (i + 1) * k] for i in range(n)]
    expected = printed(config, vectors[:n], vectors[n : 2 * n], h, mask, *ids)
    assert loss.total.item() == pytest.approx(expected, rel=2e-5, abs=2e-5 / config.temperature)


def test_the_gradient_is_that_of_the_printed_equation_down_to_the_hard_negatives():
    config, n, k = Config(temperature=0.3, hard_negatives=2), 3, 2
    vectors, mask = gaussian(12, 3, 0), [[True, True], [True, False], [False, False]]
    ids = [[0, 1, 0], [3, 4, 4]]
    _, gradient = run(config, vectors, batch_of(n, k, mask, *ids))
    for row in range(12):
        around = []
        for step in (1e-5, -1e-5):
            moved = [list(v) for v in vectors]
            moved[row][1] += step
            h = [moved[6 + i * k : 6 + (i + 1) * k] for i in range(n)]
            around.append(printed(config, moved[:3], moved[3:6], h, mask, *ids))
        assert gradient[row, 1].item() == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-3, abs=1e-4)
    assert not gradient[9].any()  # the second negative of pair 1 was not found


@pytest.mark.trap(8)
def test_a_rows_loss_with_a_repeated_target_is_that_of_the_batch_without_it():
    config = Config(direction="forward", hard_negatives=0)
    vectors = gaussian(8, 3, 0)
    vectors[6] = vectors[4]
    repeated, _ = run(config, vectors, batch_of(4, target_ids=[4, 5, 4, 7]))
    unrepeated = [vectors[i] for i in (0, 1, 3, 4, 5, 7)]
    without, _ = run(config, unrepeated, batch_of(3))
    # Pair 2 added, its own row and one more candidate in the rows of pairs 1 and 3; rows 0 and 2 saw no repeat.
    rows = [
        printed_row(vectors, i, [j for j in range(4) if j == i or (i, j) not in {(0, 2), (2, 0)}]) for i in range(4)
    ]
    assert repeated.total.item() * 4 == pytest.approx(sum(rows), rel=1e-5)
    assert rows[0] == pytest.approx(printed_row(vectors, 0, [0, 1, 3]))
    assert without.total.item() * 3 == pytest.approx(
        sum(printed_row(vectors, i, [0, 1, 3]) for i in (0, 1, 3)), rel=1e-5
    )
    assert repeated.diagnostics["duplicates"].item() == pytest.approx(2 / 8)


def printed_row(vectors, i, candidates, temperature=0.05):
    unit = torch.nn.functional.normalize(torch.tensor(vectors, dtype=torch.float64), dim=1)
    values = [math.exp(float(unit[i] @ unit[4 + j]) / temperature) for j in candidates]
    return -math.log(values[candidates.index(i)] / sum(values))


def test_one_pair_without_hard_negatives_is_refused():
    with pytest.raises(TrainingError, match="no negatives"):
        run(Config(hard_negatives=0), gaussian(2, 3, 0), batch_of(1))


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_one_pair_for_which_no_hard_negative_was_found_is_refused(direction):
    config, vectors = Config(temperature=1.0, hard_negatives=2, direction=direction), gaussian(4, 3, 0)
    with pytest.raises(TrainingError, match=r"no negatives and no hard negative was found .* training\.global_batch"):
        run(config, vectors, batch_of(1, 2, [[False, False]]))
    assert run(config, vectors, batch_of(1, 2, [[False, True]]))[0].total > 0


class Second(ProcessGroup):
    """The second of two ranks that share one pair, for which the first found this many hard negatives."""

    def __init__(self, count):
        self.rank, self.world, self.count = 1, 2, count

    def __call__(self, rows):
        assert rows.shape == (0, 1)
        return torch.tensor([[self.count]])


def test_a_rank_without_pairs_refuses_a_batch_only_when_the_others_do():
    def encode(tokens):
        raise EncodedError

    method = TranslationRanking(Config(hard_negatives=2), student_dim=4, teacher_dim=1)
    batch = batch_of(0, 2, torch.zeros(0, 2, dtype=torch.bool))
    for count, expected in ((0, TrainingError), (1, EncodedError)):
        with pytest.raises(expected):
            method.loss(encode, replace(batch, total=1), Second(count))


class EncodedError(Exception):
    """The batch was not refused."""


def test_a_batch_whose_negatives_were_not_mined_is_refused():
    with pytest.raises(TrainingError, match="hard_negatives is 3"):
        run(Config(), gaussian(8, 3, 0), batch_of(4))


def test_it_is_found_by_name_and_asks_for_mined_negatives():
    method = load_method("translation_ranking")
    needs = method.needs(Config(hard_negatives=2, hard_negatives_below=0.8))
    assert (needs.hard_negatives, needs.hard_negatives_below) == (2, 0.8)
    assert not needs.teacher
    assert method.negatives(Config(), 64) == 66
    assert Config.paper().direction == "forward"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"direction": "backward"}, "allowed: forward, both"),
        ({"hard_negatives": -1}, "0 or more"),
        ({"hard_negatives_below": 2.0}, "cosine"),
    ],
)
def test_wrong_settings_are_refused_in_words(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(TranslationRanking, values)
