"""`gpus_per_worker: auto`: what is measured, and what becomes of it. tests/sweep/workers/test_nodes.py runs a sweep."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch

from babeltune.errors import TrainingError
from babeltune.planning.calibration import PROCESS_BYTES
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster
from babeltune.sweep.driver.measurements import (
    MOST_TRIALS,
    first_steps_bytes,
    measured_share,
    take_first_steps,
    trials_by_memory,
    with_gpu_share,
)
from babeltune.sweep.state.folder import SweepFolder
from babeltune.training.build import make_student


def trials_of(tiny_file, parameters):
    return trials_by_memory(read_sweep(tiny_file, assignments=[f"parameters={parameters}"]))


def test_the_default_is_measured_where_nothing_that_takes_memory_is_searched(tiny_file):
    (trial,) = trials_of(tiny_file, "{training.learning_rate: {log_float: [1e-4, 1e-2]}}")
    assert trial.training.global_batch == read_sweep(tiny_file).training.global_batch


def test_what_takes_memory_is_measured_at_either_end_and_in_every_choice(tiny_file):
    ranges = "training.global_batch: {int: [32, 512]}, student.layers: {choice: [1, 2, 3]}"
    trials = trials_of(tiny_file, f"{{{ranges}, temperature: {{choice: [0.05, auto]}}}}")
    sizes = {(trial.training.global_batch, trial.student.layers) for trial in trials}
    assert sizes == {(batch, layers) for batch in (32, 512) for layers in (1, 2, 3)}
    assert {trial.fitted.get("temperature") for trial in trials if trial.config["temperature"] != 0.05} == {1.0}


def test_of_many_kinds_of_trials_some_are_measured_the_first_and_the_last_among_them(tiny_file):
    layers, sizes = list(range(1, 9)), [64 * step for step in range(1, 9)]
    trials = trials_of(tiny_file, f"{{student.layers: {{choice: {layers}}}, student.width: {{choice: {sizes}}}}}")
    assert len(trials) == MOST_TRIALS
    assert {(1, 64), (8, 512)} <= {(trial.student.layers, trial.student.width) for trial in trials}


@pytest.mark.slow
def test_the_trial_that_takes_most_memory_decides(tiny):
    """In a process of its own, since this one has memory to spare."""
    sweep, prepared = tiny
    small = make_trial(sweep, 0, {})
    large = replace(small, student=small.student.changed(width=1024, layers=4))
    cpu = torch.device("cpu")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        alone = fresh.submit(first_steps_bytes, [small], prepared, cpu).result()
        both = fresh.submit(first_steps_bytes, [large, small], prepared, cpu).result()
    if not alone + both:
        pytest.skip("this system does not say what a process takes")
    weights = sum(4 * weight.numel() for weight in make_student(large, prepared).parameters())
    assert both > alone + 2 * weights, "weights, gradients and two means of AdamW, less what the process had to spare"


def measured_and_reserved(trials, prepared):
    """What is measured on this process' GPU: bytes and share; and what PyTorch has reserved there, and the GPU has."""
    used, share = measured_share(trials, prepared)
    return used, share, torch.cuda.max_memory_reserved(), torch.cuda.get_device_properties(0).total_memory


@pytest.mark.needs_gpu
def test_the_share_of_a_real_gpu_has_room_for_what_pytorch_reserves(tiny):
    """In a process of its own, whose GPU is free."""
    sweep, prepared = tiny
    small = make_trial(sweep, 0, {})
    large = replace(small, student=small.student.changed(width=1024, layers=4))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        used, share, reserved, room = fresh.submit(measured_and_reserved, [small, large], prepared).result()
    weights = sum(4 * weight.numel() for weight in make_student(large, prepared).parameters())
    assert 3 * weights < used <= reserved, "weights and two means of AdamW at least"
    assert reserved + PROCESS_BYTES <= share * room


def test_a_kind_of_trial_that_does_not_train_is_counted_and_passed_over(tiny):
    sweep, prepared = tiny
    trial, steps = make_trial(sweep, 0, {}), []
    broken = replace(trial, training=replace(trial.training, matryoshka=(10_000,)))
    with pytest.raises(TrainingError):
        take_first_steps(broken, prepared, torch.device("cpu"))
    first_steps_bytes([broken, trial], prepared, torch.device("cpu"), lambda *far: steps.append(far))
    assert steps == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("cluster", "gpus"),
    [(Cluster(), 0.0), (Cluster(gpus_per_worker=0.25), 0.25), (Cluster(gpus_per_worker="auto", workers=2), 1.0)],
)
def test_a_share_that_the_file_gives_and_one_of_several_workers_are_not_measured(tiny, tmp_path, cluster, gpus):
    sweep, prepared = tiny
    sized = with_gpu_share(cluster, sweep, prepared, SweepFolder(tmp_path), None, None)
    assert (sized.gpus_per_worker, sized.gpus) == (gpus, gpus)
