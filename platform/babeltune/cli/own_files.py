"""The commands that help to write a sweep file, or to run a loop of sweeps: init, schema, skill."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import babeltune
from babeltune.cli.common import Json, out, say, say_line, steps_shown, warn
from babeltune.cli.program import app
from babeltune.errors import SpecError, counted, nearest
from babeltune.files import check_place, write_out

if TYPE_CHECKING:
    from babeltune.apps.own_files.init import Made
    from babeltune.schema.json_schema import Kind


@app.command()
def init(
    files: Annotated[
        list[str],
        typer.Argument(
            help="TSV, CSV, JSONL, Parquet, aligned lines, TMX, XLIFF, PO, a spreadsheet (BOOK.xlsx[SHEET]), or a "
            "saved data set (ORG/NAME[SPLIT]).",
            metavar="FILES…",
        ),
    ],
    out_: Annotated[Path, typer.Option("--out", help="The sweep file; its data go into a folder beside it.")] = Path(
        "my_sweep.yaml"
    ),
    teacher: Annotated[
        str | None, typer.Option(help="A hub id or folder; the bundled one, which knows English, when left out.")
    ] = None,
    teacher_languages: Annotated[
        str | None, typer.Option("--teacher-languages", help="What the teacher knows, such as eng,fra.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="CODE=COLUMN for each language, such as fra=french,eng=2; found when left out."),
    ] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first row names the columns.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Of all files, such as cp1252; found when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Make a sweep file from your own files, with train, dev and sealed test rows that share no text.

    Without parallel text, writes the commands that mine pairs."""
    from babeltune.apps.own_files.init import Wanted
    from babeltune.apps.own_files.init import init as make

    choices = Wanted(
        out=out_,
        teacher=teacher,
        teacher_languages=tuple(filter(None, (teacher_languages or "").replace(" ", "").split(","))),
        columns=columns_of(",".join(columns) if columns else None),
        header=header,
        encoding=encoding,
    )
    with steps_shown("reading the files"):
        recipe = make(files, choices)
    warn(recipe.notes)
    say(recipe, as_json, lambda: show(recipe))


@app.command()
def schema(
    kind: Annotated[
        str, typer.Argument(help="`sweep` or `cluster` for that file, or a command, such as promote, for its --json.")
    ],
    out_: Annotated[Path | None, typer.Option("--out", help="The file; standard output when left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As every command; a schema is JSON in any case.")] = True,
) -> None:
    """Print the JSON Schema of sweep or cluster files, for editors, or of what a command prints with --json."""
    document = schema_of(kind)
    if out_ is None:
        say(document, True, lambda: None)
        return
    check_place(out_)
    write_out(out_, (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode())
    say_line(f"schema: {out_}")


@dataclass(frozen=True, kw_only=True)
class Skill:
    """How a program or an agent runs a loop of sweeps."""

    path: str
    """The file: that of the package, or the one that was written."""
    text: str
    """Markdown, with a head in YAML as agents read it."""


@app.command()
def skill(
    out_: Annotated[
        Path | None, typer.Option("--out", help="A new file, such as .claude/skills/babeltune/SKILL.md.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print SKILL.md: how a script or an agent runs a loop of sweeps honestly, command by command."""
    path = Path(babeltune.__file__).with_name("bundled") / "SKILL.md"
    text = path.read_text(encoding="utf-8")
    if out_ is not None:
        out_.parent.mkdir(parents=True, exist_ok=True)
        check_place(out_)
        write_out(out_, text.encode())
    words = text if out_ is None else f"skill: {out_}\n"
    say(Skill(path=str(out_ or path), text=text), as_json, lambda: out.out(words, end="", highlight=False))


def schema_of(kind: str) -> dict[str, object]:
    """The JSON Schema of a kind of file, or of a command's document. `SpecError` names the nearest of both."""
    from babeltune.cli.documents import document_schema, documents
    from babeltune.schema.json_schema import RECORDS, json_schema

    if kind in ("sweep", "cluster"):
        return json_schema(cast("Kind", kind))
    if kind not in documents():
        near = nearest(kind, [*RECORDS, *documents()])
        raise SpecError(f"{kind!r} is no kind of file and no command{near}; write sweep, cluster, or a command")
    return document_schema(kind)


def columns_of(text: str | None) -> dict[str, str]:
    """Reads `--columns`: language -> column, from text such as `fra=French text,eng="English, old"`. Quotation marks
    hold commas. Raises `SpecError`."""
    columns: dict[str, str] = {}
    reader = shlex.shlex(text or "", posix=True, punctuation_chars="")
    reader.whitespace, reader.whitespace_split, reader.quotes, reader.escape, reader.commenters = ",", True, '"', "", ""
    try:
        parts = list(reader) if text else []
    except ValueError as error:
        raise SpecError(
            f"--columns {text!r}: a quotation mark is missing; it begins and ends a column's name"
        ) from error
    for part in parts:
        code, equals, column = (each.strip() for each in part.partition("="))
        if not (code and equals and column) or code in columns:
            raise SpecError(f"--columns {text!r}: write CODE=COLUMN for each language, such as fra=french,eng=english")
        columns[code] = column
    return columns


def show(made: Made) -> None:
    """Prints what `init` found and wrote, and the commands to give next."""
    lines: list[str] = []
    for file in made.files:
        lines.append(f"{file.given}: {file.layout}; {counted(file.rows, 'row')}")
        columns = ", ".join(
            f"{code} in {column!r} (median {file.characters[code]} characters)" for code, column in file.columns.items()
        )
        lines.append(f"  {columns}")
        if file.left_out:
            lines.append("  left out: " + ", ".join(f"{count:,} {reason}" for reason, count in file.left_out.items()))
    for name, sizes in made.splits.items():
        lines.append(f"{name}: " + ", ".join(f"{count:,} {split}" for split, count in sizes.items()))
    lines.append(f"{'sweep file' if made.kind == 'sweep' else 'not aligned: a recipe that mines pairs'}: {made.path}")
    lines += [f"next: {command}" for command in made.next]
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)
