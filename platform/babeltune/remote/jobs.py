"""Work that goes to a cluster as Ray jobs; the only door to Ray Jobs.

A job runs one of babeltune's own commands on the head, with this code as a wheel and the files that the command names
beside it. A sweep's job also gets a wheel of each plugin that its methods are from. It asks for no CPU and no GPU, so
Ray puts it on the head. A sweep's job is `<sweep id>-<attempt>`: Ray refuses an id that it has ever seen, so each
attempt has the next number. That it is one, its metadata say: jobs of others on the same cluster may have such ids.

The token is sent as a header of each request and stands in no job."""

import asyncio
import logging
import os
import re
import shlex
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from babeltune.errors import BabeltuneError, ClusterError, from_network
from babeltune.files import draft_folder
from babeltune.remote.wheel import build_plugins, build_wheel
from babeltune.schema.cluster import Cluster
from babeltune.sweep.ray_internals import job_client, status_without_token
from babeltune.sweep.state.folder import meant, name_of
from babeltune.sweep.sync.audit import ACTOR, actor
from babeltune.sweep.workers.access import close_token_file

LIVE = ("PENDING", "RUNNING")  # states of a job that has not ended
SWEEP = "babeltune.sweep"  # the key of a job's metadata under which its sweep's id is
PLUGINS = "babeltune.method.plugins"
"""The key under which the names of the distributions are that its methods are from, babeltune left out."""
QUESTION = "babeltune-asks-"  # begins the id of a job that answers one question and is then forgotten
BEGIN = re.compile(r"Running entrypoint for job ")  # lines that Ray writes before a command's own output
STOP_WAIT_S = "60"  # seconds that a driver has to end between SIGTERM and SIGKILL
POLL_INTERVAL_S = 0.5  # seconds between two looks at a job's state
ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")  # variables that Ray would believe more than the cluster file
TRIES = 5
STARTING = "No available agent"  # the answer of a head that has only just started
TAKEN, NO_TOKEN = "already", "required"  # Ray gives no error code
"""Words of Ray's errors: an earlier job has the id; the request has no token."""
START_TIMEOUT_S = 90.0  # seconds that it is given
RECONNECT_TIMEOUT_S = 120.0
"""Seconds that a dashboard is given which goes away while a log is followed: a head that starts again, a forwarded
port that is opened again."""
REQUEST_TIMEOUT_S = 60.0
"""Seconds within which a dashboard must answer a request, and after which a log without news is asked for anew: the
head may stand still, and its connections with it."""
BEGIN_TIMEOUT_S = 600.0  # seconds that a head is given to begin a command: it unpacks the wheel, and may wait for room
CHATTER = (
    *("ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk"),
    "ray._private.runtime_env.packaging",
)


@dataclass(frozen=True)
class Job:
    """One job of a cluster."""

    id: str
    state: str
    exit_code: int | None = None  # exit code of the command, once it has ended
    message: str = ""
    sweep: str = ""  # the id of the sweep that it runs; nothing for another kind of job
    plugins: tuple[str, ...] | None = None
    """The distributions of other methods that it was sent; None if its metadata do not say."""

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def reason(self) -> str:
        """The message in one line. Of a traceback it is the last line, which says what went wrong."""
        lines = self.message.split("\n") if "Traceback" not in self.message else self.message.strip().split("\n")[-1:]
        return " ".join(" ".join(lines).split())[:500]

    @property
    def attempt(self) -> int:
        """Which one at its sweep."""
        return int(self.id.rpartition("-")[2])


