"""Every method in bf16 on a GPU, where there is one, as `python -m babeltune.train` trains it."""

import json
import math

import pytest

from babeltune.train import main
from babeltune.training.checkpoint import read_reports
from every_method import SETTINGS, assignments

pytestmark = [pytest.mark.needs_gpu, pytest.mark.usefixtures("offline")]
SMALL = ("training.pairs=192", "training.reports=2", "training.precision=bf16")


def train(file, folder, method, *more, device="cuda"):
    """Trains on that device; returns the reports."""
    settings = [word for setting in (*assignments(method), *SMALL, *more) for word in ("--set", setting)]
    main([str(file), *settings, "--out", str(folder), "--export", str(folder / "model"), "--device", device])
    return read_reports(folder)


@pytest.mark.parametrize("method", SETTINGS)
def test_a_method_trains_in_bf16_on_cuda_and_is_exported(tiny_file, tmp_path, method):
    reports = train(tiny_file, tmp_path, method)
    assert [report.facts["device"] for report in reports] == ["cuda", "cuda"]
    losses = [point.values["train/loss"] for report in reports for point in report.points]
    assert all(map(math.isfinite, losses))
    assert all(map(math.isfinite, reports[-1].metrics.values()))
    assert json.loads((tmp_path / "trial.json").read_text())["training"]["precision"] == "bf16"
    assert (tmp_path / "model" / "modules.json").is_file()


@pytest.mark.parametrize(
    "method", ["soft_contrastive", "mse_distillation", "translation_ranking", "laser3_co", "lealla"]
)
def test_steps_of_a_cuda_graph_train_as_eager_ones(tiny_file, tmp_path, method):
    long = ("training.pairs=960", "training.reports=1")
    eager, captured = (
        train(tiny_file, tmp_path / capture, method, *long, f"training.capture={capture}")[-1]
        for capture in ("off", "auto")
    )
    assert " steps replayed from " in captured.facts["capture"]
    for one, other in zip(captured.points, eager.points, strict=True):
        assert one.values["train/loss"] == pytest.approx(other.values["train/loss"], rel=0.05)
