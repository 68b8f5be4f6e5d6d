"""Trains one configuration on this rank's share of every global batch: the loop that all trials run.

It needs only torch and transformers, so it runs in a worker group's worker, under a profiler, or alone: `python -m
babeltune.train FILE`. Randomness inside a step is a function of (seed, step, rank), and the batches are a function of
(seed, step). So a trial resumes exactly from its tensors and its step number."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from babeltune.data.thresholds import passing
from babeltune.errors import CheckpointError, StorageError
from babeltune.evaluation.metric_names import COMPUTE
from babeltune.files import plain, write_json
from babeltune.memory import give_back_memory
from babeltune.method import Needs, TrialContext, trial_context
from babeltune.method.distributed import ProcessGroup
from babeltune.schema.records import Point, Report, Scalar, Trial
from babeltune.stages import EVALUATING, Stage
from babeltune.training.averages import Averages, Interval
from babeltune.training.build import make_steps, token_set
from babeltune.training.checkpoint import (
    PROGRESS,
    Guard,
    add_report,
    best_report,
    checkpoint_folder,
    is_good,
    last_good,
    last_stopped,
    load_checkpoint,
    optimizer_tensors,
    prune_checkpoints,
    read_reports,
    read_state,
    restore_optimizer,
    save_checkpoint,
    state_of,
    stopped_folder,
    write_reports,
)
from babeltune.training.compute import paid_for
from babeltune.training.dev_evaluation import EvaluationLeftError, dev_scores
from babeltune.training.step import halvings_after, learning_rate_at

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared

POINTS_PER_REPORT = 20
STOP_POLL_INTERVAL_S = 1.0  # seconds between two checks for a stop request
PROGRESS_INTERVAL_S = 2.0  # seconds between notes of how far a trial is
VISIBILITY_TIMEOUT_S = 90.0
"""Seconds within which a shared folder shows every node what another wrote: NFS looks again after 60."""
TRIM_INTERVAL_S = 20.0  # seconds between returns of freed memory
COLLAPSED = 0.99  # a trial ends whose vectors of different dev sentences have at least this mean cosine


class Reporter(Protocol):
    """Where reports go. Every rank calls it; rank 0's report counts; all ranks receive the same verdict."""

    def report(self, report: Report) -> bool:
        """Hands over a report; True means go on."""

    def stopped(self) -> bool:
        """Whether a stop was requested since the last report. Rank 0 asks about once a second of progress."""
        return False

    def checkpoint_saved(self) -> None:
        """Called on rank 0 after it wrote a checkpoint between two reports."""
        return


