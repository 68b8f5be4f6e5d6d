"""Seconds to score one model on NTREX (every two languages), Tatoeba, STS-B and SIB-200 against mteb on the same files.

Both are timed on two threads from text to scores, tokenization included, by the wall clock. Ours is `evaluate_texts`
with packed encoding of every distinct text once; it also computes xSIM and five clusterings of ten starts. The peer is
mteb's own tasks with their defaults, on our text: both directions of each pair, STS, clustering, and the head on
SIB-200's training part. Loading of data is not timed. Scores that both define alike are compared.

    python -m benchmarks.evaluation                                 a few languages and rows, the bundled teacher
    python -m benchmarks.evaluation --model MODEL --languages 99 --rows 9999     everything; an hour"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sklearn.exceptions import UndefinedMetricWarning

from babeltune.data.eval_sets import read_eval, subsets
from babeltune.data.prepared import TextTask
from babeltune.evaluation.evaluate import evaluate_texts
from babeltune.models.build import build_student
from babeltune.models.encoder import encode_all
from babeltune.models.hub import BUNDLED, model_folder
from babeltune.models.vocabulary import Vocabulary
from babeltune.schema.records import Bitext, Clustering, Sts, Transfer, Transformer, TsvSource
from benchmarks.mteb_tasks import as_mteb, run
from benchmarks.race import options, race, verdict

GOAL = 3.0
THREADS = 2
MAX_TOKENS = 128  # longer sentences are cut, by both; a model that takes fewer cuts more
ROOT = Path(os.environ.get("BABELTUNE_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
TOLERANCE = 2e-3
"""Largest difference of a score that both compute, or one sentence of a set's rows, if two candidates are equally
near."""
ALIKE = ("accuracy_forward", "accuracy_backward", "spearman", "pearson")
"""Metrics that both define alike; mteb's heads and clusterings learn from drawn samples."""


def tasks_of(languages: int, rows: int) -> list[TextTask]:
    """The four tasks, with at most this number of languages of each corpus, and of rows of each language."""

    def files(folder: str, pattern: str, first: str) -> dict[str, str]:
        paths = sorted((ROOT / folder).glob(f"*{pattern}"))
        paths_of = {path.name.removesuffix(pattern): str(path.relative_to(ROOT)) for path in paths}
        ordered = sorted(paths_of, key=lambda code: (code != first, code))[:languages]
        return {code: paths_of[code] for code in ordered}

    ntrex = TsvSource(name="ntrex", id="id", paths=files("ntrex", ".tsv.gz", "eng"), pairs="all")
    sib = TsvSource(name="sib", id="id", paths=files("sib200", ".tsv.gz", "eng_Latn"))
    tatoeba = [
        Bitext(name="tatoeba", source=TsvSource(name=code, path=path, columns={code: code, "eng": "eng"}))
        for code, path in files("tatoeba", "-eng.tsv", "fra").items()
    ]
    topics = Clustering(name="sib", source=sib, label="category")
    transfer = Transfer(name="sib_head", source=sib, label="category", split="sib_split", language="eng_Latn")
    sts = Sts(name="stsb", path="stsb/eng.test.tsv", language="eng")
    tasks: tuple[Bitext | Sts | Clustering | Transfer, ...] = (
        Bitext(name="ntrex", source=ntrex),
        *tatoeba,
        sts,
        topics,
        transfer,
    )
    limited = [replace(task, limit=rows) for task in tasks]
    return subsets(read_eval(limited, ROOT), ("eng",))


def loaded(folder: str) -> SentenceTransformer:
    """The model, with the length at which it cuts sentences."""
    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = min(MAX_TOKENS, model.max_seq_length or MAX_TOKENS)
    return model


class Ours:
    """Our scores, and how long encoding took."""

    def __init__(self, folder: str) -> None:
        model = loaded(folder)
        self.student, self.tokenizer = Transformer(model=folder, max_tokens=model.max_seq_length), model.tokenizer
        self.encoder = build_student(
            self.student, Vocabulary(len(self.tokenizer), self.tokenizer.pad_token_id), teacher_dim=None, seed=0
        )
        self.encoding = 0.0
        self.scores: dict[str, float] = {}

    def encode(self, texts: list[str], languages: list[str]) -> Any:
        started = time.perf_counter()
        tokens = self.tokenizer(texts, truncation=True, max_length=self.student.max_tokens)["input_ids"]

        def take(ids: Any) -> tuple[Any, Any]:
            rows = [tokens[i] for i in ids]
            return np.concatenate(rows), np.array([len(row) for row in rows])

        vectors = encode_all(self.encoder, take, np.arange(len(texts)), device="cpu")
        self.encoding = time.perf_counter() - started
        return vectors

    def __call__(self, tasks: Sequence[TextTask]) -> float:
        started = time.perf_counter()
        self.scores = evaluate_texts(tasks, self.encode)
        return time.perf_counter() - started


class Peer:
    """mteb's scores."""

    def __init__(self, folder: str, tasks: Sequence[TextTask]) -> None:
        self.model = loaded(folder)
        self.tasks = as_mteb(tasks)
        self.scores: dict[str, float] = {}

    def __call__(self) -> float:
        started = time.perf_counter()
        self.scores = run(self.tasks, self.model)
        return time.perf_counter() - started


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--languages", type=int, default=6)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--model", default=None)
    size, rest = parser.parse_known_args()
    args = options(__doc__, rest)
    torch.set_num_threads(THREADS)
    warnings.filterwarnings("ignore", category=UndefinedMetricWarning)  # of mteb's heads, which miss whole topics
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    if not ROOT.is_dir():
        sys.exit(f"no corpora in {ROOT}; set BABELTUNE_DATA to the folder of the shared data")
    folder = str(model_folder(size.model or BUNDLED, None, setting="--model"))
    tasks = tasks_of(size.languages, size.rows)
    ours, peer = Ours(folder), Peer(folder, tasks)
    texts = len({text for task in tasks for text in task.texts()})
    print(f"{len(tasks)} subsets of {texts} distinct sentences, {size.languages} languages of each corpus", flush=True)
    rows = race(lambda: ours(tasks), peer, args.rounds)
    share = ours.encoding / rows[-1].ours
    apart = {name: abs(value - ours.scores[name]) for name, value in peer.scores.items() if name.endswith(ALIKE)}
    worst = max(apart, key=lambda name: apart[name])
    print(f"encoding is {share:.0%} of ours; largest difference of {len(apart)} scores: {apart[worst]:.2g} ({worst})")
    allowed = max(TOLERANCE, 1.01 / size.rows)
    broken = [f"{worst} differs by more than {allowed:g}"] if apart[worst] > allowed else []
    verdict("evaluation", rows, GOAL, args, broken=broken, texts=texts, subsets=len(tasks), encoding=share)


if __name__ == "__main__":
    main()
