"""How a user's file is read: its format, delimiter, quotation marks, header and columns, seen from its first rows.

Also guesses the code page of a text that is no Unicode: readers of sweep files take what is named."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from babeltune.apps.own_files.headers import header_evidence, is_name
from babeltune.data import translation_files
from babeltune.data.arrow_readers import arrow_rows, is_text, leaves, load_dataset, parquet_rows, parquet_schema
from babeltune.data.file_readers import (
    MAX_BROKEN,
    TITLE_ROWS,
    Fault,
    QuotedLines,
    Row,
    bounded_lines,
    file_at,
    is_title,
    json_object,
    named_delimiter,
    numbered_lines,
    refuse_broken,
)
from babeltune.data.quotation_marks import QUOTED
from babeltune.data.spreadsheets import sheet_rows, workbook_format
from babeltune.data.text_streams import UNREADABLE, text_name, unpacked
from babeltune.errors import DataError, list_of, plural, shortened, to_utf8
from babeltune.schema.base import Scalar, flat
from babeltune.schema.records import HubSource

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_LINES = 2_000  # lines from which a layout is found
SAMPLE_CHARACTERS = 1_000  # characters of a text from which its language is found
LINE_CHARACTERS = 1 << 20
SAMPLE_BYTES = 1 << 18  # bytes of lines that are not UTF-8 from which the encoding is guessed
LINE_BYTES = 1 << 20  # a longer line decides no encoding
WESTERN = ("cp1252", "latin_1")
"""Taken if they explain the text as well as others do: most files that are not UTF-8 have one of these."""
CODE_PAGES = [
    *WESTERN, "cp1250", "cp1251", "koi8_r", "iso8859_2", "cp1253", "cp1254", "cp1255", "cp1256", "cp932", "euc_jp",
    "cp949", "euc_kr", "gb18030", "big5",
]  # fmt: skip
LEAST_ALIKE = {"\t": 0.8, ";": 0.9, "|": 0.9, ",": 0.9}
"""The share of rows that have equally many columns, by delimiter, from which on it is believed to be one."""
COMMAS_ALIKE = 0.98  # the same of commas in a file that is not called .csv: sentences have commas too
Format = Literal["tsv", "csv", "jsonl", "parquet", "moses", "hub", "xlsx", "ods", "tmx", "xliff", "po"]
JSON_VALUE = re.compile(r'\s*(\[\s*(\{\s*("|$)|\[\s*"|"[^"]*",?\s*$|$)|\{\s*("[^"]*"\s*:|$))')
"""How a first line begins that no line ends: `[`, `{`, `[{"`, `{"key":`."""
JSON_LIST = re.compile(r'\s*\[\s*"(?:[^"\\]|\\.)*"\s*,.*\]\s*', re.DOTALL)  # a line that is a list of texts
HeaderHint = bool | Collection[str] | None  # whether a table has a header, or columns that it names; None: that is seen
FILE = re.compile(r"\.(tsv|csv|txt|jsonl?|parquet|arrow|tmx|xlf|xliff|po|xlsx|ods|gz|bz2|xz|zst|zip)$", re.IGNORECASE)
"""Names of files, which are no data sets of the hub though they look like one, such as `data/pairs.csv`."""
HUB = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:\[(?P<split>[\w.-]+)\])?")
"""A data set by its id, with a split: `org/name[validation]`."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A file of the user, and how it is read."""

    name: str  # the name that the user gave
    path: str  # the file, or a data set's id
    format: Format
    columns: tuple[str, ...]  # names, or without a header numbers from 0. A Moses file has the one column `text`.
    sample: tuple[tuple[str, ...], ...]  # [rows, columns] the first rows as text
    header: bool = True
    guessed: bool = False  # whether nothing decides if the first row is a header
    quoted: bool = False
    delimiter: str = "\t"
    split: str = "train"
    sheet: str | None = None  # the name of the workbook's sheet. None: the only sheet with cells.
    encoding: str | None = None  # the code page of a file that is not in Unicode
    notes: tuple[str, ...] = ()

    def column(self, name: str) -> list[str]:
        """The sampled values of a column that are not empty."""
        place = self.columns.index(name)
        return [text for row in self.sample if (text := row[place][:SAMPLE_CHARACTERS].strip())]

    def only(self, *columns: str) -> Table:
        """The table with some of its columns, and of the sample the rows that have text in all of them."""
        places = [self.columns.index(name) for name in columns]
        sample = [tuple(row[place] for place in places) for row in self.sample]
        return replace(self, columns=columns, sample=tuple(row for row in sample if all(row)))

    @property
    def layout(self) -> str:
        """The layout in a few words, such as `csv with ";", quoted, no header`."""
        words = {"moses": "one sentence a line", "hub": f"data set, split {self.split}"}.get(self.format, self.format)
        if self.format == "csv":
            words += f" with {self.delimiter!r}"
        if self.format in ("tsv", "csv"):
            words += (", quoted" if self.quoted else "") + ("" if self.header else ", no header")
        return words


