"""Our scores beside the references' on the same files: mteb's tasks, LASER's xSIM, scipy, scikit-learn.

Ours encodes with the packed encoder and scores with `evaluate_texts`; the references get sentence-transformers' own
vectors of the same model. So a cell differs by rounding of vectors (a sentence with two nearly equal candidates), and
those of k-means by its starts: their means over five seeds may be two standard deviations of the reference's seeds
(or 0.05) apart. Mining sets in BUCC's form are drawn from NTREX: of the rows of a half, a third are pairs, and of the
others either side has one language alone.

    python -m benchmarks.parity                     all-MiniLM-L6-v2
    python -m benchmarks.parity MODEL [MODEL ...]   folders of sentence-transformers models
    python -m benchmarks.parity --rows 100          at most 100 rows of each set: a short run"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, f1_score, v_measure_score

from babeltune.data.eval_sets import read_eval, subsets
from babeltune.data.prepared import TextTask
from babeltune.evaluation.clustering import SEEDS, STARTS
from babeltune.evaluation.evaluate import evaluate_texts
from babeltune.models.hub import BUNDLED, model_folder
from babeltune.schema.records import Bitext, Clustering, Sts, Transfer, TsvSource
from benchmarks.evaluation import ROOT, Ours, loaded
from benchmarks.mteb_tasks import mteb_scores
from benchmarks.race import one_thread

Vectors = NDArray[np.float64]
LANGUAGES = ("eng", "fra", "rus")
TOLERANCE = 2e-3
SPREAD, STARTED = 2, 0.05
"""Standard deviations of the reference's seeds that k-means may be off, and at least: ten starts of two programs end in
different optima of one inertia more often than ten starts of one."""
MINED = 3  # one row in this many of a mining set is a pair of translations


@dataclass(frozen=True)
class Cell:
    """One metric of one set."""

    name: str
    reference: str
    ours: float
    peer: float
    allowed: float = TOLERANCE

    @property
    def holds(self) -> bool:
        return abs(self.ours - self.peer) <= self.allowed


def tasks(rows: int | None = None) -> list[TextTask]:
    """NTREX and Tatoeba, mining sets of NTREX, STS-B and KorSTS, SIB-200 in English. `rows` limits each set."""
    files = {code: f"ntrex/{code}.tsv.gz" for code in LANGUAGES}
    sib = TsvSource(name="sib", id="id", paths={code: f"sib200/{code}.tsv.gz" for code in ("eng_Latn", "fra_Latn")})
    sets: list[Bitext | Sts | Clustering | Transfer] = [
        Bitext(name="ntrex", source=TsvSource(name="ntrex", id="id", paths=files, pairs="all"))
    ]
    for code in LANGUAGES[1:]:
        pair = TsvSource(name=code, path=f"tatoeba/{code}-eng.tsv", columns={code: code, "eng": "eng"})
        sets.append(Bitext(name="tatoeba", source=pair))
    sets += [
        Sts(name="stsb", path="stsb/eng.test.tsv", language="eng"),
        Sts(name="korsts", path="korsts/kor.test.tsv", language="kor"),
        Clustering(name="sib", source=sib, label="category"),
        Transfer(name="sib_head", source=sib, label="category", split="sib_split", language="eng_Latn"),
    ]
    subset_tasks = subsets(read_eval([replace(task, limit=rows) for task in sets], ROOT), ("eng",))
    return [*subset_tasks, *(mining_set(task) for task in subset_tasks if task.name == "ntrex")]


def mining_set(task: TextTask) -> TextTask:
    """A mining set of one half of a bitext's different rows, its threshold fitted on the other."""
    pairs = list({left: (left, right) for left, right in zip(task.left, task.right, strict=True)}.values())
    pairs = list({right: (left, right) for left, right in pairs}.values())
    random = np.random.default_rng(len(pairs))
    order = random.permutation(len(pairs))
    halves = []
    for half in np.array_split(order, 2):
        paired, lefts, rights = np.array_split(half, MINED)
        sides = [random.permutation(np.concatenate([paired, alone])) for alone in (lefts, rights)]
        places = [{int(row): place for place, row in enumerate(side)} for side in sides]
        halves.append(
            TextTask(
                name="bucc",
                kind="mining",
                subset=task.subset,
                left=tuple(pairs[row][0] for row in sides[0]),
                right=tuple(pairs[row][1] for row in sides[1]),
                left_languages=task.left_languages,
                right_languages=task.right_languages,
                gold=tuple((places[0][int(row)], places[1][int(row)]) for row in paired),
            )
        )
    return replace(halves[1], fit=halves[0])


