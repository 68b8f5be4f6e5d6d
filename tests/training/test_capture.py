"""A step that is recorded and replayed trains as an eager one, on batches of a few fixed shapes.

No test needs a GPU: a tape of kernels stands for a CUDA graph. It replays them without Python on the same memory, so a
number that the program bakes in, or a tensor of another step, shows."""

import math

import numpy as np
import pytest
import torch

from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.training import batches, capture
from babeltune.training.batches import FULL, Shapes, sampled_shapes, shapes_for
from babeltune.training.build import make_steps
from every_method import SETTINGS, assignments
from kernels import TapeRecorder

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
STEPS = 9
TRAINED = [name for name in SETTINGS if name not in ("dimension_reduction", "bilingual_aligner")]
"""Methods that train a student."""
DYNAMIC = ("ml_ctl",)  # methods with a step that no graph can hold: masked language modelling picks the chosen tokens
BESIDE = {
    "dropout": ("soft_contrastive", ("student.dropout=0.1",)),
    "hard labels": ("soft_contrastive", ("config={labels: hard}",)),
    "max": ("mse_distillation", ("student.pooling=max", "training.clip=null")),
    "cls, matryoshka": ("translation_ranking", ("student.pooling=cls", "training.matryoshka=[16, 8]")),
    "bf16, average": ("soft_contrastive", ("training.precision=bf16", "training.average={kind: ema, every: 2}")),
}
"""Settings that change which kernels run."""


@pytest.fixture
def soon(monkeypatch):
    """The third batch of a shape is recorded."""
    monkeypatch.setattr(capture, "WARM_UP", 2)
    monkeypatch.setattr(batches, "SIZES", 2)


@pytest.fixture
def steps_of(tiny_file, tiny_storage):
    """The steps of a trial of a method, and its longest sentence."""

    def make(method, *more):
        sweep = read_sweep(tiny_file, assignments=[*assignments(method), "training.pairs=288", *more])
        trial, prepared = make_trial(sweep, 0, {}), prepare(sweep, tiny_storage)
        steps = make_steps(trial, prepared, ProcessGroup(), torch.device("cpu"))
        if steps.reader.needs.warm_up:
            steps.train_step.method.warm_up(*steps.reader.anchors(steps.reader.needs.warm_up, 0))
        return steps

    return make


def fix(steps, recorder, off=""):
    """Lets a recorder run the steps, on batches of fixed shapes."""
    steps.reader.shapes = sampled_shapes(steps.reader, steps.schedule, 32)
    steps.train_step.record_with(recorder, off)
    return steps


def trained(steps):
    """What each step says, and the weights and buffers that are left."""
    values = [steps.run(step) for step in range(STEPS)]
    return values, {name: tensor.clone() for name, tensor in steps.train_step.module.state_dict().items()}


def assert_the_same(found, expected):
    """Bit for bit."""
    assert found[0] == expected[0]
    for name, tensor in expected[1].items():
        assert torch.equal(found[1][name], tensor), name


@pytest.mark.parametrize("name", [*TRAINED, *BESIDE])
def test_a_replayed_step_is_the_eager_one_bit_for_bit(steps_of, soon, name):
    method, more = BESIDE.get(name, (name, ()))
    expected = trained(fix(steps_of(method, *more), TapeRecorder(), "eager"))
    steps = fix(steps_of(method, *more), recorder := TapeRecorder())
    assert_the_same(trained(steps), expected)
    ran = steps.train_step.capture
    if method not in DYNAMIC:
        assert ran.replayed >= STEPS - 6
        assert ran.compared == 1
        assert ran.difference < 1e-6
        assert f"{ran.replayed} of 9 steps replayed from {len(recorder.tapes)} graph" in ran.summary
    else:
        assert ran.summary.startswith("off: a graph cannot hold "), ran.summary
        assert not recorder.tapes


