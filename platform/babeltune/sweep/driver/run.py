"""Runs a sweep from its file to its last trial: prepare, score the baselines, search on warm worker groups, track.

The driver holds the sweep's lock while it lives. Everything that it knows is in the sweep's folder, so a driver that
died is replaced by submitting the same sweep again."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import ray

from babeltune.errors import ClusterError, ObjectStoreError, SweepError, plural, storage_refusals
from babeltune.files import make_folders, plain
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import methods_used, within_grid
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Sweep
from babeltune.schema.storage_location import DAY_S
from babeltune.signals import StopSignal
from babeltune.sweep.driver.attempt import SweepRun
from babeltune.sweep.driver.changes import add_event, take_requests
from babeltune.sweep.driver.mlflow_reader import track
from babeltune.sweep.driver.recorder import close_tracker
from babeltune.sweep.state.fencing import OvertakenError
from babeltune.sweep.state.folder import SweepFolder, refuse_a_file
from babeltune.sweep.state.leaderboard import winner
from babeltune.sweep.state.lease import folder_lease, leased, only_driver, this_driver, this_ray
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.progress import SweepProgress, is_driven
from babeltune.sweep.state.provenance import check_unchanged, deciding_facts, finish_accepting
from babeltune.sweep.state.rebuild import mend
from babeltune.sweep.sync.audit import audit
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.housekeeping import clean
from babeltune.sweep.sync.notify import failures_notified, notify
from babeltune.sweep.sync.quota import refuse_over_quota
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep.workers.access import open_to_all
from babeltune.sweep.workers.connection import connected

log = logging.getLogger(__name__)


def folder_in(cluster: Cluster, sweep: str) -> SweepFolder:
    """Where the sweep with this id is kept."""
    return SweepFolder(cluster.folder / "sweeps" / sweep)


def driven_folder(sweep: str, cluster: Cluster) -> SweepFolder | None:
    """The folder of the sweep with this id if a driver runs it now."""
    folder = StorageView(cluster).at(sweep)
    return folder if folder.path.exists() and is_driven(folder) else None


def submit(
    sweep: Sweep,
    cluster: Cluster,
    *,
    into: str | None = None,
    accept_changes: bool = False,
    insecure: bool = False,
    over_quota: bool = False,
    watch: Callable[[SweepProgress], None] | None = None,
) -> SweepFolder:
    """Runs the sweep until its budget is spent; an earlier, unfinished submission is continued.

    `into` is the id of the sweep that goes on with this spec, if that is not the spec's own. The folder keeps the
    latest spec; one that decides other results needs `accept_changes`, a cluster that wants no token `insecure`, and a
    spent quota `over_quota`.
    Raises `DataError` and `TeacherError` before anything starts, `SweepError` when it is being run already or every
    trial fails, `ClusterError` when the cluster cannot hold one trial."""
    sweep = within_grid(sweep)
    folder = folder_in(cluster, into or sweep_id(sweep))
    with failures_notified(cluster, "sweep", folder.id), storage_refusals(folder.path), ExitStack() as shared:
        cluster = cluster.with_workers(sweep.budget.workers)
        refuse_a_file(cluster.folder)
        over = "" if _is_done(folder, sweep) else refuse_over_quota(cluster, over_quota=over_quota)
        _make(folder, cluster)
        driver_sync = shared.enter_context(DriverSync(cluster, folder, needs=sweep.sampler.warm_start))
        shared.enter_context(only_driver(folder))
        folder.stop_request.unlink(missing_ok=True)  # from now on it is for this driver
        ray_at, stop = "", StopSignal(folder.stop_request.exists, driver_sync.check)
        if cluster.address != "local" or ray.is_initialized():
            ray_at = _connect(cluster, folder, shared, insecure=insecure)
        if driver_sync.where is None:  # else `driver_sync` has the lease in the bucket
            lease = shared.enter_context(folder_lease(folder, ray_at))
            driver_sync.token, stop.refused, stop.guard = lease.token, lease.check, lease.guard
            folder = replace(folder, guard=lease.guard)
        if over:
            folder.note(over)
        mend(folder)
        finish_accepting(folder)
        stop.requests = functools.partial(take_requests, folder)
        stop.paused = lambda: log_of(folder.path).sweep_paused
        if stop.paused():  # whoever starts it again continues it
            add_event(folder, "continue")
        folder.write("driver.json", this_driver())
        check_unchanged(folder, deciding_facts(methods_used(sweep)), accept=accept_changes, sweep=sweep)
        return _submit(sweep, cluster, folder, driver_sync, stop, accept=accept_changes, watch=watch)


def _connect(cluster: Cluster, folder: SweepFolder, shared: ExitStack, *, insecure: bool) -> str:
    """Connects to Ray and takes the lease of the sweep, until `shared` closes. Returns the identity of the cluster."""
    shared.enter_context(connected(cluster, insecure=insecure))
    shared.enter_context(leased(folder.id))
    address = ray.get_runtime_context().gcs_address
    if insecure and (danger := open_to_all(cluster.title, address)):
        folder.note(danger)
        log.warning(danger)
    return this_ray(address)


def _is_done(folder: SweepFolder, sweep: Sweep) -> bool:
    """Whether the sweep has all of its trials, and the models to buy are those that it was compared with."""
    same = (folder.read("sweep.json") or {}).get("baselines") == plain(sweep.baselines)
    return same and folder.state() == "finished" and folder.has_all_trials(sweep)


def _make(folder: SweepFolder, cluster: Cluster) -> None:
    """Makes the sweep's folder. `ClusterError` if the storage cannot be written."""
    try:
        make_folders(folder.path)
    except OSError as error:
        raise ClusterError(
            f"the storage {cluster.folder} cannot be written ({error.strerror}); set BABELTUNE_HOME, or `storage` in "
            "the cluster file, to a folder that can"
        ) from error


