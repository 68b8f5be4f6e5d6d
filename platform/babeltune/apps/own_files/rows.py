"""The rows of a user's files, by the languages that they hold: which columns are read, and as what."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.apps.own_files.languages import (
    NO_CODES,
    SAMPLED,
    SURE,
    agree,
    alpha3,
    code_in,
    codes_in,
    english_name,
    language_of,
)
from babeltune.apps.own_files.tables import Table
from babeltune.data.file_readers import MAX_BROKEN, MAX_LINE_BYTES, numbered_lines, refuse_broken
from babeltune.data.language_id import labels_of, likeliest, model, strangers
from babeltune.data.sources import Rows, read_source
from babeltune.data.text_keys import text_key
from babeltune.data.text_streams import text_name
from babeltune.data.texts import Texts
from babeltune.data.translation_files import FORMATS
from babeltune.errors import DataError, list_of, nearest, plural, shortened
from babeltune.schema.base import made_of
from babeltune.schema.languages import code_of, meaning
from babeltune.schema.records import MosesSource, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

INCOMPLETE = {"repeated header", "empty side", "missing column", "not translated", "fuzzy", "obsolete"}
"""Reasons to leave a row out that say nothing against its file: a table may have many gaps."""
MAX_CHARACTERS = 1200
"""The same as `data.max_characters`: longer texts are no sentences, and a sweep would leave them out."""
LEFT_OUT = "left out: give them as a file of their own"  # the warning of rows in another language than their column
FEW_STRANGERS = 0.02  # up to this share, rows in another language than their column stay. Beyond it they are left out.
NEARLY_ALL = 0.9
"""If this share of a column's sure texts is in another language, the column is in it, whatever its name."""
MOST_TAG_LETTERS = 12  # a column with more letters on average holds text, and not the names of languages
LEAST_STRANGERS = 3
"""Fewer texts that are surely in another language say nothing against the name of their column or file."""
LEAST_LETTERS = 2  # a column whose values have fewer letters on average holds numbers, marks or flags


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """The usable rows of one file, or of files that are aligned line by line, with the numbers of those left out."""

    name: str
    layout: str
    columns: dict[str, str]  # language -> column, or file
    texts: dict[str, list[str]]
    left_out: dict[str, int]  # rows that are not used, by reason
    notes: tuple[str, ...] = ()

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.texts)

    def __len__(self) -> int:
        return len(next(iter(self.texts.values())))


@dataclass(frozen=True, kw_only=True)
class Monolingual:
    """A file of one language."""

    path: Path
    language: str
    lines: int


@dataclass
class Collected:
    """The rows of all files of a user."""

    tables: list[TableRows] = field(default_factory=list)
    monolingual: list[Monolingual] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(tables: Sequence[Table], columns: Mapping[str, str]) -> Collected:
    """The rows of all tables. `columns` says language -> column for every table with delimiters, and is found by names
    and text if it is empty.

    Raises `DataError` for a table without two languages, and for one that is mostly broken."""
    collected = Collected(notes=[note for table in tables for note in table.notes])
    for table in tables:
        if table.format != "moses":
            for part in language_pairs(table, columns):
                collected.tables.extend(read_columns(part, columns))
    lines = [table for table in tables if table.format == "moses"]
    for group in aligned(lines):
        if len(group) > 1:
            collected.tables.append(read_moses(group, collected.notes))
        else:
            path, language = Path(group[0].name), language_of_file(group[0])
            collected.monolingual.append(Monolingual(path=path, language=language, lines=count_lines(group[0])))
    return collected


def language_pairs(table: Table, columns: Mapping[str, str]) -> list[Table]:
    """The table, or of a translation file with more than two languages a table for each with the commonest one: few
    units have all languages."""
    if table.format not in FORMATS or len(table.columns) < 3 or columns:
        return [table]
    filled = {name: sum(bool(row[place]) for row in table.sample) for place, name in enumerate(table.columns)}
    common = max(filled, key=filled.__getitem__)
    return [table.only(name, common) for name in table.columns if name != common]


# --- Tables with columns -------------------------------------------------------------------------------------------


