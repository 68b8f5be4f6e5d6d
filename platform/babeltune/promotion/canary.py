"""The vectors of 100 fixed sentences, by which a client knows whether a model fits an index.

Promotion writes them into a model's folder, an index has those of its model, and a model that `adapter` made has those
of the model whose index it searches. A model fits if its vectors of the sentences have a cosine near 1 with these."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import babeltune
from babeltune.errors import DataError, TeacherError, shortened
from babeltune.evaluation.projection import unit_rows
from babeltune.files import json_text, sha256_of, write_whole
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.promotion.model_names import model_folder
from babeltune.schema.cluster import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.evaluation.evaluate import EncodeTexts

    Vectors = NDArray[np.float32]
    Encode = Callable[[list[str]], Vectors]

CANARY = "canary.json"  # the file of a model or an index with its own vectors
SPACE = "space.json"  # the file of an adapted model with the vectors of the model whose index it searches
DECIMALS = 4  # decimals of a number of a unit vector. Rounding changes a cosine by less than 1e-5 at 4,096 dimensions.
LEAST = 0.999
"""The cosine that each sentence must reach. Other hardware and bf16 weights stay above, another training below."""
REQUEST = 25  # sentences in one request to a server: text-embeddings-inference takes 32 if nobody says otherwise
TIMEOUT_S = 60.0  # seconds for a server's answer to one request


@dataclass(frozen=True)
class Canary:
    """The sentences, and their vectors [sentences, dim] at length 1; one of a model that knows no word is zero."""

    sentences: tuple[str, ...]
    vectors: Vectors


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How near a model's vectors are to those of a canary file."""

    fits: bool
    """Whether the least cosine is what was asked for."""
    cosine: float
    """The least over the sentences; 0 for vectors of another dimension."""
    mean: float
    sentence: str
    """The one with the least cosine."""
    dimensions: tuple[int, int]
    """The dimensions of the file's vectors, and of the model's."""
    by_adapter: bool = False
    """Whether the model is an adapter for the index, so that its own vectors are not what was compared."""

    def words(self) -> str:
        """The figures for people."""
        expected, dim = self.dimensions
        if expected != dim:
            return f"vectors of {dim} dimensions, not {expected}"
        return f"the least cosine of the canary sentences is {self.cosine:.4f}, the mean {self.mean:.4f}"


def fixed_sentences() -> list[str]:
    """Five sentences in each of 20 languages, which the package brings."""
    text = (Path(babeltune.__file__).parent / "bundled" / "canary.tsv").read_text(encoding="utf-8")
    return [line.partition("\t")[2] for line in text.splitlines()[1:]]


def canary_by(encode: Encode) -> Canary:
    """The canary vectors of whatever encodes."""
    sentences = fixed_sentences()
    return Canary(tuple(sentences), unit_rows(encode(sentences)))


def write_canary(canary: Canary, path: Path) -> str:
    """Writes `{"sentences": [...], "vectors": [[...], ...]}` and returns the file's SHA-256."""
    rows = [[round(float(number), DECIMALS) for number in row] for row in canary.vectors]
    write_whole(path, json_text({"sentences": canary.sentences, "vectors": rows}).encode(), durable=True)
    return sha256_of(path)


def read_canary(path: Path) -> Canary:
    """The canary of `write_canary`. Raises `DataError` for a file that is gone, cut or something else."""
    try:
        values = json.loads(path.read_bytes())
        sentences, vectors = values["sentences"], np.array(values["vectors"], np.float32)
        sound = vectors.ndim == 2 and len(vectors) == len(sentences) > 0 and bool(np.isfinite(vectors).all())
        if not sound or not all(isinstance(sentence, str) for sentence in sentences):
            raise ValueError("it needs a vector for each sentence, all of one length")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        words = f"{path} is no file of canary vectors ({reason}); take it anew from its model's folder"
        raise DataError(words) from error
    return Canary(tuple(sentences), unit_rows(vectors))


