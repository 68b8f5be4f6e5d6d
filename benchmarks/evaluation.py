"""Seconds to score one model on NTREX (every two languages), Tatoeba, STS and SIB-200 against mteb's evaluators.

The model is the bundled teacher, all-MiniLM-L6-v2, on one thread in fp32; both sides score the same sentences. Ours is
`evaluate_texts` with packed encoding of every distinct text once, xSIM and five clusterings of ten starts included. The
peer does what mteb's bitext, STS and clustering evaluators do, both directions of a bitext, and scikit-learn's head.
Tokenization is in the peer's time, as it is in every run of it; ours is done once per sweep and
left out, as for `benchmarks.train`.

    python -m benchmarks.evaluation                                 a few languages and rows
    python -m benchmarks.evaluation --languages 99 --rows 9999      everything; hours
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mteb._evaluators.text.bitext_mining_evaluator import BitextMiningEvaluator
from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score
from sklearn.metrics.pairwise import paired_cosine_distances

from babeltune.data.eval_sets import read_tasks
from babeltune.data.prepared import TextTask
from babeltune.data.teacher import teacher_folder
from babeltune.evaluation.evaluate import evaluate_texts
from babeltune.models.encoder import build_student, encode_all
from babeltune.records import Data, Source, Student, Task, Teacher
from benchmarks.race import cpu_seconds, options, race, verdict

GOAL = 3.0
ROOT = Path(os.environ.get("BABELTUNE_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
TOLERANCE = 2e-3
"""Largest difference of a score that both compute: one sentence of 500, where two candidates are equally near."""


def tasks_of(languages: int, rows: int) -> list[TextTask]:
    """The four tasks, with so many languages of each corpus and rows of each language at most."""

    def files(folder: str, pattern: str, first: str) -> dict[str, str]:
        paths = sorted((ROOT / folder).glob(f"*{pattern}"))
        found = {path.name.removesuffix(pattern): str(path.relative_to(ROOT)) for path in paths}
        ordered = sorted(found, key=lambda code: (code != first, code))[:languages]
        return {code: found[code] for code in ordered}

    ntrex = Source(name="ntrex", id="id", paths=files("ntrex", ".tsv.gz", "eng"), pairs="all")
    sib = Source(name="sib", id="id", paths=files("sib200", ".tsv.gz", "eng_Latn"))
    tatoeba = [
        Task(name="tatoeba", source=Source(name=code, path=path, columns={code: code, "eng": "eng"}))
        for code, path in files("tatoeba", "-eng.tsv", "fra").items()
    ]
    topics = Task(name="sib", task="clustering", source=sib, label="category")
    transfer = Task(name="sib_head", task="transfer", source=sib, label="category", split="sib_split")
    transfer = replace(transfer, language="eng_Latn")
    sts = Task(name="stsb", task="sts", path="stsb/eng.test.tsv", language="eng")
    tasks = (Task(name="ntrex", source=ntrex), *tatoeba, sts, topics, transfer)
    limited = [replace(task, limit=rows) for task in tasks]
    return read_tasks(limited, ROOT, Data(train=(), anchor_priority=("eng",)))


class Ours:
    """Our scores, and how long encoding took."""

    def __init__(self, folder: str) -> None:
        self.student = Student(model=folder, max_tokens=128)
        self.tokenizer = SentenceTransformer(folder, device="cpu").tokenizer
        self.encoder = build_student(
            self.student,
            vocabulary_size=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            teacher_dim=None,
            seed=0,
        )
        self.tokens: dict[str, list[int]] = {}
        self.encoding = 0.0
        self.scores: dict[str, float] = {}

    def tokenize(self, tasks: Sequence[TextTask]) -> None:
        """Once, as a sweep does."""
        texts = list({text for task in tasks for text in task.texts()})
        found = self.tokenizer(texts, truncation=True, max_length=self.student.max_tokens)["input_ids"]
        self.tokens = dict(zip(texts, found, strict=True))

    def encode(self, texts: list[str], languages: list[str]) -> Any:
        started = time.process_time()

        def take(ids: Any) -> tuple[Any, Any]:
            chosen = [self.tokens[texts[i]] for i in ids]
            return np.concatenate(chosen), np.array([len(tokens) for tokens in chosen])

        vectors = encode_all(self.encoder, take, np.arange(len(texts)), device="cpu")
        self.encoding = time.process_time() - started
        return vectors

    def __call__(self, tasks: Sequence[TextTask]) -> float:
        def run() -> None:
            self.scores = evaluate_texts(tasks, self.encode)

        return cpu_seconds(run)


class Peer:
    """mteb's scores, and the head's."""

    def __init__(self, folder: str) -> None:
        self.model = SentenceTransformer(folder, device="cpu")
        self.model.max_seq_length = 128
        self.scores: dict[str, float] = {}

    def __call__(self, tasks: Sequence[TextTask]) -> float:
        return cpu_seconds(partial(self.score, tasks))

    def score(self, tasks: Sequence[TextTask]) -> None:
        """All tasks in order; a language of a multi-way set and the text that the head learns from are encoded once."""
        self.sides: dict[str, Any] = {}
        for task in tasks:
            name = f"test/{task.name}/{task.subset}"
            if task.kind == "bitext":
                found = self.bitext(task)
            elif task.kind == "sts":
                cosines = 1 - paired_cosine_distances(self.vectors(task.left), self.vectors(task.right))
                found = {"spearman": float(spearmanr(cosines, task.scores).statistic)}
            elif task.kind == "clustering":
                found = {}
                kmeans = MiniBatchKMeans(len(set(task.labels)), batch_size=500, n_init="auto", random_state=42)
                v_measure_score(task.labels, kmeans.fit_predict(self.vectors(task.left)))  # as ClusteringEvaluator does
            else:
                found = {"accuracy": self.transfer(task)}
            self.scores |= {f"{name}/{metric}": value for metric, value in found.items()}

    def vectors(self, texts: Sequence[str], key: str = "") -> Any:
        if key not in self.sides:
            found = self.model.encode(list(texts), batch_size=64, show_progress_bar=False)
            if not key:
                return found
            self.sides[key] = found
        return self.sides[key]

    def bitext(self, task: TextTask) -> dict[str, float]:
        """Both directions, as mteb's task lists of multi-way sets have them."""
        among = task.name if task.name == "ntrex" else task.subset
        left = self.vectors(task.left, f"{among} {task.left_languages[0]}")
        right = self.vectors(task.right, f"{among} {task.right_languages[0]}")
        gold = [(i, i) for i in range(len(task.left))]
        found: dict[str, float] = {}
        for direction, (x, y) in (("backward", (right, left)), ("forward", (left, right))):
            near = BitextMiningEvaluator._similarity_search(None, x, y, self.model)
            scores = AbsTaskBitextMining._compute_metrics(None, near, gold)
            found |= {f"accuracy_{direction}": scores["accuracy"], "f1": scores["f1"]}
        return found

    def transfer(self, task: TextTask) -> float:
        """The head's accuracy; it is fitted for each language, as mteb's classification tasks do."""
        assert task.fit is not None
        head = LogisticRegression(max_iter=1000).fit(self.vectors(task.fit.left, "learnt"), task.fit.labels)
        return float(head.score(self.vectors(task.left), task.labels))


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--languages", type=int, default=4)
    parser.add_argument("--rows", type=int, default=100)
    size, rest = parser.parse_known_args()
    given = options(__doc__, rest)
    if not ROOT.is_dir():
        sys.exit(f"no corpora in {ROOT}; set BABELTUNE_DATA to the folder of the shared data")
    folder = str(teacher_folder(Teacher()))
    tasks = tasks_of(size.languages, size.rows)
    ours, peer = Ours(folder), Peer(folder)
    ours.tokenize(tasks)
    texts = len(ours.tokens)
    print(f"{len(tasks)} subsets of {texts} distinct sentences, {size.languages} languages of each corpus", flush=True)
    rows = race(lambda: ours(tasks), lambda: peer(tasks), given.rounds)
    shares = ours.encoding / rows[-1].ours
    apart = {name: abs(value - ours.scores[name]) for name, value in peer.scores.items()}
    worst = max(apart, key=lambda name: apart[name])
    print(f"encoding is {shares:.0%} of ours; largest difference of {len(apart)} scores: {apart[worst]:.2g} ({worst})")
    broken = [f"{worst} differs by more than {TOLERANCE:g}"] if apart[worst] > TOLERANCE else []
    verdict("evaluation", rows, GOAL, given, broken=broken, texts=texts, subsets=len(tasks), encoding=shares)


if __name__ == "__main__":
    main()