def read_columns(table: Table, options: Mapping[str, str]) -> list[TableRows]:
    """The rows of a table that has a column for each language; of one that names the languages of each row, a part for
    each set of languages."""
    if not table.columns:
        lack = "column of text; give one that has two"
        if table.format in FORMATS:
            lack = "unit with texts; export it again"
        elif table.format == "jsonl":
            lack += f" (of a list in `data`: `jq -c '.data[]' {table.name} > rows.jsonl`)"
        raise DataError(f"{table.name}: it was read as {table.format} and holds no {lack}")
    if not table.sample:
        raise DataError(f"{table.name} has the columns {list_of(table.columns)} and no rows; give a table with rows")
    notes: list[str] = []
    tags = [] if options else language_columns(table)
    if tags:
        return by_language(table, tags)
    columns = found_columns(table, notes, user_columns(table, options, notes))
    if len(columns) < 2 and len(table.sample) > 1 and len(set(table.sample)) == 1:
        equal = f"all rows are equal ({len(table.sample):,} were looked at), so one row is left"
        raise DataError(f"{table.name}: {equal}; training needs different rows: correct what wrote the file")
    if len(columns) < 2:
        words = ", ".join(f"{language} ({shortened(column)})" for language, column in columns.items())
        lack = f"with text in {words} only" if columns else "without text in a language"
        todo = "parallel text has two languages a row: name them with --columns fra=COLUMN,eng=COLUMN, or give the two"
        todo += f" files of aligned lines together{_about_header(table)}"
        raise DataError(f"{table.name}: a table ({table.layout}) {lack}; columns: {_values(table)}; {todo}")
    rows = read_rows(table.name, source_of(table, columns), _root(table))
    if unused := [name for name in table.columns if name not in columns.values()]:
        notes.append(f"{table.name}: not used: column {', '.join(map(shortened, unused[:20]))}")
    return [usable_rows(table.name, table.layout, columns, rows, notes)]


def source_of(table: Table, columns: Mapping[str, str]) -> Source:
    """The source that reads these columns of a table."""
    lenient = {"on_error": "drop", "max_dropped": 1.0}  # `read_rows` has the rule
    values = {**vars(table), **lenient, "name": "init", "dataset": table.path, "columns": dict(columns)}
    source: Source = made_of(Source, values)
    return source


def read_rows(file: str, source: Source, root: Path) -> Rows:
    """The rows of a source that are not broken. Raises `DataError` if more than 5 % are, not counting incomplete ones:
    the file is then misread."""
    rows = read_source(source, root, others={})
    broken = {reason: count for reason, count in rows.dropped.items() if reason not in INCOMPLETE}
    count = sum(broken.values())
    first = next((f"; the first: {words}" for reason, words in rows.firsts.items() if reason in broken), "")
    quoting = "quote fields that hold the delimiter, or " if source.format in ("tsv", "csv") else ""
    rule = f"{MAX_BROKEN:.0%} that may be{first}; {quoting}correct what it is read as"
    refuse_broken(file, count, len(rows) + count, broken, rule=rule)
    return rows


def _root(table: Table) -> Path:
    return Path.cwd() if table.format == "hub" else Path("/")


