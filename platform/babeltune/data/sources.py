"""Reads text that lies side by side in some languages: the first step of the flow, from files to columns of sentences.

Files are read as streams and strictly. A broken row stops the run with its file and line, or is left out and counted
by reason, as the source's `on_error` says. What cannot be read at all (no such file, column or data set) is always an
error."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data import translation_files
from babeltune.data.arrays import (
    first_places,
    inverted,
    is_first,
    matching,
    paired_in_turn,
    places,
    rows_where,
    unseen,
    zeros,
)
from babeltune.data.arrow_readers import dataset_rows, parquet_rows
from babeltune.data.file_readers import (
    MAX_LINE_BYTES,
    Digest,
    Fault,
    Row,
    csv_rows,
    file_at,
    line_rows,
    numbered_lines,
    refuse_broken,
    table_rows,
    where_takes,
)
from babeltune.data.file_shards import Form, Part, is_cut, parts_of
from babeltune.data.quotation_marks import refuse_quoted
from babeltune.data.spreadsheets import sheet_rows
from babeltune.data.text_shards import TextShards, keys_of, strangers_of
from babeltune.data.texts import TableWriter, Texts, TextWriter, text_hashes
from babeltune.data.translation import Translate
from babeltune.errors import DataError, nearest, shortened
from babeltune.schema.base import changed
from babeltune.schema.languages import by_priority
from babeltune.schema.records import (
    Clustering,
    CsvSource,
    HubSource,
    MosesSource,
    ParquetSource,
    PivotSource,
    SheetSource,
    Source,
    Sts,
    Transfer,
    TranslateSource,
    TranslationFileSource,
    TsvSource,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABEL = "*label"  # stands beside the languages while texts and their labels are read from one table


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a source: `columns[language][i]` for all languages `i` says the same thing."""

    columns: dict[str, Texts]  # language code -> sentences, stripped and never empty; all columns are equally long
    ids: Texts  # the ids of the rows; empty if it names no id column
    digest: str  # SHA-256 of the content read (of what was compressed, not of the archive)
    dropped: dict[str, int]  # rows left out by reason
    firsts: dict[str, str] = field(default_factory=dict, compare=False)
    """Reason -> the place of the first row that was left out, and what is wrong with it."""
    shards: TextShards | None = field(default=None, repr=False, compare=False)
    """Tasks that do the work on many texts; None: it is done in this process."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @cached_property
    def keys(self) -> dict[str, NDArray[np.uint64]]:
        """The `sentence_keys` of every column."""
        return {language: keys_of(texts, self.shards) for language, texts in self.columns.items()}

    @cached_property
    def strangers(self) -> dict[str, NDArray[np.int16]]:
        """The `strangers` of every column."""
        return {language: strangers_of(texts, language, self.shards) for language, texts in self.columns.items()}


@dataclass
class Refusals:
    """Decides about broken rows: raises an error at the first, or drops them and counts them by reason."""

    switch: str  # the rule of a count: words for the error
    drop: bool
    counts: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, str] = field(default_factory=dict)
    """Reason -> the place of the first such row, and what is wrong with it."""
    unused: int = 0  # counted rows that are not broken, such as units without a translation
    rows: int = 0  # rows that were read, broken or not

    def refuse_too_many(self, source: Source, file: Path | str | None = None) -> None:
        """Raises `DataError` if more than `max_dropped` of the rows are broken: the file is then misread."""
        rule = f"max_dropped {source.max_dropped:g} allows; correct the file or how it is read, or raise `max_dropped`"
        place, word = source_words(source), f"rows of {file}" if file else "rows"
        broken, rows = self.counts.total() - self.unused, self.rows - self.unused
        refuse_broken(place, broken, rows, self.counts, word=word, most=source.max_dropped, rule=rule)

    def refuse(self, place: str, fault: Fault) -> None:
        """Counts the row, or raises `DataError` that names its place."""
        self.unused += fault.kind in ("unused", "left out")
        if not self.drop and fault.kind != "left out":
            todo = "save the file as UTF-8, name its `encoding`" if fault.kind == "encoding" else "correct it"
            raise DataError(
                f"{place}: {fault.reason}: {fault.words}; {todo}, or leave such rows out with {self.switch}"
            )
        self.counts[fault.reason] += 1
        self.firsts.setdefault(fault.reason, f"{place}: {fault.words or fault.reason}")


def read_source(
    source: Source,
    root: Path,
    *,
    others: Mapping[str, Rows],
    translate: Translate | None = None,
    longest: int = MAX_LINE_BYTES,
    shards: TextShards | None = None,
) -> Rows:
    """Reads a source; relative paths start at `root`, and `others` holds the rows of sources that it is made of.
    `shards`: the tasks that read large files.

    Raises `DataError` for a file, column or data set that is not there, and for the first broken row unless the source
    drops these. A line of more than `longest` bytes is broken."""
    refusals = Refusals(f"`on_error: drop` in source {source.name!r}", source.on_error == "drop")
    if isinstance(source, PivotSource):
        rows = join_pivot(source, others)
    elif isinstance(source, TranslateSource):
        rows = translated(source, others, translate)
    elif source.paths is not None:
        rows = read_files(source, root, refusals, longest, shards)
    else:
        rows = read_table(source, root, refusals, longest, shards)
    if not len(rows):
        reasons = ", ".join(f"{count} {reason}" for reason, count in rows.dropped.items())
        lack = f" left; dropped: {reasons}" if reasons else "; give it rows, or remove the source"
        raise DataError(f"{source_words(source)} has no rows{lack}")
    return rows


def source_words(source: Source) -> str:
    """The source's name and its files, for an error."""
    place = source.path or source.dataset or ", ".join((source.paths or {}).values())
    return f"source {source.name!r}{f' ({place})' if place else ''}"


