"""Temperatures that are `auto`, measured on a trial's own batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from babeltune.errors import MethodError, TrainingError
from babeltune.files import plain
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.space import make_trial
from babeltune.promotion.model_card import flat
from babeltune.schema.records import trial_from
from babeltune.train import Printer
from babeltune.training.own_share import fit_temperatures
from babeltune.training.trainer import TrialTrainer, train


def trial_of(sweep, config, **training):
    method = "combined" if "settings" in config else "laser3_co" if "variant" in config else "soft_contrastive"
    trial = make_trial(replace(sweep, method=method, parameters={}, config=config), 0, {})
    return replace(trial, training=replace(trial.training, **training))


def logged(trial, prepared, folder, metric):
    reports = train(trial, prepared, folder, Printer(()), ProcessGroup(), torch.device("cpu"))
    return np.mean([point.values[metric] for report in reports for point in report.points])


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("training", [{}, {"global_batch": 128, "pairs": 2560}, {"global_batch": 64, "batch_parts": 2}])
def test_a_trial_logs_the_own_share_that_was_asked_for(tiny, tmp_path, share, training):
    sweep, prepared = tiny
    trial = fit_temperatures(trial_of(sweep, {"teacher_temperature": "auto", "own_share": share}, **training), prepared)
    assert trial.config["teacher_temperature"] == trial.fitted["teacher_temperature"]
    assert logged(trial, prepared, tmp_path, "train/label_own") == pytest.approx(share, abs=0.02)


def test_one_temperature_for_both_is_the_papers(tiny):
    sweep, prepared = tiny
    trial = fit_temperatures(trial_of(sweep, {"temperature": "auto"}), prepared)
    assert trial.fitted == {"temperature": trial.config["temperature"]}
    assert trial.config["teacher_temperature"] is None


def test_a_combined_methods_temperature_is_measured_in_its_settings(tiny, tmp_path):
    sweep, prepared = tiny
    settings = {"soft_contrastive": {"teacher_temperature": "auto", "own_share": 0.4}}
    config = {"settings": settings, "soft_contrastive": 1.0}
    trial = fit_temperatures(trial_of(sweep, config), prepared)
    ((name, value),) = trial.fitted.items()
    assert name == "settings.soft_contrastive.teacher_temperature"
    assert flat(trial.config)[name] == value
    assert settings["soft_contrastive"]["teacher_temperature"] == "auto", "the sweep's own settings stay"
    assert trial_from(plain(trial)) == trial
    assert logged(trial, prepared, tmp_path, "train/soft_contrastive/label_own") == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("variant", ["in_batch", "co", "co_filter"])
def test_a_student_that_equals_its_teacher_has_the_share_among_its_negatives(tiny, variant):
    sweep, prepared = tiny
    config = {"variant": variant, "temperature": "auto", "queue": 200, "own_share": 0.9}
    temperature = fit_temperatures(trial_of(sweep, config, global_batch=64), prepared).fitted["temperature"]
    anchors = torch.from_numpy(prepared.teacher_vectors(prepared.distinct_anchors()))
    k = torch.nn.functional.normalize(anchors, dim=1)
    drawn = np.random.default_rng(3)
    shares = []
    for _ in range(20):
        rows = k[drawn.permutation(len(k))[: 64 if variant == "in_batch" else 201]]
        cosines = rows @ rows.T
        if variant == "co_filter":
            cosines[(cosines >= 0.9) & ~torch.eye(len(rows), dtype=torch.bool)] = -9
        shares.append((cosines / temperature).softmax(1).diagonal().mean().item())
    assert np.mean(shares) == pytest.approx(0.9, abs=0.03)


def test_the_measured_number_is_the_same_each_time_and_for_each_seed(tiny):
    sweep, prepared = tiny
    trial = trial_of(sweep, {"teacher_temperature": "auto"})
    again = replace(prepared, digest=f"{prepared.digest} again")  # so that it is measured again
    numbers = {
        fit_temperatures(t, p).fitted["teacher_temperature"]
        for t in (trial, replace(trial, seed=5))
        for p in (prepared, again)
    }
    assert len(numbers) == 1


def test_what_is_not_read_is_not_measured(tiny, tmp_path):
    sweep, prepared = tiny
    trial = fit_temperatures(trial_of(sweep, {"labels": "hard", "teacher_temperature": "auto"}), prepared)
    assert not trial.fitted
    train(trial, prepared, tmp_path, Printer(()), ProcessGroup(), torch.device("cpu"))
    assert not fit_temperatures(trial_of(sweep, {"variant": "laser3", "temperature": "auto"}), prepared).fitted


def test_a_share_below_that_of_equal_labels_is_an_error_in_words(tiny):
    sweep, prepared = tiny
    with pytest.raises(MethodError, match=r"own_share 0.01 cannot be had: in batches of 32 .*, or larger batches"):
        fit_temperatures(trial_of(sweep, {"teacher_temperature": "auto", "own_share": 0.01}), prepared)


def test_a_temperature_that_was_not_measured_does_not_train(tiny, tmp_path):
    sweep, prepared = tiny
    trial = trial_of(sweep, {"teacher_temperature": "auto"})
    with pytest.raises(TrainingError, match="a temperature is 'auto', and was not measured"):
        TrialTrainer(trial, prepared, tmp_path, Printer(()), ProcessGroup(), torch.device("cpu")).train()
