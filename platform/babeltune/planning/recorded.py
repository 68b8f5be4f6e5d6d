"""A sweep as its folder records it: reading it back, and the id that everything in it that decides results gives it.

It loads no method, so commands that only read a sweep start quickly."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from babeltune.errors import SpecError
from babeltune.schema.base import default_of
from babeltune.schema.mending import adapter_of
from babeltune.schema.records import Sweep

NEUTRAL = ("training.checkpoint_minutes", "training.capture")
"""Keys below others that decide no result, so a resumed sweep may have other values."""
NOT_DECIDING = ("baselines", "budget", "description", "keep", "promotion", "refit_of")


def sweep_from(values: Mapping[str, object]) -> Sweep:
    """The `Sweep` that `plain` wrote. Raises `SpecError` when the values are not one."""
    text = adapter_of(object).dump_json(values)
    try:
        sweep: Sweep = adapter_of(Sweep).validate_json(text, strict=True)
    except ValidationError:
        from babeltune.schema.document import Document, validate  # it reads YAML, which takes its time to import

        try:  # earlier versions wrote keys of other formats, too, with their defaults
            return validate(Document(json.loads(text)), Sweep)
        except SpecError as error:
            raise SpecError(f"the recorded sweep cannot be read by this version of babeltune: {error}") from error
    return sweep


def sweep_id(sweep: Sweep) -> str:
    """The sweep's name and ten hexadecimal digits of SHA-256 over everything in it that decides results.

    Budget, description and promotion are left out; `data.root` counts as it is written. What is as the default says
    does not count, so a new key changes no id. Nor does the order of keys."""
    deciding = {key: value for key, value in _changed(sweep).items() if key not in NOT_DECIDING}
    for section, _, key in (name.partition(".") for name in NEUTRAL):
        deciding.get(section, {}).pop(key, None)
    text = json.dumps(deciding, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"{sweep.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _changed(record: Any) -> dict[str, Any]:
    """The fields that are not as their default says, and the kind of a record, ready for JSON."""
    fields = ((field, getattr(record, field.name)) for field in dataclasses.fields(record))
    kind, implied = getattr(record, "KIND", ""), getattr(record, "IMPLIED", "")
    return {
        field.name: _canonical(value)
        for field, value in fields
        if (value != implied if field.name == kind else value != default_of(field))
    }


def _canonical(value: object) -> object:
    """The value with whole floats as integers: 1.0 and 1 are one setting."""
    if dataclasses.is_dataclass(value):
        return _changed(value)
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
