"""The command line. Every command prints for people, or with `--json` one JSON document for programs."""

import gc
import re
import sys

from rich.markup import escape
from typer.exceptions import TyperException
from typer.models import CommandInfo

from babeltune.cli import (  # noqa: F401  # their commands register themselves
    clean,
    drift,
    filtering,
    health,
    inspect,
    mining,
    models,
    own_files,
    reference,
    refit,
    report,
    search,
    serving,
    sweeps,
    transfer,
    upkeep,
    watch,
)
from babeltune.cli.common import err
from babeltune.cli.forward import answering
from babeltune.cli.program import app
from babeltune.errors import SpecError
from babeltune.program import run_program
from babeltune.signals import end_when_asked

GROUPS = {
    "Find a model": ("init", "plan", "submit", "demo"),
    "Follow a sweep": ("status", "watch", "logs", "runs", "show", "report", "study", "ui"),
    "Control a sweep": ("stop", "pause", "continue", "resume", "extend", "refit", "reproduce"),
    "Take the model": ("promote", "evaluate", "compare", "export", "adapter", "push", "transfer"),
    "Use a model": ("serve", "mine", "score", "retrieve", "encode", "filter", "index", "search", "canary", "check"),
    "Reference and upkeep": ("methods", "schema", "skill", "doctor", "rename", "note", "archive", "delete", "clean"),
}
"""The commands as `--help` and the reference list them: by group, and in this order."""


def put_into_groups() -> None:
    """Puts the program's commands into their groups."""
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    for command in app.registered_commands:
        command.rich_help_panel = group_of[_name_of(command)]
    app.registered_commands.sort(key=lambda command: list(group_of).index(_name_of(command)))


def _name_of(command: CommandInfo) -> str:
    return command.name or str(getattr(command.callback, "__name__", ""))


put_into_groups()


def main() -> None:
    """Runs a command. An error is one message without a traceback, and its exit code.

    SIGTERM and SIGHUP end it as Ctrl-C does, so that it leaves no draft and no process."""
    # A command keeps what it reads; searching that for garbage took a tenth of its time.
    gc.set_threshold(50_000, 20, 50)
    end_when_asked()
    with answering():
        run_program(_command, lambda message: err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True))


def _command() -> None:
    """Runs what the arguments name; raises `SpecError` in one line for arguments that no command takes."""
    try:
        code = app(prog_name="babeltune", standalone_mode=False)
    except TyperException as error:
        message = words_for_wrong_arguments(error, sys.argv[1:])
        if not message:  # there were no arguments, and the help is shown
            raise SystemExit(2) from None
        raise SpecError(message) from None
    raise SystemExit(code or 0)


def words_for_wrong_arguments(error: TyperException, arguments: list[str]) -> str:
    """The problem of the arguments: the option, its value, the rule, and where the options are listed."""
    words = error.format_message().strip().removesuffix(".")
    options = getattr(getattr(error, "param", None), "opts", [])
    place = next((place for place, word in enumerate(arguments) if word.partition("=")[0] in options), None)
    if place is not None and words.startswith("Invalid value"):
        rule = str(error).removeprefix("Value error, ").replace("Input should be", "must be").removesuffix(".")
        option = " ".join(arguments[place : place + 2 - ("=" in arguments[place])])
        words = f"{option}: {rule.partition(', unable to parse')[0]}"
    if (unknown := re.match(r"No such command '(version|help)'", words)) is not None:
        words += f" (did you mean '--{unknown[1]}'?)"
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "babeltune"
    return f"{words}; `{command} --help` lists what it takes" if words else ""
