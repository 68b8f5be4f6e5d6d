"""What a reader opens to understand a training step: the files that run in it are those that the docs list."""

import re
import sys
from pathlib import Path

import pytest
import torch

import babeltune
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.training.build import make_steps

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

ROOT = Path(__file__).parents[2]
PLATFORM, METHODS = ROOT / "platform/babeltune", ROOT / "methods/babeltune_methods"
MOST = 8  # files that explain a step


@pytest.fixture(scope="module")
def listed():
    """The numbered items under the heading: the file that each names first, and those in brackets."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## A training step")[1].split("\n## ")[0]
    items = re.findall(r"^\d+\. .*", text, re.MULTILINE)
    named = [re.findall(r"`([\w/]+\.py)`", item) for item in items]
    return [names[0] for names in named], [name for names in named for name in names[1:]]


def files_run(work):
    """The files of ours whose functions run, backward passes included."""
    found = set()

    def note(frame, event, _):
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    ours = {Path(name) for name in found if Path(name).is_relative_to(PLATFORM) or Path(name).is_relative_to(METHODS)}
    return {path.relative_to(PLATFORM if path.is_relative_to(PLATFORM) else ROOT).as_posix() for path in ours}


def test_a_step_runs_the_files_that_the_docs_list(tiny_file, tiny_storage, listed):
    assert Path(babeltune.__file__).parent == PLATFORM, "the package under test is this one"
    sweep = read_sweep(tiny_file, assignments=["parameters={}"])
    steps = make_steps(make_trial(sweep, 0, {}), prepare(sweep, tiny_storage), ProcessGroup(), torch.device("cpu"))
    explained, leaves = listed
    assert len(explained) <= MOST
    assert files_run(lambda: steps.run(0)) == {*explained, *leaves}
