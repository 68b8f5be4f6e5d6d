"""Averages of the weights: reports and checkpoints hold them, a trial resumes bit for bit, bad settings are refused."""

from dataclasses import replace

import pytest
import torch

from babeltune.files import plain
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import default_params, make_trial, sample
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.base import from_plain
from babeltune.schema.records import LastAverage, MovingAverage, Training, trial_from
from babeltune.training.build import make_method, make_steps, make_student
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint, read_reports, stopped_folder
from babeltune.training.dev_evaluation import dev_scores
from babeltune.training.trainer import train
from babeltune.training.weight_average import WeightAverage
from collecting import Collect

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

CPU = torch.device("cpu")
STATIC = "student={kind: static, width: 32, projection: teacher, vocabulary: 500, max_tokens: 32}"
EMA = "training.average={kind: ema, decay: 0.9, every: 2}"
START = "training.average={kind: start, share: 0.3}"
LAST = "training.average={kind: last, share: 0.4, every: 2}"


@pytest.fixture
def averaged(tiny_file, tiny_storage):
    """Makes a tiny sweep with these settings, and what is prepared for it."""

    def make(*settings):
        sweep = read_sweep(tiny_file, assignments=["parameters={}", *settings])
        return make_trial(sweep, 0, {}), prepare(sweep, tiny_storage)

    return make


def trained(trial, prepared, folder, collect=None):
    collect = collect or Collect()
    train(trial, prepared, folder, collect, ProcessGroup(), CPU)
    return collect


def checkpoint(folder, index=2):
    return load_checkpoint(checkpoint_folder(folder, index))[0]


@pytest.mark.parametrize("setting", [EMA, LAST])
def test_the_average_is_its_definition_at_every_second_step(averaged, setting):
    trial, prepared = averaged(STATIC, setting)
    training = make_steps(trial, prepared, ProcessGroup(), CPU)
    train_step, schedule = training.train_step, training.schedule
    kept, steps = [], 0
    for step in range(len(schedule)):
        training.run(step)
        if setting == LAST and training.seen(step + 1) < 0.6 * trial.training.pairs:
            continue
        steps += 1
        if steps % 2 == 0 or step == len(schedule) - 1:
            kept.append([parameter.detach().double().clone() for parameter in train_step.module.parameters()])
    assert (steps, len(kept)) == ((20, 10) if setting == EMA else (9, 5))
    expected = kept[0]
    for times, weights in enumerate(kept[1:], 2):
        rate = min(0.9, (1 + 2 * times) / (10 + 2 * times)) ** 2 if setting == EMA else (times - 1) / times
        expected = [rate * old + (1 - rate) * new for old, new in zip(expected, weights, strict=True)]
    if setting == LAST:
        means = [torch.stack(parts).mean(0) for parts in zip(*kept, strict=True)]
        assert all(torch.allclose(mean, found) for mean, found in zip(means, expected, strict=True))
    with train_step.averaged():
        for found, wanted in zip(train_step.module.parameters(), expected, strict=True):
            torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-5, atol=1e-7)
    assert not torch.equal(train_step.encoder.word_embeddings, expected[0].float()), "the weights themselves train on"


@pytest.mark.parametrize("setting", [LastAverage(every=3, share=1.0), MovingAverage(every=3, decay=0.5)])
def test_the_last_step_is_read_whatever_the_number_of_steps(setting):
    """Steps 3, 6, 9 and the 10th. The decay of `ema` is 1/2, and that of the last reading is of one step."""
    layer = torch.nn.Linear(1, 1, bias=False).double()
    average = WeightAverage(setting, {"weight": layer.weight}, total=100)
    values = []
    for step in range(1, 11):
        layer.weight.data.fill_(step**2)
        average.after_update(10 * step)
        values += [step**2] if step in (3, 6, 9, 10) else []
    expected = values[0]
    for number, (value, steps) in enumerate(zip(values[1:], (6, 9, 10), strict=True), 2):
        since = 1 if steps == 10 else 3
        rate = (
            (number - 1) / number if isinstance(setting, LastAverage) else min(0.5, (1 + steps) / (10 + steps)) ** since
        )
        expected = rate * expected + (1 - rate) * value
    assert average.values["weight"].item() == pytest.approx(expected)


