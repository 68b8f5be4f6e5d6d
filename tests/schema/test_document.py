"""Documents: what YAML says, and where each value was written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.errors import SpecError
from babeltune.schema.document import Document, assign, parse_yaml, read_document, reads_as_text

TEXT = "name: x\ndata:\n  train:\n    - {name: a, cap: 5}\n    - name: b\n"


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(TEXT, encoding="utf-8")
    found = read_document(path)
    return Document(found.values, {key: place.removeprefix(f"{tmp_path}/") for key, place in found.places.items()})


def test_each_value_is_remembered_with_its_line(document):
    assert document.place(("name",)) == "f.yaml:1"
    assert document.place(("data", "train", 1, "name")) == "f.yaml:5"
    assert document.place(("data", "train", 1, "cap")) == "f.yaml:5", "the nearest thing around what is not there"
    assert document.error(("data", "train", 0, "cap"), "too few") == "f.yaml:4: data.train.0.cap: too few"


def test_a_value_that_is_replaced_takes_its_places_along(document):
    document.put(("data", "train"), [{"name": "c"}], {(): "g.yaml:1", (0, "name"): "g.yaml:2"})
    assert document.get(("data", "train", 0, "name")) == "c"
    assert document.place(("data", "train", 0, "name")) == "g.yaml:2"
    assert document.place(("data", "train", 1, "name")) == "g.yaml:1", "what was there before is gone"


def test_an_assignment_is_read_as_yaml_and_named_as_its_place(document):
    assign(document, "data.train.1.cap=1e3")
    assign(document, "student.layers=2")
    assert document.get(("data", "train", 1, "cap")) == 1000.0
    assert document.get(("student",)) == {"layers": 2}
    assert document.place(("student", "layers")) == "--set student.layers=2"


@given(st.text("0123456789eE+._ntrufals~x", min_size=1, max_size=8))
def test_a_plain_word_is_text_exactly_if_it_is_said_to_read_as_text(text):
    try:
        value = parse_yaml(f"a: {text}", "f")[0]["a"]
    except SpecError:  # a number that is not finite
        value = None
    assert isinstance(value, str) == reads_as_text(text)


def test_numbers_and_words_are_read_by_the_core_schema():
    text = "{a: 5e-4, b: 1_000, c: no, d: on, e: '5', f: 1:30, g: 2024-01-01, h: ~, i: true, j: .5, k: -3, l: 0x10}"
    value, _ = parse_yaml(text, "f")
    assert value == {
        "a": 5e-4, "b": 1000, "c": "no", "d": "on", "e": "5", "f": "1:30", "g": "2024-01-01", "h": None, "i": True,
        "j": 0.5, "k": -3, "l": "0x10",
    }  # fmt: skip


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(
            codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufeff\ufffe\uffff\u2028\u2029"
        )
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc.", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(plain_values)
def test_json_is_read_as_what_it_says(value):
    assert parse_yaml(json.dumps(value, ensure_ascii=False), "f")[0] == value
