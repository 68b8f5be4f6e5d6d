"""Every method in bf16 on a GPU, where there is one, as `python -m babeltune.train` trains it."""

import json
import math

import pytest

from babeltune.train import main
from babeltune.training.checkpoint import read_reports
from every_method import SETTINGS, assignments

pytestmark = [pytest.mark.needs_gpu, pytest.mark.usefixtures("offline")]
SMALL = ("training.pairs=192", "training.reports=2", "training.precision=bf16")


def train(file, folder, method, device="cuda"):
    """Trains on that device; returns the reports."""
    settings = [word for setting in (*assignments(method), *SMALL) for word in ("--set", setting)]
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
