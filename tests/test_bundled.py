"""The bundled corpus is complete, well formed, and free of overlaps."""

import re
from pathlib import Path

import pytest
import yaml

import babeltune.bundled
from babeltune.bundled import templates

FOLDER = Path(babeltune.bundled.__file__).parent
LANGUAGES = ("eng", "fra", "jpn", "kor", "rus")
ROWS = {"natural_train": 300, "natural_dev": 80, "natural_test": 120, "templates": None}
SCRIPTS = {
    "eng": r"[A-Za-z]",
    "fra": r"[A-Za-zÀ-ÿ]",
    "jpn": r"[\u3040-\u30ff\u4e00-\u9fff]",
    "kor": r"[\uac00-\ud7a3]",
    "rus": r"[\u0400-\u04ff]",
}
FUNCTION_WORDS = re.compile(
    r"(a|an|the|i|you|he|she|it|we|they|me|him|her|us|them|my|your|his|its|our|their|mine|this|that"
    r"|these|those|is|are|was|were|be|been|am|do|does|did|have|has|had|not|no|in|on|at|to|for|from"
    r"|by|with|and|or|but|so|if|because|as|than|when|while|until|before|after|about|into|through|up"
    r"|down|out|off|over|under|there|here|very|too|more|most|much|many|some|any|all|every|each|what"
    r"|which|who|whose|where|why|how|will|would|can|cannot|could|may|must|should|let|just|only"
    r"|without|one|two|three|four|five|six|seven|eight|nine|ten)"
)


def table(name: str) -> list[dict[str, str]]:
    text = (FOLDER / f"{name}.tsv").read_bytes().decode()
    assert text.endswith("\n")
    assert "\r" not in text
    assert '"' not in text
    header, *lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines]


def content_words(sentence: str) -> set[str]:
    words = set()
    for word in re.findall(r"[a-z]{2,}", sentence.lower()):
        if not FUNCTION_WORDS.fullmatch(word):
            words.add(re.sub(r"(?<=...)(ing|ed|es|s)$", "", word))
    return words


@pytest.mark.parametrize("name", ROWS)
def test_table_is_well_formed(name: str) -> None:
    rows = table(name)
    expected = ROWS[name]
    assert len(rows) == expected if expected else 1400 <= len(rows) <= 1600
    for row in rows:
        assert tuple(row) == ("id", *LANGUAGES)
        for cell in row.values():
            assert cell
            assert cell == cell.strip()
        for language, pattern in SCRIPTS.items():
            assert re.search(pattern, row[language]), row
        for language in ("eng", "fra", "jpn", "kor"):
            assert not re.search(SCRIPTS["rus"], row[language]), row


def test_nothing_occurs_twice() -> None:
    rows = [row for name in ROWS for row in table(name)]
    for column in ("id", *LANGUAGES):
        cells = [re.sub(r"[\W_]+", "", row[column].lower()) for row in rows]
        assert len(set(cells)) == len(cells), column


def test_templates_regenerate_byte_for_byte() -> None:
    assert templates.render().encode() == (FOLDER / "templates.tsv").read_bytes()
    assert len(yaml.safe_load((FOLDER / "templates.yaml").read_text("utf-8"))["templates"]) <= 40


def test_graded_pairs() -> None:
    rows = table("sts")
    assert len(rows) == 100
    assert len({row["id"] for row in rows}) == 100
    assert len({(row["sentence1"], row["sentence2"]) for row in rows}) == 100
    corpus = {row["eng"] for name in ROWS for row in table(name)}
    levels = [0] * 6
    for row in rows:
        assert tuple(row) == ("id", "sentence1", "sentence2", "score")
        assert re.fullmatch(r"[0-4]\.\d|5\.0", row["score"])
        assert row["sentence1"] != row["sentence2"]
        assert not {row["sentence1"], row["sentence2"]} & corpus
        levels[int(float(row["score"]) + 0.2)] += 1
    assert min(levels) >= 15


@pytest.mark.parametrize("name", ["natural_dev", "natural_test"])
def test_held_out_words_occur_in_training(name: str) -> None:
    vocabulary = {
        word for part in ("natural_train", "templates") for row in table(part) for word in content_words(row["eng"])
    }
    words = [word for row in table(name) for word in content_words(row["eng"])]
    assert sum(word in vocabulary for word in words) >= 0.9 * len(words)
