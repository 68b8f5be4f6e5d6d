"""Trains one configuration on this rank's share of every global batch: the loop that all trials run.

It needs only torch and transformers, so it runs in a lane's worker, under a profiler, or alone:
`python -m babeltune.train FILE` (see `alone.py`). Randomness inside a step is a function of (seed, step, rank) and the
batches are a function of (seed, step), so a trial resumes exactly from its tensors and its step number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from babeltune.checkpoint import (
    best_report,
    checkpoint_folder,
    last_good,
    load_checkpoint,
    optimizer_tensors,
    prune_checkpoints,
    restore_optimizer,
    save_checkpoint,
    write_reports,
)
from babeltune.encoder import Encoder, build_student, encode_all
from babeltune.errors import CheckpointError, TrainingError
from babeltune.evaluate import evaluate
from babeltune.gather import Ranks
from babeltune.gradcache import CachedEncode
from babeltune.method import Batch, Method, Tokens, load_method, make_config
from babeltune.records import Point, Report, Trial, plain
from babeltune.sampler import Schedule, local_sizes, own_rows
from babeltune.store import Matrix, Ragged, open_matrix, open_ragged
from babeltune.tokens import tokenizer_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.prepared import Prepared, TokenSet
    from babeltune.records import Training

POINTS_PER_REPORT = 20


class Reporter(Protocol):
    """Where reports go. Every rank calls it; rank 0's report counts; all ranks receive the same verdict."""

    def report(self, report: dict[str, Any]) -> bool:
        """Hands over a plain `Report`; True means go on."""
        ...


@dataclass
class Reader:
    """Turns rows of the prepared pairs into batches on a device."""

    prepared: Prepared
    tokens: Ragged
    teacher: Matrix | None
    device: torch.device
    sides: frozenset[Literal["source", "target"]]
    negatives: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        self.pairs = self.prepared.pairs()
        self.teacher_rows = self.prepared.teacher_rows()

    def sentences(self, ids: NDArray[np.int64]) -> Tokens:
        values, lengths = self.tokens.take(ids)
        return Tokens(
            torch.from_numpy(values.astype(np.int64)).to(self.device),
            torch.from_numpy(lengths.astype(np.int64)).to(self.device),
        )

    def vectors(self, ids: NDArray[np.int64]) -> Tensor:
        assert self.teacher is not None
        rows = self.teacher.rows(self.teacher_rows[ids])
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)

    def batch(self, rows: NDArray[np.int64], total: int) -> Batch:
        """This rank's rows of a global batch of `total` pairs."""
        sides = self.sides
        source, target = (np.asarray(self.pairs[rows, side], dtype=np.int64) for side in (0, 1))
        negatives = mask = None
        if self.negatives is not None:
            chosen = np.asarray(self.negatives[rows], dtype=np.int64)
            mask = torch.from_numpy(chosen >= 0).to(self.device)
            negatives = self.sentences(np.where(chosen < 0, target[:, None], chosen).reshape(-1))
        return Batch(
            source=self.sentences(source),
            target=self.sentences(target),
            source_ids=torch.from_numpy(source).to(self.device),
            target_ids=torch.from_numpy(target).to(self.device),
            total=total,
            teacher_source=self.vectors(source) if "source" in sides else None,
            teacher_target=self.vectors(source if self.prepared.copy_anchor else target) if "target" in sides else None,
            negatives=negatives,
            negatives_mask=mask,
        )


def learning_rate_at(training: Training, seen: int) -> float:
    """The learning rate after `seen` pairs: warm-up, then linear decay or half a cosine to zero."""
    warm = training.warmup * training.pairs
    if seen < warm:
        return training.learning_rate * seen / warm
    if training.schedule == "constant":
        return training.learning_rate
    progress = min(1.0, (seen - warm) / max(1.0, training.pairs - warm))
    factor = 1 - progress if training.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return training.learning_rate * factor


