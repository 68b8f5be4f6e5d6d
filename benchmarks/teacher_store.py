"""An eight-trial sweep over one teacher store against a teacher that is asked again for every batch.

Trials train `work.STUDENT` with random proposals, each seeing as many pairs as there are; the teacher is the
real all-MiniLM-L6-v2. Both run `TrialTrainer.one_step`, as a trial does. Ours builds the store first, which counts, and
reads it. The peer forwards each batch's distinct anchors through the same loaded teacher, by the same code in batches
of equal length. CPU seconds of the whole sweep."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from babeltune.data.prepared import Prepared
from babeltune.data.teacher import TeacherModel, build_teacher_store, load_encoder
from babeltune.planning.space import make_trial
from babeltune.schema.records import Sweep, Trial
from babeltune.training.averages import Averages
from babeltune.training.batches import BatchReader
from benchmarks.race import cpu_seconds, options, race, verdict
from benchmarks.work import benchmark_sweep, describe_lengths, part_of, prepare_text, start, texts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

GOAL = 1.7
TRIALS, PAIRS, BATCH = 8, 256, 64
TOLERANCE = 1e-3  # largest difference of two losses, relative: the store keeps half precision


@dataclass
class OnlineReader(BatchReader):
    """Asks the teacher for each batch's vectors instead of the store."""

    model: TeacherModel | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts = texts_of(self.prepared)

    def vectors(self, ids: NDArray[np.int64]) -> Tensor:
        assert self.model is not None
        distinct, places = np.unique(ids, return_inverse=True)
        encoded = self.model.encode([self.texts[i] for i in distinct])
        return torch.from_numpy(encoded[places]).to(self.device)


@dataclass
class Work:
    """A sweep to run either way."""

    sweep: Sweep
    prepared: Prepared  # what is prepared for the sweep, without a teacher store
    anchors: list[str]
    trials: list[Trial]
    scratch: Path

    def __post_init__(self) -> None:
        self.model = load_encoder(self.sweep.teacher)
        self.numbers = count()
        self.losses: dict[str, list[float]] = {}

    def ours(self) -> float:
        """CPU seconds of building the store and training all trials from it."""

        def sweep() -> None:
            root = self.scratch / f"stores-{next(self.numbers)}"
            store = build_teacher_store(root, self.anchors, self.sweep.teacher)
            self.losses["ours"] = self.train(replace(self.prepared, teacher=str(store)), online=False)
            shutil.rmtree(root)

        return cpu_seconds(sweep)

    def peer(self) -> float:
        """CPU seconds of training all trials with the teacher beside them."""

        def sweep() -> None:
            self.losses["peer"] = self.train(self.prepared, online=True)

        return cpu_seconds(sweep)

    def train(self, prepared: Prepared, *, online: bool) -> list[float]:
        """The loss of every step of every trial."""
        losses = []
        for trial in self.trials:
            run, meter = start(trial, prepared), Averages(every=1)
            if online:
                fields = {name: getattr(run.steps.reader, name) for name in BatchReader.__dataclass_fields__}
                run.steps.reader = OnlineReader(**fields, model=self.model)
            for step in range(len(run.steps.schedule)):
                run.one_step(step, meter, flush=False)
            losses += [point.values["train/loss"] for point in meter.points]
        return losses

    def difference(self) -> float:
        """The largest relative difference of two losses of the last round."""
        pairs = zip(self.losses["ours"], self.losses["peer"], strict=True)
        return max(abs(loss / peer_loss - 1) for loss, peer_loss in pairs)


def make_work(storage: Path, *, trials: int, pairs: int, **student: Any) -> tuple[Work, str]:
    """The sweep, and what its text is."""
    sweep, text = benchmark_sweep("soft_contrastive", {}, student)
    prepared, anchors = part_of(prepare_text(sweep, storage), pairs, storage / "part")
    proposals = np.random.default_rng(0).uniform(size=(trials, 2))
    all_trials = [
        make_trial(
            sweep,
            number,
            {
                "temperature": float(0.03 * (0.2 / 0.03) ** temperature),
                "training.learning_rate": float(5e-4 * (3e-3 / 5e-4) ** rate),
                "training.pairs": len(prepared.pairs()),
                "training.global_batch": BATCH,
            },
        )
        for number, (temperature, rate) in enumerate(proposals)
    ]
    return Work(sweep, prepared, anchors, all_trials, storage), text


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    with TemporaryDirectory() as temporary:
        work, text = make_work(Path(temporary), trials=TRIALS, pairs=PAIRS)
        lengths = describe_lengths(work.prepared)
        print(f"{text}: {lengths}; {len(work.anchors)} distinct anchors; {TRIALS} trials")
        rows = race(work.ours, work.peer, args.rounds)
        losses = work.difference()
    print(f"largest difference of the losses of all steps, relative: {losses:.2g}")
    broken = [f"the losses differ by more than {TOLERANCE:g}"] if losses > TOLERANCE else []
    facts: dict[str, Any] = {
        "text": text,
        "lengths": lengths,
        "anchors": len(work.anchors),
        "trials": TRIALS,
        "loss_difference": losses,
    }
    verdict("teacher_store", rows, GOAL, args, broken=broken, **facts)


if __name__ == "__main__":
    main()
