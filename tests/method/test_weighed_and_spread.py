"""`training.hardness` and `training.spread_out`, each against its printed equation in float64, loops and autograd."""

import pytest
import torch
from torch.nn.functional import normalize

from babeltune import testing
from babeltune.errors import SpecError
from babeltune.method import load_method, make_config
from babeltune.method.contrastive import Duplicates, tiled_cross_entropy
from babeltune.method.distributed import ProcessGroup
from babeltune.method.matryoshka import cuts_below, matryoshka_loss
from babeltune.method.negative_queue import Filter, log_sums
from babeltune.method.spread_out import spread_loss
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from toy_batches import batch_of, gaussian

N, DIM, ALPHA, K = 6, 5, 5.0, 2
IDS = {"source_ids": [0, 1, 2, 3, 1, 5], "target_ids": [10, 11, 12, 13, 14, 10]}
"""Two sources are one text, and so are two targets."""


def weighed(row, positive, negatives, tau, *, margin=0.0, alpha=ALPHA):
    """-log( e^((x.p - m)/t) / ( e^((x.p - m)/t) + sum_c e^(alpha sg(x.c)) e^(x.c/t) ) )."""
    own = ((row @ positive - margin) / tau).exp()
    rest = [(alpha * (row @ c).detach()).exp() * ((row @ c) / tau).exp() for c in negatives]
    return (own + sum(rest)).log() - own.log()


def ranked(x, y, texts, tau, **more):
    """The sum of a direction: candidates with the text of a row's positive are no negatives."""
    n = range(len(x))
    return sum(weighed(x[i], y[i], [y[j] for j in n if texts[j] != texts[i]], tau, **more) for i in n)


def translation_ranking(x, y, h, tau):
    forward = sum(
        weighed(x[i], y[i], [*(y[j] for j in range(N) if IDS["target_ids"][j] != IDS["target_ids"][i]), *h[i]], tau)
        for i in range(N)
    )
    return (forward + ranked(y, x, IDS["source_ids"], tau)) / (2 * N)


def lealla(x, y, _, tau):
    targets, sources = IDS["target_ids"], IDS["source_ids"]
    return (ranked(x, y, targets, tau, margin=0.3) + ranked(y, x, sources, tau, margin=0.3)) / N


def hard_labels(x, y, _, tau):
    targets, sources = IDS["target_ids"], IDS["source_ids"]
    cross = ranked(x, y, targets, tau) + ranked(y, x, sources, tau)
    return (0.1 * cross + ranked(x, x, sources, tau) + ranked(y, y, targets, tau)) / N


def in_batch(x, y, _, tau):
    k, n = normalize(torch.tensor(gaussian(N, DIM, 7)).double(), dim=1), range(N)
    own = IDS["source_ids"]
    return sum(weighed(y[i], k[i], [k[j] for j in n if own[j] != own[i]], tau) for i in n) / N