def cells(folder: str, rows: int | None = None) -> Iterator[Cell]:
    """Every cell of one model."""
    eval_tasks = tasks(rows)
    encoder = Ours(folder)
    ours = evaluate_texts(eval_tasks, encoder.encode)
    model = loaded(folder)
    cache: dict[str, NDArray[np.float32]] = {}

    def unit(texts: Sequence[str]) -> Vectors:
        missing = [text for text in dict.fromkeys(texts) if text not in cache]
        cache.update(zip(missing, model.encode(missing, batch_size=64, show_progress_bar=False), strict=True))
        rows = np.stack([cache[text] for text in texts]).astype(np.float64)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    by_mteb = [task for task in eval_tasks if task.name in ("ntrex", "tatoeba", "stsb")]
    for name, value in mteb_scores(by_mteb, model).items():
        yield Cell(name, "mteb", ours[name], value)
    for task in eval_tasks:
        for metric, reference, value, *allowed in REFERENCES[task.kind](task, unit):
            name = f"test/{task.name}/{task.subset}/{metric}"
            yield Cell(name, reference, ours[name], value, *allowed)


CellValues = Iterator[tuple[str, str, float] | tuple[str, str, float, float]]


def _bitext(task: TextTask, unit: Callable[[Sequence[str]], Vectors]) -> CellValues:
    x, y = unit(task.left), unit(task.right)
    forward, backward = xsim_by_loop(x, y, task.right), xsim_by_loop(y, x, task.left)
    yield "xsim_error", "LASER's definition", (forward + backward) / 2


def xsim_by_loop(x: Vectors, y: Vectors, texts: Sequence[str], k: int = 4) -> float:
    """LASER's xSIM (source/xsim.py), ratio margin, sentence by sentence; an equal text at another row counts."""
    cosines = x @ y.T
    near, around = np.argsort(-cosines, axis=1, kind="stable")[:, :k], -np.sort(-cosines, axis=0)[:k].mean(axis=0)
    errors = 0
    for row, candidates in enumerate(near):
        mean = cosines[row, candidates].mean()
        scores = [cosines[row, column] / ((mean + around[column]) / 2) for column in candidates]
        errors += texts[candidates[int(np.argmax(scores))]] != texts[row]
    return errors / len(x)


def _mining(task: TextTask, unit: Callable[[Sequence[str]], Vectors]) -> CellValues:
    assert task.fit is not None
    fit = mined_by_loop(unit(task.fit.left), unit(task.fit.right))
    by_way = mined_by_loop(unit(task.left), unit(task.right))
    for how, pairs in by_way.items():
        threshold, _ = swept(fit[how], task.fit.gold)
        _, oracle = swept(pairs, task.gold)
        predictions = {pair for pair, score in pairs.items() if score >= threshold}
        f1 = 2 * len(predictions & set(task.gold)) / (len(predictions) + len(task.gold))
        yield f"f1_{how}", "LASER's definition", f1
        yield f"f1_{how}_oracle", "LASER's definition", oracle


