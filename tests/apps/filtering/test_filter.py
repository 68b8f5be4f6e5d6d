"""Pairs scored as the printed formula says, whatever is repeated."""

import json
import math

import numpy as np
import pytest

from babeltune.apps.filtering import translate
from babeltune.apps.filtering.filter import NoisyCorpus, TranslationTest, filter_corpus, score_pairs
from babeltune.apps.filtering.select import CandidatePairs
from babeltune.apps.filtering.translate import Recipe
from babeltune.apps.mining.mine import Encoding, MiningSettings
from babeltune.apps.mining.vectors import EncodingModel
from babeltune.errors import DataError

pytestmark = pytest.mark.usefixtures("one_thread")
TOY = EncodingModel("toy", "digest")


def toy(storage):
    return Encoding(models=(TOY, TOY), storage=storage, progress=lambda *_: None)


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("k", [1, 3, 50])
def test_given_pairs_are_scored_against_their_neighbourhoods(margin, k, tmp_path, monkeypatch):
    """Every pair by the printed formula, with repeated sentences once in the neighbourhoods and encoded once."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 5)).astype(np.float32)
    y = (x + 0.8 * rng.normal(size=x.shape).astype(np.float32))[:9]
    vectors = {f"{side}{row}": vector for side, rows in (("s", x), ("t", y)) for row, vector in enumerate(rows)}
    encoded_texts = []

    def encode(self, texts):
        encoded_texts.extend(texts)
        return np.stack([vectors[text] for text in texts])

    monkeypatch.setattr(EncodingModel, "encode", encode)
    rows, columns = [*range(12), 1, 5, 8], [*range(9), 0, 3, 8, 2, 8, 8]
    u = [v / np.linalg.norm(v) for v in x.astype(np.float64)]
    v = [w / np.linalg.norm(w) for w in y.astype(np.float64)]
    expected = []
    for i, j in zip(rows, columns, strict=True):
        to_right = sorted((float(u[i] @ w) for w in v), reverse=True)[:k]
        to_left = sorted((float(w @ v[j]) for w in u), reverse=True)[:k]
        cosine, around = float(u[i] @ v[j]), (sum(to_right) / len(to_right) + sum(to_left) / len(to_left)) / 2
        ratio = cosine / around if around > 0 else math.nan
        expected.append({"ratio": ratio, "distance": cosine - around, "absolute": cosine}[margin])
    source, target = [f"s{row}" for row in rows], [f"t{row}" for row in columns]
    pairs = CandidatePairs(source=source, target=target, read=len(source), digest="")
    settings = MiningSettings(k=k, margin=margin)
    scores = score_pairs(pairs, settings, toy(tmp_path))
    assert scores == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)
    if margin == "ratio":
        assert np.isnan(scores).any() == (k == 50)
    assert sorted(encoded_texts) == sorted({*source, *target})
    again = score_pairs(pairs, settings, toy(tmp_path))
    assert len(encoded_texts) == len({*source, *target}), "vectors stay on disk"
    np.testing.assert_array_equal(again, scores)


@pytest.mark.parametrize("trained", [0, 1, 2])
def test_the_report_holds_what_is_known_when_a_translation_model_fails(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(
        EncodingModel,
        "encode",
        lambda self, texts: np.array([[1, len(text), text.count("a")] for text in texts], np.float32),
    )
    monkeypatch.setattr("babeltune.data.language_id.likeliest", lambda texts, among: ["fr"] * len(texts))
    losses = [0.5, 0.4, 0.3][:trained]
    left = list(losses)

    def train(*_):
        if not left:
            raise DataError("--train: out of memory")
        return left.pop(0)

    monkeypatch.setattr(translate, "starting_model", lambda *_: tmp_path)
    monkeypatch.setattr(translate, "train", train)
    monkeypatch.setattr(translate, "score_model", lambda *_: {"bleu": 7.0})
    words = ["un arbre", "deux chats", "la maison", "quatre", "cinq roses"]
    (tmp_path / "p.tsv").write_text("".join(f"{text}\tthe {text[::-1]}\n" for text in words[:4]))
    (tmp_path / "test.tsv").write_text(f"{words[4]}\tfive roses\n")
    out = tmp_path / "out"
    with pytest.raises(DataError, match="out of memory"):
        filter_corpus(
            NoisyCorpus(str(tmp_path / "p.tsv")), out, (4, 6, 20), lambda: toy(tmp_path / "storage"),
            MiningSettings(k=1), TranslationTest(Recipe(model="scratch"), str(tmp_path / "test.tsv")),
        )  # fmt: skip
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert [row["limit"] for row in report["subsets"]] == [4, 6, 20]
    assert [row["loss"] for row in report["translation"]["results"]] == losses
    assert report["ranked"] == 4