EQUATIONS = {
    "translation_ranking": (translation_ranking, {"hard_negatives": K, "temperature": 0.2}, 0.2),
    "lealla": (lealla, {"beta": 0.0, "gamma": 0.0, "scale": 20.0}, 0.05),
    "soft_contrastive": (hard_labels, {"labels": "hard", "temperature": 0.015}, 0.015),
    "laser3_co": (in_batch, {"variant": "in_batch", "temperature": 0.05, "self_weight": 0.0}, 0.05),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_hardness_weighs_negatives_as_the_equation_has_it(name):
    equation, values, tau = EQUATIONS[name]
    kind = load_method(name)
    method = kind(make_config(kind, values), student_dim=DIM, teacher_dim=DIM)
    table = torch.tensor(gaussian(2 * N + K * N, DIM, 1), requires_grad=True)
    batch = batch_of(
        N, **IDS, teacher_source=gaussian(N, DIM, 7), teacher_target=gaussian(N, DIM, 8), hardness=ALPHA,
        negatives=testing.tokens_from([[2 * N + i] for i in range(K * N)]),
        negatives_mask=torch.ones(N, K, dtype=torch.bool),
    )  # fmt: skip
    loss = method.loss(lambda tokens: table[tokens.ids], batch, ProcessGroup())
    loss.total.backward()
    long = table.detach().double().requires_grad_()
    unit = normalize(long, dim=1)
    expected = equation(unit[:N], unit[N : 2 * N], unit[2 * N :].view(N, K, DIM), tau)
    expected.backward()
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(table.grad.double(), long.grad, rtol=1e-4, atol=1e-4 * long.grad.abs().max().item())


@pytest.mark.parametrize("tile", [2, 3, 64])
@pytest.mark.parametrize("tau", [0.015, 0.2])
@pytest.mark.parametrize("masked", [True, False])
def test_tiles_of_some_rows_weigh_all_candidates_but_the_positive(tile, tau, masked):
    texts, first = torch.tensor([3, 1, 3, 2, 0, 1, 3]), 2
    x = normalize(torch.tensor(gaussian(3, DIM, 2)), dim=1).requires_grad_()
    y = normalize(torch.tensor(gaussian(7, DIM, 3)), dim=1).requires_grad_()
    sides = Duplicates(texts[first : first + 3], texts, first, hardness=ALPHA)
    value, _ = tiled_cross_entropy(x, y, temperature=tau, repeats=sides.within(masked), tile=tile)
    value.backward()
    long = [side.detach().double().requires_grad_() for side in (x, y)]
    expected = torch.zeros(())
    for i in range(3):
        own = first + i
        others = [j for j in range(7) if j != own and not (masked and texts[j] == texts[own])]
        row = long[0][i]
        expected = expected + weighed(row, long[1][own], long[1][others], tau) + row @ long[1][own] / tau
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for side, wanted in zip((x, y), long, strict=True):
        torch.testing.assert_close(side.grad.double(), wanted.grad, rtol=1e-4, atol=3e-5 / tau)


@pytest.mark.parametrize("tau", [0.015, 0.2])
def test_a_queue_weighs_its_entries(tau):
    q = normalize(torch.tensor(gaussian(3, DIM, 4)), dim=1).requires_grad_()
    queue = normalize(torch.tensor(gaussian(9, DIM, 5)), dim=1)
    ids = torch.arange(9)
    negatives = Filter(q.detach(), torch.tensor([0, 4, 20]), hardness=ALPHA)
    sums, counts, _ = log_sums(q, queue, ids, negatives, temperature=tau, tile=4)
    sums.sum().backward()
    long = q.detach().double().requires_grad_()
    lists = []
    for i, own in enumerate((0, 4, 20)):
        cosines = long[i] @ queue[ids != own].double().T
        lists.append((ALPHA * cosines.detach() + cosines / tau).logsumexp(0))
    torch.stack(lists).sum().backward()
    assert counts.tolist() == [8, 8, 9]
    torch.testing.assert_close(sums.detach().double(), torch.stack(lists).detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q.grad.double(), long.grad, rtol=1e-4, atol=3e-5 / tau)


def second_moments(rows):
    """Both sides' 1/(N(N-1)) sum_{i != j} (x_i . x_j)^2."""
    unit = normalize(rows, dim=1)
    return sum(
        (side[i] @ side[j]) ** 2 / (N * (N - 1))
        for side in (unit[:N], unit[N:])
        for i in range(N)
        for j in range(N)
        if i != j
    )


@pytest.mark.parametrize("dims", [(), (2, 3)], ids=["whole", "cut"])
def test_spread_out_is_the_second_moment_of_random_pairs(dims):
    kind = load_method("mse_distillation")
    method = kind(make_config(kind, {}), student_dim=DIM, teacher_dim=DIM)
    table = torch.tensor(gaussian(2 * N, DIM, 6), requires_grad=True)
    batch, encoded = batch_of(N, teacher_source=gaussian(N, DIM, 7)), []

    def encode(tokens):
        encoded.extend(tokens.ids.tolist())
        return table[tokens.ids]

    def loss_of(weight):
        if dims:
            return matryoshka_loss(method, cuts_below(dims, DIM, False), encode, batch, ProcessGroup(), weight)
        return spread_loss(method, weight, encode, batch, ProcessGroup())

    loss = loss_of(3.0)
    assert sorted(encoded) == list(range(2 * N)), "every sentence is encoded once"
    loss.total.backward()
    long = table.detach().double().requires_grad_()
    spread = sum(second_moments(long[:, :dim]) for dim in (*dims, DIM))
    (3.0 * spread).backward()
    plain_table = table.grad.clone()
    table.grad = None
    plain = loss_of(0.0)
    plain.total.backward()
    assert (loss.total - plain.total).item() == pytest.approx(3 * spread.item(), rel=1e-5)
    torch.testing.assert_close((plain_table - table.grad).double(), long.grad, rtol=1e-4, atol=1e-5)
    assert loss.terms["spread_out"].item() == pytest.approx(second_moments(long).item(), rel=1e-5)
    assert "spread_out" not in plain.terms


CASES = [
    testing.Case("translation_ranking", {"temperature": 0.2, "hard_negatives": 2}, hardness=3.0, spread_out=2.0),
    testing.Case("soft_contrastive", {"labels": "hard", "reading": "paper"}, hardness=3.0, spread_out=2.0),
    testing.Case("soft_contrastive", {"temperature": 0.2}, spread_out=2.0),
    testing.Case("lealla", {"scale": 70.0, "mask_duplicates": False, "beta": 0.0}, hardness=3.0, spread_out=2.0),
    testing.Case("laser3_co", {"variant": "co", "queue": 10, "temperature": 0.2}, hardness=3.0, spread_out=2.0),
    testing.Case("laser3_co", {"variant": "laser3"}, spread_out=2.0),
    testing.Case("ml_ctl", {"temperature": 0.2}, hardness=3.0),
    testing.Case("dimension_reduction", {"dim": 5}, hardness=3.0),
    testing.Case("bilingual_aligner", {"output": 5, "temperature": 0.2, "intra": True}, hardness=3.0),
    testing.Case(
        "combined",
        {"soft_contrastive": 0.5, "lealla": 2.0, "settings": {"lealla": {"beta": 0.0}}},
        hardness=3.0,
        spread_out=2.0,
    ),
]


@pytest.mark.parametrize("check", testing.CHECKS, ids=testing.name_of)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_both_keep_the_contract(case, check):
    check(case)


def test_any_number_of_ranks_weighs_and_spreads_alike(tmp_path):
    testing.check_ranks(CASES, tmp_path)


def test_soft_labels_are_refused_in_one_line_and_hard_ones_are_not(tiny_file):
    searched = "parameters.training.hardness={choice: [0, 5], when: {labels: hard}}"
    with pytest.raises(SpecError, match=r"training\.hardness: 5: method 'soft_contrastive' has no negatives") as raised:
        read_sweep(tiny_file, assignments=["parameters={}", "training.hardness=5"])
    assert len(str(raised.value).splitlines()) == 1
    sweep = read_sweep(tiny_file, assignments=["parameters={labels: {choice: [hard, priority]}}", searched])
    assert make_trial(sweep, 0, {"labels": "hard", "training.hardness": 5.0}).training.hardness == 5
    plain, same = (read_sweep(tiny_file, assignments=given) for given in ([], ["training.hardness=0"]))
    assert sweep_id(plain) == sweep_id(same)
