"""`babeltune init`: reads a user's files, splits their rows, and writes a sweep file beside a folder of split files.

Nothing is written where the user's files are, unless the sweep file itself is put there. What exists is not replaced.
"""

import filecmp
import os
import re
import shlex
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from babeltune.apps.own_files.proposal import check_sets, propose, teacher_of, this_machine
from babeltune.apps.own_files.rows import Collected, Monolingual, TableRows, collect, refuse_unknown
from babeltune.apps.own_files.splits import large_enough, split, texts_by_languages, write
from babeltune.apps.own_files.sweep_yaml import SCHEMA, cluster_option, sweep_yaml
from babeltune.apps.own_files.tables import read_table
from babeltune.errors import DataError, SpecError, plural
from babeltune.files import check_place, draft_of, remove_left, replace_folder, write_json, write_out
from babeltune.planning.availability import models_at_hand
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.json_schema import json_schema

MULTILINGUAL = "sentence-transformers/LaBSE"
"""Mines pairs if the user names no other model: it knows 109 languages (Feng et al. 2022)."""
YAML_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of `babeltune init`: where to write, and what overrides the detection."""

    out: Path
    teacher: str | None = None
    teacher_languages: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)  # language -> column
    header: bool | None = None
    encoding: str | None = None


@dataclass(frozen=True, kw_only=True)
class FileSummary:
    """Layout, columns and numbers of rows of one of the user's files. `init` prints them."""

    name: str
    layout: str
    columns: dict[str, str]
    rows: int
    """Rows that are used."""
    left_out: dict[str, int]
    characters: dict[str, int]
    """The median length of a text, by language."""


@dataclass(frozen=True, kw_only=True)
class InitResult:
    """The outcome of `init`."""

    path: Path
    """The sweep file, or the recipe that mines pairs."""
    kind: str
    """`sweep` or `mining`."""
    files: tuple[FileSummary, ...] = ()
    splits: dict[str, dict[str, int]] = field(default_factory=dict)
    """Set of languages -> split -> rows."""
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    """The commands to give next."""


def init(files: Sequence[str], options: InitOptions) -> InitResult:
    """Writes the sweep file for these files, or the recipe that mines pairs if they are monolingual.

    Raises `DataError` or `SpecError` for a file, a column or a place that cannot be used."""
    check_out(options.out)
    refuse_unknown("--teacher-languages", options.teacher_languages)
    if repeated := [name for name in dict.fromkeys(files) if files.count(name) > 1]:
        raise SpecError(f"{repeated[0]} is named twice; name each file once")
    header = tuple(options.columns.values()) if options.header is None else options.header
    tables = [read_table(name, encoding=options.encoding, header=header) for name in files]
    collected = collect(tables, options.columns)
    if collected.tables:
        for each in collected.monolingual:
            words = f"one language ({each.language}) and no partner of as many lines; not used"
            collected.notes.append(f"{each.path}: {words}")
        try:
            return make_sweep(files, collected, options)
        except DataError as error:  # what is doubted may be its cause
            notes = [*collected.notes, *(note for table in collected.tables for note in table.notes)]
            raise DataError("; ".join([*(each for each in notes if " reads as " in each), str(error)])) from error
    return make_recipe(collected, options)


def check_out(out: Path) -> None:
    """`SpecError` unless a sweep file or a recipe can be made at `out`."""
    if out.suffix not in YAML_ENDINGS:
        raise SpecError(f"--out {out}: a sweep file ends in .yaml; say for example {out.with_suffix('.yaml')}")
    check_place(out)
    refuse_taken(out, out, recipe_of(out))


def refuse_taken(out: Path, *places: Path) -> None:
    """`SpecError` for a place where something is."""
    for path in filter(os.path.lexists, places):
        raise SpecError(f"--out {out}: {path} exists already; remove it, or name another file")


def is_left(folder: Path, draft: Path) -> bool:
    """Whether a folder holds the files of the draft and nothing else, as a killed `init` left it."""
    names = sorted(path.name for path in draft.iterdir())
    both = folder.is_dir() and not folder.is_symlink() and sorted(path.name for path in folder.iterdir()) == names
    return both and filecmp.cmpfiles(draft, folder, names, shallow=False)[0] == names


def split_folder(out: Path) -> Path:
    """The folder of the split files."""
    return out.with_name(f"{out.stem}_data")


def recipe_of(out: Path) -> Path:
    """The recipe that mines pairs."""
    return out.with_name(f"{out.stem}_mine.sh")