def read_table(file: str, *, encoding: str | None = None, header: bool | Collection[str] | None = None) -> Table:
    """How the file or data set is read. `encoding` and `header` overrule what is seen. `header` may also be names of
    columns: a first row that has one of them is a header.

    Raises `DataError` for what is no text, or cannot be found."""
    path = Path(file).expanduser()
    if not file.strip():
        raise DataError(f"{file!r} is no file's name; name a file with text")
    strange = not (path.exists() or path.parent.is_dir() or FILE.search(file))
    if path.is_dir() or (strange and "/" in file and HUB.fullmatch(file)):
        return _dataset(file)
    path, sheet = named_sheet(file, path)
    path = file_at(str(path.absolute()))
    if is_parquet(path):
        return _parquet(file, path)
    if (book := workbook_format(path)) is not None:
        return _sheet(file, path, book, sheet, header)
    notes: tuple[str, ...] = ()
    if (format_ := translation_files.format_in(path, encoding)) is not None:
        return _units(file, path, format_, encoding)
    if encoding is None and (encoding := encoding_of(path)):
        notes = (f"{file} is not UTF-8; it was read as {encoding}. If letters are wrong: --encoding",)
    delimiter, lines = first_lines(path, encoding)
    kind = json_kind(lines)
    if kind == "lists":
        objects = f"`jq -c '{{fra: .[0], eng: .[1]}}' {file} > rows.jsonl`"
        raise DataError(f"{file} has a JSON list in each line; write one object a line, such as by {objects}")
    if kind == "list":
        inside = "" if next(filter(str.strip, lines)).lstrip().startswith("[") else " (of a list in `data`: `.data[]`)"
        todo = f"`jq -c '{'.' if inside else '.[]'}' {file} > rows.jsonl`{inside}"
        raise DataError(f"{file} is JSON, and no line is a whole object; write one object a line, such as by {todo}")
    table = _jsonl(file, path, lines) if kind == "lines" else _delimited(file, path, lines, header, delimiter)
    return replace(table, notes=(*notes, *table.notes), encoding=encoding)


def is_parquet(path: Path) -> bool:
    """By the file's first bytes."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def named_sheet(file: str, path: Path) -> tuple[Path, str | None]:
    """The workbook and the sheet of `book.xlsx[Sheet2]`; a file of that very name goes before."""
    marks = [] if path.exists() or not file.endswith("]") else [mark.start() for mark in re.finditer(r"\[", file)]
    books = [(Path(file[:mark]).expanduser(), file[mark + 1 : -1]) for mark in marks]
    return next(((book, sheet) for book, sheet in books if sheet and book.is_file()), (path, None))


def first_lines(path: Path, encoding: str | None) -> tuple[str, list[str]]:
    """The delimiter that Excel's line `sep=;` names, and the first lines less broken ones."""
    delimiter, lines = named_delimiter(numbered_lines(path, hashlib.sha256(), LINE_CHARACTERS, encoding))
    some = itertools.islice(lines, SAMPLE_LINES)
    return delimiter, [raw.decode(errors="replace") for _, raw in some if not isinstance(raw, Fault)]


def json_kind(lines: Sequence[str]) -> Literal["lines", "list", "lists", ""]:
    """Whether the lines are JSON objects, parts of one JSON value, or each a list; empty for other text, in brackets or
    not."""
    filled = [line for line in lines if line.strip()]
    if filled and all(map(JSON_LIST.fullmatch, filled)):
        return "lists"
    begins = [line for line in filled if line.lstrip().startswith("{")]
    objects = sum(not isinstance(json_object(line.encode()), Fault) for line in begins)
    if objects and (2 * objects > len(filled) or begins[0] is filled[0]):
        return "lines"
    return "list" if filled and JSON_VALUE.match(filled[0]) else ""


