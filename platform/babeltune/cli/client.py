"""Where the sweeps of a cluster file are: on this machine, or on a cluster that takes Ray jobs.

Commands ask a `SweepClient` and need not know which. `local.py` and `remote.py` hold the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import typer

from babeltune.cli.common import any_cluster

if TYPE_CHECKING:
    from babeltune.schema.records import Sweep

NO_JOBS = "needs a cluster that takes jobs: --cluster with a file whose address is a dashboard's http://… or https://…"


@dataclass(frozen=True)
class Submission:
    """How a sweep is submitted, or gone on with."""

    accept_changes: bool = False
    """Whether it goes on although code or packages changed."""
    detach: bool = False
    """Whether the command returns at once. Only a cluster that takes jobs can do that."""
    insecure: bool = False
    """Whether a cluster that wants no token is used all the same."""
    yes: bool = False
    """Whether a finished sweep is trained on without a question."""


@dataclass(frozen=True)
class Tables:
    """Which table `runs` shows: the sweeps, or one of a sweep."""

    name: str | None = None
    sort: str | None = None
    over: tuple[str, ...] = ()
    front: bool = False
    by: str | None = None
    languages: bool = False
    metric: tuple[str, ...] = ()
    markdown: bool = False


@dataclass(frozen=True)
class Change:
    """What `resume` and `extend` change of a sweep: its budget, or its spec."""

    trials: int | None = None
    """How many in all; None: as many as before."""
    sweep: Sweep | None = None
    """Another spec; None: its own."""
    spec: str = ""
    """The file of that spec."""

    def words(self) -> tuple[str, str] | None:
        """What changes and with which options, for a message; None if nothing does."""
        if self.sweep is not None:
            return "spec", f"--spec {self.spec}"
        return None if self.trials is None else ("budget", f"--trials {self.trials}")


@dataclass(frozen=True)
class Refit:
    """How the best settings of a sweep are trained longer."""

    top: int
    pairs: str
    """A multiple such as 10x, or a number of pairs."""
    seeds: int
    one_start: bool
    """Whether all seeds begin with the same weights."""


class SweepClient(Protocol):
    """What commands do with sweeps. Each method shows its result, or prints it as JSON."""

    def status(self, name: str | None, *, follow: bool) -> None:
        """A sweep's state and trials."""
        ...

    def trial(self, name: str) -> None:
        """The page of one trial, `SWEEP/t0003`."""
        ...

    def logs(self, name: str | None, *, follow: bool) -> None:
        """What a sweep's driver did."""
        ...

    def runs(self, tables: Tables) -> None:
        """The sweeps, or a table of one."""
        ...

    def submit(self, sweep: Sweep, asked: Submission) -> None:
        """Runs a sweep."""
        ...

    def stop(self, name: str | None, *, wait: int) -> None:
        """Stops a sweep, and waits at most so many seconds for its driver."""
        ...

    def resume(self, name: str | None, change: Change, asked: Submission) -> None:
        """Goes on with a sweep."""
        ...

    def extend(self, name: str | None, trials: int, asked: Submission) -> None:
        """Gives a sweep more trials."""
        ...

    def refit_spec(self, name: str | None, refit: Refit) -> tuple[str, str]:
        """The sweep's name, and the sweep file that trains its best settings longer."""
        ...

    def show_gains(self, name: str, refit: Sweep) -> None:
        """Shows, if anything but JSON was asked for, what the refit gained over the sweep of this name."""
        ...


def client_of(file: str | None, *, as_json: bool, asked: Submission | None = None) -> SweepClient:
    """The client of this cluster file; `asked` by a command that submits. Options that only a cluster that takes jobs
    understands are refused elsewhere."""
    cluster = any_cluster(file)
    if file is not None and cluster.by_jobs:
        from babeltune.cli.remote import Remote, RemoteClient

        return RemoteClient(Remote(cluster, file, insecure=asked.insecure if asked else None), as_json=as_json)
    if asked and asked.detach:
        raise typer.BadParameter(NO_JOBS, param_hint="--detach")
    if asked and asked.insecure and cluster.address == "local":
        raise typer.BadParameter("is for a cluster that runs already", param_hint="--insecure")
    from babeltune.cli.local import LocalClient

    return LocalClient(file, as_json=as_json)