# --- One table, several columns ----------------------------------------------------------------------------------


def read_table(source: Source, root: Path, refusals: Refusals, longest: int, shards: TextShards | None = None) -> Rows:
    """One file or data set that has a column for each language."""
    columns = source.columns or {}
    id_column = (source.id,) if source.id else ()
    names = (*columns.values(), *source.where, *id_column)
    content = hashlib.sha256()
    if isinstance(source, HubSource):
        place, table = f"{source.dataset}[{source.split}]", dataset_rows(source, root, names, content, longest)
        by_column = whole_rows(source, refusals, place, table, names)
    else:
        path = file_at(source.path or "", root)
        if shards is not None and is_cut(source, path):
            form = Form(source, path, names, longest)
            by_column = whole_parts(form, refusals, parts_of(form, content, shards))
        else:
            table = read_file(source, path, names, content, longest)
            by_column = whole_rows(source, refusals, str(path), table, names)
    refusals.refuse_too_many(source)
    texts = dict(zip(columns, by_column, strict=False))
    ids = by_column[-1] if source.id else Texts.of([])
    dropped, firsts = dict(refusals.counts), refusals.firsts
    return Rows(columns=texts, ids=ids, digest=content.hexdigest(), dropped=dropped, firsts=firsts)


def whole_rows(
    source: Source, refusals: Refusals, place: str, table: Iterable[Row], names: Sequence[str]
) -> list[Texts]:
    """The columns of the rows that are not broken, and that the source's `where` takes."""
    rows = TableWriter(len(names))
    for line, values in table:
        refusals.rows += 1
        if not where_takes(source, values.values if isinstance(values, Fault) else values):
            continue
        if isinstance(values, Fault):
            refusals.refuse(f"{place}:{line}", values)
        else:
            rows.add(values)
    return rows.done()


def whole_parts(form: Form, refusals: Refusals, parts: Iterable[Part]) -> list[Texts]:
    """The columns of a file whose parts were read by tasks, joined in order. Broken rows go to `refusals`."""
    columns = [TextWriter() for _ in form.names]
    for part in parts:
        refusals.rows += part.rows
        for place, fault in part.faults.items():
            refusals.refuse(f"{form.path}:{part.first + place}", fault)
        for column, texts in zip(columns, part.columns, strict=True):
            column.add(texts.part(slice(None)))
    return [column.done() for column in columns]


