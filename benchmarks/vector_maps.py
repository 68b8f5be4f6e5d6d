"""Maps of vectors before and after training: Chen et al. 2023, figure 3, and Li, figure 1.

`tokens` takes a few sentences and their translations. t-SNE puts the token vectors of each model on a plane, and the
tokens of a sentence and of its translation have one colour. `words` shows the cosines of a few words and their
translations. A table says how near translations are to one another, and how near all others."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from babeltune.errors import BabeltuneError
from babeltune.evaluation.projection import cosines, in_plane
from babeltune.models.hub import open_model
from benchmarks.noisy_text import rows_of
from benchmarks.tables.drawing import panels
from benchmarks.tables.verdict import table_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    Vectors = NDArray[np.float32]
    Places = NDArray[np.int64]

HEADS = ["model", "cosine of translations", "cosine of others", "nearest is of the translation"]
MARKS = "ox"  # of the first language and of the second
Side = tuple["Vectors", "Places"]
"""Vectors, and the row of the text that each belongs to."""


def token_vectors(model: SentenceTransformer, texts: Sequence[str]) -> Side:
    """[tokens, dim] the last states of all tokens that are not special, and the text of each."""
    vectors, places = [], []
    special = set(model.tokenizer.all_special_ids)
    for place, text in enumerate(texts):
        (features,) = model.encode([text], output_value=None, convert_to_numpy=False)
        is_text = [number not in special for number in features["input_ids"].tolist()]
        vectors.append(features["token_embeddings"][is_text].float().numpy())
        places += [place] * sum(is_text)
    return np.concatenate(vectors), np.array(places)


def text_vectors(model: SentenceTransformer, texts: Sequence[str]) -> Side:
    """[texts, dim] their vectors."""
    return model.encode(list(texts), convert_to_numpy=True), np.arange(len(texts))


def nearness(left: Side, right: Side) -> tuple[float, float, float]:
    """The mean cosine of what belongs to one row, and that of all others.

    The third value is the share of the left side's vectors whose nearest one on the right is of the same row."""
    near = cosines(left[0], right[0])
    same = left[1][:, None] == right[1][None, :]
    return float(near[same].mean()), float(near[~same].mean()), float((right[1][near.argmax(1)] == left[1]).mean())


def draw_tokens(sides: Mapping[str, tuple[Side, Side]], picture: Path) -> None:
    """A panel for each model: a colour for each row, and a mark for each language."""
    with panels(picture, len(sides), 3.2) as (_, axes):
        for panel, (name, both) in zip(axes, sides.items(), strict=True):
            positions = in_plane(np.concatenate([vectors for vectors, _ in both]))
            ends = np.cumsum([0, *(len(places) for _, places in both)])
            for mark, (_, places), start, end in zip(MARKS, both, ends[:-1], ends[1:], strict=True):
                x, y = positions[start:end].T
                panel.scatter(x, y, c=places, cmap="tab10", vmin=0, vmax=9, marker=mark, s=12)
            panel.set(title=name, xticks=[], yticks=[])


def draw_words(sides: Mapping[str, tuple[Side, Side]], words: Sequence[Sequence[str]], picture: Path) -> None:
    """A panel for each model: the cosine of each word with each word of the other language."""
    with warnings.catch_warnings(), panels(picture, len(sides), 3.2) as (figure, axes):
        warnings.filterwarnings("ignore", "Glyph")  # the picture names its letters and holds no font
        for panel, (name, (left, right)) in zip(axes, sides.items(), strict=True):
            mesh = panel.pcolormesh(cosines(left[0], right[0]), vmin=0, vmax=1, cmap="Blues")
            panel.set(title=name, aspect="equal")
            panel.set_xticks(np.arange(len(words[1])) + 0.5, words[1], rotation=90)
            panel.set_yticks(np.arange(len(words[0])) + 0.5, words[0])
            panel.invert_yaxis()
        figure.colorbar(mesh, ax=axes, label="cosine")


def maps(kind: str, texts: Sequence[Sequence[str]], models: Mapping[str, str], picture: Path) -> str:
    """Draws the map of these models, and returns the table of nearness as Markdown."""
    vectors: Any = token_vectors if kind == "tokens" else text_vectors
    sides = {}
    for name, folder in models.items():
        model = open_model(folder)
        sides[name] = (vectors(model, texts[0]), vectors(model, texts[1]))
    if kind == "tokens":
        draw_tokens(sides, picture)
    else:
        draw_words(sides, texts, picture)
    rows = []
    for name, (left, right) in sides.items():
        rows.append([name, *(f"{value:.3f}" for value in nearness(left, right))])
    return table_of(HEADS, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("tokens", "words"))
    parser.add_argument("text", type=Path, help="a TSV file with a text and its translation in each row")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL", help="such as before=FOLDER after=FOLDER")
    parser.add_argument("--columns", default="eng,fra", help="the two languages")
    parser.add_argument("--rows", type=int, default=8, help="take the first rows alone (at most 10 have a colour)")
    parser.add_argument("--out", type=Path, default=Path("map.svg"), help="the picture")
    options = parser.parse_args(arguments)
    texts = list(zip(*rows_of(options.text, options.columns.split(","))[: options.rows], strict=True))
    models = {name: model for name, _, model in (word.partition("=") for word in options.models)}
    try:
        print(maps(options.kind, texts, models, options.out))
    except BabeltuneError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