@pytest.mark.parametrize("method", TRAINED)
def test_fixed_shapes_give_the_loss_and_gradients_of_packed_batches(steps_of, method):
    packed, fixed = steps_of(method), fix(steps_of(method), None)
    for step in range(2):
        batch = fixed.batch(step)
        assert len(batch.source.ids) > batch.source.lengths.sum()
        found, expected = fixed.train_step.backward(batch), packed.train_step.backward(packed.batch(step))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value.item(), rel=1e-5, abs=1e-6), name
        modules = [steps.train_step.module for steps in (packed, fixed)]
        expected, found = ({name: p.grad for name, p in module.named_parameters()} for module in modules)
        largest = max(gradient.abs().max().item() for gradient in expected.values())
        for name, gradient in expected.items():
            of_all_tokens = 5 if "token_type" in name else 1  # thousands of summands, in another order
            difference = (found[name] - gradient).abs().max().item()
            assert difference <= of_all_tokens * 1e-6 * largest, name


def test_a_graph_that_computes_something_else_ends_the_recording(steps_of, soon):
    class Forgetful(TapeRecorder):
        """Its graphs lack the kernel that scales the gradients."""

        def record(self, work):
            replay, values = super().record(work)
            calls = self.tapes[-1].calls
            calls[:] = [call for call in calls if "logsumexp" not in str(call[0]) and "exp_" not in str(call[0])]
            return replay, values

    steps = fix(steps_of("soft_contrastive"), recorder := Forgetful())
    values, _ = trained(steps)
    ran = steps.train_step.capture
    assert ran.replayed == 1
    assert "by the graph and" in ran.off
    assert ran.summary == f"off: {ran.off}"
    assert not recorder.tapes, "their memory is given back"
    assert all(math.isfinite(value["loss"]) for value in values[-3:]), "later steps are eager"
    assert recorder.eager_steps >= 4


@pytest.mark.parametrize("given", [{"short": "0.1 GB are free"}, {"error": "CUDA error: not permitted\nmore"}])
def test_what_cannot_be_recorded_runs_eagerly_and_says_why(steps_of, soon, given):
    expected = trained(fix(steps_of("mse_distillation"), TapeRecorder(), "eager"))
    steps = fix(steps_of("mse_distillation"), TapeRecorder(**given))
    assert_the_same(trained(steps), expected)
    assert steps.train_step.capture.summary == f"off: {next(iter(given.values())).splitlines()[0]}"


def test_a_trial_without_a_gpu_says_so_and_trains_as_always(steps_of):
    steps, plain = steps_of("soft_contrastive", "training.capture=auto"), steps_of("soft_contrastive")
    assert steps.train_step.capture.summary == "off: there is no GPU"
    assert steps.reader.shapes is None
    assert_the_same(trained(steps), trained(plain))


@pytest.mark.parametrize(
    ("method", "setting", "reason"),
    [
        ("translation_ranking", "student={kind: static, width: 32}", "no Transformer"),
        ("translation_ranking", "training.chunk=8", "cut a batch"),
        ("dimension_reduction", "seed=0", "no Transformer"),
    ],
)
def test_steps_that_no_graph_can_hold_are_named(steps_of, method, setting, reason):
    step = steps_of(method, setting).train_step
    step.device = torch.device("cuda")
    assert reason in step.not_captured()


def test_at_most_so_many_graphs_are_recorded(steps_of, soon, monkeypatch):
    monkeypatch.setattr(capture, "MOST", 1)
    monkeypatch.setattr(batches, "UNIT", 1)
    steps = fix(steps_of("mse_distillation"), recorder := TapeRecorder())
    trained(steps)
    assert len(recorder.tapes) == len(steps.train_step.capture.recorded) == 1
    steps.train_step.capture.release()
    assert not recorder.tapes
    assert not steps.train_step.capture.recorded


def test_a_batch_takes_the_smallest_room_that_holds_it():
    rng = np.random.default_rng(0)
    tokens = rng.normal((3000, 3300), (60, 80), (64, 2)).astype(int)
    chosen = shapes_for(tokens, 128)
    assert len(chosen.rooms) == 3
    assert all(space % batches.UNIT == 0 for room in chosen.rooms for space in room)
    rooms = [chosen.room(row, 128) for row in tokens.tolist()]
    assert None not in rooms
    assert 1 - tokens.sum() / np.sum(rooms) < 0.06, "little of a batch is spare"
    assert chosen.room(tokens.max(0).tolist(), 128) == chosen.rooms[-1]
    assert chosen.room((4000, 3000), 128) is None, "a side has no room"
    assert chosen.room(tokens[0].tolist(), 129) is None, "a sentence is too long"
    assert Shapes(9, ((100, 100),)).room((int(200 * FULL) - 1, 0), 9) is None, "it would be mostly spare"
