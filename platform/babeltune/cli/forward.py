"""Runs a command on the head of a cluster that takes jobs. Nothing else in the command line knows of a remote head.

The arguments go there as they are, with the files and variables that they name, and the same command runs. Its output,
its exit code and the files that it writes come back. A sweep runs as a job of its own, which Ctrl-C leaves running."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer
from rich.markup import escape
from typer.core import TyperCommand

from babeltune.files import plain, version, write_out
from babeltune.program import INTERRUPTED
from babeltune.redaction import NAME

if TYPE_CHECKING:
    from babeltune.remote.jobs import Job, Jobs
    from babeltune.schema.cluster import Cluster

HERE = frozenset({"doctor", "plan", "serve", "ui", "watch"})
"""Commands that run on this machine. `doctor` asks the head itself, `plan` reads files, the others serve pages here."""
SWEEPS = frozenset({"submit", "demo", "resume", "extend", "refit"})
"""Commands that run a sweep. Its job outlives the command."""
FORWARDED = "BABELTUNE_FORWARDED"
"""The variable by which a command knows that its output goes through a job's log, where both streams are one."""
STDOUT = "\x1e"
"""Begins a line of such a log that belongs on standard output. Libraries and other processes write lines without it."""
WRITTEN = "\x1d"  # begins a line that holds a part of a file: its name in JSON, a blank, and bytes in base64
MAX_SENT_BYTES = 64 << 20  # bytes of the files that a command takes along. Ray refuses a folder of more than 100 MiB.
MAX_RETURNED_BYTES = 32 << 20  # bytes of the files that come back through a job's log
CHUNK_BYTES = 9 << 10  # bytes of a file in one line of the log
MAX_NAME_BYTES = 255  # bytes of a file's name
FOLDER = ".folder"  # an empty file that makes a folder on the head, as an output may go to one that is only here


class Command(TyperCommand):
    """A command that runs on the head of its cluster if that takes jobs."""

    def invoke(self, context: Any) -> Any:
        from babeltune.cli.common import any_cluster

        file = context.params.get("cluster")
        if file is not None and self.name not in HERE and any_cluster(file).by_jobs:
            forward(str(self.name), context.params, sys.argv[1:])
        return super().invoke(context)


