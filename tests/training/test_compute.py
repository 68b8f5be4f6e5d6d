"""The compute of a trial is counted: it says how long a trial is, and it is the same in every run."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from babeltune.errors import TrainingError
from babeltune.files import plain
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.products import linear
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import RATES
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint
from babeltune.training.compute import Counter, Work, measured_rates, paid_for, work_of_a_pair
from babeltune.training.trainer import train
from conftest import cluster_at

CPU = torch.device("cpu")
RATES_HERE = (100.0, 20.0)


def counted(work):
    with Counter() as counter:
        work()
    return counter.work


def test_a_product_costs_two_operations_a_term_and_the_bytes_of_three_matrices():
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    assert counted(lambda: a @ b) == Work(2 * 3 * 5 * 7, 4 * (15 + 35 + 21))


def test_a_product_through_onednn_costs_what_torchs_costs():
    x, weight = torch.randn(160, 96), torch.randn(144, 96)
    assert counted(lambda: linear(x, weight, None)) == counted(lambda: x @ weight.T)


def test_a_view_costs_nothing_and_a_row_costs_itself():
    table = torch.randn(1000, 8)
    assert counted(lambda: table.T[2:, ::3].unsqueeze(0)) == Work()
    assert counted(lambda: table.view(-1).view(8000)) == Work()
    ids = torch.tensor([3, 5, 3])
    assert counted(lambda: table.index_select(0, ids)) == Work(0, 2 * (3 * 8 * 4 + 3 * 8))


def test_attention_on_this_machine_is_counted_forward_and_backward():
    shape = (2, 4, 16, 8)
    query, key, value = (torch.randn(shape, requires_grad=True) for _ in range(3))
    forward = 2 * 2 * (2 * 4 * 16 * 16 * 8)
    found = counted(lambda: nn.functional.scaled_dot_product_attention(query, key, value).sum().backward())
    assert forward * 3 <= found.operations <= forward * 3.6, "the backward pass has two to two and a half as many"


def trial_of(tiny, *, vocabulary=None, **settings):
    sweep, _ = tiny
    trial = make_trial(replace(sweep, parameters={}), 0, {})
    training = {"rates": RATES_HERE, "reports": 2, "global_batch": 32, **settings}
    return replace(trial, training=replace(trial.training, **training))


def test_the_work_of_a_pair_is_the_same_each_time_and_grows_with_the_student(tiny):
    trial = trial_of(tiny)
    first, again = (work_of_a_pair(trial, tiny[1], CPU) for _ in range(2))
    assert first == again
    assert first.operations > 0
    deep = replace(trial, student=replace(trial.student, layers=2 * trial.student.layers))
    assert work_of_a_pair(deep, tiny[1], CPU).operations > 1.3 * first.operations


def test_counting_leaves_the_training_as_it_is(tiny, tmp_path):
    """Its student is thrown away, and it draws from no random state that the training reads."""
    trial = trial_of(tiny, pairs=320)

    class Quiet:
        def report(self, report):
            return True

        def stopped(self):
            return False

    paid = replace(trial, training=replace(trial.training, compute=1.0))
    pairs = paid_for(paid, tiny[1], ProcessGroup(), CPU).training.pairs
    train(
        replace(paid, training=replace(paid.training, compute=320 / pairs)),
        tiny[1],
        tmp_path / "paid",
        Quiet(),
        ProcessGroup(),
        CPU,
    )
    train(trial, tiny[1], tmp_path / "plain", Quiet(), ProcessGroup(), CPU)
    one, other = (load_checkpoint(checkpoint_folder(tmp_path / name, 2))[0]["student"] for name in ("paid", "plain"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_twice_the_compute_pays_for_twice_the_pairs(tiny):
    one, two = (paid_for(trial_of(tiny, compute=seconds), tiny[1], ProcessGroup(), CPU) for seconds in (1.0, 2.0))
    assert two.training.pairs == pytest.approx(2 * one.training.pairs, abs=1)
    without = trial_of(tiny)
    assert paid_for(without, tiny[1], ProcessGroup(), CPU) is without


def test_compute_that_pays_for_too_little_says_how_much_is_enough(tiny):
    with pytest.raises(
        TrainingError, match=r"pays for \d+ pairs, and 2 reports of two steps need 128; give at least"
    ) as e:
        paid_for(trial_of(tiny, compute=1e-3), tiny[1], ProcessGroup(), CPU)
    enough = float(str(e.value).rpartition(" ")[2])
    assert paid_for(trial_of(tiny, compute=1.1 * enough), tiny[1], ProcessGroup(), CPU).training.pairs >= 128


def test_a_static_students_step_costs_the_rows_that_it_touches(tmp_path, tiny_file, tiny_storage):
    from babeltune.planning.preparation import prepare

    works = []
    for vocabulary in (400, 900):
        student = f"{{kind: static, width: 64, projection: teacher, vocabulary: {vocabulary}, max_tokens: 32}}"
        sweep = read_sweep(tiny_file, assignments=[f"student={student}"])
        works.append(work_of_a_pair(make_trial(sweep, 0, {}), prepare(sweep, tiny_storage), CPU))
    assert works[1].bytes < 1.5 * works[0].bytes, "not in proportion to the table"


@pytest.mark.slow
def test_the_rates_of_this_machine_are_within_reason(one_thread):
    operations, moved = measured_rates(CPU)
    assert 0.1 < operations < 1e5
    assert 0.1 < moved < 1e5


def test_a_sweep_without_compute_keeps_its_id(tiny_file):
    sweep = read_sweep(tiny_file)
    longer = read_sweep(tiny_file, assignments=["budget.unit=compute", "training.compute=5"])
    assert '"compute"' in json.dumps(plain(sweep))
    assert (
        sweep_id(sweep)
        != sweep_id(longer)
        != sweep_id(read_sweep(tiny_file, assignments=["budget.unit=compute", "training.compute=6"]))
    )


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster", "undrawn")
def test_a_sweep_gives_unlike_students_equal_compute_by_rates_that_it_measures_once(
    with_stores, tiny_file, tmp_path, monkeypatch
):
    sweep = read_sweep(
        tiny_file,
        assignments=[
            "budget={trials: 2, unit: compute}",
            "training={compute: 0.4, reports: 2, global_batch: 32, learning_rate: 1e-3}",
            "parameters={student.width: {choice: [16, 128]}}",
            "sampler={kind: grid}",
        ],
    )
    cluster = cluster_at(with_stores(tmp_path / "storage"))
    folder = submit(sweep, cluster)
    rates = folder.read(RATES)["rates"]
    rows = {row.params["student.width"]: row for row in leaderboard(folder) if row.params}
    trials = {row.params["student.width"]: folder.read(f"trials/{row.name}/trial.json") for row in rows.values()}
    assert all(trial["training"]["rates"] == rates for trial in trials.values())
    ends = {}
    for width, row in rows.items():
        lines = (folder.path / "trials" / row.name / "reports.jsonl").read_text(encoding="utf-8").splitlines()
        reports = [json.loads(line) for line in lines]
        ends[width] = reports[-1]["pairs"]
        spent = [report["metrics"]["train/compute"] for report in reports]
        step = 0.4 * 32 / reports[-1]["pairs"]  # a report is at the end of a step; on a busy machine these are few
        assert spent == pytest.approx([0.2, 0.4], rel=0.1, abs=step)
    assert ends[16] > 1.2 * ends[128]

    def refuse(*_):
        raise AssertionError("the rates are measured once")

    monkeypatch.setattr("babeltune.sweep.driver.measurements.worker_rates", refuse)
    longer = replace(sweep, budget=replace(sweep.budget, trials=2))
    (folder.path / RATES).write_text("", encoding="utf-8")
    assert folder.read(RATES) == {"rates": rates}, "a trial has them, too"
    submit(longer, cluster)
    assert folder.read(RATES)["rates"] == rates


def test_equal_students_are_equally_fast(tiny):
    """The speed is of the architecture, so two trials of one show one figure."""
    from babeltune.sweep.driver.baselines import untrained_scores
    from babeltune.training.speed import _measured

    _measured.clear()
    trial = trial_of(tiny)
    one, other = (untrained_scores(replace(trial, seed=seed), tiny[1]) for seed in (0, 1))
    assert one["model/sentences_per_second"] == other["model/sentences_per_second"] > 0
    assert len(_measured) == 1
    wide = replace(trial, student=replace(trial.student, width=2 * trial.student.width))
    assert untrained_scores(wide, tiny[1])["model/sentences_per_second"] > 0
    assert len(_measured) == 2, "a wider one is measured by itself"
    assert math.isfinite(one["model/parameters"])
