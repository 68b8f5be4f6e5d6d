"""Each private part of Ray that is used, with its reason and what to do when it moves. No other file touches one.

They have no public counterpart, so `pyproject.toml` binds Ray to 2.60. A test looks each of them up, and names those
that a newer Ray lacks. Classes are imported when they are asked for: Ray Train's take a second."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import AuthenticationError
from ray.job_config import JobConfig

if TYPE_CHECKING:
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData as PlacementGroupTableData

CLASSES = {
    # Tune's handle of a trial's actor: trials have none, as each takes 115 MB. Moved: see what `add_actor` of Tune's
    # actor manager returns (`search/trial_proxy.py` has the methods that the controller calls).
    "TrackedActor": "ray.air.execution._internal.tracked_actor",
    # A controller on a chosen node. Moved: `DataParallelTrainer._initialize_and_run_controller` starts it.
    "TrainController": "ray.train.v2._internal.execution.controller",
    "DataParallelTrainer": "ray.train.v2.api.data_parallel_trainer",
    # Ranks that go on with fewer, without Ray's coordinator of requests. Moved: the controller's `scaling_policy`.
    **dict.fromkeys(
        ("FixedScalingPolicy", "NoopDecision", "ResizeDecision"), "ray.train.v2._internal.execution.scaling_policy"
    ),
    # Callbacks that a worker group does without, as some start a process each. Moved: drop the name from `LEFT_OUT`,
    # and look whether a group has more processes than before.
    **dict.fromkeys(("DatasetsCallback", "WorkingDirectorySetupCallback"), "ray.train.v2._internal.callbacks"),
    **dict.fromkeys(("ControllerMetricsCallback", "WorkerMetricsCallback"), "ray.train.v2._internal.callbacks.metrics"),
    "PlacementGroupCleanerCallback": "ray.train.v2._internal.callbacks.placement_group_callback",
    # The head's record of a placement group, in protobuf. Moved: the message of the same fields.
    "PlacementGroupTableData": "ray.core.generated.gcs_pb2",
}
ASK = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", timeout=20)
except AuthenticationError:
    sys.exit(3)
"""
"""A program that asks a head whether it wants a token, in half a second. Moved: any cheap call of the GCS."""


def __getattr__(name: str) -> Any:
    """One of `CLASSES`."""
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(CLASSES[name]), name)


def read_token_again() -> None:
    """Ray reads its mode when it is imported, and its token when it first needs one. Moved: set them before."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def bootstrap_address(address: str) -> str | None:
    """The `host:port` that `auto` means. Moved: what `ray.init` does with its `address`."""
    from ray._private.services import canonicalize_bootstrap_address

    bootstrap: str | None = canonicalize_bootstrap_address(address)
    return bootstrap


def temporary_folder() -> str:
    """Where Ray's session lies by default. Moved: RAY_TMPDIR, or else /tmp."""
    from ray._common.utils import get_default_system_temp_dir

    return str(get_default_system_temp_dir())


class _NoFolders(list[str]):
    """Folders of a job from which workers import before they look among the packages: none. Ray would add the folder
    in which the user stands, where a `tokenizers.py` breaks every trial, and which others may be able to write."""

    def extend(self, _: Iterable[str]) -> None:
        """Nothing."""


def start(console: Callable[[list[str]], None], **options: object) -> None:
    """`ray.init`. What it would print goes to `console` in lines. Its workers do not import from the user's folder.

    Ray's handlers of SIGTERM stay out: while it starts, they would end the program without its last words. Its
    processes get groups of their own: a terminal that is closed, or `timeout`, signals the driver's whole group, and
    the search could not save its trials without them. Moved: tests/sweep/workers/test_access.py names which fails."""
    ray._private.worker.print_to_stdstream = lambda data, **_: console(data["lines"])
    ray._private.utils.set_sigterm_handler = lambda _handler: None
    if sys.platform == "linux":  # elsewhere Ray ends them by the driver's group once that has died
        ray._private.services.ConsolePopen = functools.partial(subprocess.Popen, process_group=0)
    job = JobConfig()
    job._py_driver_sys_path = _NoFolders()
    ray.init(log_to_driver=False, job_config=job, **options)