class Jobs:
    """The jobs of one cluster, seen through its dashboard."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises `ClusterError` if nothing answers, the token is refused, or Ray's version is another."""
        self.cluster = cluster
        token = cluster.token()
        close_token_file()
        for chatter in CHATTER:
            logging.getLogger(chatter).setLevel(logging.WARNING)
        self.open = self._open()
        with self._spoken(), without_variables(ADDRESSES):
            self._client, self.version = job_client(cluster.address, token, REQUEST_TIMEOUT_S)
        if self.version.split(".")[:2] != ray.__version__.split(".")[:2]:
            raise ClusterError(
                f"{self.cluster.title} runs Ray {self.version} and this machine {ray.__version__}; install "
                f"ray=={self.version} here, or {ray.__version__} there"
            )

    def _open(self) -> bool:
        """Whether the dashboard takes requests from everybody: asked without a token."""
        try:
            status = status_without_token(self.cluster.address)
        except OSError as error:
            raise ClusterError(
                f"{self.cluster.title} does not answer ({_shortly(error)}); start it, or check `address`"
            ) from error
        if status == HTTPStatus.NOT_FOUND:
            raise ClusterError(f"{self.cluster.title} is no Ray dashboard: it has no /api/jobs; check `address`")
        if status not in (HTTPStatus.OK, HTTPStatus.UNAUTHORIZED):
            raise ClusterError(
                f"{self.cluster.title} answers with status {status}, which does not say whether it wants a "
                "token; try again, or check `address`"
            )
        return status == HTTPStatus.OK

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """Ray's errors in the body become one line of ours."""
        try:
            yield
        except AuthenticationError as error:
            why = "wants a token" if NO_TOKEN in str(error) else "does not accept the token"
            raise ClusterError(f"{self.cluster.title} {why}; {self.cluster.token_place}") from None
        except BabeltuneError:
            raise
        except OSError as error:
            raise AwayError(
                f"{self.cluster.title} does not answer ({_shortly(error)}); start it, or check `address`"
            ) from None
        except RuntimeError as error:
            raise ClusterError(f"{self.cluster.title}: {_shortly(error)}") from None

    def all(self) -> list[Job]:
        """The jobs that were submitted, the oldest first."""
        with self._spoken():
            jobs = [details for details in self._client.list_jobs() if details.submission_id]
        return [_job(details) for details in sorted(jobs, key=lambda details: details.start_time or 0)]

    def get(self, job: str) -> Job:
        with self._spoken():
            return _job(self._client.get_job_info(job))

    def of_sweep(self, sweep: str) -> list[Job]:
        """The attempts at the sweep with this id, the first first."""
        return sorted((job for job in self.all() if job.sweep == sweep), key=lambda job: job.attempt)

    def find(self, name: str | None) -> Job | None:
        """The latest attempt at a sweep with this id, the beginning of one, or this name; at any, without a name."""
        jobs = [job for job in reversed(self.all()) if job.sweep]
        name = next((job.sweep for job in jobs if job.id == name), name)
        latest = list(dict.fromkeys(job.sweep for job in jobs))
        sweep = next(iter(latest), None) if name is None else meant(name, {each: name_of(each) for each in latest})
        return None if sweep is None else self.of_sweep(sweep)[-1]

    def run_sweep(
        self,
        sweep: str,
        arguments: Sequence[str],
        files: Mapping[str, bytes],
        plugins: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> tuple[Job, bool]:
        """Submits the next attempt at the sweep: the job, and whether it is new; one that lives is not submitted again.

        `arguments` are babeltune's, run on the head; `files` are put where they name them; `plugins` names the
        distributions of other methods; `variables` are set there. Raises `MethodError` for one that cannot be shipped.
        """
        attempt = 0
        for _ in range(TRIES):
            before = self.of_sweep(sweep)
            for job in before:
                if job.live:
                    return job, False
            attempt = max([attempt, *(job.attempt for job in before)]) + 1
            try:
                return self._submit(f"{sweep}-{attempt}", arguments, files, sweep, plugins, variables or {}), True
            except _TakenError:
                continue
        raise ClusterError(f"{self.cluster.title} has refused {TRIES} ids for sweep {sweep}; try again in a moment")

    def submit_question(
        self, arguments: Sequence[str], files: Mapping[str, bytes], variables: Mapping[str, str] | None = None
    ) -> Job:
        """Submits a command whose job is forgotten once it has answered. Its id says so."""
        return self._submit(f"{QUESTION}{uuid.uuid4().hex[:12]}", arguments, files, variables=variables or {})

    def answers(self, job: str, arguments: Sequence[str]) -> Iterator[str]:
        """The output of a question's job, piece by piece, until it has ended.

        Raises `ClusterError` if it does not begin within `BEGIN_TIMEOUT_S`."""
        deadline = time.monotonic() + BEGIN_TIMEOUT_S
        while (state := self.get(job).state) == "PENDING":
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self.cluster.title} has not begun `babeltune {shlex.join(arguments)}` within "
                    f"{BEGIN_TIMEOUT_S:g} s; its job {job} is {state} and is ended: see whether the head has room for "
                    "it"
                )
            time.sleep(POLL_INTERVAL_S)
        yield from self.follow(job)

    def forget(self, job: str) -> None:
        """Ends the job of a question if it runs, and forgets it. An answer counts for more than its housekeeping."""
        with suppress(ClusterError), self._spoken():
            if self.get(job).live:
                self._client.stop_job(job)
            else:
                self._client.delete_job(job)

    def ended(self, job: str, seconds: float) -> Job:
        """The job, once it has ended or this time is over."""
        deadline = time.monotonic() + seconds
        while (now := self.get(job)).live and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        return now

    def _submit(
        self,
        job: str,
        arguments: Sequence[str],
        files: Mapping[str, bytes],
        sweep: str = "",
        plugins: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Job:
        with draft_folder("job") as place:
            wheels = [build_wheel(place), *build_plugins(place, plugins)]
            beside = place / "files"
            for name, content in files.items():
                path = beside / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            job_variables = {"RAY_JOB_STOP_WAIT_TIME_S": STOP_WAIT_S, ACTOR: actor(), "PYTHONSAFEPATH": "1"}
            environment = {
                "py_modules": list(map(str, wheels)),
                "working_dir": str(beside),
                "env_vars": {**variables, **job_variables},
            }
            deadline = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    with self._spoken():
                        self._client.submit_job(
                            entrypoint=shlex.join(["python", "-m", "babeltune.cli", *arguments]),
                            submission_id=job,
                            runtime_env=dict(environment),
                            metadata={SWEEP: sweep, PLUGINS: " ".join(plugins)} if sweep else {},
                        )
                    return Job(job, "PENDING", sweep=sweep, plugins=tuple(plugins))
                except ClusterError as error:
                    if TAKEN in str(error):
                        raise _TakenError from error
                    if STARTING not in str(error) or time.monotonic() > deadline:
                        raise
                time.sleep(POLL_INTERVAL_S)

    def follow(self, job: str) -> Iterator[str]:
        """The command's output, piece by piece, until the job has ended. A broken connection is opened
        again; `AwayError` if that fails for `RECONNECT_TIMEOUT_S`."""
        seen = 0
        while True:
            at = 0
            try:
                with self._spoken():
                    for piece in self._tail(job):
                        new = piece[max(0, seen - at) :]
                        at += len(piece)
                        if new:
                            seen = at
                            yield new
            except ClusterError:
                pass
            if not self._is_live(job):
                break
            time.sleep(POLL_INTERVAL_S)
        with self._spoken():
            rest = self._client.get_job_logs(job)[seen:]
        if rest:
            yield rest

    def _is_live(self, job: str) -> bool:
        """Whether it has not ended; a dashboard that does not answer is given a while."""
        deadline = time.monotonic() + RECONNECT_TIMEOUT_S
        while True:
            try:
                return self.get(job).live
            except AwayError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_INTERVAL_S)

    def _tail(self, job: str) -> Iterator[str]:
        """The job's log as it grows."""
        pieces = self._client.tail_job_logs(job)
        with asyncio.Runner() as runner:
            while (piece := runner.run(_next(pieces))) is not None:
                yield piece

    def end(self, job: str) -> None:
        """Ends the job's command: SIGTERM, and a minute later SIGKILL."""
        with self._spoken():
            self._client.stop_job(job)


