"""The command init, which writes a sweep file for files of text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from babeltune.cli.common import Json, say, say_out, steps_shown, warn
from babeltune.cli.program import app
from babeltune.errors import SpecError, plural

if TYPE_CHECKING:
    from babeltune.apps.own_files.init import InitResult


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
    from babeltune.apps.own_files.init import InitOptions
    from babeltune.apps.own_files.init import init as make

    choices = InitOptions(
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


def columns_of(text: str | None) -> dict[str, str]:
    """Reads `--columns`: language -> column, from text such as `fra=French text,eng="English, old"`. A name with a
    comma stands in quotation marks. Raises `SpecError`."""
    columns: dict[str, str] = {}
    reader = shlex.shlex(text or "", posix=True, punctuation_chars="")
    reader.whitespace, reader.whitespace_split = ",", True
    reader.quotes, reader.escape, reader.commenters = '"', "", ""
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


def show(result: InitResult) -> None:
    """Prints what `init` found and wrote, and the commands to give next."""
    lines: list[str] = []
    for file in result.files:
        lines.append(f"{file.name}: {file.layout}; {plural(file.rows, 'row')}")
        medians = file.characters
        columns = (f"{code} in {name!r} (median {medians[code]} characters)" for code, name in file.columns.items())
        lines.append(f"  {', '.join(columns)}")
        if file.left_out:
            lines.append("  left out: " + ", ".join(f"{count:,} {reason}" for reason, count in file.left_out.items()))
    for name, sizes in result.splits.items():
        lines.append(f"{name}: " + ", ".join(f"{count:,} {split}" for split, count in sizes.items()))
    kind = "sweep file" if result.kind == "sweep" else "not aligned: a recipe that mines pairs"
    lines.append(f"{kind}: {result.path}")
    lines += [f"next: {command}" for command in result.next]
    say_out("\n".join(lines))
