"""A small distribution with a method, for tests of plugins: its source tree, and the ways in which it is installed."""

import importlib
import re
import site
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from babeltune.method import registry

NAME, PACKAGE = "simcse-methods", "simcse_methods"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "simcse-methods"
version = "1.0"
dependencies = ["torch", "a-package-that-no-index-has"]

[project.entry-points."babeltune.methods"]
simcse = "simcse_methods.views:SimCse"

[tool.hatch.build]
dev-mode-dirs = ["."]

[tool.hatch.build.targets.wheel]
packages = ["simcse_methods"]
"""
METHOD = '''
"""Two views of a sentence find one another (SimCSE)."""

from dataclasses import dataclass
from pathlib import Path

import torch

from babeltune.errors import TrainingError
from babeltune.method import Loss, Method, Needs

TEMPERATURE = float((Path(__file__).parent / "temperature.txt").read_text())


@dataclass(frozen=True)
class Config:
    pass


class SimCse(Method):
    name = "simcse"
    Config = Config

    @classmethod
    def needs(cls, config):
        return Needs(in_batch_negatives=True)

    def loss(self, encode, batch, gather):
        if batch.total < 2:
            raise TrainingError("a batch of one pair has no negatives; raise training.global_batch")
        first, second = encode(batch.source), gather(encode(batch.source))
        own = torch.arange(len(first)) + gather.offset(len(first))
        scores = first @ second.T / TEMPERATURE
        return Loss(torch.nn.functional.cross_entropy(scores, own, reduction="sum") / batch.total)
'''
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "add-a-paper.md"
CONTRACT = re.search(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
"""The plugin's own test file, as the page shows it."""
HOWS = ("installed", "editable", "beside")


def make_source(folder):
    """The source tree of the plugin."""
    package = folder / PACKAGE
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "views.py").write_text(METHOD)
    (package / "temperature.txt").write_text("0.05")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_contract.py").write_text(CONTRACT)
    return folder


def install(source, target, how):
    """Puts the plugin into the folder `target`, which has `simcse_methods` itself or leads to it in the source tree."""
    if how == "beside":
        info = target / "simcse_methods-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simcse-methods\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[babeltune.methods]\nsimcse = simcse_methods.views:SimCse\n")
        (source / PACKAGE).rename(target / PACKAGE)
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(target), *["-e"] * (how == "editable"), str(source)]
    subprocess.run(command, check=True)


def code_in(source, target):
    """The package whose files run."""
    return next(place / PACKAGE for place in (target, source) if (place / PACKAGE).exists())


@contextmanager
def importable(target):
    """This process finds what is installed in `target`."""
    before = list(sys.path)
    site.addsitedir(str(target))
    added = [path for path in sys.path if path not in before]
    sys.path[:] = [*added, *before]
    try:
        forget()
        yield
    finally:
        sys.path[:] = before
        forget()


def forget():
    """As a new process: no module of the plugin is imported, and no entry point known."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    importlib.invalidate_caches()
    registry._entries.cache_clear()