class AwayError(ClusterError):
    """The dashboard does not answer."""


class _TakenError(Exception):
    """Ray has seen this job's id before."""


async def _next(pieces: Any) -> str | None:
    """The next piece; None at the end. `AwayError` if none comes within `REQUEST_TIMEOUT_S`, or all breaks off."""
    try:
        return str(await asyncio.wait_for(anext(pieces), REQUEST_TIMEOUT_S))
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise AwayError(f"no news of the job's log for {REQUEST_TIMEOUT_S:g} s") from None
    except Exception as error:  # a broken connection has many names, and what follows the log opens another one
        raise AwayError(f"the job's log has ended early ({_shortly(error)})") from error


def _job(details: Any) -> Job:
    metadata = details.metadata or {}
    return Job(
        id=details.submission_id,
        state=str(details.status.value),
        exit_code=details.driver_exit_code,
        message=details.message or "",
        sweep=metadata.get(SWEEP, ""),
        plugins=tuple(metadata[PLUGINS].split()) if PLUGINS in metadata else None,
    )


def exit_code(job: Job) -> int:
    """The exit code of a job that has ended; 1 if its command never ran or was ended."""
    return job.exit_code if job.exit_code is not None and job.exit_code >= 0 else int(job.state != "SUCCEEDED")


@contextmanager
def without_variables(names: Sequence[str]) -> Iterator[None]:
    """The environment without these variables while the body runs."""
    removed = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)


def _shortly(error: BaseException) -> str:
    """The system's words or else the error's first line, without the traceback that a server may have put behind."""
    text = from_network(error) or str(error).replace("\\n", "\n").strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]
