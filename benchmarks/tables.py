"""The papers' tables on real text, each by one command: `python -m benchmarks.tables paper1`.

It submits the sweeps of `search_spaces/reproduce/` that a table needs and prints mean and standard deviation over
seeds. Models that the sweeps start from are trained and promoted first, unless they are registered. What is finished
already is not run again."""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from babeltune.schema.cluster import read_cluster
from babeltune.tracking.registry import champion_of

FOLDER = "search_spaces/reproduce"


@dataclass(frozen=True)
class Part:
    """One sweep of a table."""

    sweep: str
    """The sweep's name."""
    file: str
    more: tuple[str, ...] = ()
    """Options of `submit`."""
    metrics: tuple[str, ...] = ()
    """The columns; all dev metrics when none are named."""


def alone(name: str, *metrics: str) -> Part:
    return Part(name, f"{FOLDER}/{name}.yaml", metrics=metrics)


def in_language(language: str) -> Part:
    overlay = ("--with", f"{FOLDER}/paper2/{language}.yaml")
    return Part(f"paper2_{language}", f"{FOLDER}/paper2.yaml", () if language == "khm" else overlay)


def on_real_text(name: str, *settings: str) -> Part:
    """A sweep whose file holds bundled text, on five languages' real text at 40,000 pairs a run."""
    chosen = ("training.pairs=40000", "training.reports=2", *settings)
    options = ("--with", REAL, *(word for setting in chosen for word in ("--set", setting)))
    return Part(
        name, f"{FOLDER}/{name}.yaml", options, ("dev/ntrex/accuracy", "dev/stsb/spearman", "dev/korsts/spearman")
    )


REAL = "benchmarks/data/en_fra_rus_jpn_kor_capped.yaml"
ALIGNED = ("--set", "name=paper4_aligned", "--set", "teacher.model=models:/multilingual_teacher@champion")
TOPICS = (
    "dev/ntrex/accuracy",
    "dev/ntrex/xsim_error",
    "dev/sib200/eng/ari",
    "dev/sib200/zho/ari",
    "dev/sib200/mixed/ari",
)
BITEXT = (
    "dev/tatoeba/accuracy",
    "dev/ntrex/accuracy",
    "dev/ntrex/xsim_error",
    "dev/stsb/spearman",
    "dev/korsts/spearman",
)
TABLES: dict[str, tuple[Part, ...]] = {
    "labels": (on_real_text("labels", "training.learning_rate=1e-3", "training.global_batch=256"),),
    "seeds": (on_real_text("seeds", "budget.trials=6"),),
    "paper1": (alone("paper1", *BITEXT),),
    "paper2": tuple(map(in_language, ("khm", "pus", "npi", "sin", "swh", "zul", "kor"))),
    "sigma": (alone("sigma", "dev/ntrex/xsim_error", "dev/flores/xsim_error", "train/target_similarity"),),
    "paper3": (alone("paper3", *BITEXT),),
    "dimensions": (alone("dimensions"),),
    "paper4": (alone("paper4", *TOPICS), Part("paper4_aligned", f"{FOLDER}/paper4.yaml", ALIGNED, TOPICS)),
    "paper5": (alone("paper5", *BITEXT),),
}
MODELS = {"multilingual_teacher": "teacher", "unaligned_encoder": "unaligned_encoder"}
"""Registered model -> the file of the sweep that trains it."""
STARTS = {
    **dict.fromkeys(("paper1", "paper2", "sigma", "paper3", "dimensions"), ("multilingual_teacher",)),
    "paper4": ("unaligned_encoder", "multilingual_teacher"),
}
"""Table -> the registered models that it starts from."""


def babeltune(*arguments: str, cluster: str | None) -> None:
    """The command line, as a user would type it; where it fails, this program ends with its exit code."""
    where = ["--cluster", cluster] if cluster else []
    if code := subprocess.run([sys.executable, "-m", "babeltune.cli", *arguments, *where], check=False).returncode:
        raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--cluster", metavar="FILE", help="where to run; this machine when left out")
    given = parser.parse_args(arguments)
    run = functools.partial(babeltune, cluster=given.cluster)
    store = read_cluster(given.cluster).mlflow
    for model in STARTS.get(given.table, ()):
        if champion_of(store, model, "champion") is None:
            run("submit", f"{FOLDER}/{MODELS[model]}.yaml")
            run("promote", model)
    for part in TABLES[given.table]:
        run("submit", part.file, *part.more)
    for part in TABLES[given.table]:
        columns = [word for metric in part.metrics for word in ("--metric", metric)]
        print(f"\n{part.sweep}\n", flush=True)
        run("runs", part.sweep, "--over", "seed", "--markdown", *columns)


if __name__ == "__main__":
    main()
