"""The commands about sweeps on a cluster that takes Ray jobs: each is sent to its head and runs there.

The cluster file is all that they need here. On the head it stands under the name that its user gave it, so that a
command suggested there is one that works here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from babeltune.cli.client import Change, Refit, Submission, Tables
from babeltune.cli.common import err, not_running, out, say, warn, with_cluster
from babeltune.cli.run_here import running_words
from babeltune.errors import ClusterError, SweepError, UnknownNameError
from babeltune.program import INTERRUPTED

if TYPE_CHECKING:
    from babeltune.remote.jobs import Job, Jobs
    from babeltune.schema.cluster import Cluster
    from babeltune.schema.records import Sweep


class Remote:
    """A cluster that takes jobs, and the file that names it."""

    def __init__(self, cluster: Cluster, file: str, *, insecure: bool | None = None) -> None:
        """`insecure`: whether an open dashboard may be given a sweep; None where it is only asked questions."""
        from babeltune.remote.jobs import Jobs

        self.cluster, self.file = cluster, file
        self.jobs: Jobs = Jobs(cluster)
        if self.jobs.open:
            danger = f"{self.jobs.cluster.named} wants no token: whoever reaches it can run programs there"
            if insecure is False:
                raise ClusterError(
                    f"{danger}; start it with RAY_AUTH_MODE=token, or pass --insecure to submit all the same"
                )
            warn([danger])
        elif cluster.in_the_open:
            warn([f"the token goes to {cluster.place} as it is; an ssh tunnel or https:// hides it on its way"])

    def __str__(self) -> str:
        return self.file

    @property
    def where(self) -> str:
        return with_cluster(self.file)

    @property
    def there(self) -> str:
        """The name of the cluster file on the head."""
        path = PurePath(self.file)
        return path.name if path.is_absolute() or ".." in path.parts else path.as_posix()

    def files(self) -> dict[str, str]:
        """What every command on the head needs."""
        from babeltune.files import plain

        values = plain(self.cluster.seen_from_head())
        return {self.there: json.dumps({key: value for key, value in values.items() if value is not None}, indent=2)}

    def ask(self, *arguments: str, wait: float = 0.0) -> tuple[int, str]:
        """Runs a command on the head, which may take so many seconds longer than others: its exit code and output."""
        return self.jobs.ask([*arguments, "--cluster", self.there], self.files(), wait)

    def show(self, arguments: Sequence[str], as_json: bool) -> None:
        """Runs a command on the head and shows what it says, ending as it ends."""
        self.tell(*self.ask(*arguments, *(["--json"] if as_json else [])), as_json)

    def tell(self, code: int, text: str, as_json: bool) -> None:
        """Shows what a command on the head has said, ending as it has ended."""
        if code:
            err.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(code)
        if as_json:
            from babeltune.remote.jobs import json_in

            say(json_in(text), True, lambda: None)
        else:
            sys.stdout.write(text)

    def document(self, sweep: str) -> dict[str, Any]:
        """What `status --json` says of the sweep."""
        from babeltune.remote.jobs import json_in

        code, text = self.ask("status", sweep, "--json")
        found = json_in(text)
        if code or not isinstance(found, dict):
            last = (text.strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
            raise UnknownNameError(last) if code == UnknownNameError.exit_code else SweepError(last)
        return found

    def sweep(self, name: str | None) -> tuple[str, Sequence[str]]:
        """The id of the sweep with this name, and its plugins. The storage is asked if no job knows them."""
        job = self.jobs.find(name)
        if job is not None and job.plugins is not None:
            return job.sweep, job.plugins
        found = self.document(job.sweep if job is not None else name or "")
        return str(found["sweep"]), found["plugins"]


class RemoteClient:
    """A `SweepClient` that sends each command to the head of a cluster that takes jobs."""

    def __init__(self, remote: Remote, *, as_json: bool) -> None:
        self._remote, self._jobs, self._as_json = remote, remote.jobs, as_json

    def status(self, name: str | None, *, follow: bool) -> None:
        remote, job = self._remote, self._jobs.find(name)
        if job is not None and job.live and follow:
            job = follow_log(remote, job, to_stderr=True)
        if job is None:
            self._show("status", name)
            return
        err.print(f"job {job.id}: {job.state}", highlight=False)
        code, text = remote.ask("status", job.sweep, *(["--json"] if self._as_json else []))
        if code == UnknownNameError.exit_code and self._jobs.get(job.id).live:
            document = {"sweep": job.sweep, "state": "starting", "job": job.id}
            words = f"sweep {job.sweep}: starting; it has written nothing yet"
            say(document, self._as_json, lambda: out.print(words))
            return
        remote.tell(code, text, self._as_json)

    def trial(self, name: str) -> None:
        self._show("status", name)

    def logs(self, name: str | None, *, follow: bool) -> None:
        """The log of the latest attempt."""
        job = self._jobs.find(name)
        if job is None:  # the storage may know the sweep all the same
            self._show("logs", name)
            return
        if follow and not self._as_json:
            end_as(self._remote, follow_log(self._remote, job))
            return
        text = self._jobs.log(job.id)
        document = {"sweep": job.sweep, "job": job.id, "state": job.state, "log": text}
        say(document, self._as_json, lambda: out.out(text, end="", highlight=False))

    def runs(self, tables: Tables) -> None:
        options: list[str] = ["--sort", tables.sort] if tables.sort else []
        options += ["--by", tables.by] if tables.by else []
        options += [word for setting in tables.over for word in ("--over", setting)]
        options += [word for column in tables.metric for word in ("--metric", column)]
        flags = ("front", "languages", "markdown")
        self._show("runs", tables.name, *options, *(f"--{flag}" for flag in flags if getattr(tables, flag)))

    def submit(self, sweep: Sweep, asked: Submission) -> None:
        from babeltune.planning.recorded import sweep_id
        from babeltune.planning.space import within_grid
        from babeltune.planning.sweep_yaml import spec_yaml
        from babeltune.planning.warnings import about_sweep

        warn(about_sweep(sweep))
        file, plugins = sent_as(sweep), plugins_of(sweep)
        arguments = ["submit", file, *_accepting(asked), *["--yes"] * asked.yes]
        self._run(sweep_id(within_grid(sweep)), arguments, {file: spec_yaml(sweep)}, plugins, detach=asked.detach)

    def stop(self, name: str | None, *, wait: int) -> None:
        """A job whose driver does not answer is ended."""
        remote, job = self._remote, self._jobs.find(name)
        if job is None or not job.live:
            state = remote.document(job.sweep if job else name or "")
            raise not_running(state["sweep"], state["state"])
        if job.state == "PENDING":
            self._jobs.end(job.id)
            with suppress(ClusterError):  # it has stopped all the same
                remote.ask("stop", job.sweep, "--ended-job", job.id)
        else:
            self._ask_to_stop(job, wait)
        stopped = not _ended(self._jobs, job.id, wait).live
        words = (
            f"sweep {job.sweep} stopped; `babeltune resume {job.sweep}{remote.where}` goes on"
            if stopped
            else f"sweep {job.sweep} was asked to stop and has not yet; `babeltune status{remote.where}` shows it"
        )
        say({"sweep": job.sweep, "stopped": stopped}, self._as_json, lambda: out.print(words, soft_wrap=True))
        if not stopped:
            raise typer.Exit(1)

    def _ask_to_stop(self, job: Job, wait: int) -> None:
        from babeltune.remote.jobs import json_in

        code, text = self._remote.ask("stop", job.sweep, "--wait", str(wait), "--json", wait=wait)
        if code and "is not running; its state is finished" in text and not _ended(self._jobs, job.id, wait).live:
            raise not_running(job.sweep, "finished")
        if code and self._jobs.get(job.id).live:
            why = "is late" if json_in(text) else (text.strip().splitlines() or ["says nothing"])[-1]
            err.print(f"its driver does not answer ({why}); ending job {job.id}", markup=False)
            self._jobs.end(job.id)

    def resume(self, name: str | None, change: Change, asked: Submission) -> None:
        self._refuse_while_running(name, change.words())
        self._go_on("resume", name, change, asked)

    def extend(self, name: str | None, trials: int, asked: Submission) -> None:
        self._refuse_while_running(name, ("budget", f"--trials {trials}"), "extend")
        self._go_on("extend", name, Change(trials), asked)

    def refit_spec(self, name: str | None, refit: Refit) -> tuple[str, str]:
        options = ["--top", str(refit.top), "--pairs", refit.pairs, "--seeds", str(refit.seeds), "--write", "-"]
        options += ["--one-start"] * refit.one_start
        code, text = self._remote.ask("refit", *_named(name), *options)
        if code:
            self._remote.tell(code, text, self._as_json)
        return name or "", text[text.index("version:") :]

    def show_gains(self, name: str, refit: Sweep) -> None:
        """The job's own log has shown them."""

    def _refuse_while_running(self, name: str | None, changed: tuple[str, str] | None, then: str = "resume") -> None:
        job = self._jobs.find(name)
        if changed and job is not None and job.live:
            raise SweepError(running_words(job.sweep, self._remote.where, *changed, then))

    def _show(self, command: str, name: str | None, *options: str) -> None:
        self._remote.show([command, *_named(name), *options], self._as_json)

    def _go_on(self, command: str, name: str | None, change: Change, asked: Submission) -> None:
        """`resume`, with another spec where one is given, and `extend`."""
        from babeltune.planning.sweep_yaml import spec_yaml

        sweep, plugins = self._remote.sweep(name)
        more = ["--trials", str(change.trials)] if change.trials is not None else []
        files = {sent_as(change.sweep): spec_yaml(change.sweep)} if change.sweep is not None else {}
        more += [word for file in files for word in ("--spec", file)]
        plugins = plugins_of(change.sweep) if change.sweep is not None else plugins
        self._run(sweep, [command, sweep, *more, *_accepting(asked)], files, plugins, detach=asked.detach)

    def _run(
        self, sweep: str, arguments: Sequence[str], files: dict[str, str], plugins: Sequence[str], *, detach: bool
    ) -> None:
        """Submits an attempt at the sweep, or attaches to the one that lives, and follows its log to the end."""
        from babeltune.planning.warnings import about_plugins

        warn(about_plugins(plugins))
        remote = self._remote
        command = [*arguments, "--cluster", remote.there, *["--insecure"] * self._jobs.open]
        job, new = self._jobs.run_sweep(sweep, command, {**files, **remote.files()}, plugins)
        said = f"sweep {sweep} is {'submitted' if new else 'running'} as job {job.id}"
        if not new:
            said += ", with what it began with"
        if detach:
            hint = f"`babeltune logs {sweep} -f{remote.where}` follows it"
            document = {"sweep": sweep, "job": job.id, "state": job.state, "new": new}
            say(document, self._as_json, lambda: out.print(f"{said}; {hint}", soft_wrap=True))
            return
        err.print(f"{said}; following its log (Ctrl-C leaves it running)")
        job = follow_log(remote, job, to_stderr=self._as_json)
        end_as(remote, job)
        if self._as_json:
            say(remote.document(sweep), True, lambda: None)