def test_the_average_is_scored_and_kept_and_training_goes_on_with_the_weights(averaged, tmp_path):
    trial, prepared = averaged(STATIC, EMA)
    plain_trial = replace(trial, training=replace(trial.training, average=None))
    trained(trial, prepared, tmp_path / "average")
    trained(plain_trial, prepared, tmp_path / "plain")
    found, without = checkpoint(tmp_path / "average"), checkpoint(tmp_path / "plain")
    for name, weight in without["student"].items():
        assert torch.equal(found["weights"][f"student.{name}"], weight), "an average changes nothing in the training"
        assert not torch.equal(found["student"][name], weight)
    encoder = make_student(trial, prepared)
    encoder.load_state_dict(found["student"])
    method = make_method(trial, prepared, encoder)
    scores = dev_scores(encoder, method, trial, prepared, ProcessGroup(), CPU)
    report = read_reports(tmp_path / "average")[-1]
    assert report.metrics["dev/everyday/accuracy"] == scores["dev/everyday/accuracy"]
    assert report.metrics["dev/sts/spearman"] == pytest.approx(scores["dev/sts/spearman"])


@pytest.mark.parametrize("student", [(STATIC,), ()])
def test_the_mean_with_the_start_is_its_definition_and_training_goes_on_without(averaged, tmp_path, student):
    trial, prepared = averaged(*student, START)
    trained(trial, prepared, tmp_path / "mean")
    trained(replace(trial, training=replace(trial.training, average=None)), prepared, tmp_path / "plain")
    mean, plain_weights = checkpoint(tmp_path / "mean"), checkpoint(tmp_path / "plain")["student"]
    for name, first in make_student(trial, prepared).state_dict().items():
        if first.is_floating_point():
            expected = 0.7 * first.double() + 0.3 * plain_weights[name].double()
            torch.testing.assert_close(mean["student"][name].double(), expected, rtol=1e-5, atol=1e-7)
            assert torch.equal(mean["weights"][f"student.{name}"], plain_weights[name])


def test_before_the_last_share_reports_are_of_the_weights_themselves(averaged, tmp_path):
    trial, prepared = averaged(LAST)
    trained(trial, prepared, tmp_path / "average")
    trained(replace(trial, training=replace(trial.training, average=None)), prepared, tmp_path / "plain")
    found, without = (read_reports(tmp_path / name) for name in ("average", "plain"))
    assert found[0].metrics["dev/sts/spearman"] == without[0].metrics["dev/sts/spearman"]
    assert found[1].metrics["dev/sts/spearman"] != without[1].metrics["dev/sts/spearman"]


@pytest.mark.parametrize(
    "settings", [(STATIC, EMA), (EMA,), (START,), (STATIC, "training.average={kind: last, share: 0.9, every: 3}")]
)
def test_a_trial_stopped_between_reports_goes_on_bit_for_bit(averaged, tmp_path, monkeypatch, settings):
    monkeypatch.setattr("babeltune.training.trainer.STOP_POLL_INTERVAL_S", 0.0)
    trial, prepared = averaged(*settings)
    trained(trial, prepared, tmp_path / "whole")
    trained(trial, prepared, tmp_path / "cut", Collect(stop_at=14))
    assert stopped_folder(tmp_path / "cut").exists()
    trained(trial, prepared, tmp_path / "cut")
    whole, cut = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "cut")
    assert whole.keys() == cut.keys() >= {"student", "weights", "average"}
    for part in whole:
        assert all(torch.equal(whole[part][name], cut[part][name]) for name in whole[part]), part


def test_an_average_survives_json_and_its_decay_can_be_searched(tiny_file):
    plain_sweep = read_sweep(tiny_file)
    parameter = "parameters.training.average.decay={float: [0.9, 0.999]}"
    sweep = read_sweep(tiny_file, assignments=["training.average={kind: ema}", parameter])
    trial = make_trial(sweep, 0, sample(sweep, 0))
    assert 0.9 <= trial.training.average.decay < 0.999
    assert trial.training.average.decay == trial.params["training.average.decay"]
    assert trial_from(plain(trial)) == trial
    assert default_params(sweep)["training.average.decay"] == 0.999
    assert sweep_id(plain_sweep) != sweep_id(sweep)
    assert from_plain(Training, {"average": plain(LastAverage())}).average == LastAverage()
