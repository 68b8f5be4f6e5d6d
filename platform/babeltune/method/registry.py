"""The installed methods by name, found through entry points."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from babeltune.errors import MethodError, nearest
from babeltune.method.contract import Method, Needs
from babeltune.method.own_share import OwnShare

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

GROUP = "babeltune.methods"


@lru_cache(maxsize=8)
def _entries(find: Callable[..., Iterable[EntryPoint]]) -> tuple[EntryPoint, ...]:
    """The methods of `find`, looked for once per process: it opens a file of every installed distribution, some 10
    ms."""
    return tuple(find(group=GROUP))


def available() -> Mapping[str, str]:
    """Method name -> `module:class`, of every installed distribution that offers methods."""
    return {entry.name: entry.value for entry in sorted(_entries(entry_points), key=lambda e: e.name)}


def load_method(name: str) -> type[Method]:
    """The method class of that name; `MethodError` names the nearest one when there is none."""
    loaded: type[Method] = entry_of(name).load()
    return loaded


def entry_of(name: str) -> EntryPoint:
    """The entry point of the method of that name; `MethodError` names the nearest one when there is none."""
    for entry in _entries(entry_points):
        if entry.name == name:
            return entry
    names = list(available())
    raise MethodError(f"no method {name!r} is installed; available: {', '.join(names) or 'none'}{nearest(name, names)}")


@dataclass(frozen=True)
class TrialContext:
    """The method of a trial, for all of its parts. Built once for a trial and passed on."""

    method_class: type[Method]
    config: object
    """The method's own `Config`."""
    needs: Needs

    @property
    def fits(self) -> Mapping[str, OwnShare]:
        """The own shares of the settings that are `auto`, by name."""
        return self.method_class.fits(self.config)


def trial_context(method: str, values: Mapping[str, object]) -> TrialContext:
    """The context of a trial of this method with these settings."""
    method_class = load_method(method)
    config = make_config(method_class, values)
    return TrialContext(method_class, config, method_class.needs(config))


def make_config(method: type[Method], values: Mapping[str, object]) -> DataclassInstance:
    """The method's `Config` with these fields; unknown fields and wrong values raise `MethodError`."""
    fields = {f.name for f in dataclasses.fields(method.Config)}
    for key in values:
        if key not in fields:
            raise MethodError(
                f"method {method.name!r} has no setting {key!r}; "
                f"available: {', '.join(sorted(fields))}{nearest(key, fields)}"
            )
    try:
        config: DataclassInstance = method.Config(**values)
        return config
    except (TypeError, ValueError) as error:
        raise MethodError(f"method {method.name!r}: {error}") from error


def needs_of(name: str, config: Mapping[str, object]) -> Needs:
    """The needs of the method of that name with these settings."""
    method = load_method(name)
    return method.needs(make_config(method, config))