# --- Delimited text ------------------------------------------------------------------------------------------------


def _delimited(file: str, path: Path, lines: Sequence[str], hint: HeaderHint, sep: str) -> Table:
    """A table of delimited text, or one sentence a line. `sep` is the delimiter that the file names."""
    if not any(map(str.strip, lines)):
        words = f"only blank lines or ones of more than {LINE_CHARACTERS:,} bytes"
        raise DataError(f"{file} has {words}; name a file with text")
    is_csv = text_name(path).lower().endswith(".csv")
    best: tuple[float, int, str, bool, list[list[str]]] | None = None
    for order, (delimiter, least) in enumerate({sep: 0.0}.items() if sep else LEAST_ALIKE.items()):
        quoted, rows = parsed(lines, delimiter)
        width, share = commonest_width(rows)
        least = COMMAS_ALIKE if delimiter == "," and not is_csv else least
        if rows and share < least and (is_csv or delimiter == "\t") and len(rows[0]) > 1 and all(map(is_name, rows[0])):
            width, least = len(rows[0]), 0.0  # the reader says which rows do not fit
        if width >= 2 and share >= least and (best is None or share > best[0] + 0.05):
            best = (share, -order, delimiter, quoted, [row for row in rows if len(row) == width])
    if best is None and sep:
        raise DataError(f"{file}:1: `sep={sep}` names a delimiter that no other line has; correct or remove the line")
    if best is None:
        texts = tuple((line,) for line in lines)
        return Table(name=file, path=str(path), format="moses", columns=("text",), sample=texts, header=False)
    _, _, delimiter, quoted, rows = best
    is_headed, guessed, names, rows, notes = find_header(file, rows, hint)
    return Table(
        name=file,
        path=str(path),
        format="tsv" if delimiter == "\t" and not sep else "csv",
        columns=names,
        sample=tuple(map(tuple, rows)),
        header=is_headed,
        guessed=guessed,
        quoted=quoted,
        delimiter=delimiter,
        notes=notes,
    )


def _header(file: str, rows: Sequence[Sequence[str]], hint: HeaderHint) -> tuple[bool, tuple[str, ...]]:
    """Whether the first row names the columns, and a note if this is a guess. What the user says is believed."""
    if isinstance(hint, bool):
        return hint, ()
    if {name.strip() for name in rows[0]} & {name for name in hint or () if not name.isdigit()}:
        return True, ()
    evidence = header_evidence(rows)
    cells = ", ".join(cell.strip() for cell in rows[0])
    if evidence.sure or len(rows) == 1:
        return evidence.header, ()
    reading, other = ("names", "--no-header") if evidence.header else ("text", "--header")
    words = f"the first row ({shortened(cells)}) was taken for {reading}; if it is not: {other}"
    return evidence.header, (f"{file}: {words}",)


def find_header(
    file: str, rows: list[list[str]], hint: HeaderHint
) -> tuple[bool, bool, tuple[str, ...], list[list[str]], tuple[str, ...]]:
    """Whether a row names the columns, the first one or the first below a title, and whether that is a guess. Then
    these names or else numbers from 0, the rows of text, and notes."""
    titles = next((place for place, row in enumerate(rows[: TITLE_ROWS + 1]) if not is_title(row)), 0)
    header, notes = _header(file, rows[titles:], hint)
    guessed = bool(notes)
    if header and titles:
        words = shortened(" ".join(cell for row in rows[:titles] for cell in row if cell.strip()))
        notes = (*notes, f"{file}: {plural(titles, 'row')} above the header left out: {words}")
        rows = rows[titles:]
    elif titles:
        header, notes = _header(file, rows, hint)
        guessed = bool(notes)
    if len(rows) == 1 and header:
        todo = "put rows below it, or read it without a header"
        raise DataError(f"{file} has a header and no rows: {list_of(rows[0])}; {todo}")
    names = [name.strip() for name in rows[0]] if header else [str(i) for i in range(len(rows[0]))]
    if header and (twice := [name for name, count in Counter(names).items() if name and count > 1]):
        words = f"several columns are called {shortened(twice[0])}; rename all but one, or read no header"
        raise DataError(f"{file}:1: {words}")
    return header, guessed, tuple(names), rows[header:], notes