def make_sweep(files: Sequence[str], collected: Collected, options: InitOptions) -> InitResult:
    """Splits the rows and writes the sweep file, which is read back as `plan` reads it."""
    groups, repeated = texts_by_languages(collected.tables)
    groups = large_enough(groups, collected.notes)
    languages = list(dict.fromkeys(language for texts in groups for language in texts))
    teacher = teacher_of(options.teacher, languages, options.teacher_languages)
    parts = split(groups)
    check_sets(parts, teacher)
    proposal = propose(parts, teacher, this_machine(), models_at_hand(Path(), options.out.parent))
    out, folder = options.out, split_folder(options.out).absolute()
    draft = draft_of(folder)
    text = sweep_yaml(sweep_name(out), str(out), folder, parts, proposal, [str(Path(name)) for name in files])
    written = [draft]
    try:
        remove_left(folder)
        draft.mkdir()
        write(parts, draft)
        write_json(draft / SCHEMA, json_schema("sweep"))
        if not is_left(folder, draft):
            refuse_taken(out, split_folder(out))
        written.append(folder)
        replace_folder(draft, folder)
        write_out(out, text.encode())
        read_sweep(out.absolute())
    except BaseException as error:
        for place in written:
            shutil.rmtree(place, ignore_errors=True)
        out.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise SpecError(f"--out {out} cannot be written ({error.strerror}); name another place") from error
        raise
    notes = [*collected.notes, *(note for table in collected.tables for note in table.notes)]
    if repeated:
        verb = "stands" if repeated == 1 else "stand"
        notes.append(f"{plural(repeated, 'row')} {verb} in an earlier file too; each was used once")
    file_option = f"{shlex.quote(str(out))}{cluster_option(proposal)}"
    return InitResult(
        path=out,
        kind="sweep",
        files=tuple(map(summary, collected.tables)),
        splits={group.name: {name: group.size(name) for name in ("train", "dev", "test")} for group in parts},
        notes=tuple(notes),
        next=tuple(f"babeltune {command} {file_option}" for command in ("plan", "submit")),
    )


def summary(table: TableRows) -> FileSummary:
    """Sums up a table that was read, for what `init` prints."""
    return FileSummary(
        name=table.name,
        layout=table.layout,
        columns=table.columns,
        rows=len(table),
        left_out=table.left_out,
        characters={code: int(statistics.median(map(len, texts))) for code, texts in table.texts.items()},
    )


def sweep_name(out: Path) -> str:
    """The file's name as a sweep's name."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", out.stem).strip("_.-")[:80]
    return name or "my_sweep"


# --- Monolingual text ----------------------------------------------------------------------------------------------


def make_recipe(collected: Collected, options: InitOptions) -> InitResult:
    """Writes the commands that mine pairs of monolingual files, and then make the sweep of them."""
    by_language: dict[str, list[Monolingual]] = {}
    for each in collected.monolingual:
        by_language.setdefault(each.language, []).append(each)
    if len(by_language) < 2:
        names = ", ".join(str(each.path) for each in collected.monolingual)
        todo = "give a table with two languages a row, or a file in another language, to mine pairs from"
        raise DataError(f"{names}: text in one language, {', '.join(by_language)}; {todo}")
    pivot = max(by_language, key=lambda code: (code == "eng", sum(file.lines for file in by_language[code])))
    model = options.teacher or MULTILINGUAL
    mined: list[tuple[Path, str]] = []
    commands: list[str] = []
    for language, sources in by_language.items():
        if language == pivot:
            continue
        for source in sources:
            for target in by_language[pivot]:
                out = options.out.with_name(f"{options.out.stem}_mined_{len(mined) + 1}.tsv")
                mined.append((out, f"{language}=1,{pivot}=2"))
                words = ["babeltune", "mine", source.path, target.path, model, "--out", out, "--threshold", "1.06"]
                commands.append(shlex.join(map(str, words)))
    last = ["babeltune", "init", *(path for path, _ in mined), "--out", options.out]
    last += ["--columns", mined[0][1]] if len({columns for _, columns in mined}) == 1 else []
    commands.append(shlex.join(map(str, last)))
    path = recipe_of(options.out)
    head = f"""\
#!/bin/sh
# These files are not aligned: they hold one language each, and not equally many lines in one order.
# The commands mine pairs with {model}, which has to know all languages, and make a sweep file of them.
# A higher --threshold gives fewer and better pairs. Look at the mined files before you train on them.
set -e
"""
    write_out(path, (head + "\n".join(commands) + "\n").encode())
    return InitResult(path=path, kind="mining", notes=tuple(collected.notes), next=(f"sh {shlex.quote(str(path))}",))
