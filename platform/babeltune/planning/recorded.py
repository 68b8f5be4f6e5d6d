"""A sweep as its folder records it: reading it back, and the id that everything in it that decides results gives it.

It loads no method, so commands that only read a sweep start quickly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from babeltune.errors import SpecError
from babeltune.files import plain
from babeltune.schema.mending import adapter_of
from babeltune.schema.records import Sweep

if TYPE_CHECKING:
    from babeltune.files import JsonValue

NEUTRAL = ("training.checkpoint_minutes",)
"""Keys below others that decide no result, so a resumed sweep may have other values."""
NOT_DECIDING = ("baselines", "budget", "description", "keep", "promotion", "refit_of")


def sweep_from(values: Mapping[str, object]) -> Sweep:
    """The `Sweep` that `plain` wrote. Raises `SpecError` when the values are not one."""
    try:
        sweep: Sweep = adapter_of(Sweep).validate_json(adapter_of(object).dump_json(values), strict=True)
        return sweep
    except ValidationError as error:
        raise SpecError(f"the recorded sweep cannot be read by this version of babeltune: {error}") from error


def sweep_id(sweep: Sweep) -> str:
    """The sweep's name and ten hexadecimal digits of SHA-256 over everything in it that decides results.

    Budget, description and promotion are left out; `data.root` counts as it is written. The order of keys, and
    whether a default was written out, do not count.
    """
    deciding = {key: value for key, value in plain(sweep).items() if key not in NOT_DECIDING}
    for section, _, key in (name.partition(".") for name in NEUTRAL):
        part = deciding[section]
        assert isinstance(part, dict)
        del part[key]
    text = json.dumps(_canonical(deciding), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"{sweep.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _canonical(value: JsonValue) -> JsonValue:
    """The value with whole floats as integers: 1.0 and 1 are one setting."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