def mined_by_loop(x: Vectors, y: Vectors, k: int = 4) -> dict[str, dict[tuple[int, int], float]]:
    """LASER's source/mine_bitexts.py: pairs (left, right) and their ratio margins, by its ways of retrieval.

    sentence-transformers' bucc2018.py is `max`."""
    cosines = x @ y.T
    means = [-np.sort(-side, axis=1)[:, :k].mean(axis=1) for side in (cosines, cosines.T)]
    scores = cosines / ((means[0][:, None] + means[1]) / 2)
    near = [np.argsort(-side, axis=1, kind="stable")[:, :k] for side in (cosines, cosines.T)]
    forward = {(i, int(row[scores[i, row].argmax()])) for i, row in enumerate(near[0])}
    backward = {(int(row[scores[row, j].argmax()]), j) for j, row in enumerate(near[1])}
    best, lefts, rights = set(), set(), set()
    for i, j in sorted(forward | backward, key=lambda pair: -scores[pair]):
        if i not in lefts and j not in rights:
            lefts.add(i)
            rights.add(j)
            best.add((i, j))
    by_way = {"forward": forward, "backward": backward, "intersection": forward & backward, "max": best}
    return {how: {pair: float(scores[pair]) for pair in pairs} for how, pairs in by_way.items()}


def swept(pairs: dict[tuple[int, int], float], gold: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """bucc2018.py's `bucc_optimize`: the threshold, halfway below the last pair that is kept, and its F1.

    There the last pair of all has a next one, beyond the list; here it is its own."""
    right, ordered = set(gold), sorted(pairs.items(), key=lambda item: -item[1])
    threshold, best, correct = np.inf, 0.0, 0
    for number, (pair, score) in enumerate(ordered, start=1):
        correct += pair in right
        precision, recall = correct / number, correct / len(right)
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        if f1 > best:
            best, threshold = f1, (score + ordered[min(number, len(ordered) - 1)][1]) / 2
    return float(threshold), best


def _sts(task: TextTask, unit: Callable[[Sequence[str]], Vectors]) -> CellValues:
    cosines = (unit(task.left) * unit(task.right)).sum(axis=1)
    yield "spearman", "scipy", float(spearmanr(cosines, task.scores).statistic)
    yield "pearson", "scipy", float(pearsonr(cosines, task.scores).statistic)


def _clustering(task: TextTask, unit: Callable[[Sequence[str]], Vectors]) -> CellValues:
    rows, topics = unit(task.left), len(set(task.labels))
    clusterings = [KMeans(topics, n_init=STARTS, random_state=seed).fit_predict(rows) for seed in SEEDS]
    for metric, score in (("ari", adjusted_rand_score), ("v_measure", v_measure_score)):
        values = [score(task.labels, row) for row in clusterings]
        yield metric, "scikit-learn", float(np.mean(values)), max(STARTED, SPREAD * float(np.std(values, ddof=1)))


def _transfer(task: TextTask, unit: Callable[[Sequence[str]], Vectors]) -> CellValues:
    assert task.fit is not None
    head = LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(unit(task.fit.left), task.fit.labels)
    predictions = head.predict(unit(task.left))
    yield "accuracy", "scikit-learn", float(np.mean(predictions == np.array(task.labels)))
    yield "macro_f1", "scikit-learn", float(f1_score(task.labels, predictions, average="macro"))


REFERENCES = {"bitext": _bitext, "mining": _mining, "sts": _sts, "clustering": _clustering, "transfer": _transfer}


def main() -> None:
    """Prints a table for each model; ends with 1 if a cell differs by more than its tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of each set; all when left out")
    args = parser.parse_args()
    if not ROOT.is_dir():
        sys.exit(f"no corpora in {ROOT}; set BABELTUNE_DATA to the folder of the shared data")
    one_thread()
    broken = 0
    for name in args.models or [BUNDLED]:
        folder = str(model_folder(name, None, setting="MODEL"))
        model = folder.rstrip("/").rpartition("/")[2]
        print(f"| {model} | reference | ours | theirs | difference | allowed |\n|---|---|--:|--:|--:|--:|")
        results = list(cells(folder, args.rows))
        for cell in results:
            name = cell.name.removeprefix("test/")
            apart = f"{cell.ours - cell.peer:+.4f} | {cell.allowed:.4f}"
            print(f"| {name} | {cell.reference} | {cell.ours:.4f} | {cell.peer:.4f} | {apart} |")
        outside = list(itertools.filterfalse(lambda cell: cell.holds, results))
        print(
            f"{len(results)} cells, {len(outside)} beyond their tolerance: {[cell.name for cell in outside]}",
            flush=True,
        )
        broken += len(outside)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
