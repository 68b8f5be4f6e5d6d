"""Methods for tests of sweep files and search spaces, and how they are installed for one test."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points

import torch

import babeltune.method.registry
import babeltune_methods.combined
from babeltune.method import GROUP, Loss, Method, Needs
from babeltune.schema.records import Data, Objective, Parameter, Sweep, TsvSource


class Toy(Method):
    """A method whose settings alone matter."""

    def loss(self, encode, batch, gather):
        return Loss(encode(batch.source).sum())


@dataclass(frozen=True)
class DistanceConfig:
    power: float = 2.0


class Distance(Toy):
    """Compares the student's vectors with the teacher's."""

    name = "distance"
    Config = DistanceConfig

    @classmethod
    def needs(cls, config):
        return Needs(teacher=frozenset({"source"}), same_dimension=True)


@dataclass(frozen=True)
class TwoViewsConfig:
    temperature: float = 0.2


class TwoViews(Toy):
    """SimCSE: two encodings of a sentence, alike but for their dropout, find one another."""

    name = "two_views"
    Config = TwoViewsConfig

    @classmethod
    def needs(cls, config):
        return Needs()

    def loss(self, encode, batch, gather):
        first, second = encode(batch.source), gather(encode(batch.source))
        scores = first @ second.T / self.config.temperature
        own_columns = torch.arange(len(first)) + gather.offset(len(first))
        total = torch.nn.functional.cross_entropy(scores, own_columns, reduction="sum") / batch.total
        apart = (first - second[own_columns]).detach().square().sum() / batch.total
        return Loss(total, diagnostics={"apart": apart})


class First(TwoViews):
    """Reads the first view of the sources alone."""

    name = "first"

    def loss(self, encode, batch, gather):
        return Loss((encode(batch.source)[:, 0] - 1).square().sum() / batch.total)


@dataclass
class Entry:
    """What stands for a distribution's entry point."""

    name: str
    loaded: type[Method]
    value: str = "tests:class"
    dist: None = None

    def load(self):
        return self.loaded


def install(monkeypatch, *methods, beside=()):
    """Makes these methods the installed ones, together with the entry points `beside` them."""
    importlib.import_module("babeltune_methods.combined")  # it reads once which methods there are
    entries = [*(Entry(method.name, method) for method in methods), *beside]
    monkeypatch.setattr(babeltune.method.registry, "entry_points", lambda group: entries)


def combined_beside(monkeypatch, *methods):
    """`Combined` as a new process has it in which these methods are installed, too."""
    install(monkeypatch, *methods, beside=entry_points(group=GROUP))
    spec = importlib.util.spec_from_file_location("combined_beside", babeltune_methods.combined.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module.Combined


def toy_sweep(**fields):
    """A sweep of a toy method over text that nobody reads."""
    values = {
        "name": "toy",
        "method": "toy",
        "parameters": {"x": Parameter(float=(0, 1))},
        "objectives": (Objective(metric="dev/score"),),
        "data": Data(train=(TsvSource(name="none"),)),
    }
    return Sweep(**{**values, **fields})