def make_optimizer(module: nn.Module, training: Training) -> torch.optim.AdamW:
    """Fused AdamW; vectors (biases, norms, temperatures) are not decayed."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=True,
    )


@dataclass
class Learner:
    """What one optimizer step needs and changes."""

    encoder: Encoder
    method: Method
    training: Training
    ranks: Ranks
    device: torch.device
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        self.module = nn.ModuleDict({"student": self.encoder, "method": self.method}).to(self.device)
        self.optimizer = make_optimizer(self.module, self.training)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]

    def backward(self, batch: Batch) -> dict[str, float]:
        """Leaves the gradient of the global loss in every parameter; returns the global loss and its terms."""
        training = self.training
        autocast = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=training.precision == "bf16")

        def encode(tokens: Tokens) -> Tensor:
            with autocast:
                vectors: Tensor = self.encoder(tokens)
            return vectors.float()

        self.ranks.set_sizes(local_sizes(batch.total, self.ranks.world))
        self.optimizer.zero_grad(set_to_none=True)
        cached = CachedEncode(encode, training.chunk) if training.chunk else None
        loss = self.method.loss(cached or encode, batch, self.ranks)
        loss.total.backward()  # type: ignore[no-untyped-call]
        if cached:
            cached.backward()
        self.ranks.sum_gradients(self.parameters)
        shares = {"loss": loss.total.detach(), **loss.terms, **loss.diagnostics}
        return self.ranks.sum_scalars(shares)

    def update(self, seen: int) -> float:
        """One clipped AdamW update at the learning rate of `seen` pairs; returns the gradient's norm."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.training.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.training, seen)
        self.optimizer.step()
        return float(norm)

    def step(self, batch: Batch, seen: int) -> dict[str, float]:
        """One optimizer step on a global batch; `TrainingError` when the loss or its gradient is not finite."""
        values = self.backward(batch)
        if not math.isfinite(values["loss"]):
            raise TrainingError(f"loss is {values['loss']}; lower training.learning_rate or raise the temperature")
        values["gradient_norm"] = self.update(seen)
        if not math.isfinite(values["gradient_norm"]):
            raise TrainingError(f"gradient norm is {values['gradient_norm']}; lower training.learning_rate")
        return values


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of dropout and other randomness within one step on one rank."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def token_set(trial: Trial, prepared: Prepared) -> TokenSet:
    """The tokenizer and token stores of a trial's student."""
    return prepared.tokens[tokenizer_key(trial.student, prepared.text_digest)]


def make_student(trial: Trial, prepared: Prepared) -> Encoder:
    """The untrained student of a trial; the same weights on every rank."""
    tokens = token_set(trial, prepared)
    return build_student(
        trial.student,
        vocabulary_size=tokens.vocabulary,
        pad_token_id=tokens.pad,
        teacher_dim=prepared.teacher_dim,
        seed=trial.seed,
    )


def make_learner(trial: Trial, prepared: Prepared, ranks: Ranks, device: torch.device) -> Learner:
    """The untrained learner of a trial."""
    method = load_method(trial.method)
    encoder = make_student(trial, prepared)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        objective = method(make_config(method, trial.config), student_dim=encoder.dim, teacher_dim=prepared.teacher_dim)
    return Learner(encoder, objective, trial.training, ranks, device)


def make_reader(trial: Trial, prepared: Prepared, device: torch.device) -> Reader:
    """The reader of a trial's batches."""
    method = load_method(trial.method)
    needs = method.needs(make_config(method, trial.config))
    mined = prepared.negatives[needs.negatives_key] if needs.hard_negatives else None
    return Reader(
        prepared,
        open_ragged(Path(token_set(trial, prepared).train)),
        open_matrix(Path(prepared.teacher)) if prepared.teacher else None,
        device,
        needs.teacher,
        np.load(mined, mmap_mode="r") if mined else None,
    )


