"""The driver's side of the dispatcher: hands it trials, and receives what their worker groups report."""

import time
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any

import ray

from babeltune.errors import ClusterError, DispatcherDiedError
from babeltune.sweep.state.lease_actor import NAMESPACE
from babeltune.sweep.state.messages import EndMessage, ReportMessage, TrialAssignment
from babeltune.sweep.workers.dispatcher import PENDING_CALLS, TrialDispatcher
from babeltune.sweep.workers.dispatcher_driver_calls import POLL_TIMEOUT_S
from babeltune.sweep.workers.nodes import here

DISPATCHER_TIMEOUT_S = 60.0
"""Seconds within which the dispatcher must answer. It answers in milliseconds; this bears a machine that swaps."""
NO_ANSWER = (
    "the sweep's dispatcher has not answered for {:g} s: its process is stopped, or its machine hangs; every trial "
    "keeps its last checkpoint: `babeltune resume` goes on"
)


class DispatcherClient:
    """One dispatcher: an actor that lives from `start` to `close`.

    Trials are handed to it with `offer`. One call waits there for the news of all trials together (`receive`). A trial
    trains past a report once `go_on` says so."""

    def __init__(self) -> None:
        self.name = f"dispatcher-{uuid.uuid4().hex[:8]}"  # the actor's name
        self._inbox: dict[str, deque[ReportMessage | EndMessage]] = {}
        """Received messages of the trials that somebody follows."""
        self._filled: dict[str, None] = {}  # trials with messages, the longest waiting first
        self._poll: Any = None  # the call that waits at the dispatcher for news
        self._polled = 0.0
        self._acknowledged = 0  # the number of the last news that was received

    def start(self) -> None:
        """Starts the actor on this process's node."""
        dispatcher = ray.remote(TrialDispatcher).options(
            name=self.name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_restarts=0,
            max_task_retries=-1,  # a connection may break for a moment
            max_concurrency=PENDING_CALLS,
            scheduling_strategy=here(),
        )
        self._actor = dispatcher.remote()

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self._actor)

    def ask(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """The dispatcher's answer. `ClusterError` if it gives none in time: it is stopped, or its machine hangs."""
        return _answer(getattr(self._actor, method).remote(*arguments), seconds)

    def offer(self, trial: str, assignment: TrialAssignment) -> None:
        """Hands a trial to the next free worker group. Its messages are kept until `forget`."""
        self._inbox.setdefault(trial, deque())
        self.ask("offer", trial, assignment.encode())

    def stop(self, trial: str) -> None:
        """Ends the trial, if it listens within about a second, else at its next report."""
        self.ask("stop", trial)

    def stop_all(self, trials: Iterable[str]) -> None:
        """`stop` of several trials, without waiting for an answer: it is also called on the way out."""
        for trial in trials:
            self._actor.stop.remote(trial)

    def free(self) -> int:
        """Worker groups that wait for a trial."""
        return int(self.ask("free"))

    def go_on(self, trial: str, index: int) -> None:
        """Lets the trial train past its report of this index. Does not wait: a call that is lost is made again.

        Verdicts do not wait for one another either: a GPU would wait until the search has judged others' reports."""
        self._actor.go_on.remote([(trial, index)])

    def receive(self, seconds: float) -> bool:
        """Waits at most this long for messages of any trial; True if there are some now.

        One call waits at the dispatcher for all trials together. `ClusterError` if it is long overdue."""
        if self._poll is None:
            self._poll, self._polled = self._actor.poll.remote(self._acknowledged), time.monotonic()
        if not ray.wait([self._poll], timeout=seconds)[0]:
            if time.monotonic() - self._polled > POLL_TIMEOUT_S + DISPATCHER_TIMEOUT_S:
                raise ClusterError(NO_ANSWER.format(DISPATCHER_TIMEOUT_S))
            return False
        poll, self._poll = self._poll, None
        for news in _answer(poll):
            self._acknowledged = news.number
            if news.trial not in self._inbox:
                continue
            message = EndMessage(news.trial, news.end) if news.end else ReportMessage.decode(news.report)
            self._inbox[news.trial].append(message)
            self._filled[news.trial] = None
        return bool(self._filled)

    def with_messages(self) -> list[str]:
        """The trials with messages, the longest waiting first."""
        return list(self._filled)

    def take(self, trial: str) -> ReportMessage | EndMessage | None:
        """The trial's oldest message that was received, if there is one."""
        waiting = self._inbox.get(trial)
        message = waiting.popleft() if waiting else None
        if not waiting:
            self._filled.pop(trial, None)
        return message

    def forget(self, trial: str) -> None:
        """Drops the trial's messages, those to come included."""
        self._inbox.pop(trial, None)
        self._filled.pop(trial, None)


def _answer(call: Any, seconds: float | None = None) -> Any:
    """The result of a call. `ClusterError` if it takes longer than `seconds`, `DispatcherDiedError` if it died."""
    seconds = DISPATCHER_TIMEOUT_S if seconds is None else seconds
    try:
        return ray.get(call, timeout=seconds)
    except ray.exceptions.GetTimeoutError as error:
        raise ClusterError(NO_ANSWER.format(seconds)) from error
    except ray.exceptions.RayActorError as error:
        raise DispatcherDiedError("the sweep's dispatcher died; `babeltune resume` goes on") from error