def read_file(source: Source, path: Path, names: Sequence[str], content: Digest, longest: int) -> Iterator[Row]:
    """The named columns of a file in the source's format. Raises `DataError` as its reader."""
    if isinstance(source, TranslationFileSource):
        units = translation_files.units(path, source.format, content, longest, source.codec)
        return translation_files.unit_rows(path, names, units)
    if isinstance(source, SheetSource):
        cells = sheet_rows(path, source.sheet, content, longest)
        return table_rows(path, names, cells, header=source.header)
    if isinstance(source, ParquetSource):
        return parquet_rows(path, names, source.id, content, longest)
    lines = numbered_lines(path, content, longest, source.codec)
    if source.format == "csv" or source.quoted:
        return csv_rows(source, path, names, lines, longest)
    rows = line_rows(source, path, names, lines)
    return refuse_quoted(path, names, rows) if source.format == "tsv" and source.quoted is None else rows


def streamed(
    source: Source, path: Path, names: Sequence[str], content: Digest, longest: int, shards: TextShards | None
) -> Iterator[Row]:
    """`read_file`, by tasks if the file is large."""
    if shards is None or not is_cut(source, path):
        return read_file(source, path, names, content, longest)
    parts = parts_of(Form(source, path, tuple(names), longest), content, shards)
    return itertools.chain.from_iterable(part.stream() for part in parts)


# --- Several files, one column each ------------------------------------------------------------------------------


def read_files(source: Source, root: Path, refusals: Refusals, longest: int, shards: TextShards | None = None) -> Rows:
    """One file per language, joined line by line or on an id."""
    files = {language: file_at(path, root) for language, path in (source.paths or {}).items()}
    contents = {language: hashlib.sha256() for language in files}
    by_id = not isinstance(source, MosesSource) and source.join == "id"
    id_names = [source.id or "id"] if by_id else []
    tables = {
        language: streamed(
            source.of_file(language), path, [source.column, *id_names], contents[language], longest, shards
        )
        for language, path in files.items()
    }
    if by_id:
        columns, ids = join_ids(source, files, tables, refusals)
    else:
        columns, ids = join_lines(files, tables, refusals), Texts.of([])
        refusals.refuse_too_many(source)
    digests = {language: content.hexdigest() for language, content in contents.items()}
    digest = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
    dropped = dict(refusals.counts)
    return Rows(columns=columns, ids=ids, digest=digest, dropped=dropped, firsts=refusals.firsts)


def join_lines(files: Mapping[str, Path], tables: Mapping[str, Iterator[Row]], refusals: Refusals) -> dict[str, Texts]:
    """Line i of every file is one row; all files must be equally long."""
    rows = TableWriter(len(files))
    last = dict.fromkeys(files, 0)
    for cells in itertools.zip_longest(*tables.values()):
        refusals.rows += 1
        row: dict[str, Row | None] = dict(zip(files, cells, strict=True))
        last |= {language: cell[0] for language, cell in row.items() if cell is not None}
        texts: list[str] = []
        for language, cell in row.items():
            if cell is None:
                longer = next(name for name, other in row.items() if other is not None)
                words = f"{files[language]} ends after line {last[language]}; files joined by line are equally long"
                refusals.refuse(f"{files[longer]}:{last[longer]}", Fault("unequal line counts", words))
                break
            if isinstance(cell[1], Fault):
                refusals.refuse(f"{files[language]}:{cell[0]}", cell[1])
                break
            texts.append(cell[1][0])
        else:
            rows.add(texts)
    return dict(zip(files, rows.done(), strict=True))


def join_ids(
    source: Source, files: Mapping[str, Path], tables: Mapping[str, Iterator[Row]], refusals: Refusals
) -> tuple[dict[str, Texts], Texts]:
    """The rows whose id is in every file, in the first file's order; others are left out and counted."""
    read = {}
    for language, table in tables.items():
        # Each file may drop its share of broken rows, so that one misread file is noticed among many.
        here = Refusals(refusals.switch, refusals.drop)
        read[language] = read_named(table, files[language], here)
        here.refuse_too_many(source, files[language])
        refusals.counts += here.counts
    keys = {language: text_hashes(names) for language, (_, names) in read.items()}
    first, *others = keys.values()
    matches = [matching(first, other) for other in others]
    everywhere = inverted(zeros(len(first), np.bool_))
    for places_there in matches:
        everywhere &= places_there >= 0
    rows = [places(everywhere), *(rows_where(places_there, everywhere) for places_there in matches)]
    different = sum(
        np.count_nonzero(unseen(side_keys, [first, *others][:place])) for place, side_keys in enumerate(keys.values())
    )
    if unmatched := int(different) - len(rows[0]):
        refusals.counts["id not in every file"] = unmatched
    columns = {language: texts.at(places) for (language, (texts, _)), places in zip(read.items(), rows, strict=True)}
    return columns, next(iter(read.values()))[1].at(rows[0])