@dataclass(frozen=True)
class Call:
    """A command line as the head gets it."""

    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)  # name on the head -> content
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that the files and arguments name, and that are set here."""


class ClusterHead:
    """A cluster that takes jobs, and the file that names it."""

    def __init__(self, cluster: Cluster, file: str, *, insecure: bool | None = None) -> None:
        """`insecure`: whether an open dashboard may be given a sweep; None if it is only asked questions."""
        from babeltune.cli.common import warn, with_cluster
        from babeltune.errors import ClusterError
        from babeltune.remote.jobs import Jobs

        self.cluster, self.file, self.where = cluster, file, with_cluster(file)
        self.jobs: Jobs = Jobs(cluster)
        if self.jobs.open:
            danger = f"{cluster.title} wants no token: whoever reaches it can run programs there"
            if insecure is False:
                todo = "start it with RAY_AUTH_MODE=token, or pass --insecure to submit all the same"
                raise ClusterError(f"{danger}; {todo}")
            warn([danger])
        elif cluster.in_the_open:
            warn([f"the token goes to {cluster.place} as it is; an ssh tunnel or https:// hides it on its way"])

    def call(self, arguments: Sequence[str]) -> Call:
        """The arguments with the files that they name. The cluster file says `address: auto`: it is read there."""
        call = packed([argument for argument in arguments if argument != "--detach"], self.file)
        values = plain(self.cluster.seen_from_head())
        text = json.dumps({key: value for key, value in values.items() if value is not None}, indent=2)
        return Call(call.arguments, {**call.files, sent_name(self.file): text.encode()}, call.variables)

    def ask(self, *arguments: str) -> tuple[int, str, str]:
        """Runs a command on the head: its exit code, standard output and standard error."""
        out, err = io.StringIO(), io.StringIO()
        code = self.run(self.call([*arguments, "--cluster", self.file]), out, err)
        return code, out.getvalue(), err.getvalue()

    def run(self, call: Call, out: TextIO, err: TextIO, *, returned: Sequence[str] = ()) -> int:
        """Runs the command as a job that is forgotten afterwards; what it writes is passed on as it comes.

        `returned`: names below which files may be written here. Ctrl-C ends the job. The command's exit code."""
        from babeltune.remote.jobs import exit_code

        job = self.jobs.submit_question(call.arguments, call.files, {**call.variables, FORWARDED: "1"})
        try:
            split = Splitter(out, err, returned)
            for piece in self.jobs.answers(job.id, call.arguments):
                split.write(piece)
            job = self.jobs.get(job.id)
            split.end()
            if not split.begun and job.state != "SUCCEEDED":
                err.write(f"{job.reason}\n")
            return exit_code(job)
        finally:
            self.jobs.forget(job.id)

    def document(self, sweep: str) -> dict[str, Any]:
        """The sweep in `status --json`."""
        from babeltune.errors import SweepError, UnknownNameError

        code, out, err = self.ask("status", sweep, "--json")
        if code:
            last = ((err or out).strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
            raise UnknownNameError(last) if code == UnknownNameError.exit_code else SweepError(last)
        answer: dict[str, Any] = json.loads(out)
        return answer


def forward(command: str, options: Mapping[str, Any], arguments: Sequence[str]) -> NoReturn:
    """Runs the command on the head of the cluster that its options name, and ends as it ends."""
    from babeltune.cli.common import any_cluster
    from babeltune.sweep.sync.notify import failures_notified

    file = str(options["cluster"])
    cluster, sweeps = any_cluster(file), command in SWEEPS and not options.get("write")
    with failures_notified(cluster, "babeltune", command) if sweeps or command == "promote" else nullcontext():
        head = ClusterHead(cluster, file, insecure=bool(options.get("insecure")) if sweeps else None)
    if sweeps:
        ends = refit(head, options, arguments) if command == "refit" else run_sweep(head, command, options, arguments)
        raise typer.Exit(ends)
    if command == "stop":
        raise typer.Exit(stop(head, options))
    if command == "status" and not options.get("follow"):
        raise typer.Exit(status(head, options, arguments))
    code = head.run(head.call(arguments), sys.stdout, sys.stderr, returned=arguments)
    if code and command == "logs" and (job := head.jobs.find(options.get("name"))) is not None:
        sys.stderr.write(f"job {job.id}: {job.state} {job.reason}\n")  # it may have ended before the sweep had a log
    raise typer.Exit(code)


def status(head: ClusterHead, options: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Shows a sweep. Ray knows one whose job has only begun; the storage does not yet."""
    from babeltune.cli.common import out, say
    from babeltune.errors import UnknownNameError

    job, words = head.jobs.find(options.get("name")), io.StringIO()
    code = head.run(head.call(arguments), sys.stdout, words)
    if job is not None and job.live and code == UnknownNameError.exit_code:
        document = {"sweep": job.sweep, "state": "starting", "job": job.id}
        text = f"sweep {job.sweep}: starting as job {job.id}; it has written nothing yet"
        say(document, bool(options["as_json"]), lambda: out.print(text))
        return 0
    sys.stderr.write(words.getvalue())
    return code


# --- Sweeps --------------------------------------------------------------------------------------------------------


def run_sweep(head: ClusterHead, command: str, options: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Submits the next attempt at a sweep, or attaches to the one that lives, and follows its log to the end."""
    from babeltune.cli.common import err, out, say, warn
    from babeltune.planning.warnings import about_plugins

    sweep, plugins = sweep_of(head, command, options)
    warn(about_plugins(plugins))
    as_json = bool(options.get("as_json"))
    call = head.call([*(word for word in arguments if word != "--json"), *["--insecure"] * head.jobs.open])
    job, new = head.jobs.run_sweep(sweep, call.arguments, call.files, plugins, call.variables)
    words = f"sweep {sweep} is {'submitted' if new else 'running'} as job {job.id}"
    words += "" if new else ", with what it began with"
    if options.get("detach"):
        hint = f"`babeltune logs {sweep} -f{head.where}` follows it"
        document = {"sweep": sweep, "job": job.id, "state": job.state, "new": new}
        say(document, as_json, lambda: out.print(f"{words}; {hint}", soft_wrap=True))
        return 0
    err.print(f"{words}; following its log (Ctrl-C leaves it running)")
    code = follow(head, job, sys.stderr if as_json else sys.stdout)
    if not code and as_json:
        say(head.document(sweep), True, lambda: None)
    return code


def refit(head: ClusterHead, options: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Submits what `refit` writes on the head: a sweep has an id only when its settings are known."""
    text = io.StringIO()
    question = [word for word in arguments if word != "--json"]
    if code := head.run(head.call([*question, "--write", "-"]), text, sys.stderr):
        return code
    with TemporaryDirectory() as folder:
        file = Path(folder) / "refit.yaml"
        file.write_text(text.getvalue(), encoding="utf-8")
        words = ["submit", str(file), *(word for each in options["set_"] or () for word in ("--set", each))]
        words += ["--accept-changes"] * bool(options["accept_changes"])
        return run_sweep(head, "submit", {**options, "file": str(file)}, [*words, "--cluster", head.file])


def sweep_of(head: ClusterHead, command: str, options: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """The id of the sweep that the command runs, and the distributions of its methods. `SweepError` if it runs already
    and the command would change it."""
    from babeltune.cli.common import read, warn
    from babeltune.cli.run_here import QUICKSTART, running_words
    from babeltune.errors import SweepError
    from babeltune.method.plugins import plugins
    from babeltune.planning.recorded import sweep_id
    from babeltune.planning.space import methods_used, within_grid
    from babeltune.planning.warnings import about_sweep

    file = QUICKSTART if command == "demo" else options.get("file") or options.get("spec")
    spec = None
    if file is not None:
        spec = read(file, options.get("with_"), options.get("set_"), head.file, options.get("trials"))
        if command in ("submit", "demo"):
            warn(about_sweep(spec))
            return sweep_id(within_grid(spec)), tuple(plugins(methods_used(spec)))
    job = head.jobs.find(options.get("name"))
    changed = ("spec", f"--spec {file}") if spec else ("budget", f"--trials {options.get('trials')}")
    if job is not None and job.live and (spec or options.get("trials") is not None):
        raise SweepError(running_words(job.sweep, head.where, *changed, command))
    if spec is None and job is not None and job.plugins is not None:
        return job.sweep, job.plugins
    recorded = head.document(job.sweep if job is not None else options.get("name") or "")
    return str(recorded["sweep"]), tuple(plugins(methods_used(spec)) if spec else recorded["plugins"])


def follow(head: ClusterHead, job: Job, stream: TextIO) -> int:
    """Writes a sweep's log until its job has ended: the exit code of its command. Ctrl-C leaves it running."""
    from babeltune.cli.common import err
    from babeltune.remote.jobs import exit_code

    try:
        for piece in head.jobs.follow(job.id):
            stream.write(piece)
            stream.flush()
    except KeyboardInterrupt:
        follows, ends = f"`babeltune logs {job.sweep} -f{head.where}`", f"`babeltune stop {job.sweep}{head.where}`"
        err.print(f"job {job.id} goes on: {follows} follows it, {ends} ends it")
        return INTERRUPTED
    job = head.jobs.get(job.id)
    if exit_code(job) and (job.exit_code is None or job.exit_code < 0):  # it ended without a word of its own
        reason = f"job {job.id}: {job.state} {job.reason}; `babeltune resume {job.sweep}{head.where}` goes on"
        err.print(f"[bold red]error:[/] {escape(reason)}", soft_wrap=True)
    return exit_code(job)


def stop(head: ClusterHead, options: Mapping[str, Any]) -> int:
    """Stops a sweep. A job that waits, or whose driver does not answer in time, is ended."""
    from babeltune.cli.common import err
    from babeltune.cli.run_here import say_stopped
    from babeltune.errors import ClusterError

    wait, as_json = int(options["wait"]), bool(options["as_json"])
    job = head.jobs.find(options.get("name"))
    if job is not None and job.state == "PENDING":
        head.jobs.end(job.id)
        with suppress(ClusterError):  # it has stopped all the same
            head.ask("stop", job.sweep, "--ended-job", job.id)
    else:
        name = [job.sweep] if job is not None else [options["name"]] if options.get("name") else []
        code, answer, words = head.ask("stop", *name, "--wait", str(wait), "--json")
        sys.stderr.write(words)
        if not answer:
            return code
        if code and job is not None and head.jobs.get(job.id).live:
            err.print(f"its driver does not answer; ending job {job.id}", markup=False)
            head.jobs.end(job.id)
        if job is None:
            return say_stopped(json.loads(answer)["sweep"], not code, head.where, as_json=as_json)
    stopped = not head.jobs.ended(job.id, wait).live
    return say_stopped(job.sweep, stopped, head.where, as_json=as_json)


# --- What goes there -----------------------------------------------------------------------------------------------


def packed(arguments: Iterable[str], cluster: str) -> Call:
    """The arguments with the files and variables that they name. `SpecError` for what is too large to go along."""
    from babeltune.apps.own_files.tables import named_sheet
    from babeltune.errors import SpecError
    from babeltune.schema.paths import VARIABLE

    words: list[str] = []
    files: dict[str, bytes] = {}
    for argument in arguments:
        if any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in argument.split("/")):
            words.append(argument)  # settings, and no file: asking for one of this name is an error
            continue
        option, equals, value = argument.partition("=")
        if not argument.startswith("--") and (Path(argument).expanduser().is_file() or not Path(value).is_file()):
            option, equals, value = "", "", argument  # of `fra=FILE`, a language's file goes along
        path, sheet = named_sheet(value, Path(value).expanduser())
        if sheet is not None:
            value = value.removesuffix(f"[{sheet}]")
        if value == cluster:
            value = sent_name(value)
        elif value and path.is_file():
            value = sent_name(value) if sent_name(value) not in files else f"{len(files)}/{sent_name(value)}"
            if sum(map(len, files.values())) + path.stat().st_size > MAX_SENT_BYTES:
                most = f"a command takes {MAX_SENT_BYTES >> 20} MiB to a cluster"
                raise SpecError(f"{path} is too large to go along: {most}; copy it there and name its whole path")
            files[value] = path.read_bytes()
            value += f"[{sheet}]" if sheet is not None else ""
        elif (path / "modules.json").is_file():
            todo = "copy it to the cluster and name its whole path, or name models:/NAME@ALIAS"
            raise SpecError(f"{path} is a model on this machine; {todo}")
        elif sent_name(value) == value and (folder := PurePath(value).parent).parts and Path(folder).is_dir():
            files[str(folder / FOLDER)] = b""
        words.append(f"{option}{equals}{value}")
    # The root of the data is the head's own.
    text = "\n".join([*words, *(content.decode(errors="ignore") for content in files.values())])
    names = {match[1] for match in VARIABLE.finditer(re.sub(r"(?m)^\s*root:.*$", "", text))}
    variables = {name: os.environ[name] for name in sorted(names) if name in os.environ and not NAME.search(name)}
    return Call(tuple(words), files, variables)


def sent_name(file: str) -> str:
    """The name of a file on the head: the user's own, so that a command suggested there works here, too."""
    path = PurePath(file)
    return path.name if path.is_absolute() or ".." in path.parts or file.startswith("~") else path.as_posix()


# --- What comes back -----------------------------------------------------------------------------------------------


class Splitter:
    """Parts the log of a forwarded command into standard output, standard error and files."""

    def __init__(self, out: TextIO, err: TextIO, returned: Sequence[str]) -> None:
        """`returned`: the names that the user gave; files of these names, or in such folders, are written."""
        self._out, self._err = out, err
        self._returned = [PurePath(name.partition("=")[2] if name.startswith("--") else name) for name in returned]
        self._line = ""
        self.begun = False  # whether the command has begun. Until then Ray writes to the log.
        self._files: dict[Path, bytearray] = {}

    def write(self, piece: str) -> None:
        """Takes the next piece of the log; a line is passed on when it is whole."""
        lines = (self._line + piece).split("\n")
        self._line = lines.pop()
        for line in lines:
            self._pass_on(line)

    def end(self) -> None:
        """Passes on a last line without an end, and finishes the files."""
        if self._line:
            self._pass_on(self._line)
        for path, content in self._files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_out(path, content)

    def _pass_on(self, line: str) -> None:
        from babeltune.remote.jobs import BEGIN

        if not self.begun:
            self.begun = BEGIN.match(line) is not None
        elif line.startswith(WRITTEN):
            self._add_to_file(line)
        else:
            stream = self._out if line.startswith(STDOUT) else self._err
            stream.write(line.removeprefix(STDOUT) + "\n")
            stream.flush()

    def _add_to_file(self, line: str) -> None:
        name, _, content = line.removeprefix(WRITTEN).rpartition(" ")
        path = PurePath(json.loads(name))
        if ".." in path.parts or not any(each in (path, *path.parents) for each in self._returned if each.name):
            return  # the head decides nothing that the user did not name
        self._files.setdefault(Path(path), bytearray()).extend(base64.b64decode(content))


@contextmanager
def answering() -> Iterator[None]:
    """On the head: tells standard output apart from all else, and sends the files that the command has written below
    its folder. Elsewhere nothing."""
    if FORWARDED not in os.environ:
        yield
        return
    before, log = files_below(), sys.stdout
    log.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdout = MarkedStream(log)
    try:
        yield
    finally:
        sys.stdout.end()
        sys.stdout = log
        for path, as_it_is in sorted(files_below().items()):
            if before.get(path) != as_it_is:
                send_file(path)


def files_below() -> dict[Path, list[int]]:
    """The versions of all files below the folder in which the command runs."""
    return {path: version(path) for path in Path().rglob("*") if path.is_file()}


class MarkedStream(io.TextIOBase):
    """Standard output within a log: each of its lines begins with a mark."""

    def __init__(self, log: TextIO) -> None:
        self._log, self._line = log, ""

    def write(self, text: str) -> int:
        *whole, self._line = (self._line + text).split("\n")
        for line in whole:
            self._log.write(f"{STDOUT}{line}\n")
        return len(text)

    def end(self) -> None:
        """Writes the last line if no line break ended it."""
        if self._line:
            self.write("\n")

    def flush(self) -> None:
        self._log.flush()

    def isatty(self) -> bool:
        return False


def send_file(path: Path) -> None:
    """Writes a file to the log. One that is too large for a log stays on the head, and its place is said."""
    if path.stat().st_size > MAX_RETURNED_BYTES:
        stays = shutil.move(path, Path(tempfile.mkdtemp(prefix="babeltune-")) / path.name)
        sys.stderr.write(f"{path} is too large to come back; it is on the head: {stays}\n")
        return
    content = path.read_bytes()
    for start in range(0, len(content) + 1, CHUNK_BYTES):
        part = base64.b64encode(content[start : start + CHUNK_BYTES]).decode()
        sys.stdout.write(f"{WRITTEN}{json.dumps(path.as_posix())} {part}\n")