def user_columns(table: Table, by_language: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """Language -> column as the user names them. A number counts the columns from 0, if none is called so. A note says
    if the text contradicts the language."""
    refuse_unknown("--columns", by_language)
    columns: dict[str, str] = {}
    for language, column in by_language.items():
        is_number = column.isdigit() and int(column) < len(table.columns)
        if column not in table.columns and not is_number:
            offered = f"{_values(table)}{nearest(column, table.columns)}{_about_header(table)}"
            raise DataError(f"{table.name}: no column {shortened(column)}; columns: {offered}")
        column = column if column in table.columns else table.columns[int(column)]
        seen = language_of(table.column(column))
        if seen.code and not agree(language, seen):
            says = f"--columns says that {shortened(column)} is {language} ({english_name(language)})"
            todo = f"if so, say --columns {seen.code}={column}"
            notes.append(f"{table.name}: {says}, and it reads as {seen.words}; {todo}")
        columns[alpha3(language)] = column
    return columns


def _about_header(table: Table) -> str:
    """The hint if the first row was misread."""
    if table.format not in ("tsv", "csv"):
        return ""
    names = "; the first row was read as names: say --no-header if it is text"
    return names if table.header else "; the first row was read as text: say --header if it names the columns"


def refuse_unknown(option: str, languages: Iterable[str]) -> None:
    """`DataError` for a language of this option that is no code."""
    for language in languages:
        if not meaning(language).is_language:
            written = code_of(language)
            instead = f"write {written}" if written else "say for example fra, eng or zho_Hant"
            raise DataError(f"{option}: {language!r} is no code of a language; {instead}")


def found_columns(table: Table, notes: list[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Language -> column: as given if there are two, or else by the columns' names and text too; of two columns in one
    language, the one with more letters."""
    columns = dict(chosen)
    if len(columns) > 1:
        return columns
    for column in sorted(table.columns, key=lambda name: -_letters(table.column(name))):
        texts = table.column(column)
        if column in columns.values() or _letters(texts) < LEAST_LETTERS or _is_label(texts):
            continue
        seen = language_of(texts)
        code = code_in(column, rare=True) if table.header else None
        code = None if code in NO_CODES and not agree(code, seen) else code
        contradicted = code is not None and not agree(code, seen)
        weak = not contradicted or few_strangers(texts, code or "")
        trusted = weak or (column == code and seen.shares[0][1] < NEARLY_ALL)
        language = alpha3(code) if code is not None and trusted else seen.code
        chance = column != code and code in re.split(r"[._\- /]", column)  # `text_is` may end in no language's code
        if contradicted and not weak and not chance and seen.code:
            way = f"if so, say --columns {seen.code}" if trusted else f"it was read so; if not, say --columns {code}"
            notes.append(f"{table.name}: column {shortened(column)} reads as {seen.words}; {way}={column}")
        if language is None:
            unsure = f"{table.name}: column {shortened(column)} is in no one language ({seen.words})"
            if len(columns) < 2:
                raise DataError(f"{unsure}; name the languages with --columns fra={column},eng=COLUMN")
            notes.append(f"{unsure}; if it is text, name all columns with --columns")
            continue
        columns.setdefault(language, column)
    return {language: column for column in table.columns for language, source in columns.items() if source == column}


def few_strangers(texts: Sequence[str], language: str) -> bool:
    """Whether too few texts are surely in another language to doubt the name of a column or file."""
    return int(np.count_nonzero(strangers(Texts.of(texts[:SAMPLED]), language) >= 0)) < LEAST_STRANGERS


def language_columns(table: Table) -> list[str]:
    """The columns that name the languages of each row: `fr` and `en`, `French`, or `en-fr`; if they differ by row."""
    values = {name: table.column(name) for name in table.columns}
    tags = [name for name, some in values.items() if sum(map(bool, map(codes_in, some))) > (1 - MAX_BROKEN) * len(some)]
    texts = [name for name in values if name not in tags and _letters(values[name]) > MOST_TAG_LETTERS]
    varies = any(len(set(filter(codes_in, values[name]))) > 1 for name in tags)
    return tags if varies and len(texts) > 1 else []


def by_language(table: Table, tags: Sequence[str]) -> list[TableRows]:
    """The rows of a table that names the languages of each row, a part for each set of languages. Of a part the
    languages are checked against its text, which also says which column is which. Few rows of other tags are left out.
    """
    some = {name: name for name in table.columns if name in tags or _letters(table.column(name)) >= LEAST_LETTERS}
    rows = read_rows(table.name, source_of(table, some), _root(table))
    numbers: dict[tuple[str, ...], list[int]] = {}
    for number, key in enumerate(zip(*(rows.columns[tag] for tag in tags), strict=True)):
        numbers.setdefault(key, []).append(number)
    parts: list[TableRows] = []
    odd: Counter[str] = Counter()
    for key in numbers:
        places = np.array(numbers[key])
        texts = {name: rows.columns[name].at(places) for name in some if name not in tags}
        words = list_of(key)
        codes = [code for value in key for code in codes_in(value)]
        two = all(map(codes_in, key)) and (len(codes) == 1 or len(set(map(alpha3, codes))) > 1)
        columns = columns_by_language(texts, codes) if two else {}
        if len(columns) < 2:
            odd[words] = len(places)
            continue
        by_code = {language: texts[column] for language, column in columns.items()}
        dropped = {} if parts else rows.dropped
        part = Rows(columns=by_code, ids=Texts.of([]), digest=rows.digest, dropped=dropped)
        try:
            parts.append(usable_rows(f"{table.name} ({words})", table.layout, columns, part, []))
        except DataError:  # no row is left
            odd[words] = len(places)
    rule = f"{MAX_BROKEN:.0%} that may be: they have no text in two languages; correct {list_of(tags)}"
    refuse_broken(table.name, odd.total(), len(rows), odd, rule=rule)
    if odd:
        parts[0].left_out["no two languages"] = odd.total()
    return parts


def columns_by_language(texts: Mapping[str, Texts], codes: Sequence[str]) -> dict[str, str]:
    """Language -> column of rows in these languages: each language takes the column that reads as it. The rest go in
    order, as the columns stand. One code leaves the other column to its text."""
    free = {column: language_of(some[: 4 * SAMPLED]) for column, some in texts.items() if len(some)}
    columns: dict[str, str] = {}
    for code in codes:
        fits = [column for column, seen in free.items() if seen.code and agree(code, seen)]
        if fits and alpha3(code) not in columns:
            columns[alpha3(code)] = fits[0]
            del free[fits[0]]
    for code in (each for each in map(alpha3, codes) if each not in columns):
        if free:
            columns[code] = next(iter(free))
            del free[columns[code]]
    for column, seen in free.items():
        if len(columns) < 2 and seen.code and seen.code not in columns:
            columns[seen.code] = column
    return {language: column for column in texts for language, name in columns.items() if name == column}


def _letters(texts: Sequence[str]) -> float:
    """The mean number of letters."""
    return sum(sum(map(str.isalpha, text)) for text in texts) / max(1, len(texts))


def _is_label(texts: Sequence[str]) -> bool:
    """Whether the values are names, addresses or a few labels rather than sentences."""
    if all(re.fullmatch(r"https?://.*|\S*\d\S*", text) for text in texts):
        return True
    return len(texts) >= 20 and len(set(texts)) <= max(3, len(texts) // 20)


def _values(table: Table) -> str:
    """The columns with their first value."""
    first = table.sample[0] if table.sample else ("",) * len(table.columns)
    values = zip(table.columns, first, strict=True)
    return ", ".join(f"{shortened(name)} ({shortened(value, 30)[1:-1]})" for name, value in values)


# --- Files of one sentence a line ----------------------------------------------------------------------------------


def aligned(tables: Sequence[Table]) -> list[list[Table]]:
    """Groups of files that have equally many lines and one stem, such as `talks.fra` and `talks.eng`.

    Two files alone need no common stem: equally many lines make them a group."""
    groups: dict[tuple[str, int], list[Table]] = {}
    for table in tables:
        parts = re.split(r"[._-]", text_name(Path(table.path)).removesuffix(".txt"))
        stem = "" if len(tables) == 2 else "-".join(part for part in parts if code_in(part) is None)
        groups.setdefault((stem, count_lines(table)), []).append(table)
    return list(groups.values())


def count_lines(table: Table) -> int:
    """How many lines the file has."""
    return sum(1 for _ in numbered_lines(Path(table.path), hashlib.sha256(), MAX_LINE_BYTES, table.encoding))


def language_of_file(table: Table) -> str:
    """The language of a file of sentences, by its name if the text agrees."""
    seen = language_of(table.column("text"))
    code = code_in(text_name(Path(table.path)).removesuffix(".txt"))
    weak = code is not None and code not in NO_CODES and few_strangers(table.column("text"), code)
    if code is not None and (weak or agree(code, seen)):
        return alpha3(code)
    if seen.code is None:
        raise DataError(f"{table.name} is in no one language ({seen.words}); put the code into its name: NAME.fra")
    return seen.code


def read_moses(group: Sequence[Table], notes: list[str]) -> TableRows:
    """The rows of files that are aligned line by line."""
    files = {language_of_file(table): table for table in group}
    paths = {language: table.path for language, table in files.items()}
    encodings = {language: table.encoding for language, table in files.items() if table.encoding}
    if len(paths) < len(group):
        names = " and ".join(table.name for table in group)
        raise DataError(f"{names} are in one language, {', '.join(paths)}; give a file in another one")
    source = MosesSource(name="init", paths=paths, encoding=encodings, on_error="drop", max_dropped=1.0)
    file = " + ".join(table.name for table in group)
    rows = read_rows(file, source, Path("/"))
    notes.append(f"{file}: read as aligned, since they have equally many lines")
    columns = dict(zip(paths, (table.name for table in group), strict=True))
    return usable_rows(file, group[0].layout, columns, rows, [])


# --- Rows that are used --------------------------------------------------------------------------------------------


def in_second(texts: Sequence[str], first: str, second: str) -> NDArray[np.bool_]:
    """[texts] which of the texts are likelier in the second of two languages."""
    names = [{model().labels[label] for label in labels_of(language)} for language in (first, second)]
    return np.array([language in names[1] for language in likeliest(texts, names[0] | names[1])], np.bool_)


def in_their_languages(file: str, rows: Rows, notes: list[str]) -> tuple[list[list[str]], list[str]]:
    """The columns, rows whose two texts are each in the other's language swapped back; and for each row the reason why
    it is left out, or nothing. Few rows in another language stay, since some of them are misjudged."""
    columns = [list(column) for column in rows.columns.values()]
    labels = [rows.strangers[language] for language in rows.columns]
    languages = list(rows.columns)
    for i, j in itertools.combinations(range(len(languages)), 2):
        pair = [columns[i], columns[j]], [labels[i], labels[j]]
        swap_back(file, (languages[i], languages[j]), *pair, notes)
        (columns[i], columns[j]), (labels[i], labels[j]) = pair
    other = np.zeros(len(rows), np.bool_)
    ends: dict[str, tuple[list[str], NDArray[np.bool_]]] = {end: ([], other.copy()) for end in (LEFT_OUT, "kept")}
    for language, each in zip(languages, labels, strict=True):
        share = float(np.mean(each >= 0))
        other |= (each >= 0) & (share < NEARLY_ALL)
        if share > 1 - SURE:
            names = Counter(alpha3(model().labels[label]) for label in each[each >= 0].tolist())
            words = ", ".join(f"{name} {count / len(rows):.0%}" for name, count in names.most_common(3))
            about, concerned = ends["kept" if share >= NEARLY_ALL else LEFT_OUT]
            about.append(f"{language} reads as {words}")
            concerned |= each >= 0
    for end, (about, concerned) in ends.items():
        if about:  # a row that is wrong on both sides counts once
            number = int(np.count_nonzero(concerned))
            notes.append(f"{file}: {', and '.join(about)}; {number:,} of {plural(len(rows), 'row')} {end}")
    count, share = int(np.count_nonzero(other)), float(np.mean(other))
    if count and share <= FEW_STRANGERS:
        verb = "seems" if count == 1 else "seem"
        notes.append(f"{file}: {plural(count, 'row')} {verb} to be in another language than the column; kept")
    return columns, ["in another language" if each and share > FEW_STRANGERS else "" for each in other.tolist()]


def swap_back(
    file: str, pair: tuple[str, str], columns: list[list[str]], labels: list[NDArray[np.int16]], notes: list[str]
) -> None:
    """Changes two columns and their strangers so that each row's texts are in the pair's languages. If nearly all rows
    are swapped, so are the columns: a row that nobody can judge is then like the others."""
    first, second = pair
    is_swapped = np.isin(labels[0], labels_of(second)) | np.isin(labels[1], labels_of(first))
    share = float(np.mean(is_swapped))
    if not share:
        return
    places = np.flatnonzero(is_swapped) if share <= FEW_STRANGERS else np.arange(len(is_swapped))
    left, right = (in_second([column[place] for place in places], first, second) for column in columns)
    swapped, straight = left & ~right, right & ~left
    if share > 1 - SURE and np.sum(swapped) >= NEARLY_ALL * np.sum(swapped | straight):
        columns.reverse()
        labels[:] = (strangers(Texts.of(column), language) for column, language in zip(columns, pair, strict=True))
        notes.append(f"{file}: the columns of {first} and {second} are swapped; they were swapped back as a whole")
        is_swapped = np.isin(labels[0], labels_of(second)) & np.isin(labels[1], labels_of(first))
        sure, unsure = np.flatnonzero(is_swapped), 0
    else:
        sure = places[swapped & is_swapped[places]]
        unsure = int(np.sum(~straight & ~(swapped & is_swapped[places])))
    for place in sure.tolist():
        columns[0][place], columns[1][place] = columns[1][place], columns[0][place]
    for each in labels:
        each[sure] = -1
    if len(sure):
        rows = plural(len(sure), "row has", "rows have")
        rest = f"; {plural(unsure, 'row')} could not be judged and stayed" if unsure else ""
        backs = "it was" if len(sure) == 1 else "they were"
        notes.append(f"{file}: {rows} {first} and {second} swapped; {backs} swapped back{rest}")


def usable_rows(file: str, layout: str, columns: dict[str, str], rows: Rows, notes: Sequence[str]) -> TableRows:
    """The rows less long ones, copies and repeated ones, counted by reason."""
    left_out = dict(rows.dropped)
    seen: set[tuple[str, ...]] = set()
    places: list[int] = []
    notes = list(notes)
    texts, strange = in_their_languages(file, rows, notes)
    for number in range(len(rows)):
        row = [column[number] for column in texts]
        keys = tuple(map(text_key, row))
        if max(map(len, row)) > MAX_CHARACTERS:
            reason = "too long"
        elif strange[number]:
            reason = strange[number]
        elif len(set(keys)) == 1:
            reason = "not translated"
        else:
            reason = "repeated" if keys in seen else ""
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            seen.add(keys)
            places.append(number)
    if not places:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise DataError(f"{file}: no row is left of {len(rows):,} ({reasons}); look at its columns: {columns}")
    used = {language: [column[number] for number in places] for language, column in zip(columns, texts, strict=True)}
    return TableRows(name=file, layout=layout, columns=columns, texts=used, left_out=left_out, notes=tuple(notes))
