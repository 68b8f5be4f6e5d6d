"""Methods for tests of sweep files and search spaces, and how they are installed for one test."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import babeltune.method
from babeltune.method import Loss, Method, Needs


class Toy(Method):
    """A method of which only the settings matter."""

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


@dataclass
class Entry:
    """What stands for a distribution's entry point."""

    name: str
    loaded: type[Method]
    value: str = "tests:class"

    def load(self):
        return self.loaded


def install(monkeypatch, *methods, beside=()):
    """Makes these methods the installed ones, together with the entry points `beside` them."""
    importlib.import_module("babeltune_methods.combined")  # it reads once which methods there are
    entries = [*(Entry(method.name, method) for method in methods), *beside]
    monkeypatch.setattr(babeltune.method, "entry_points", lambda group: entries)
