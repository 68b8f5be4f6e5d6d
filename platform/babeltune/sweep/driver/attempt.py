"""One attempt at a sweep: prepare, score the baselines, search on warm worker groups, track."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from babeltune.data.corpus import Corpus
from babeltune.data.prepared import Prepared, write_prepared
from babeltune.data.shards import RunShards
from babeltune.errors import DispatcherDiedError
from babeltune.planning.preparation import prepare, read_corpus
from babeltune.planning.space import Suggests, suggest
from babeltune.planning.warnings import about_text
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Scalar, Sweep
from babeltune.signals import StopRequestedError, StopSignal, interrupts
from babeltune.stages import SEARCHING, STARTING, listening
from babeltune.sweep.driver.assignment import assignment
from babeltune.sweep.driver.baselines import score_baselines
from babeltune.sweep.driver.examples import examples_at_the_end
from babeltune.sweep.driver.gauges import SweepGauges
from babeltune.sweep.driver.keep import CheckpointPolicy
from babeltune.sweep.driver.measurements import measure_rates, measure_temperatures, with_gpu_share
from babeltune.sweep.driver.mlflow_reader import track
from babeltune.sweep.driver.recorder import Recorder
from babeltune.sweep.search.tune_run import search
from babeltune.sweep.search.tune_searcher import Callbacks, Event, OnEvent
from babeltune.sweep.search.warm_start import warm_trials
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.messages import ENDED, TrialAssignment, TrialOutcome
from babeltune.sweep.state.progress import SweepProgress
from babeltune.sweep.state.provenance import check_text, check_unchanged
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.workers.autoscaling import nodes_asked
from babeltune.sweep.workers.connection import connected
from babeltune.sweep.workers.nodes import are_several, worker_groups_that_fit
from babeltune.sweep.workers.pool import WorkerPool
from babeltune.sweep.workers.pool_settings import PoolSettings
from babeltune.sweep.workers.tasks import followed, ray_refusals, ray_shards

Action = Callable[[], None]
DISPATCHERS = 4  # dispatchers of one driver. The sweep ends when the last of them dies.
PAUSED = "paused; `babeltune continue` goes on"
PAUSE_POLL_S = 0.5  # seconds between two looks whether a paused sweep goes on
DISPATCHER_DIED = "the dispatcher died; worker groups start again, and trials go on from their checkpoints"
SAVING = "interrupted; saving every trial's step (a second Ctrl-C ends without)"


def replacing_dispatchers(run_search: Action, note: Callable[[str], None]) -> None:
    """Searches, anew each time that the dispatcher dies. Raises `DispatcherDiedError` when `DISPATCHERS` have died."""
    for remaining in reversed(range(DISPATCHERS)):
        try:
            run_search()
            break
        except DispatcherDiedError:
            if not remaining:
                raise
            note(DISPATCHER_DIED)


@dataclass(frozen=True)
class SweepRun:
    """The tools of a driver while it runs a sweep."""

    sweep: Sweep
    cluster: Cluster
    folder: SweepFolder
    progress: SweepProgress
    driver_sync: DriverSync
    stop: StopSignal
    accept: bool  # whether data that changed since the sweep began are accepted

    def report_progress(self, stage: str, done: int, of: int) -> None:
        """Reports progress. Raises `StopRequestedError` if a stop was asked for."""
        self.progress.progress(stage, done, of)
        self.stop.raise_if_stopped()

    def run(self) -> bool:
        """Preparation and search; True if the budget's trials are all there, False after a request to stop."""
        sweep, cluster, folder = self.sweep, self.cluster, self.folder
        try:
            self.stop.raise_if_stopped()
            warm_trials(folder.path, sweep, self._suggest)
            corpus = self._read(None) if cluster.address == "local" else None  # broken text is known before Ray starts
            survey = functools.partial(nodes_asked, cluster, note=self.progress.note, progress=self.report_progress)
            self.report_progress(STARTING, 0, 0)
            with connected(cluster), ray_refusals():
                if not cluster.nodes_within:  # it is known before all that is prepared
                    shares = cluster.cpus_per_worker, cluster.gpus
                    worker_groups_that_fit(cluster.workers, *shares, least=cluster.least_workers)
                corpus = corpus or self._read(self._shards() if are_several() else None)
                with survey(trials=1):
                    prepared, sized = self._prepare(corpus)
                del corpus  # its files take room on the disk
                with survey(trials=sweep.budget.trials - self.progress.before) as surveyed:
                    return replace(self, cluster=sized)._search(prepared, surveyed)
        except StopRequestedError:
            return False

    def _suggest(self, trial: Suggests) -> dict[str, Scalar]:
        return suggest(self.sweep.parameters, trial)

    def _shards(self) -> RunShards:
        """Runs shards as tasks of the cluster."""
        return functools.partial(
            ray_shards,
            share=self.cluster.gpus,
            carrier=self.driver_sync.carrier,
            poll=self.stop.raise_if_stopped,
            progress_timeout=self.cluster.progress_timeout,
        )

    def _read(self, shards: RunShards | None) -> Corpus:
        """The clean corpus, after what `plan` says of its text. With `shards` the nodes share the work."""
        corpus = read_corpus(self.sweep, self.folder.path.parents[1], self.report_progress, shards)
        if not self.accept:
            check_text(self.folder, corpus.digests)
        for words in about_text(self.sweep, corpus):
            self.progress.note(f"warning: {words}")
        return corpus

    def _prepare(self, corpus: Corpus) -> tuple[Prepared, Cluster]:
        """The stores, made if they are not there yet, and the cluster with the share of a GPU that a trial needs."""
        sweep, folder, where, poll = self.sweep, self.folder, self.driver_sync.where, self.stop.raise_if_stopped
        shards, report = self._shards(), self.report_progress
        prepared = prepare(sweep, folder.path.parents[1], corpus=corpus, run_shards=shards, progress=report)
        check_unchanged(folder, {"data": prepared.digest}, accept=self.accept)
        with folder.guard():
            write_prepared(prepared, folder.prepared)
        self.driver_sync.publish(prepared, self.progress.progress)
        measure_temperatures(sweep, prepared, folder)
        follow = functools.partial(followed, poll=poll, seconds=self.cluster.progress_timeout)
        score_baselines(sweep, prepared, folder, report, follow, gpus=self.cluster.gpus, where=where)
        return prepared, with_gpu_share(self.cluster, sweep, prepared, folder, report, follow, where=where)

    def _search(self, prepared: Prepared, surveyed: Callable[[int], None]) -> bool:
        """The search; True when the budget's trials are all there."""
        sweep, folder, progress = self.sweep, self.folder, self.progress
        progress.progress("starting worker groups", 0, 1)
        measure_rates(sweep, folder, self.cluster, self.stop.raise_if_stopped)
        with (
            listening(progress.progress),
            examples_at_the_end(folder, self.driver_sync.where) as begin_examples,
            self._recorder(prepared) as recorder,
        ):
            run_search = functools.partial(self._search_or_wait, recorder, surveyed, begin_examples)
            replacing_dispatchers(run_search, progress.note)
        progress.progress("done" if recorder.complete else "stopped", progress.ended, sweep.budget.trials)
        return recorder.complete

    def _search_or_wait(self, recorder: Recorder, surveyed: Callable[[int], None], begin_examples: Action) -> None:
        """Searches on worker groups. While the sweep is paused, it has none, and waits to be continued."""
        trials, pauses = self.sweep.budget.trials, -1
        while not recorder.complete:
            log = log_of(self.folder.path)
            if not log.waits(trials) and log.pauses == pauses:
                return
            pauses = log.pauses
            if log.waits(trials):
                self.folder.set_state("paused")
                self.progress.progress(PAUSED, self.progress.ended, trials)
                while log_of(self.folder.path).waits(trials):
                    self.stop.raise_if_stopped()
                    time.sleep(PAUSE_POLL_S)
                self.folder.set_state("running")
            self.stop.pausing = False
            self._search_with_pool(recorder, surveyed, begin_examples)
            if self.stop.requested():
                return

    def _search_with_pool(self, recorder: Recorder, surveyed: Callable[[int], None], begin_examples: Action) -> None:
        """Searches on new worker groups. Raises `DispatcherDiedError` if these are lost with their dispatcher."""
        progress = self.progress
        settings, waiting = self._pool_settings(), self.stop.raise_if_stopped
        with WorkerPool(settings, note=progress.note, surveyed=surveyed, waiting=waiting) as pool:
            self._begin()
            with interrupts(self.stop, lambda: progress.progress(SAVING, progress.ended, self.sweep.budget.trials)):
                recorder.complete = search(
                    self.sweep,
                    pool=pool,
                    folder=self.folder.path,
                    suggest=self._suggest,
                    callbacks=Callbacks(self._assignment, self._listener(recorder)),
                    trials=self.sweep.budget.trials,
                    stop=self.stop,
                )
            if self.stop.interrupted and not recorder.complete:
                raise KeyboardInterrupt
            if recorder.complete:
                begin_examples()
            progress.progress("closing worker groups", progress.ended, self.sweep.budget.trials)

    def _pool_settings(self) -> PoolSettings:
        cluster, remaining = self.cluster, max(1, self.sweep.budget.trials - self.progress.ended)
        return PoolSettings(
            count=remaining if cluster.worker_groups == "auto" else min(remaining, cluster.worker_groups),
            workers=cluster.workers,
            cpus_per_worker=cluster.cpus_per_worker,
            gpus_per_worker=cluster.gpus,
            run_trial="babeltune.sweep.workers.run_trial:run",
            storage=self.folder.path / "train",
            least_workers=cluster.least_workers,
            isolation=cluster.isolation,
            progress_timeout=cluster.progress_timeout,
        )

    def _recorder(self, prepared: Prepared) -> Recorder:
        """The recorder of the sweep's runs in MLflow."""
        sweep, folder, cluster = self.sweep, self.folder, self.cluster
        world: dict[str, Scalar] = {
            "fact.world_size": cluster.workers,
            # until a trial's first report says which it was
            "fact.backend": "nccl" if cluster.gpus else "gloo",
        }
        policy = CheckpointPolicy(sweep, folder, self.driver_sync)
        tracker = track(cluster.mlflow, folder, sweep.name, self.driver_sync.key_of)
        return Recorder(sweep, folder, prepared, tracker, world, cluster, policy)

    def _begin(self) -> None:
        """Notes that the search begins, and when its minutes end."""
        sweep, progress = self.sweep, self.progress
        begun = sum(r.step / r.steps for r in leaderboard(self.folder) if r.state not in ENDED and r.steps)
        progress.progress(SEARCHING, progress.ended, sweep.budget.trials, first=progress.ended + begun)
        if sweep.budget.minutes is not None:
            self.stop.start_minutes(sweep.budget.minutes)

    def _assignment(self, number: int, params: dict[str, Scalar]) -> TrialAssignment:
        return self.driver_sync.for_any_node(assignment(self.sweep, self.folder, number, params))

    def _listener(self, recorder: Recorder) -> OnEvent:
        """Passes every event of a trial on to the storage, to the driver's log, to Ray and to the sweep's progress."""
        progress, gauges = self.progress, SweepGauges(self.sweep, self.folder.id)

        def on_event(kind: Literal["start", "report", "end"], number: int, event: Event) -> None:
            self.driver_sync.fetch_reports(number, event)
            recorder.on_event(kind, number, event)
            self.driver_sync.wake()
            gauges.show(kind, log_of(self.folder.path))
            if isinstance(event, TrialOutcome) and event.state in ENDED:
                progress.ended = log_of(self.folder.path).ended
                progress.progress(progress.stage, progress.ended, self.sweep.budget.trials)

        return on_event
