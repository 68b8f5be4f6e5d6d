"""The commands that print what else is known of files and commands: schema and skill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import babeltune
from babeltune.cli.common import Json, out, say, say_line
from babeltune.cli.program import app
from babeltune.errors import SpecError, nearest
from babeltune.files import check_place, make_place, write_out

if TYPE_CHECKING:
    from babeltune.schema.json_schema import Kind


@app.command()
def schema(
    kind: Annotated[
        str, typer.Argument(help="`sweep` or `cluster` for that file, or a command, such as promote, for its --json.")
    ],
    out_: Annotated[Path | None, typer.Option("--out", help="The file; standard output when left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As every command; a schema is JSON in any case.")] = True,
) -> None:
    """Print the JSON Schema of sweep or cluster files, for editors, or of what a command prints with --json."""
    from babeltune.schema.json_schema import RECORDS, json_schema

    if kind in ("sweep", "cluster"):
        document = json_schema(cast("Kind", kind))
    else:
        from babeltune.cli.documents import DOCUMENTS, document_schema

        if kind not in DOCUMENTS:
            near = nearest(kind, [*RECORDS, *DOCUMENTS])
            raise SpecError(f"{kind!r} is no kind of file (sweep, cluster) and no command{near}")
        document = document_schema(kind)
    if out_ is None:
        say(document, True, lambda: None)
        return
    check_place(out_)
    write_out(out_, (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode())
    say_line(f"schema: {out_}")


@app.command()
def skill(
    out_: Annotated[
        Path | None, typer.Option("--out", help="A new file, such as .claude/skills/babeltune/SKILL.md.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print SKILL.md: how a script or an agent runs a loop of sweeps honestly, command by command."""
    from babeltune.cli.documents import Skill

    path = Path(babeltune.__file__).with_name("bundled") / "SKILL.md"
    text = path.read_text(encoding="utf-8")
    if out_ is not None:
        make_place(out_)
        write_out(out_, text.encode())
    words = text if out_ is None else f"skill: {out_}\n"
    say(Skill(path=str(out_ or path), text=text), as_json, lambda: out.out(words, end="", highlight=False))