def dev_scores(
    encoder: Encoder, trial: Trial, prepared: Prepared, ranks: Ranks, device: torch.device
) -> dict[str, float]:
    """All dev metrics of the student. The ranks share the unique sentences and get all the scores."""
    tokens = open_ragged(Path(token_set(trial, prepared).evaluation))

    def embed(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        order = np.random.default_rng(0).permutation(len(ids))
        own = encode_all(encoder, tokens.take, ids[own_rows(order, ranks.rank, ranks.world)], device=device)
        ranks.set_sizes(local_sizes(len(ids), ranks.world))
        with torch.no_grad():
            vectors = ranks(torch.from_numpy(own).to(device)).cpu().numpy()
        restored = np.empty_like(vectors)
        restored[order] = vectors
        return restored

    return evaluate(prepared.tasks, embed)


@dataclass
class Meter:
    """Averages of the training values since the last point, and the points since the last report."""

    every: int
    points: list[Point] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0

    def add(self, step: int, values: Mapping[str, float], learning_rate: float, *, flush: bool) -> None:
        for key, value in values.items():
            self.sums[key] = self.sums.get(key, 0.0) + value
        self.count += 1
        if self.count >= self.every or flush:
            means = {f"train/{key}": total / self.count for key, total in self.sums.items()}
            means["train/learning_rate"] = learning_rate
            self.points.append(Point(step=step, time_ms=int(time.time() * 1000), values=means))
            self.sums, self.count = {}, 0

    def take(self) -> tuple[Point, ...]:
        points, self.points = tuple(self.points), []
        return points


class Run:
    """One trial on one rank, from its last checkpoint to its end."""

    def __init__(
        self, trial: Trial, prepared: Prepared, folder: Path, reporter: Reporter, ranks: Ranks, device: torch.device
    ) -> None:
        self.trial, self.prepared, self.folder, self.reporter = trial, prepared, folder, reporter
        self.ranks, self.device = ranks, device
        self.learner = make_learner(trial, prepared, ranks, device)
        self.reader = make_reader(trial, prepared, device)
        method = load_method(trial.method)
        config = make_config(method, trial.config)
        self.schedule = Schedule(
            prepared.pair_groups(),
            prepared.pair_weights(),
            trial.sampling,
            global_batch=trial.training.global_batch,
            total_pairs=trial.training.pairs,
            seed=trial.seed,
        )
        self.names = {id(p): name for name, p in self.learner.module.named_parameters()}
        batches = self.schedule.counts.sum(axis=1)
        self.facts: dict[str, bool | int | float | str | None] = {
            "world_size": ranks.world,
            "backend": ranks.backend,
            "device": device.type,
            "threads": torch.get_num_threads(),
            "effective_negatives": method.negatives(config, int(np.median(batches))),
            "effective_negatives_least": method.negatives(config, int(batches.min())),
            "student_parameters": sum(p.numel() for p in self.learner.encoder.parameters()),
            "packed": self.learner.encoder.packs,
        }
        self.reports = self.resume()

    def resume(self) -> list[Report]:
        """Puts back the newest good checkpoint; returns the reports made up to it."""
        reports = last_good(self.folder)
        if reports:
            tensors, state = load_checkpoint(checkpoint_folder(self.folder, reports[-1].index))
            self.check_same(state)
            weights = {f"student.{k}": v for k, v in tensors["student"].items()}
            weights |= {f"method.{k}": v for k, v in tensors.get("method", {}).items()}
            self.learner.module.load_state_dict(weights)
            restore_optimizer(self.learner.optimizer, self.learner.module, tensors["optimizer"])
        return reports

    def identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to: the trial's settings, and the data and teacher that it was trained on."""
        return {"trial": plain(self.trial), "prepared": self.prepared.digest}

    def check_same(self, state: Mapping[str, Any]) -> None:
        """Refuses to go on from a checkpoint of other settings or data."""
        for name, value in self.identity().items():
            if state.get(name) != value:
                other = "trial" if name == "trial" else "data set or teacher"
                raise CheckpointError(
                    f"{self.folder} holds checkpoints of another {other}; name another folder, or remove this one"
                )

    def save(self, report: Report) -> None:
        """Writes the checkpoint and then its line in the ledger; keeps the best and the last."""
        self.reports.append(report)
        if self.ranks.rank:
            return
        tensors = {
            "student": dict(self.learner.encoder.state_dict()),
            "optimizer": optimizer_tensors(self.learner.optimizer, self.names),
        }
        if method_state := dict(self.learner.method.state_dict()):
            tensors["method"] = method_state
        state = {**self.identity(), "step": report.step, "pairs": report.pairs, "metrics": report.metrics}
        save_checkpoint(checkpoint_folder(self.folder, report.index), tensors, state)
        write_reports(self.folder, self.reports)
        objective = self.trial.objectives[0]
        best = best_report(self.reports, objective.metric, objective.goal)
        prune_checkpoints(self.folder, {report.index, best.index if best else report.index})

    def out_of_patience(self, metrics: dict[str, float]) -> bool:
        """Whether the first objective has not improved for `training.patience` reports."""
        patience, objective = self.trial.training.patience, self.trial.objectives[0]
        if patience is None:
            return False
        draft = Report(index=len(self.reports) + 1, step=0, pairs=0, seconds=0, metrics=metrics)
        best = best_report([*self.reports, draft], objective.metric, objective.goal)
        return best is not None and draft.index - best.index >= patience

    def train(self) -> list[Report]:
        """Trains to the end or until the verdict is to stop; returns all reports."""
        trial, schedule = self.trial, self.schedule
        milestones = schedule.milestones(trial.training.reports)
        done = self.reports[-1].step if self.reports else 0
        spent = self.reports[-1].seconds if self.reports else 0.0
        if self.reports and self.reports[-1].last:
            self.reporter.report(plain(self.reports[-1]))
            return self.reports
        for index in range(len(self.reports) + 1, len(milestones) + 1):
            started = time.perf_counter()
            end = milestones[index - 1]
            meter = Meter(every=max(1, (end - done) // POINTS_PER_REPORT))
            for step in range(done, end):
                self.one_step(step, meter, flush=step + 1 == end)
            trained = time.perf_counter() - started
            metrics = dev_scores(self.learner.encoder, trial, self.prepared, self.ranks, self.device)
            spent += time.perf_counter() - started
            pairs = int(schedule.seen[end - 1])
            report = Report(
                index=index,
                step=end,
                pairs=pairs,
                seconds=spent,
                metrics={
                    **metrics,
                    "train/pairs": pairs,
                    "train/pairs_per_second": (pairs - self.seen(done)) / trained,
                },
                points=meter.take(),
                checkpoint=str(checkpoint_folder(self.folder, index)),
                last=index == len(milestones) or self.out_of_patience(metrics),
                facts=self.facts,
            )
            self.save(report)
            done = end
            if not self.reporter.report(plain(report)) or report.last:
                break
        return self.reports

    def seen(self, steps: int) -> int:
        return int(self.schedule.seen[steps - 1]) if steps else 0

    def one_step(self, step: int, meter: Meter, *, flush: bool) -> None:
        """Global batch `step`, with its own randomness."""
        rows = self.schedule.rows(step)
        torch.manual_seed(step_seed(self.trial.seed, step, self.ranks.rank))
        batch = self.reader.batch(own_rows(rows, self.ranks.rank, self.ranks.world), len(rows))
        seen = (self.seen(step) + self.seen(step + 1)) // 2
        try:
            values = self.learner.step(batch, seen)
        except TrainingError as error:
            raise TrainingError(f"step {step + 1}: {error}") from error
        meter.add(step + 1, values, learning_rate_at(self.trial.training, seen), flush=flush)


def train(
    trial: Trial, prepared: Prepared, folder: Path, reporter: Reporter, ranks: Ranks, device: torch.device
) -> list[Report]:
    """Trains one trial on this rank, resuming from `folder`; returns its reports.

    Raises `TrainingError` when the loss is not finite or a batch cannot be trained on, on all ranks alike.
    """
    return Run(trial, prepared, folder, reporter, ranks, device).train()


if __name__ == "__main__":
    from babeltune.alone import main

    main()