def _sheet(file: str, path: Path, book: Literal["xlsx", "ods"], sheet: str | None, hint: HeaderHint) -> Table:
    """A sheet of a workbook."""
    cells = sheet_rows(path, sheet, hashlib.sha256(), LINE_CHARACTERS)
    rows = [row for _, row in itertools.islice(cells, SAMPLE_LINES) if not isinstance(row, Fault)]
    if not rows:
        raise DataError(f"{file} has no cells; name a workbook with text")
    header, guessed, names, rows, notes = find_header(file, rows, hint)
    sample = tuple(map(tuple, rows))
    table = Table(name=file, path=str(path), format=book, columns=names, sample=sample, header=header, sheet=sheet)
    return replace(table, guessed=guessed, notes=notes)


def parsed(lines: Sequence[str], delimiter: str) -> tuple[bool, list[list[str]]]:
    """The rows of the lines, and whether their fields are in quotation marks as spreadsheets write them."""
    bare = [line.split(delimiter) for line in lines if line]
    read = list(QuotedLines(iter(enumerate(map(str.encode, lines), 1)), LINE_CHARACTERS).rows(delimiter))
    rows = [row for _, row in read if row and not isinstance(row, Fault)]
    faults = [row for _, row in read if isinstance(row, Fault)]
    if faults:  # broken rows, or one that the sample cuts off
        marked = [len(field) > 1 and field[0] == field[-1] == '"' for row in bare for field in row]
        better = commonest_width(rows)[1] * len(rows) / len(read) > commonest_width(bare)[1]
        quoted = len(faults) <= MAX_BROKEN * len(read) and (better or 2 * sum(marked) > len(marked))
        return quoted, rows if quoted else bare
    if delimiter != "\t":
        return True, rows
    fields = [field for row in bare for field in row]
    wrapped = [field for field in fields if len(field) > 1 and QUOTED.fullmatch(field)]
    doubled = sum('""' in field[1:-1] for field in wrapped)
    inside = sum("\n" in field or delimiter in field for row in rows for field in row)
    return (bool(doubled or inside or 2 * len(wrapped) > len(fields)), rows if wrapped or inside else bare)


def commonest_width(rows: Sequence[Sequence[str]]) -> tuple[int, float]:
    """How many columns most rows have, and the share of these rows."""
    if not rows:
        return 0, 0.0
    width, count = Counter(map(len, rows)).most_common(1)[0]
    return width, count / len(rows)


# --- Objects and columns -------------------------------------------------------------------------------------------


def _jsonl(file: str, path: Path, lines: Sequence[str]) -> Table:
    """JSON lines: the columns are all keys that hold text, numbers or nothing; `translation.en` is within an object."""
    objects = (json_object(line.encode()) for line in lines if line.strip())
    records = [_texts(value) for value in objects if not isinstance(value, Fault)]  # faults count later
    columns = tuple(dict.fromkeys(key for record in records for key in record))
    sample = tuple(tuple(record.get(key, "") for key in columns) for record in records)
    return Table(name=file, path=str(path), format="jsonl", columns=columns, sample=sample)


def _units(file: str, path: Path, format_: translation_files.Format, encoding: str | None) -> Table:
    """A translation file: a column for each language."""
    units = translation_files.units(path, format_, hashlib.sha256(), LINE_CHARACTERS, encoding)
    some = list(itertools.islice(units, SAMPLE_LINES))
    columns = tuple(translation_files.unit_languages(some))
    texts = [unit for _, unit in some if not isinstance(unit, Fault)]
    if not texts:
        reasons = Counter(unit.reason for _, unit in some if isinstance(unit, Fault))
        refuse_broken(file, len(some), len(some), reasons, word="units")
    cells = ((next(iter(translation_files.text_in(unit, each)), "") for each in columns) for unit in texts)
    sample = tuple(map(tuple, cells))
    return Table(name=file, path=str(path), format=format_, columns=columns, sample=sample, encoding=encoding)


def _texts(record: Mapping[str, object]) -> dict[str, str]:
    values = flat(record).items()
    return {key: "" if value is None else str(value) for key, value in values if isinstance(value, Scalar)}


