"""The nearest candidates of queries in text files, and what their gold may be."""

import hashlib

import numpy as np
import pytest

from babeltune.apps.mining import retrieval, vectors
from babeltune.apps.mining.mine import Encoding
from babeltune.apps.mining.vectors import EncodingModel
from babeltune.errors import DataError

pytestmark = pytest.mark.usefixtures("one_thread")
TOY = EncodingModel("toy", "digest")
QUERIES = ["un", "deux", "", "trois", "un"]
CANDIDATES = ["TROIS", "", "UN", "quatre", "UN", "DEUX"]


def vector_of(text):
    seed = int(hashlib.sha256(text.lower().encode()).hexdigest()[:8], 16)
    return np.random.default_rng(seed).normal(size=16)


def toy(folder):
    return Encoding(models=(TOY, TOY), storage=folder / "storage", progress=lambda *_: None)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Retrieves the candidates of the queries, which are the same words in capitals."""
    monkeypatch.setattr(EncodingModel, "encode", lambda self, texts: np.stack([vector_of(text) for text in texts]))
    monkeypatch.setattr(vectors, "SHARD", 2)

    def retrieve(gold=None, queries=QUERIES, candidates=CANDIDATES, **options):
        for name, lines in (("q", queries), ("c", candidates), ("g", gold or [])):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        done = retrieval.retrieve(
            tmp_path / "q", tmp_path / "c", tmp_path / "o.tsv", toy(tmp_path),
            gold=None if gold is None else tmp_path / "g", **options,
        )  # fmt: skip
        return done, [line.split("\t") for line in (tmp_path / "o.tsv").read_text("utf-8").splitlines()]

    return retrieve


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_different_query_has_its_nearest_candidates(run, precision, tmp_path):
    done, rows = run(k=2, precision=precision)
    assert [row[1] for row in rows] == ["un", "un", "deux", "deux", "trois", "trois"]
    assert [row[2] for row in rows[::2]] == ["UN", "DEUX", "TROIS"]
    assert {row[0] for row in rows[::2]} == {"1.000000"}
    unit = {text: vector_of(text) / np.linalg.norm(vector_of(text)) for text in ("un", "deux", "trois", "quatre")}
    others = {text: max((unit[text] @ unit[o], o) for o in unit if o != text) for text in ("un", "deux", "trois")}
    assert [(row[1], row[2].lower()) for row in rows[1::2]] == [(text, other) for text, (_, other) in others.items()]
    assert done.precision_at_1 is None
    assert (done.candidates.repeated, done.candidates.empty, done.queries.empty) == (1, 1, 1)
    assert [path.name for path in (tmp_path / "storage").iterdir()] == ["vectors"]


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        (["3", "6", "", "1", "5"], 1.0),  # a repeated candidate is right on either line, and so is a repeated query
        (["3", "6", "x", "4", "1"], 0.5),
        (["UN", "DEUX", "", "quatre", "UN"], 0.75),
        ([" UN ", "6", "", "TROIS", "UN"], "'6' is no line of"),
        (["un", "DEUX", "", "TROIS", "UN"], "line 1: 'un' is no line of"),
        (["3", "7", "", "1", "5"], r"line 2: .* has lines 1 to 6, not 7"),
        (["0", "6", "", "1", "5"], r"lines 1 to 6, not 0"),
        (["9" * 5000, "6", "", "1", "5"], r"lines 1 to 6, not 9999"),
        (["2", "6", "", "1", "5"], r"line 2 of .* holds no sentence"),
        (["3", "6", "", "", "5"], "line 4 is empty, but the query there is not"),
        (["3", "6", "1", "5"], "has 4 lines and the queries 5"),
    ],
)
def test_gold_is_the_number_of_a_line_or_its_text(run, gold, expected):
    if isinstance(expected, float):
        assert run(gold)[0].precision_at_1 == expected
        return
    with pytest.raises(DataError, match=expected):
        run(gold)


def test_k_beyond_the_candidates_lists_all_and_is_said(run):
    done, rows = run(k=9)
    assert len(rows) == 3 * 4
    assert "the number of different candidates is 4" in next(retrieval.warnings_about(done))
    assert not list(retrieval.warnings_about(run(k=4)[0]))


def test_files_that_hold_nothing_are_refused(run, tmp_path):
    with pytest.raises(DataError, match="holds nothing to encode"):
        run(candidates=["", "\0"])
    with pytest.raises(DataError, match="does not exist"):
        retrieval.retrieve(tmp_path / "absent", tmp_path / "c", tmp_path / "o", toy(tmp_path))