def read_named(table: Iterable[Row], file: Path, refusals: Refusals) -> tuple[Texts, Texts]:
    """The texts of a file and their ids. A row whose id names an earlier row is broken."""
    rows = TableWriter(3)
    for line, values in table:
        refusals.rows += 1
        if isinstance(values, Fault):
            refusals.refuse(f"{file}:{line}", values)
        else:
            rows.add([*values, str(line)])
    texts, names, lines = rows.done()
    new = is_first(first_places(text_hashes(names)))
    for place in np.flatnonzero(~new).tolist():
        words = f"{shortened(names[place])} names an earlier row too; an id that joins files is unique in each"
        refusals.refuse(f"{file}:{lines[place]}", Fault("duplicate id", words))
    return texts.at(places(new)), names.at(places(new))


# --- Two sources through a pivot ---------------------------------------------------------------------------------


def join_pivot(source: PivotSource, others: Mapping[str, Rows]) -> Rows:
    """Rows of two sources that agree in a language's text (by `text_key`) or in their id.

    A key that occurs m times on the left and n times on the right gives max(m, n) rows. The i-th is joined with the
    i-th, and the shorter side starts over. So every row is used, and common sentences do not explode; the other
    combinations are counted as left out. If both sources hold a language, its text is the left one's."""
    for name in (source.left, source.right):
        if name not in others:
            offered = ", ".join(others) or "none"
            raise DataError(
                f"pivot {source.name!r} joins {name!r}, no source; sources: {offered}{nearest(name, others)}"
            )
    left, right = others[source.left], others[source.right]
    row_pairs, combinations = paired_in_turn(
        *(pivot_keys(source, rows, side) for side, rows in enumerate((left, right)))
    )
    columns = {language: texts.at(row_pairs[:, 1]) for language, texts in right.columns.items()}
    columns |= {language: texts.at(row_pairs[:, 0]) for language, texts in left.columns.items()}
    ordered = {language: columns[language] for language in dict.fromkeys([*left.columns, *right.columns])}
    left_out = combinations - len(row_pairs)
    return Rows(
        columns=ordered,
        ids=left.ids.at(row_pairs[:, 0]) if left.ids else Texts.of([]),
        digest=hashlib.sha256(json.dumps([left.digest, right.digest, source.join]).encode()).hexdigest(),
        dropped={"further combinations of a repeated key": left_out} if left_out else {},
    )


def pivot_keys(source: PivotSource, rows: Rows, side: int) -> NDArray[np.uint64]:
    """[rows] the key of what a row of the left (0) or right (1) source is joined on."""
    name = (source.left, source.right)[side]
    if source.join == "id":
        if not rows.ids:
            raise DataError(f"source {name!r} has no ids; name its `id` column, or join {source.name!r} on a language")
        return text_hashes(rows.ids)
    if source.join not in rows.columns:
        allowed = ["id", *rows.columns]
        raise DataError(
            f"pivot {source.name!r} joins on {source.join!r}, which {name!r} does not hold; "
            f"allowed: {', '.join(allowed)}{nearest(source.join, allowed)}"
        )
    return rows.keys[source.join]


# --- Machine translation -------------------------------------------------------------------------------------------


def translated(source: TranslateSource, others: Mapping[str, Rows], translate: Translate | None) -> Rows:
    """One language of another source, and what a model makes of it."""
    how = source.translation
    if translate is None:
        raise DataError(f"source {source.name!r} is a translation, which training text alone can be")
    text = others[how.text]
    translations = translate(source, text.columns[how.original])
    content = json.dumps([text.digest, translations.description, source.cap], sort_keys=True)
    return Rows(
        columns={how.original: Texts.of(translations.originals), how.into: Texts.of(translations.translations)},
        ids=Texts.of([]),
        digest=f"synthetic:{hashlib.sha256(content.encode()).hexdigest()}",
        dropped=translations.dropped,
    )


# --- Graded pairs --------------------------------------------------------------------------------------------------


