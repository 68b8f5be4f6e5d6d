"""Trials as Ray Tune sees them: each report that a worker group hands to the dispatcher is one step.

Tune starts an actor, so a process of about 115 MB, for every trial that runs. Such a process would only wait for the
next report. So trials are followed in the driver's own process: `LocalActors` takes the place of Tune's actor manager,
and the one long poll of the dispatcher brings the reports of all trials."""

import math
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

import ray
from ray import tune

from babeltune.errors import SweepError
from babeltune.schema.records import Report
from babeltune.sweep.ray_internals import TrackedActor
from babeltune.sweep.state.messages import EndMessage, ReportMessage, TrialEnd
from babeltune.sweep.workers.dispatcher_client import DispatcherClient


class Result(TypedDict, total=False):
    """A result of Tune: figures by name. Its own keys are `done` and `training_iteration`."""

    done: bool
    training_iteration: int
    reports: int  # the report's number
    objective: float
    report: Report
    last: bool  # whether the trial has no report to come
    end: TrialEnd  # how the trial ended, if it did


class TrialConfig(TypedDict):
    """A trial's configuration as Tune has it."""

    trial: str
    number: int
    objectives: list[str]


class TrialFollower:
    """Makes Tune's results of one trial's messages."""

    def __init__(self, dispatcher: DispatcherClient, trial: str, objectives: list[str]) -> None:
        self._dispatcher, self._trial, self._objectives = dispatcher, trial, objectives
        self._seen = 0
        self._last: Result | None = None  # the last report's result, until the trial's end comes

    def go_on(self) -> None:
        """Lets the trial train past its latest report."""
        if self._seen:
            self._dispatcher.go_on(self._trial, self._seen)

    def result(self) -> Result | None:
        """The next result, or None while there is no message for one. The last report waits for the trial's end."""
        while (message := self._dispatcher.take(self._trial)) is not None:
            if isinstance(message, EndMessage):
                return self._numbered({**(self._last or {}), "done": True, "end": message.end})
            result = self._of(message)
            if not result.get("last") or result.get("done"):
                return self._numbered(result)
            self._last = result
        return None

    def _of(self, message: ReportMessage) -> Result:
        report = message.report
        self._seen = report.index
        values = {name: report.metrics.get(name) for name in self._objectives}
        if not finite(values.values()):
            bad = ", ".join(f"{name} is {value}" for name, value in values.items() if not finite([value]))
            return {"done": True, "end": TrialEnd("objective", text=f"objective {bad} at report {report.index}")}
        result = Result(reports=report.index, objective=report.metrics[self._objectives[0]], report=report)
        if collapsed := report.facts.get("collapsed"):
            return {**result, "done": True, "end": TrialEnd("collapsed", text=str(collapsed))}
        return {**result, "last": True} if report.last else result

    def _numbered(self, result: Result) -> Result:
        return {"done": False, "training_iteration": self._seen, **result}


class MethodTrial(tune.Trainable):  # type: ignore[misc]
    """A trial that a worker group trains, as Tune knows it by its method's name.

    In a sweep `LocalActors` follows all trials, and no object of this class is made. Elsewhere, as for
    `Tuner("<method>", param_space={"sweep": …})`, an object has a worker group of its own, and follows one trial."""

    method = ""

    @classmethod
    def default_resource_request(cls, _: Mapping[str, object]) -> tune.PlacementGroupFactory:
        """A byte, as Tune wants something: the worker group asks for what its ranks need."""
        return tune.PlacementGroupFactory([{"memory": 1}])

    def setup(self, config: Mapping[str, object]) -> None:
        """Prepares the data of `config["sweep"]`, and hands the trial to a new worker group."""
        from babeltune.sweep.workers.nodes import from_head
        from babeltune.sweep.workers.pool import WorkerPool
        from babeltune.sweep.workers.pool_settings import PoolSettings
        from babeltune.sweep.workers.standalone import standalone_assignment

        assignment, sweep = standalone_assignment(self.method, config)
        settings = PoolSettings(
            count=1,
            workers=sweep.budget.workers or 1,
            cpus_per_worker=1,
            gpus_per_worker=min(1, from_head(ray.cluster_resources).get("GPU", 0)),
            run_trial="babeltune.sweep.workers.run_trial:run",
            storage=Path(assignment.folder) / "train",
        )
        self._open = ExitStack()
        self._pool = self._open.enter_context(WorkerPool(settings))
        self._pool.dispatcher.offer(assignment.name, assignment)
        objectives = [objective.metric for objective in sweep.objectives]
        self._follower = TrialFollower(self._pool.dispatcher, assignment.name, objectives)

    def step(self) -> dict[str, object]:
        """The trial's next report. Raises `SweepError` with the reason of a trial that failed."""
        self._follower.go_on()
        while (result := self._follower.result()) is None:
            if not self._pool.dispatcher.receive(1.0):
                self._pool.mend()
        if (end := result.get("end")) is not None and end.failed:
            raise SweepError(end.text)
        report = result.get("report")
        return {**(report.metrics if report else {}), "reports": result["training_iteration"], "done": result["done"]}

    def cleanup(self) -> None:
        """Ends the worker group."""
        self._open.close()


