"""Canary vectors: what promotion writes, which models and servers fit, and what is refused."""

import json
from http.server import BaseHTTPRequestHandler

import numpy as np
import pytest

from babeltune.errors import DataError
from babeltune.promotion.canary import CANARY, SPACE, canary_by, fit_of, fixed_sentences, read_canary
from babeltune.promotion.canary import write_canary as write
from served import answering


@pytest.fixture
def vectors():
    """Vectors of the sentences by a model of eight numbers: each call gives the same."""
    rows = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
    return lambda texts: rows[[fixed_sentences().index(text) for text in texts]]


@pytest.fixture
def server(vectors):
    """An embeddings route like OpenAI's, which answers in another order: its URL, and what it was asked."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            rows = enumerate(vectors(requests[-1]["input"]).tolist())
            body = json.dumps({"data": [{"index": i, "embedding": row} for i, row in rows][::-1]}).encode()
            self.send_response(200 if self.path == "/v1/embeddings" else 404)
            self.end_headers()
            self.wfile.write(body)

    with answering(Handler) as host:
        yield f"http://{host}", requests


def test_there_are_100_different_sentences_in_20_languages():
    assert len(set(fixed_sentences())) == len(fixed_sentences()) == 100


def test_the_least_cosine_counts_and_its_sentence_is_named(vectors):
    canary, rows = canary_by(vectors), vectors(fixed_sentences()).copy()
    rows[41] = -rows[41]
    fit = fit_of(canary, lambda texts: 3 * rows)
    assert (fit.cosine, fit.sentence) == (pytest.approx(-1), fixed_sentences()[41])
    assert fit.mean == pytest.approx(0.98)
    assert fit_of(canary, lambda texts: vectors(texts)[:, :5]).words() == "vectors of 5 dimensions, not 8"


def test_a_sentence_that_neither_model_knows_fits(vectors):
    rows = vectors(fixed_sentences()).copy()
    rows[7] = 0
    assert fit_of(canary_by(lambda texts: rows), lambda texts: rows).cosine == pytest.approx(1)
    assert fit_of(canary_by(vectors), lambda texts: rows).cosine == 0


def test_an_adapter_fits_what_its_space_says_and_nothing_else(vectors, tmp_path):
    rows = vectors(fixed_sentences())
    write(canary_by(vectors), tmp_path / SPACE)
    fit = fit_of(canary_by(vectors), lambda texts: rows[::-1], tmp_path)
    assert fit.by_adapter
    assert fit.cosine > 0.999
    assert fit_of(canary_by(lambda texts: rows[::-1]), lambda texts: rows * np.tile([1, -1], 4), tmp_path).cosine < 0.9


def test_a_server_is_asked_in_parts_and_its_order_does_not_matter(vectors, server, command, tmp_path):
    url, requests = server
    write(canary_by(vectors), tmp_path / "file.json")
    output = command.prints("canary", tmp_path / "file.json", f"{url}/v1/embeddings", "--served-name", "e5", "--json")
    assert json.loads(output)["cosine"] > 0.9999
    assert [len(each["input"]) for each in requests] == [25] * 4
    assert requests[0]["model"] == "e5"
    words = command.refuses("canary", tmp_path / "file.json", f"{url}/elsewhere")
    assert "HTTP Error 404: Not Found" in words
    assert len(words.strip().splitlines()) == 1
    assert "Connection refused" in command.refuses("canary", tmp_path / "file.json", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    "content",
    [b"", b'{"sentences": ["a"]}', b"[]", b'{"sentences": ["a"], "vectors": [[1.0, ', b"\xff\xfe",
     b'{"sentences": ["a", "b"], "vectors": [[1.0]]}', b'{"sentences": ["a"], "vectors": [[NaN]]}'],
)  # fmt: skip
def test_a_file_that_is_cut_or_something_else_is_refused(content, tmp_path):
    (tmp_path / CANARY).write_bytes(content)
    with pytest.raises(DataError, match="no file of canary vectors"):
        read_canary(tmp_path / CANARY)


def test_rounding_costs_a_cosine_next_to_nothing(tmp_path):
    rows = np.random.default_rng(1).standard_normal((100, 1024)).astype(np.float32)
    canary = canary_by(lambda texts: rows)
    write(canary, tmp_path / CANARY)
    assert (read_canary(tmp_path / CANARY).vectors * canary.vectors).sum(1).min() > 0.99999
