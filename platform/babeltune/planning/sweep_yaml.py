"""A sweep as the text of a sweep file: for `plan`, which shows it, and for the report, which repeats it."""

import dataclasses

import yaml

from babeltune.planning.rules import kind_of
from babeltune.schema.document import reads_as_text
from babeltune.schema.presets import PRESETS
from babeltune.schema.records import Parameter, Sweep, Transformer


def spec_yaml(sweep: Sweep) -> str:
    """The sweep as a sweep file, defaults written out; `read_sweep` makes the same sweep of it."""
    text: str = yaml.dump(_file_value(sweep), Dumper=_Quoting, sort_keys=False, allow_unicode=True, width=110)
    return text


def _file_value(value: object) -> object:
    """The record as a file writes it, without the fields that are absent."""
    if isinstance(value, Parameter) and kind_of(value) == "const":
        return {"const": value.const, **({"when": _file_value(value.when)} if value.when else {})}
    if dataclasses.is_dataclass(value):
        decided = _decided(value) if isinstance(value, Transformer) else ()
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {
            f.name: _file_value(v)
            for f, v in fields
            if not (v is None and f.default is None) and (f.name, v) != NO_WHEN and f.name not in decided
        }
    if isinstance(value, dict):
        return {name: _file_value(item) for name, item in value.items()}
    return [_file_value(item) for item in value] if isinstance(value, list | tuple) else value


def _decided(student: Transformer) -> tuple[str, ...]:
    """The fields of a student that its preset decides."""
    shape = PRESETS.get(student.preset or "")
    return tuple(name for name, value in vars(shape).items() if getattr(student, name) == value) if shape else ()


NO_WHEN: tuple[str, dict[str, object]] = ("when", {})


class _Quoting(yaml.SafeDumper):
    """Quotes text that `document.py` would read as a number, such as the revision 12e4."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        plain_style = reads_as_text(data)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain_style else "'")


_Quoting.add_representer(str, _Quoting.represent_str)
