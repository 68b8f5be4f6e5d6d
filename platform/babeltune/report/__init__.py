"""The report of a sweep: one file that says which trial to take, and why.

`babeltune.report` is this package and, for notebooks, a function: calling the package writes a report (`api.report`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """Lets `babeltune.report(...)` work after this package was imported, which puts it in the function's place."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("babeltune.api").report(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