def start_here(console: Callable[[list[str]], None], folder: str, **options: object) -> None:
    """`start` of a Ray on 127.0.0.1 alone with its files in the folder. Ray resolves that address to one that other
    machines reach, unless it may have one node only. Moved: see `ray start --node-ip-address`."""
    constants = ray._private.ray_constants
    saved = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    private = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder}
    try:  # the server of its metrics wants no token
        start(console, address="local", _system_config={"enable_metrics_collection": False}, **private, **options)
    finally:
        constants.ENABLE_RAY_CLUSTER = saved


def dead_processes() -> list[str]:
    """Ray's own dead processes here, a minute before it says so. Moved: `psutil` knows the children of this process."""
    return [name for name, _ in ray._private.worker._global_node.dead_processes()]


def free_resources() -> dict[str, dict[str, float]]:
    """Free resources of each node, by their ids. Moved: `ray.available_resources` has the sum alone; the State API."""
    from ray._private.state import available_resources_per_node

    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def placement_groups() -> list[PlacementGroupTableData]:
    """All placement groups, with the actors that created them: those of a controller that died are found so. Moved:
    `ray.util.placement_group_table` reads the same table, without the creators."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    rows = state._connect_and_get_accessor().get_placement_group_table()
    return [PlacementGroupTableData.FromString(row) for row in rows]


def placement_group_id(data: bytes) -> Any:
    """The id with these bytes, by which a placement group is removed. Moved: what `PlacementGroup` is made of."""
    from ray._raylet import PlacementGroupID

    return PlacementGroupID(data)


def id_of(actor: ray.actor.ActorHandle) -> bytes:
    """The actor's id. Moved: the State API knows actors by their names."""
    return bytes(actor._actor_id.binary())


def replace_report_barrier(actor_class: object) -> None:
    """Replaces the actor at which Ray Train's ranks wait for one another when they report. It is one more process per
    group, and our ranks report to the dispatcher. Moved: worse than a process more is nothing."""
    from ray.train.v2._internal.execution.worker_group import state, worker_group

    worker_group.SynchronizationActor = actor_class
    state._shutdown_sync_actor = lambda _: None


def replace_actor_manager(controller: Any, kind: type, make: Callable[[], object]) -> None:
    """Puts what `make` gives, a `kind`, in the place of the actor manager of Tune's controller. Moved: the attribute of
    `TuneController` whose methods `search/trial_proxy.py` has."""
    tune_controller = controller._tune_controller
    if not isinstance(tune_controller._actor_manager, kind):
        tune_controller._actor_manager = make()


def status_without_token(address: str) -> int:
    """The HTTP status with which a dashboard answers a request for its jobs that has no token. `OSError` if nothing
    answers. Moved: any HTTP client that takes the same certificates and proxies."""
    from ray.job_submission import JobSubmissionClient

    stranger = SimpleNamespace(_address=address.rstrip("/"), _cookies=None, _headers={}, _verify=True)
    try:
        answer = JobSubmissionClient._do_request(stranger, "GET", "/api/jobs/", timeout=20, allow_redirects=False)
    except AuthenticationError:
        return HTTPStatus.UNAUTHORIZED
    return int(answer.status_code)


def job_client(address: str, token: str | None, timeout_s: float) -> tuple[Any, str]:
    """Ray's client of a dashboard and the version of Ray there. Each request has a deadline; Ray's own waits for ever.
    Moved: the method of `SubmissionClient` that all requests go through; the version is `/api/version`."""
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):  # type: ignore[misc]
        def _do_request(self, method: str, endpoint: str, **words: Any) -> Any:
            return super()._do_request(method, endpoint, timeout=timeout_s, **words)

    client = Client(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    return client, str(client._server_ray_version)