class TrialTrainer:
    """One trial on one rank, from its last checkpoint to its end."""

    def __init__(
        self,
        trial: Trial,
        prepared: Prepared,
        folder: Path,
        reporter: Reporter,
        ranks: ProcessGroup,
        device: torch.device,
        guard: Guard = contextlib.nullcontext,
    ) -> None:
        """Rank 0 writes to the folder within `guard()`, which raises if the trial is another driver's by now."""
        self.context = context = trial_context(trial.method, trial.config)
        trial = paid_for(trial, prepared, ranks, device)
        self.trial, self.prepared, self.folder, self.reporter = trial, prepared, folder, reporter
        self.ranks, self.device, self.guard = ranks, device, guard
        self.steps = make_steps(trial, prepared, ranks, device, context)
        self.train_step, self.needs = self.steps.train_step, context.needs
        self.names = {id(p): name for name, p in self.train_step.module.named_parameters()}
        batches = self.steps.schedule.counts.sum(axis=1)
        self.noted = self.cleaned = -math.inf
        self.looked_at = self.saved_at = time.monotonic()
        self.began = time.perf_counter()
        """When the trial's seconds were zero, by this clock."""
        self.interval: Interval | None = None
        """The interval of a loaded checkpoint that lies between two reports; None once training goes on."""
        self.values: Mapping[str, float] = {}
        """The result of the latest step."""
        self.facts: dict[str, Scalar] = {
            "world_size": ranks.world,
            "backend": ranks.backend,
            "device": device.type,
            "threads": torch.get_num_threads(),
            "effective_negatives": prepared.negatives_seen(context, int(np.median(batches))),
            "effective_negatives_least": prepared.negatives_seen(context, int(batches.min())),
            "packed": self.train_step.encoder.packs,
        }
        if not self.needs.frozen and (tokens := token_set(trial, prepared)).untrimmed:
            self.facts |= {"vocabulary": tokens.vocabulary, "vocabulary_untrimmed": tokens.untrimmed}
        if self.steps.reader.words is not None and (usable := self.steps.reader.usable()) is not None:
            self.facts |= {
                "word_samples": len(self.steps.reader.words),
                "pairs_without_words": len(self.steps.reader.pairs) - len(usable),
            }
        passed = passing(prepared, trial.sampling)
        if passed is not None:
            self.facts["pairs_left_out"] = len(self.steps.reader.pairs) - len(passed)
        self.reports = self.resume()
        if not self.reports and self.interval is None and self.needs.warm_up:
            self.train_step.method.warm_up(*self.steps.reader.anchors(self.needs.warm_up, trial.seed, passed))

    def resume(self) -> list[Report]:
        """Puts back the newest good checkpoint; returns the reports made up to it."""
        self.see_the_same()
        reports = last_good(self.folder)
        self.goes_back = len(reports) < len(read_reports(self.folder))  # as their checkpoints are damaged
        checkpoint = last_stopped(self.folder)
        cut = is_good(checkpoint)
        if not cut or read_state(checkpoint)["reports"] != len(reports):
            if not reports:
                return []
            checkpoint, cut = checkpoint_folder(self.folder, reports[-1].index), False
        tensors, state = load_checkpoint(checkpoint)
        self.check_same(state)
        weights = {f"student.{k}": v for k, v in tensors["student"].items()}
        weights |= {f"method.{k}": v for k, v in tensors.get("method", {}).items()}
        self.train_step.module.load_state_dict(weights)
        if self.train_step.average:
            self.train_step.average.restore(tensors)
        for optimizer in self.train_step.optimizers:
            restore_optimizer(optimizer, self.train_step.module, tensors["optimizer"])
        if cut:
            self.interval = Interval.read(state["interval"])
        return reports

    def see_the_same(self) -> None:
        """Waits until this rank sees the checkpoints that rank 0 sees: a shared folder may show them later elsewhere.

        Raises `StorageError` if it does not within `VISIBILITY_TIMEOUT_S` seconds."""
        if self.ranks.world == 1:
            return
        first_state = self.ranks.of_first(state_of(self.folder), self.device)
        deadline = time.monotonic() + VISIBILITY_TIMEOUT_S
        while state_of(self.folder) != first_state:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"the storage shows rank {self.ranks.rank} other checkpoints in {self.folder} than rank 0 "
                    f"for {VISIBILITY_TIMEOUT_S:g} s; check that all nodes mount the same folder, "
                    "then `babeltune resume`"
                )
            time.sleep(0.5)

    def identity(self) -> dict[str, Any]:
        """The identity of a checkpoint: the trial's settings, and the data and teacher that it was trained on."""
        training = plain(self.trial.training)
        del training["checkpoint_minutes"], training["capture"]  # which change how, and not what
        trial = {**plain(self.trial), "training": training}
        del trial["speed"], trial["fitted"]  # `config` has the latter
        return {"trial": trial, "prepared": self.prepared.digest}

    def check_same(self, state: Mapping[str, object]) -> None:
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
        self.saved_at = time.monotonic()
        if self.ranks.rank:
            return
        state = {"step": report.step, "pairs": report.pairs, "metrics": report.metrics}
        self.write(checkpoint_folder(self.folder, report.index), state)
        best = best_report(self.reports, *self.trial.objectives)
        with self.guard():
            if self.goes_back:
                write_reports(self.folder, self.reports)
            else:
                add_report(self.folder, report)
            self.goes_back = False
            prune_checkpoints(self.folder, {report.index, best.index if best else report.index})

    def save_interval(self, interval: Interval) -> None:
        """Writes a checkpoint between two reports, from which a resumed trial goes on at this very step. Where that
        fails it goes on from the last report."""
        if self.ranks.rank == 0:
            with contextlib.suppress(StorageError):
                self.write(stopped_folder(self.folder), {"reports": len(self.reports), "interval": interval.plain()})

    def keep(self, interval: Interval, step: int, seconds: float) -> None:
        """Writes a checkpoint between two reports if the last one is `training.checkpoint_minutes` old."""
        minutes = self.trial.training.checkpoint_minutes
        if self.ranks.rank or minutes is None or time.monotonic() - self.saved_at < 60 * minutes:
            return
        self.save_interval(replace(interval, step=step, seconds=seconds))
        self.reporter.checkpoint_saved()
        self.saved_at = time.monotonic()  # after it was sent, so that a slow storage leaves time to train

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """A checkpoint of this moment."""
        tensors = {"optimizer": optimizer_tensors(self.train_step.optimizers, self.names)}
        if self.train_step.average:
            tensors |= self.train_step.average.tensors()
        with self.train_step.averaged():
            tensors["student"] = dict(self.train_step.encoder.state_dict())
            if method_state := dict(self.train_step.method.state_dict()):
                tensors["method"] = method_state
        save_checkpoint(folder, tensors, {**self.identity(), **state}, self.guard)

    def train(self) -> list[Report]:
        """Trains to the end or until a stop is requested; returns all reports."""
        trial, schedule = self.trial, self.steps.schedule
        milestones = schedule.milestones(trial.training.reports)
        done = self.reports[-1].step if self.reports else 0
        spent = self.reports[-1].seconds if self.reports else 0.0
        self.began = time.perf_counter() - spent - (self.interval.seconds if self.interval else 0.0)
        if self.reports:  # it may not have been handed over: a checkpoint comes before its report
            last = self.reports[-1]
            if not self.reporter.report(last) or last.last:
                return self.reports
        self.note_progress(done, {})
        for index in range(len(self.reports) + 1, len(milestones) + 1):
            self.train_step.halvings = plateau_halvings(trial, self.reports)
            end = milestones[index - 1]
            fresh = Interval(done, Averages(every=max(1, (end - done) // POINTS_PER_REPORT)))
            interval, self.interval = self.interval or fresh, None
            started = time.perf_counter() - interval.seconds
            self.began = started - spent
            for step in range(interval.step, end):
                self.one_step(step, interval.meter, flush=step + 1 == end)
                if self.train_step.stopping:
                    return self.leave(interval, step + 1, time.perf_counter() - started)
                if step + 1 < end:
                    self.keep(interval, step + 1, time.perf_counter() - started)
            trained = time.perf_counter() - started
            try:
                metrics = self.scores(end)
            except EvaluationLeftError:
                return self.leave(interval, end, trained)
            spent = time.perf_counter() - self.began
            report = self.made_report(end, metrics, interval.meter.take(), spent, trained)
            self.save(report)
            done = end
            if not self.reporter.report(report) or report.last or "collapsed" in report.facts:
                break
        return self.reports

    def made_report(
        self, step: int, metrics: dict[str, float], points: tuple[Point, ...], spent: float, trained: float
    ) -> Report:
        """The next report, after this step. `spent` seconds are the trial's, `trained` those since the last report."""
        trial, done = self.trial, self.reports[-1].step if self.reports else 0
        index, pairs = len(self.reports) + 1, self.steps.seen(step)
        compute = trial.training.compute
        speed = (pairs - self.steps.seen(done)) / trained
        costs = {"train/pairs": pairs, "train/pairs_per_second": speed}
        if compute is not None:
            costs[COMPUTE] = compute * pairs / trial.training.pairs
        return Report(
            index=index,
            step=step,
            pairs=pairs,
            seconds=spent,
            metrics=metrics | costs,
            points=points,
            checkpoint=str(checkpoint_folder(self.folder, index)),
            last=index == trial.training.reports or out_of_patience(trial, self.reports, metrics),
            steps=len(self.steps.schedule),
            facts=self.facts | self.capture() | warning(self.context, points) | collapse(self.needs, metrics),
        )

    def capture(self) -> dict[str, Scalar]:
        """The fact `capture`, if steps are to be recorded."""
        return {"capture": self.train_step.capture.summary} if self.train_step.capture else {}

    def scores(self, step: int) -> dict[str, float]:
        """All dev metrics after this step, with the averages of the weights if there are some."""
        train_step, begun = self.train_step, time.time()

        def poll(done: int, of: int) -> None:
            self.poll_stop_while_evaluating()
            stage = Stage(name=EVALUATING, done=done, of=of, begun=begun, time=time.time())
            self.note_progress(step, self.values, stage=stage)

        with train_step.averaged():
            return dev_scores(
                train_step.encoder, train_step.method, self.trial, self.prepared, self.ranks, self.device, poll
            )

    def leave(self, interval: Interval, step: int, seconds: float) -> list[Report]:
        """Keeps where a stop met the trial: after this step. Returns all reports."""
        interval.step, interval.seconds = step, seconds
        self.save_interval(interval)
        self.note_progress(step, {}, now=True)
        return self.reports

    def trim_memory(self) -> None:
        """Gives freed memory back now and then; at every step the system would be busy handing it out again."""
        if time.monotonic() - self.cleaned > TRIM_INTERVAL_S:
            give_back_memory()
            self.cleaned = time.monotonic()

    def poll_stop_while_evaluating(self) -> None:
        """Rank 0's heartbeat while it evaluates; raises `EvaluationLeftError` when a stop is requested."""
        if self.ranks.rank == 0 and time.monotonic() - self.looked_at > PROGRESS_INTERVAL_S:
            self.looked_at = time.monotonic()
            if self.reporter.stopped():
                raise EvaluationLeftError

    def poll_stop(self) -> bool:
        """Whether the trial was asked to stop. Only rank 0 asks; the others learn of it with the loss."""
        if self.ranks.rank or time.monotonic() - self.looked_at < STOP_POLL_INTERVAL_S:
            return False
        self.looked_at = time.monotonic()
        return self.reporter.stopped()

    def note_progress(
        self, step: int, values: Mapping[str, float], *, now: bool = False, stage: Stage | None = None
    ) -> None:
        """Writes step, time, loss and stage to `progress.json` now and then, or `now`, for readers between reports."""
        if self.ranks.rank or (time.monotonic() - self.noted < PROGRESS_INTERVAL_S and not now):
            return
        self.noted = time.monotonic()
        with contextlib.suppress(OSError), self.guard():  # a checkpoint will say what the disk refuses
            now_at = {
                "step": step,
                "steps": len(self.steps.schedule),
                "seconds": time.perf_counter() - self.began,
                "loss": values.get("loss"),
                "stage": plain(stage),
            }
            write_json(self.folder / PROGRESS, now_at, durable=False)

    def one_step(self, step: int, meter: Averages, *, flush: bool) -> None:
        """Step `step`, counted from 0, and what is noted of it."""
        self.train_step.stop = self.poll_stop()
        values = self.values = self.steps.run(step)
        rate = learning_rate_at(self.trial.training, self.steps.halfway(step), self.train_step.halvings)
        meter.add(step + 1, values, rate, flush=flush)
        self.note_progress(step + 1, values)
        self.trim_memory()


def plateau_halvings(trial: Trial, reports: Sequence[Report]) -> int:
    """How often a plateau of the first objective has halved the learning rate."""
    if trial.training.schedule != "plateau":
        return 0
    objective = trial.objectives[0]
    return halvings_after([report.metrics[objective.metric] for report in reports], objective.goal)


def out_of_patience(trial: Trial, reports: Sequence[Report], metrics: dict[str, float]) -> bool:
    """Whether the first objective has not improved for `training.patience` reports."""
    patience, objective = trial.training.patience, trial.objectives[0]
    if patience is None:
        return False
    draft = Report(index=len(reports) + 1, step=0, pairs=0, seconds=0, metrics=metrics)
    best = best_report([*reports, draft], objective)
    return best is not None and draft.index - best.index >= patience


def collapse(needs: Needs, metrics: Mapping[str, float]) -> dict[str, Scalar]:
    """The fact `collapsed`, if the student gives different sentences nearly the same vector.

    A method that neither contrasts vectors nor follows a teacher's, such as masked language modelling, may."""
    shaped = needs.teacher or needs.in_batch_negatives or needs.hard_negatives
    cosine = metrics.get("dev/mean_cosine", 0.0)
    if cosine < COLLAPSED or not shaped:
        return {}
    return {
        "collapsed": f"collapsed: different dev sentences have a mean cosine of {cosine:.4f}; "
        "lower training.learning_rate or raise the temperature"
    }


def warning(context: TrialContext, points: Sequence[Point]) -> dict[str, Scalar]:
    """The fact `warning`, if the method has one about the latest of these points."""
    values = points[-1].values if points else {}
    words = context.method_class.warning({name.removeprefix("train/"): value for name, value in values.items()})
    return {"warning": words} if words else {}


def train(
    trial: Trial,
    prepared: Prepared,
    folder: Path,
    reporter: Reporter,
    ranks: ProcessGroup,
    device: torch.device,
    guard: Guard = contextlib.nullcontext,
) -> list[Report]:
    """Trains one trial on this rank, resuming from `folder`; returns its reports. It writes within `guard()`.

    Raises `TrainingError` when the loss is not finite or a batch cannot be trained on, on all ranks alike."""
    trainer = TrialTrainer(trial, prepared, folder, reporter, ranks, device, guard)
    try:
        return trainer.train()
    finally:
        if trainer.train_step.capture:
            trainer.train_step.capture.release()