def read_graded(task: Sts, root: Path, longest: int = MAX_LINE_BYTES) -> tuple[Texts, Texts, list[float], str]:
    """The two sentences and the grade of every row of an STS task's file or data set, and the digest of its content.

    Raises `DataError` for the first broken row, which includes a grade that is no finite number."""
    source = task.graded()
    rows = read_source(source, root, others={}, longest=longest)
    lefts, rights = rows.columns.values()
    place = source.dataset or str(file_at(source.path or "", root))
    grades = []
    headed = isinstance(source, TsvSource | CsvSource | SheetSource) and source.header
    for line, written in enumerate(rows.ids, 2 if headed else 1):
        try:
            grade = float(written)
        except ValueError:
            grade = math.nan
        if not math.isfinite(grade):
            where = place if rows.dropped or getattr(source, "quoted", None) else f"{place}:{line}"
            raise DataError(f"{where}: {task.score!r} is {shortened(written)}; a grade is a finite number; correct it")
        grades.append(grade)
    return lefts, rights, grades, rows.digest


# --- Texts with topics -------------------------------------------------------------------------------------------


def digest_of(*parts: str) -> str:
    """A digest over several digests, in their order."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_labelled(
    task: Clustering | Transfer, names: Sequence[str], root: Path, longest: int = MAX_LINE_BYTES
) -> tuple[Rows, list[Texts]]:
    """The rows of a clustering task's source, and of each its label in the columns of these names.

    Raises `DataError` as `read_source` does, for a row without a label, and where two languages' files disagree."""
    source = task.source
    if source.paths is None:
        labels = {f"{LABEL}{place}": name for place, name in enumerate(names)}
        with_labels = changed(Source, source, {"columns": {**(source.columns or {}), **labels}})
        whole = read_source(with_labels, root, others={}, longest=longest)
        sides = {name: texts for name, texts in whole.columns.items() if name not in labels}
        return replace(whole, columns=sides), [whole.columns[name] for name in labels]
    rows = read_source(source, root, others={}, longest=longest)
    labelled = [_labels_by_id(task, name, rows, root, longest) for name in names]
    digests, labels_of = zip(*labelled, strict=True)
    return replace(rows, digest=digests[0] if len(digests) == 1 else digest_of(*digests)), [*labels_of]


def _labels_by_id(task: Clustering | Transfer, label: str, rows: Rows, root: Path, longest: int) -> tuple[str, Texts]:
    """The digest of the rows with their labels in this column, and these labels."""
    source = task.source
    read = read_source(changed(Source, source, {"column": label}), root, others={}, longest=longest)
    labels_of_id = {name: set(labels) for name, *labels in zip(read.ids, *read.columns.values(), strict=True)}
    for name in rows.ids:
        if len(labels_of_id.get(name, ())) != 1:
            has = ", ".join(sorted(labels_of_id.get(name, ()))) or "none"
            raise DataError(
                f"clustering task {task.name!r}: row {name!r} needs one label in column {label!r}, the same in "
                f"every language's file; it has {has}; correct the files"
            )
    digest = hashlib.sha256(json.dumps([rows.digest, read.digest, label]).encode()).hexdigest()
    return digest, Texts.of([next(iter(labels_of_id[name])) for name in rows.ids])


# --- Languages and keys --------------------------------------------------------------------------------------------


def language_pairs(
    source: Source, languages: Sequence[str], anchor_priority: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """The language pairs (anchor, other) that a source is read for.

    The anchor is the language that comes first in `anchor_priority`. Languages that are not in it come last, in
    alphabetical order, so that a pair has the same anchor in every source. Raises `DataError` for a listed pair that
    is not two of the source's languages."""
    if len(languages) == 1:  # each text is a pair with itself
        return ((languages[0], languages[0]),)
    ordered = by_priority(languages, anchor_priority)
    combinations = list(itertools.combinations(ordered, 2))
    if source.pairs == "all":
        return tuple(combinations)
    if source.pairs == "anchor":
        return tuple((ordered[0], other) for other in languages if other != ordered[0])
    spelled = {f"{a}-{b}": pair for pair in combinations for a, b in (pair, pair[::-1])}
    for pair in source.pairs:
        if pair not in spelled:
            raise DataError(
                f"source {source.name!r} has no pair {pair!r}; its languages are {', '.join(languages)}"
                f"{nearest(pair, spelled)}"
            )
    return tuple(dict.fromkeys(spelled[pair] for pair in source.pairs))