def text_columns(
    file: str, schema: pa.Schema, rows_of: Callable[[list[str]], Iterable[Row]]
) -> tuple[list[str], tuple[str, ...]]:
    """The columns that hold text, those within structures too (`translation.en`), and a note on those left out. Bytes
    are text if the sampled ones are UTF-8."""
    types, binary = leaves(schema), []
    for name in [name for name, type_ in types.items() if is_text(type_) and not is_text(type_, raw=False)]:
        if any(isinstance(row, Fault) for _, row in itertools.islice(rows_of([name]), SAMPLE_LINES)):
            binary.append(name)
    columns = [name for name, type_ in types.items() if is_text(type_) and name not in binary]
    words = f"{file}: {list_of(binary)} left out, as the bytes there are not UTF-8; write text"
    return columns, (words,) if binary else ()


def _parquet(file: str, path: Path) -> Table:
    def rows_of(names: list[str]) -> Iterable[Row]:
        return parquet_rows(path, names, None, hashlib.sha256()) if names else iter(())

    names, notes = text_columns(file, parquet_schema(path), rows_of)
    sample = (tuple(row) for _, row in itertools.islice(rows_of(names), SAMPLE_LINES) if not isinstance(row, Fault))
    return Table(name=file, path=str(path), format="parquet", columns=tuple(names), sample=tuple(sample), notes=notes)


def _dataset(file: str) -> Table:
    """A saved data set, or one of the hub that is in the local cache."""
    match = None if Path(file).expanduser().exists() else HUB.fullmatch(file)
    name, split = (match["name"], match["split"] or "train") if match else (file, "train")
    if Path(name).is_dir():
        if not any(path.is_file() for path in Path(name).rglob("*")):
            raise DataError(f"{file} is a folder without files; name files, or a folder that `save_to_disk` wrote")
        name = str(Path(name).absolute())
    dataset = load_dataset(HubSource(name="init", dataset=name, split=split), Path.cwd())

    def rows_of(names: list[str]) -> Iterable[Row]:
        roots = list(dict.fromkeys(each.split(".")[0] for each in names))
        batches = dataset.select_columns(roots).with_format("arrow").iter(SAMPLE_LINES) if names else ()
        return arrow_rows(itertools.islice(batches, 1), names, None, LINE_CHARACTERS)

    names, notes = text_columns(file, dataset.features.arrow_schema, rows_of)
    sample = tuple(tuple(row) for _, row in rows_of(names) if not isinstance(row, Fault))
    return Table(name=file, path=name, format="hub", columns=tuple(names), sample=sample, split=split, notes=notes)


def encoding_of(path: Path) -> str | None:
    """The file's code page; None if it is UTF-8, UTF-16 or UTF-32. UTF-8 if most lines beyond ASCII are: the others are
    then broken rows."""
    good = bad = 0
    sample = bytearray()
    try:
        with unpacked(path) as file:
            if not file.peek(1):
                raise DataError(f"{path} is empty; name a file with text")
            for _, line, skipped in bounded_lines(file, path, hashlib.sha256(), LINE_BYTES):
                if b"\0" in line:
                    raise DataError(f"{path} is no text file: it holds zero bytes; export its text as UTF-8")
                if line.isascii() or skipped is not None:
                    continue
                try:
                    line.decode()
                    good += 1
                except UnicodeDecodeError:
                    bad += 1
                    if len(sample) < SAMPLE_BYTES:
                        sample += line
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}; fetch or pack the file again") from error
    return None if bad <= good else guessed(path, bytes(sample))


def guessed(path: Path, sample: bytes) -> str:
    """The code page that explains the text best."""
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=CODE_PAGES)
    best = matches.best()
    if best is None:
        raise DataError(f"{path} is not UTF-8, and no other encoding fits; name it with --encoding, or {to_utf8(b'')}")
    close = [match for match in matches if match.chaos <= best.chaos + 0.02]
    alike = {name for match in close for name in (match.encoding, *match.could_be_from_charset)}
    for name in WESTERN:
        letters = [each for each in sample.decode(name, errors="replace") if each.isalpha()]
        # Languages of western Europe have more plain letters than others.
        if name in alike and sum(each.isascii() for each in letters) > 0.7 * len(letters):
            return name
    return best.encoding