class LocalActors:
    """Stands in for Tune's actor manager (Ray 2.60) with followers in this process instead of actors.

    It has the methods that Tune's controller calls. A trial's "actor" is there at once, needs no resources, and cannot
    die. The messages of all trials come by one long poll at the dispatcher: a thousand trials cost one waiting call."""

    num_pending_actors = 0

    def __init__(self, dispatcher: DispatcherClient) -> None:
        self._dispatcher = dispatcher
        self._followers: dict[TrackedActor, TrialFollower] = {}
        self._live_actors_to_ray_actors_resources: dict[TrackedActor, tuple[None, None]] = {}
        """Tune's controller looks here for an actor's handle, and takes None for one that it cannot ask."""
        self._trials: dict[TrackedActor, str] = {}
        self._training: dict[str, tuple[TrackedActor, Callable[[TrackedActor, Result], None]]] = {}
        """The actor of each trial that trains, and what gets its next result."""
        self._events: deque[Callable[[], None]] = deque()

    def next(self, timeout: float | None = None) -> bool:
        """Handles one event: a start, a stop or a result. Waits for one at most this long."""
        if self._events:
            self._events.popleft()()
            return True
        if self._deliver():
            return True
        return self._dispatcher.receive(timeout or 0.0) and self._deliver()

    def _deliver(self) -> bool:
        """Tells Tune of one result, if a trial that trains has one."""
        for trial in self._dispatcher.with_messages():
            if trial not in self._training:
                continue
            tracked, on_result = self._training[trial]
            if (result := self._followers[tracked].result()) is not None:
                del self._training[trial]
                on_result(tracked, result)
                return True
        return False

    def add_actor(
        self, cls: type, kwargs: Mapping[str, TrialConfig], resource_request: object, **callbacks: Callable[..., object]
    ) -> TrackedActor:
        """Begins to follow the trial of a configuration."""
        tracked = TrackedActor(uuid.uuid4().int, **callbacks)
        config = kwargs["config"]
        self._trials[tracked] = config["trial"]
        self._followers[tracked] = TrialFollower(self._dispatcher, config["trial"], config["objectives"])
        self._live_actors_to_ray_actors_resources[tracked] = (None, None)
        self._events.append(lambda: self._tell(tracked._on_start, tracked))
        return tracked

    def _tell(self, callback: Callable[[TrackedActor], None] | None, tracked: TrackedActor) -> None:
        if callback is not None:
            callback(tracked)

    def remove_actor(self, tracked_actor: TrackedActor, kill: bool = False, stop_future: object = None) -> bool:
        """Ends to follow a trial. True says that Tune gets a call."""
        if self._followers.pop(tracked_actor, None) is None:
            return False
        self.clear_actor_task_futures(tracked_actor)
        self._dispatcher.forget(self._trials.pop(tracked_actor))
        del self._live_actors_to_ray_actors_resources[tracked_actor]
        self._events.append(lambda: self._tell(tracked_actor._on_stop, tracked_actor))
        return True

    def schedule_actor_task(
        self,
        tracked_actor: TrackedActor,
        method_name: str,
        *,
        on_result: Callable[[TrackedActor, Result], None] | None = None,
        **_: object,
    ) -> None:
        """Lets a trial train to its next report. Of Tune's other tasks, followers have no use."""
        if method_name == "train" and on_result is not None:
            self._training[self._trials[tracked_actor]] = tracked_actor, on_result
            self._followers[tracked_actor].go_on()

    def clear_actor_task_futures(self, tracked_actor: TrackedActor) -> None:
        """Tells Tune of no more results of this trial."""
        self._training.pop(self._trials.get(tracked_actor, ""), None)

    def is_actor_started(self, tracked_actor: TrackedActor) -> bool:
        return tracked_actor in self._followers

    def is_actor_failed(self, tracked_actor: TrackedActor) -> bool:
        return False

    def get_live_actors_resources(self) -> dict[str, float]:
        return {}

    @property
    def num_live_actors(self) -> int:
        return len(self._followers)

    @property
    def num_total_actors(self) -> int:
        return len(self._followers) + len(self._events)

    @property
    def num_actor_tasks(self) -> int:
        return len(self._training)

    def cleanup(self) -> None:
        """Ends to follow all trials."""
        for tracked in list(self._followers):
            self.remove_actor(tracked)
        self._events.clear()


def finite(values: Iterable[object]) -> bool:
    """Whether every value is a finite number."""
    return all(isinstance(v, int | float) and math.isfinite(v) for v in values)
