"""Our scores beside the references' on the same files: mteb's tasks, LASER's xSIM, scipy, scikit-learn.

Ours encodes with the packed encoder and scores with `evaluate_texts`; the references get sentence-transformers' own
vectors of the same model. So a cell differs by rounding of vectors (a sentence with two nearly equal candidates), and
those of k-means by its starts.

    python -m benchmarks.parity                     all-MiniLM-L6-v2
    python -m benchmarks.parity MODEL [MODEL ...]   folders of sentence-transformers models
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, f1_score, v_measure_score

from babeltune.data.eval_sets import read_tasks
from babeltune.data.prepared import TextTask
from babeltune.evaluation.evaluate import evaluate_texts
from babeltune.evaluation.kmeans import SEEDS, STARTS
from babeltune.models.hub import BUNDLED, model_folder
from babeltune.records import Data, Source, Task
from benchmarks.evaluation import ROOT, Ours, loaded
from benchmarks.mteb_tasks import mteb_scores
from benchmarks.race import one_thread

Vectors = NDArray[np.float64]
LANGUAGES = ("eng", "fra", "rus")
TOLERANCES = {"ari": 0.05, "v_measure": 0.05}
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Cell:
    """One metric of one set."""

    name: str
    reference: str
    ours: float
    theirs: float

    @property
    def holds(self) -> bool:
        return abs(self.ours - self.theirs) <= TOLERANCES.get(self.name.rpartition("/")[2], TOLERANCE)


def tasks() -> list[TextTask]:
    """NTREX and Tatoeba, STS-B and KorSTS, SIB-200 in English, each whole."""
    files = {code: f"ntrex/{code}.tsv.gz" for code in LANGUAGES}
    sib = Source(name="sib", id="id", paths={code: f"sib200/{code}.tsv.gz" for code in ("eng_Latn", "fra_Latn")})
    found = [Task(name="ntrex", source=Source(name="ntrex", id="id", paths=files, pairs="all"))]
    for code in LANGUAGES[1:]:
        pair = Source(name=code, path=f"tatoeba/{code}-eng.tsv", columns={code: code, "eng": "eng"})
        found.append(Task(name="tatoeba", source=pair))
    found += [
        Task(name="stsb", task="sts", path="stsb/eng.test.tsv", language="eng"),
        Task(name="korsts", task="sts", path="korsts/kor.test.tsv", language="kor"),
        Task(name="sib", task="clustering", source=sib, label="category"),
        Task(name="sib_head", task="transfer", source=sib, label="category", split="sib_split", language="eng_Latn"),
    ]
    return list(read_tasks(found, ROOT, Data(train=(), anchor_priority=("eng",))))


def cells(folder: str) -> Iterator[Cell]:
    """Every cell of one model."""
    chosen = tasks()
    own = Ours(folder)
    ours = evaluate_texts(chosen, own.encode)
    model = loaded(folder)
    known: dict[str, NDArray[np.float32]] = {}

    def unit(texts: tuple[str, ...]) -> Vectors:
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(missing, model.encode(missing, batch_size=64, show_progress_bar=False), strict=True))
        rows = np.stack([known[text] for text in texts]).astype(np.float64)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    by_mteb = [task for task in chosen if task.name in ("ntrex", "tatoeba", "stsb")]
    for name, value in mteb_scores(by_mteb, model).items():
        yield Cell(name, "mteb", ours[name], value)
    for task in chosen:
        for metric, reference, value in REFERENCES[task.kind](task, unit):
            name = f"test/{task.name}/{task.subset}/{metric}"
            yield Cell(name, reference, ours[name], value)


Found = Iterator[tuple[str, str, float]]


def _bitext(task: TextTask, unit: Callable[[tuple[str, ...]], Vectors]) -> Found:
    x, y = unit(task.left), unit(task.right)
    there, back = xsim_by_loop(x, y, task.right), xsim_by_loop(y, x, task.left)
    yield "xsim_error", "LASER's definition", (there + back) / 2


def xsim_by_loop(x: Vectors, y: Vectors, texts: tuple[str, ...], k: int = 4) -> float:
    """LASER's xSIM (source/xsim.py), ratio margin, sentence by sentence; an equal text at another row counts."""
    cosines = x @ y.T
    near, around = np.argsort(-cosines, axis=1, kind="stable")[:, :k], -np.sort(-cosines, axis=0)[:k].mean(axis=0)
    errors = 0
    for row, candidates in enumerate(near):
        mean = cosines[row, candidates].mean()
        scores = [cosines[row, column] / ((mean + around[column]) / 2) for column in candidates]
        errors += texts[candidates[int(np.argmax(scores))]] != texts[row]
    return errors / len(x)


def _sts(task: TextTask, unit: Callable[[tuple[str, ...]], Vectors]) -> Found:
    cosines = (unit(task.left) * unit(task.right)).sum(axis=1)
    yield "spearman", "scipy", float(spearmanr(cosines, task.scores).statistic)
    yield "pearson", "scipy", float(pearsonr(cosines, task.scores).statistic)


def _clustering(task: TextTask, unit: Callable[[tuple[str, ...]], Vectors]) -> Found:
    rows, topics = unit(task.left), len(set(task.labels))
    found = [KMeans(topics, n_init=STARTS, random_state=seed).fit_predict(rows) for seed in SEEDS]
    yield "ari", "scikit-learn", float(np.mean([adjusted_rand_score(task.labels, row) for row in found]))
    yield "v_measure", "scikit-learn", float(np.mean([v_measure_score(task.labels, row) for row in found]))


def _transfer(task: TextTask, unit: Callable[[tuple[str, ...]], Vectors]) -> Found:
    assert task.fit is not None
    head = LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(unit(task.fit.left), task.fit.labels)
    said = head.predict(unit(task.left))
    yield "accuracy", "scikit-learn", float(np.mean(said == np.array(task.labels)))
    yield "macro_f1", "scikit-learn", float(f1_score(task.labels, said, average="macro"))


REFERENCES = {"bitext": _bitext, "sts": _sts, "clustering": _clustering, "transfer": _transfer}


def main() -> None:
    """Prints a table for each model; ends with 1 where a cell differs by more than its tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args()
    if not ROOT.is_dir():
        sys.exit(f"no corpora in {ROOT}; set BABELTUNE_DATA to the folder of the shared data")
    one_thread()
    broken = 0
    for name in given.models or [BUNDLED]:
        folder = str(model_folder(name, None, setting="MODEL"))
        model = folder.rstrip("/").rpartition("/")[2]
        print(f"| {model} | reference | ours | theirs | difference |\n|---|---|--:|--:|--:|")
        found = list(cells(folder))
        for cell in found:
            name = cell.name.removeprefix("test/")
            print(
                f"| {name} | {cell.reference} | {cell.ours:.4f} | {cell.theirs:.4f} | {cell.ours - cell.theirs:+.4f} |"
            )
        off = list(itertools.filterfalse(lambda cell: cell.holds, found))
        print(f"{len(found)} cells, {len(off)} beyond their tolerance: {[cell.name for cell in off]}", flush=True)
        broken += len(off)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