def canary_at(reference: str, cluster: Cluster) -> Canary:
    """The canary vectors of a file, of a model's or an index's folder, or of `models:/NAME@ALIAS`.

    A model that has no file of them encodes the sentences now."""
    place = Path(reference)
    if place.is_file():
        return read_canary(place)
    folder = place if (place / CANARY).is_file() else Path(model_folder(reference, cluster))
    return read_canary(folder / CANARY) if (folder / CANARY).is_file() else canary_by(encoder_at(str(folder)))


def encoder_at(folder: str, prompt: str | None = None, language: str | None = None) -> Encode:
    """How the model of a folder encodes; one with layers for each language takes those of `language`, or the first."""
    return in_language(encoder_of(folder, prompt), language or "")


def in_language(encode: EncodeTexts, language: str = "") -> Encode:
    """An encoder fixed to one language. An unknown language uses the model's first layers."""
    return lambda texts: encode(texts, [language] * len(texts))


def fit_of(canary: Canary, encode: Encode, folder: Path | None = None, least: float = LEAST) -> Fit:
    """How near the vectors of `encode` are to the canary's. `folder` is the model's, if it has one.

    If they differ, and `adapter` made the folder, the vectors of the model whose index it searches are compared."""
    fit = _compared(canary, unit_rows(encode(list(canary.sentences))), least)
    if not fit.fits and folder is not None and (folder / SPACE).is_file():
        space = read_canary(folder / SPACE)
        if space.sentences == canary.sentences:
            near = _compared(canary, space.vectors, least)
            return replace(near, by_adapter=True) if near.fits else fit
    return fit


def _compared(canary: Canary, vectors: Vectors, least: float) -> Fit:
    dimensions = (canary.vectors.shape[1], vectors.shape[1])
    if dimensions[0] != dimensions[1]:
        return Fit(fits=least <= 0, cosine=0.0, mean=0.0, sentence=canary.sentences[0], dimensions=dimensions)
    cosines = (canary.vectors * vectors).sum(axis=1)
    cosines[~canary.vectors.any(axis=1) & ~vectors.any(axis=1)] = 1  # neither model knows a word of the sentence
    worst = int(cosines.argmin())
    return Fit(
        fits=bool(cosines[worst] >= least),
        cosine=float(cosines[worst]),
        mean=float(cosines.mean()),
        sentence=canary.sentences[worst],
        dimensions=dimensions,
    )


def server_encoder(url: str, model: str) -> Encode:
    """How a server encodes: the embeddings route of OpenAI's API, which vLLM, Infinity, llama.cpp and
    text-embeddings-inference have. `model` is its name there.

    Raises `TeacherError` for a server that is away, refuses, or answers something else."""

    def encode(texts: list[str]) -> Vectors:
        """Asks for a few texts at a time."""
        try:
            parts = [_ask_server(url, model, texts[start : start + REQUEST]) for start in range(0, len(texts), REQUEST)]
            vectors: Vectors = np.array([row for part in parts for row in part], np.float32)
            if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
                raise ValueError("its answer has no vector for each sentence")
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            words = str(error).removeprefix("<urlopen error ").removesuffix(">")
            if isinstance(error, urllib.error.HTTPError):  # its body says why
                words += f": {shortened(error.read(2000).decode(errors='replace'), 300)}"
            reason = words if isinstance(error, (OSError, ValueError)) else "it answers something else"
            example = "such as http://127.0.0.1:8000/v1/embeddings, and its model with --served-name"
            todo = f"name the embeddings route of a server that runs, {example}"
            raise TeacherError(f"{url} gives no vectors ({reason}); {todo}") from error
        return vectors

    return encode


def _ask_server(url: str, model: str, texts: Sequence[str]) -> list[list[float]]:
    body = json.dumps({"model": model, "input": texts}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["data"]
    return [row["embedding"] for row in sorted(rows, key=lambda row: row["index"])]
