"""The program: all commands are in it, and on a cluster that takes jobs each runs on the head."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from babeltune.cli.forward import Command


class Program(typer.Typer):
    """The program. Each of its commands runs on the head of a cluster that takes jobs, if `--cluster` names one."""

    def command(self, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
        return super().command(*arguments, cls=Command, **options)


app = Program(
    help="Sweep the published ways to align a multilingual sentence encoder with a teacher, and promote the best.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def show_version(flag: bool) -> None:
    """Prints the version and ends."""
    if flag:
        from babeltune import __version__

        sys.stdout.write(f"babeltune {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Sweep the published ways to align a multilingual sentence encoder with a teacher, and promote the best."""