def _submit(
    sweep: Sweep,
    cluster: Cluster,
    folder: SweepFolder,
    driver_sync: DriverSync,
    stop: StopSignal,
    *,
    accept: bool,
    watch: Callable[[SweepProgress], None] | None,
) -> SweepFolder:
    """`submit`, by the driver that has the folder and its lease."""
    done = _is_done(folder, sweep)
    if not (done and folder.read("sweep.json") == plain(sweep)):  # the sweep written last is the latest
        folder.write("sweep.json", sweep)
    ended = log_of(folder.path).ended
    if done:
        close_tracker(track(cluster.mlflow, folder, sweep.name, driver_sync.key_of), folder)  # what is not sent yet
        return folder
    progress = SweepProgress(sweep, folder, ended=ended, before=ended)
    if watch:
        watch(progress)
    folder.set_state("running")
    audit(view := StorageView(cluster), "submit", folder.id)
    with _kept_in_state(folder, view):
        complete = SweepRun(sweep, cluster, folder, progress, driver_sync, stop, accept).run()
    folder.set_state("finished" if complete else "stopped")
    notify(cluster, "end", folder.id, _ending(folder))
    _clean(cluster, folder)
    return folder


def _ending(folder: SweepFolder) -> str:
    """How the sweep ended, in a sentence."""
    ended = f"sweep {folder.id} is {folder.state()} after {plural(log_of(folder.path).ended, 'trial')}"
    with contextlib.suppress(SweepError):
        best = winner(folder)
        metric = folder.sweep().objectives[0].metric
        return f"{ended}; the best is {best.name}, {metric} {best.metrics[metric]:.4f}"
    return ended


def _clean(cluster: Cluster, folder: SweepFolder) -> None:
    """Cleans as `clean_after_days` of the cluster file says. This sweep is still held, so its turn is a later one."""
    if cluster.clean_after_days is None:
        return
    with contextlib.suppress(OSError, SweepError, ObjectStoreError):
        count, freed = clean(StorageView(cluster), older_s=cluster.clean_after_days * DAY_S)
        if count:
            folder.note(f"removed {count} files and folders, {freed / 1e6:,.1f} MB (clean_after_days)")


@contextmanager
def _kept_in_state(folder: SweepFolder, view: StorageView) -> Iterator[None]:
    """Records how the block ended as the sweep's state, as far as the storage takes it."""
    try:
        yield
    except KeyboardInterrupt:
        folder.set_state("interrupted")
        audit(view, "stop", folder.id, by_signal=True)
        raise
    except OvertakenError:
        raise
    except BaseException as error:
        with contextlib.suppress(OSError, SweepError):
            folder.set_state("failed", reason=f"{type(error).__name__}: {error}"[:2000])
        raise
