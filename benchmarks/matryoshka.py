"""Quality of vectors that are cut: a static student with `training.matryoshka`, and one without.

Both train for the same CPU seconds with the settings and the text of `benchmarks.encoder`.
Their vectors are cut as sentence-transformers' `truncate_dim` does, and scored on the same sets."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from datasets import disable_progress_bars
from numpy.typing import NDArray

from babeltune.evaluation.evaluate import embedded_texts, score_vectors
from babeltune.promotion.fresh_scorer import encoder_of
from benchmarks.encoder import SETTINGS, SWEEP
from benchmarks.quality import SHOWN, Work, read_work, train_within
from benchmarks.race import one_thread

DIMENSIONS = (384, 256, 128, 64)
NAMES = {"whole vectors": "[]", "matryoshka": str(list(DIMENSIONS))}  # name of a row -> its `training.matryoshka`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0, help="CPU seconds of each training")
    parser.add_argument("--storage", type=Path, help="where prepared text and teacher vectors are kept")
    args = parser.parse_args()
    one_thread()
    disable_progress_bars()
    with TemporaryDirectory() as temporary:
        print(f"| trained | numbers kept | {' | '.join(SHOWN)} |\n|---|--:|{'--:|' * len(SHOWN)}", flush=True)
        for name, dimensions in NAMES.items():
            storage = args.storage or Path(temporary) / "storage"
            work = read_work(SWEEP, SETTINGS, storage, f"training.matryoshka={dimensions}")
            folder = Path(temporary) / name.replace(" ", "_")
            train_within(work, work.trial(0), args.seconds, folder)
            for dim in DIMENSIONS:
                scores = cut_scores(work, folder, dim)
                print(f"| {name} | {dim} | {' | '.join(f'{scores[title]:.3f}' for title in SHOWN)} |", flush=True)


def cut_scores(work: Work, folder: Path, dim: int) -> dict[str, float]:
    """The scores of an exported model whose vectors keep their first numbers."""
    encode = encoder_of(str(folder))
    scores: dict[str, float] = {}
    for kind, tasks in work.sets.items():
        ids, lookup = embedded_texts(tasks, lambda *texts: cut(encode(*texts), dim))
        scores |= score_vectors(ids, lookup, kind)
    return {title: scores[metric] for title, metric in SHOWN.items()}


def cut(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """The first numbers of each vector, (sentences, dimensions), as unit vectors."""
    short: NDArray[np.float32] = vectors[:, :dim]
    lengths: NDArray[np.float32] = np.maximum(np.linalg.norm(short, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return short / lengths


if __name__ == "__main__":
    main()