def plugins_of(sweep: Sweep) -> tuple[str, ...]:
    """The distributions, besides babeltune, of the methods that the sweep can use."""
    from babeltune.method.plugins import plugins
    from babeltune.planning.space import methods_used

    return tuple(plugins(methods_used(sweep)))


def sent_as(sweep: Sweep) -> str:
    """The file's name there, beside the cluster file, whose name may be the sweep's."""
    return f"sweeps/{sweep.name}.yaml"


def _accepting(asked: Submission) -> list[str]:
    return ["--accept-changes"] if asked.accept_changes else []


def _named(name: str | None) -> list[str]:
    return [] if name is None else [name]


def follow_log(remote: Remote, job: Job, *, to_stderr: bool = False) -> Job:
    """Writes the job's log until it has ended; Ctrl-C leaves it running."""
    stream = sys.stderr if to_stderr else sys.stdout
    try:
        for piece in remote.jobs.follow(job.id):
            stream.write(piece)
            stream.flush()
    except KeyboardInterrupt:
        err.print(
            f"job {job.id} goes on: `babeltune logs {job.sweep} -f{remote.where}` follows it, "
            f"`babeltune stop {job.sweep}{remote.where}` ends it"
        )
        raise typer.Exit(INTERRUPTED) from None
    return remote.jobs.get(job.id)


def end_as(remote: Remote, job: Job) -> None:
    """Ends as the job's command ended; says why where it ended without a word of its own."""
    from babeltune.remote.jobs import exit_code

    code = exit_code(job)
    if code:
        if job.exit_code is None or job.exit_code < 0:
            err.print(
                f"[bold red]error:[/] job {job.id}: {escape(job.state)} {escape(job.reason)}; "
                f"`babeltune resume {job.sweep}{remote.where}` goes on",
                soft_wrap=True,
            )
        raise typer.Exit(code)


def _ended(jobs: Jobs, job: str, seconds: float) -> Job:
    """The job, once it has ended or this time is over."""
    import time

    deadline = time.monotonic() + seconds
    while (now := jobs.get(job)).live and time.monotonic() < deadline:
        time.sleep(0.3)
    return now
