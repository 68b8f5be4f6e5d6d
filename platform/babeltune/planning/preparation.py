"""Finds what a sweep's preparation needs from its methods and its file, and prepares the sweep.

The stores themselves are built by `data.prepare`, which knows nothing of methods."""

import itertools
from pathlib import Path

import numpy as np

from babeltune.data import prepare as stores
from babeltune.data.arrays import scratch_in
from babeltune.data.corpus import Corpus
from babeltune.data.prepare import PreparationInputs, Requirements
from babeltune.data.prepared import Prepared
from babeltune.data.shards import RunShards, run_here
from babeltune.data.thresholds import THRESHOLDS, score_file, thresholds
from babeltune.planning.space import possible_needs, preparations
from babeltune.planning.sweep_file import data_root
from babeltune.planning.thresholds import pairs_left
from babeltune.schema.records import Sweep
from babeltune.stages import Progress, no_progress


def wanted_of(sweep: Sweep) -> Requirements:
    """The needs, together, of the methods that the sweep can propose."""
    needs = [need for _, _, need in possible_needs(sweep)]
    mined = {(n.negatives_key, n.hard_negatives, n.hard_negatives_below) for n in needs if n.hard_negatives}
    sides = frozenset(itertools.chain.from_iterable(n.teacher for n in needs))
    frozen = any(need.frozen for need in needs)
    set_here = thresholds(sweep.data.sampling)
    vectors = any(student.token_vectors == "teacher" for student in preparations(sweep))
    if mined or vectors:
        sides |= {"source"}
    return Requirements(
        sides=sides,
        negatives=tuple(sorted(mined)),
        frozen=frozen,
        exact=frozen or bool(sweep.data.against_teacher("dev")),
        trained=not all(need.frozen for need in needs),
        words=any(need.words for need in needs),
        scores=tuple(name for name in THRESHOLDS if name in set_here or f"data.sampling.{name}" in sweep.parameters),
    )


def inputs_of(sweep: Sweep) -> PreparationInputs:
    """Raises `SpecError` for a folder of the data that does not exist."""
    return PreparationInputs(sweep, data_root(sweep), wanted_of(sweep), tuple(preparations(sweep)))


def read_corpus(
    sweep: Sweep, storage: Path, progress: Progress = no_progress, run_shards: RunShards | None = None
) -> Corpus:
    """`data.prepare.read_corpus` of this sweep."""
    return stores.read_corpus(inputs_of(sweep), storage, progress, run_shards)


def prepare(
    sweep: Sweep,
    storage: Path,
    *,
    corpus: Corpus | None = None,
    run_shards: RunShards = run_here,
    progress: Progress = no_progress,
) -> Prepared:
    """`data.prepare.prepare` of this sweep. Raises `SpecError` also if its thresholds leave no trial enough pairs."""
    with scratch_in(storage / "stores"):
        prepared = stores.prepare(inputs_of(sweep), storage, corpus=corpus, run_shards=run_shards, progress=progress)
    pairs_left(sweep, prepared.pair_groups(), lambda name: np.load(score_file(Path(prepared.folder), name)))
    return prepared
