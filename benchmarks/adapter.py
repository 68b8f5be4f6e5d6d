"""The recall of an old index through an adapter: a static student indexes real news, another kind of model asks.

`python -m benchmarks.afternoon --place FOLDER` makes the student. `python -m benchmarks.adapter FOLDER NEW --json
docs/measured/adapter.json` writes an index of more than 50,000 English texts with it, as `babeltune index` does. Maps
from the model NEW are fitted as `babeltune adapter` does, on some texts of the sweep. Queries are translations of texts
in the index, and the maps have seen neither. faiss searches. `docs/how-to/promote.md` gets the table."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from babeltune.apps.mining.index import load_faiss
from babeltune.apps.mining.mine import Encoding
from babeltune.apps.mining.text_index import TEXTS, VECTORS, build_index
from babeltune.apps.mining.vectors import model_at
from babeltune.data.prepared import read_prepared
from babeltune.models.hub import model_folder
from babeltune.promotion.adapter import FITTED, NEIGHBOURS, fit_map
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.sweep.state.folder import find_sweep
from benchmarks.__main__ import commit
from benchmarks.afternoon import DATA, SWEEP, texts, trial_at
from benchmarks.figures import Figures

ROOT = Path(__file__).parents[1]
LANGUAGES = ("fra", "deu", "jpn")  # of the queries, which are the student's
OTHERS = ("rus", "zho", "spa")  # whose English side is in the index, too
PARTS = (4, 2, 1)  # a map is fitted on this part of the texts
DRAWS = 10_000  # of the bootstrap of the queries
Pairs = list[tuple[str, str]]
Vectors = np.ndarray


def main() -> None:
    """Indexes, adapts, searches, and writes the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path, help="the folder of the afternoon")
    parser.add_argument("new", help="the new model, as a folder or a hub id")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the corpora")
    parser.add_argument("--queries", type=int, default=700, help="of each language")
    parser.add_argument("--fitted", type=int, default=FITTED, help="texts of the sweep that the last map is fitted on")
    parser.add_argument("--json", type=Path, help=f"the record; {FIGURES.record.name} also writes the page")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"no corpora in {options.data}; set BABELTUNE_DATA to the folder of the shared data")
    record = measured(options)
    print(table(record))
    if options.json:
        FIGURES.keep(record, options.json)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The record: what queries of the old model find in its index, and those of the new one by each map."""
    prepared = read_prepared(find_sweep(options.place / "storage", SWEEP).prepared)
    indexed, pairs = unseen(options.data, set(prepared.all_texts()), options.queries)
    queries, fitted = [query for query, _ in pairs], prepared.texts_of(prepared.some_trained(options.fitted))
    with TemporaryDirectory() as name, trial_at(options.place, 0) as old:
        encode_old, encode_new = unit_by(old), unit_by(str(model_folder(options.new, None, setting="NEW")))
        rows = old_index(Path(name), old, indexed)
        search = partial(nearest_hits, Path(name) / "index", pairs)
        before, asked_by_new = search(encode_old(queries)), encode_new(queries)
        olds, news = encode_old(fitted), encode_new(fitted)
        maps = {count: fit_map(news[:count], olds[:count]) for count in (len(fitted) // part for part in PARTS)}
        hits = {count: search(layer.of(asked_by_new)) for count, layer in maps.items()}
    return {
        "commit": commit(),
        "new": Path(options.new).name,
        "dims": [olds.shape[1], news.shape[1]],
        "index": rows,
        "queries": len(pairs),
        "old": limits(before),
        "rows": [
            {"texts": count, "map": maps[count].kind, "recall": limits(after), "kept": limits(after, before)}
            for count, after in hits.items()
        ],
    }


def unseen(data: Path, trained: set[str], queries: int) -> tuple[list[str], Pairs]:
    """English texts of an index, and pairs of a query and the text that it has to find. None is in `trained`."""
    languages = (*LANGUAGES, *OTHERS)
    pairs = {
        language: [pair for pair in texts(data, language, 10**6) if not trained.intersection(pair)]
        for language in languages
    }
    indexed = list(dict.fromkeys(right for language_pairs in pairs.values() for _, right in language_pairs))
    return indexed, [pair for language in LANGUAGES for pair in pairs[language][-queries:]]


def old_index(place: Path, folder: str, indexed: list[str]) -> int:
    """Writes the index with the old model, and returns its rows."""
    file = place / "texts.txt"
    file.write_text("\n".join(indexed), encoding="utf-8")
    model = model_at(folder)
    encoding = Encoding(models=(model, model), storage=place / "mining", progress=lambda *_: None)
    return build_index(model, folder, [file], place / "index", encoding).rows


def unit_by(folder: str) -> Callable[[list[str]], Vectors]:
    """Encodes texts as unit vectors."""
    encode = encoder_of(folder)

    def unit(texts: list[str]) -> Vectors:
        vectors = encode(texts, [""] * len(texts))
        lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit_vectors: Vectors = vectors / lengths
        return unit_vectors

    return unit


def nearest_hits(index: Path, pairs: Pairs, queries: Vectors) -> np.ndarray:
    """Whether each query has its text among the nearest ten. The length of a query changes no order."""
    import pyarrow as pa

    table = pa.ipc.open_file(str(index / TEXTS)).read_all()
    row_of = {text: row for row, text in enumerate(table.column("text").to_pylist())}
    _, nearest = load_faiss().read_index(str(index / VECTORS)).search(queries, NEIGHBOURS)
    hits: np.ndarray = (nearest == np.array([[row_of[text]] for _, text in pairs])).any(axis=1)
    return hits


def limits(hits: np.ndarray, of: np.ndarray | None = None) -> list[float]:
    """The share of hits, or its ratio to the share of another model, with its 95 % interval (bootstrap of queries)."""
    rows = np.random.default_rng(0).integers(len(hits), size=(DRAWS, len(hits)))
    value, resampled = hits.mean(), hits[rows].mean(axis=1)
    if of is not None:
        value, resampled = value / of.mean(), resampled / of[rows].mean(axis=1)
    return [float(value), *np.quantile(resampled, (0.025, 0.975)).tolist()]


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    lines = ["| queries by | Recall@10 | kept | 95 % interval |", "|---|--:|--:|---|"]
    lines.append(f"| the old model | {record['old'][0]:.3f} | | |")
    for row in record["rows"]:
        value, low, high = row["kept"]
        name = f"{record['new']}, {row['map']} of {row['texts']:,} texts"
        lines.append(f"| {name} | {row['recall'][0]:.3f} | {value:.1%} | {low:.1%} to {high:.1%} |")
    return "\n".join(lines) + (
        f"\n\nThe index has {record['index']:,} English texts, and {record['queries']:,} translations of them ask it. "
        f"Old vectors have {record['dims'][0]} numbers, and new ones {record['dims'][1]}.\n"
    )


FIGURES = Figures("adapter", "docs/how-to/promote.md", "adapter", table)


if __name__ == "__main__":
    main()
