"""The schemas that editors use take every file that is shipped, and no key that there is not."""

import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from babeltune.cli import app
from babeltune.schema.document import read_document
from babeltune.schema.json_schema import RECORDS, field_notes, json_schema, records_of

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "search_spaces").glob("*.yaml"))
CLUSTERS = sorted((ROOT / "clusters").glob("*.yaml"))


def faults(values, kind):
    """What a file breaks of the schema of its kind."""
    return [fault.message for fault in jsonschema.Draft202012Validator(json_schema(kind)).iter_errors(values)]


@pytest.mark.parametrize(
    ("kind", "path"),
    [*(("sweep", path) for path in SWEEPS), *(("cluster", path) for path in CLUSTERS)],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_shipped_file_fits_the_schema_of_its_kind(kind, path):
    assert faults(read_document(path).values, kind) == []


@pytest.mark.parametrize("kind", RECORDS)
def test_a_schema_is_one_itself_and_explains_its_keys(kind):
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    parts = {RECORDS[kind].__name__: schema, **schema.get("$defs", {})}
    for name, record in records_of(RECORDS[kind]).items():
        for field, words in field_notes(record).items():
            assert parts[name]["properties"][field]["description"] == words


def test_a_misspelt_key_does_not_fit():
    values = read_document(ROOT / "search_spaces/static.yaml").values
    values["training"]["pears"] = 3
    with pytest.raises(jsonschema.ValidationError, match="pears"):
        jsonschema.validate(values, json_schema("sweep"))


def test_columns_may_be_numbers_without_a_header():
    values = read_document(ROOT / "search_spaces/static.yaml").values
    values["data"]["train"][0] |= {"header": False, "columns": {"eng": 0, "fra": 1}}
    assert faults(values, "sweep") == []


def test_the_command_prints_the_schema_or_writes_it_into_a_file(tmp_path):
    done = CliRunner().invoke(app, ["schema", "cluster"])
    assert (done.exit_code, json.loads(done.output)) == (0, json_schema("cluster"))
    assert CliRunner().invoke(app, ["schema", "sweep", "--out", str(tmp_path / "s.json")]).exit_code == 0
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) == json_schema("sweep")


@pytest.mark.parametrize(
    ("section", "value", "fits"),
    [
        ("sampler", {"kind": "nsga2", "population": 4}, True),
        ("sampler", {"kind": "tpe", "population": 4}, False),
        ("student", {"kind": "static", "ngrams": 500}, True),
        ("student", {"kind": "static", "layers": 3}, False),
    ],
)
def test_the_schema_knows_which_keys_a_kind_has(section, value, fits):
    values = read_document(ROOT / "search_spaces/static.yaml").values
    assert (faults(values | {section: value}, "sweep") == []) is fits
