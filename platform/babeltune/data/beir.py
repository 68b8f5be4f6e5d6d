"""Reads a search set in BEIR's layout: a folder with `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`.

Thakur et al. 2021, "BEIR", section 3, and the files of their released data sets. Each file may be packed,
such as `corpus.jsonl.gz`. A data set of the hub has the same three tables: configurations `corpus` and `queries`, and
the judgements in its default one, as mteb keeps them. A broken line stops the run, or is dropped and counted, as
`on_error` of the source says."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from babeltune.data.arrow_readers import arrow_roots, load_dataset, size_of
from babeltune.data.file_readers import (
    BLANK,
    EMPTY_SIDE,
    MAX_LINE_BYTES,
    Digest,
    Fault,
    Row,
    below,
    cells,
    file_at,
    json_object,
    numbered_lines,
    reached,
    too_long,
    tsv_rows,
)
from babeltune.data.sources import Refusals
from babeltune.data.text_streams import unpacked_name
from babeltune.errors import DataError, nearest, shortened
from babeltune.schema.languages import meaning
from babeltune.schema.records import BeirSource, Retrieval, Source

QRELS = ("query-id", "corpus-id", "score")
"""Columns of a file of judgements: the id of a query, of a document, and the grade, above 0 if it is relevant."""


@dataclass(frozen=True, kw_only=True)
class BeirTexts:
    """The texts of a file, each with its id and its language."""

    ids: list[str]
    texts: list[str]
    languages: list[str]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The content of a folder, without the queries that its split does not judge."""

    queries: BeirTexts  # in the order of the file
    documents: BeirTexts  # documents by descending id: if cosines are equal, trec_eval puts the larger id first
    pairs: list[tuple[int, int]]  # the judged pairs: numbers of a query and of a document
    grades: list[float]  # the grade of each pair; a document is relevant if it is above 0
    digest: str
    dropped: dict[str, int]  # lines left out by reason


@dataclass(frozen=True)
class BeirFiles:
    """Where a set's three files are."""

    corpus: Path
    queries: Path
    qrels: Path


Record = tuple[int, dict[str, object] | Fault, bool]
"""The number of a line or row, what it holds, and whether it may hold half a surrogate pair, as escapes of JSON may."""


@dataclass(frozen=True, kw_only=True)
class BeirTables:
    """A set's three tables, in files or in a data set."""

    names: dict[str, str]  # `corpus`, `queries` and `qrels` -> where the table is, for an error
    texts: Callable[[str, Digest, int], Iterator[Record]]
    """The records of `corpus` or `queries`; the last two are the digest that they enter, and the longest line."""
    judgements: Callable[[Digest, int], Iterator[Row]]  # the values of `QRELS`


def _in_files(task: Retrieval, root: Path) -> BeirTables:
    files = find_files(task, root)

    def texts(table: str, content: Digest, longest: int) -> Iterator[Record]:
        for line, raw in numbered_lines(getattr(files, table), content, longest):
            record = raw if isinstance(raw, Fault) else json_object(raw)
            yield line, record, isinstance(raw, bytes) and b"\\u" in raw

    return BeirTables(
        names={name: str(path) for name, path in vars(files).items()},
        texts=texts,
        judgements=lambda content, longest: tsv_rows(files.qrels, QRELS, content, header=True, longest=longest),
    )


def _in_data_set(task: Retrieval, root: Path) -> BeirTables:
    source, named_id = task.source, ("_id", "id")
    assert isinstance(source, BeirSource)
    configurations = {name: replace(source, subset=name, split=name) for name in ("corpus", "queries")}
    configurations["qrels"] = replace(source, split=task.qrels)
    names = {name: f"{one.dataset}[{name}]" for name, one in configurations.items()}

    def rows(table: str, fields: Sequence[str], content: Digest) -> Iterator[tuple[int, dict[str, object]]]:
        loaded = load_dataset(configurations[table], root)
        columns = [name for name in fields if name.partition(".")[0] in loaded.column_names or name not in OPTIONAL]
        roots = arrow_roots(f"data set {names[table]!r}", loaded.features.arrow_schema, columns)
        for number, record in enumerate(loaded.select_columns(roots), 1):
            content.update(json.dumps(record, sort_keys=True, default=str).encode() + b"\n")
            yield number, record

    def texts(table: str, content: Digest, longest: int) -> Iterator[Record]:
        language = [task.language_field] if task.languages else []
        for number, record in rows(table, (*named_id, "title", "text", *language), content):
            name = next((record[key] for key in named_id if key in record), None)
            length = max(map(size_of, record.values()))
            yield number, too_long(length, longest) if length > longest else {**record, "_id": name}, False

    def judgements(content: Digest, longest: int) -> Iterator[Row]:
        for number, record in rows("qrels", QRELS, content):
            values = [record[name] for name in QRELS]
            whole = [str(int(v) if isinstance(v, float) and v.is_integer() else v) for v in values]
            empty = [name for name, value in record.items() if value is None]
            yield number, Fault(EMPTY_SIDE, f"nothing in {empty[0]!r}") if empty else whole

    return BeirTables(names=names, texts=texts, judgements=judgements)


OPTIONAL = ("_id", "id", "title")  # columns of a data set's texts that need not be there: an id has one of two names


def find_files(task: Retrieval, root: Path) -> BeirFiles:
    """The task's three files, packed or not. Raises `DataError` for one that is not there; for judgements it names the
    splits that are."""
    path = task.source.path or ""
    folder = below(path, root)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; name one that holds corpus.jsonl, queries.jsonl and qrels/")
    splits = sorted({unpacked_name(file.name).removesuffix(".tsv") for file in (folder / "qrels").glob("*.tsv*")})
    if splits and task.qrels not in splits:
        raise DataError(
            f"{folder / 'qrels'} holds no '{task.qrels}.tsv'; allowed for `qrels`: {', '.join(splits)}"
            f"{nearest(task.qrels, splits)}"
        )
    names = ("corpus.jsonl", "queries.jsonl", f"qrels/{task.qrels}.tsv")
    corpus, queries, qrels = (file_at(f"{path}/{_packed(folder, name)}", root) for name in names)
    return BeirFiles(corpus, queries, qrels)


def _packed(folder: Path, name: str) -> str:
    """The name under which a file stands in the folder: its own, or with the ending of what packed it."""
    place = folder / name
    files = sorted(file for file in place.parent.glob("*") if unpacked_name(file.name) == place.name)
    return name if place.exists() or not files else files[0].relative_to(folder).as_posix()


def read_beir(task: Retrieval, root: Path, longest: int = MAX_LINE_BYTES) -> Judged:
    """All that the task's folder or data set holds.

    Raises `DataError` for a file that is missing or empty, and for a set without a relevant document. Unless the
    source drops broken lines, it also raises `DataError` for the first line that is broken, repeats an id, or judges
    an unknown id."""
    tables = _in_data_set(task, root) if task.source.dataset is not None else _in_files(task, root)
    dropped = Counter[str]()
    contents = {name: hashlib.sha256() for name in ("corpus", "queries", "qrels")}
    documents = _texts(task, tables, "corpus", contents["corpus"], dropped, longest)
    queries = _texts(task, tables, "queries", contents["queries"], dropped, longest)
    order = sorted(range(len(documents.ids)), key=documents.ids.__getitem__, reverse=True)
    documents = _chosen(documents, order)
    grades = _grades(task.source, tables, queries, documents, contents["qrels"], dropped, longest)
    if not any(grade > 0 for grade in grades.values()):
        raise DataError(
            f"retrieval task {task.name!r}: {tables.names['qrels']} names no relevant document of any query (no score "
            "is above 0); name another split with `qrels`, or correct the file"
        )
    judged = sorted({query for query, _ in grades})
    numbers = {query: number for number, query in enumerate(judged)}
    digests = {name: content.hexdigest() for name, content in contents.items()}
    return Judged(
        queries=_chosen(queries, judged),
        documents=documents,
        pairs=[(numbers[query], document) for query, document in grades],
        grades=list(grades.values()),
        digest=hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest(),
        dropped=dict(dropped),
    )


def _chosen(texts: BeirTexts, rows: list[int]) -> BeirTexts:
    lists = ([values[row] for row in rows] for values in (texts.ids, texts.texts, texts.languages))
    return BeirTexts(**dict(zip(("ids", "texts", "languages"), lists, strict=True)))


def _texts(
    task: Retrieval, tables: BeirTables, table: str, content: Digest, dropped: Counter[str], longest: int
) -> BeirTexts:
    """The texts of `corpus`, where a document's title comes before its text, or of `queries`."""
    refusals, texts = _refusals(task.source), BeirTexts(ids=[], texts=[], languages=[])
    seen = set[str]()
    rows = _rows(task, tables.texts(table, content, longest), title=table == "corpus")
    for line, values in rows:
        refusals.rows += 1
        if not isinstance(values, Fault) and values[0] in seen:
            words = f"{shortened(values[0])} names an earlier line too; give each line an `_id` of its own"
            values = Fault("duplicate id", words)
        if isinstance(values, Fault):
            refusals.refuse(f"{tables.names[table]}:{line}", values)
            continue
        name, text, language = values
        seen.add(name)
        texts.ids.append(name)
        texts.texts.append(text)
        texts.languages.append(language)
    _close(task.source, tables.names[table], refusals, dropped, len(texts.ids))
    return texts


def _rows(task: Retrieval, records: Iterable[Record], *, title: bool) -> Iterator[Row]:
    """Id, text and language of every line; `title` says that they are documents."""
    varieties = {meaning(language).variety: language for language in task.languages}
    for line, record, escaped in records:
        if isinstance(record, Fault):
            yield line, record
            continue
        names = ["_id", "text", *([task.language_field] if task.languages else [])]
        values = [reached(record, name) for name in names]
        faults = [value for value in values if isinstance(value, Fault)]
        if faults:
            yield line, _with_languages(faults[0]) if task.languages and faults[0] is values[-1] else faults[0]
            continue
        if title:
            values[1] = _title_and_text(record.get("title"), values[1])
        row = cells(values, names, "_id", surrogates=escaped)
        if isinstance(row, Fault) or not task.languages:
            yield line, row if isinstance(row, Fault) else [*row, task.language or ""]
            continue
        language = varieties.get(meaning(row[2]).variety)
        if language is None and not title:
            words = f"{shortened(row[2])} of {task.language_field!r}; `languages` has {', '.join(task.languages)}"
            yield line, Fault("unknown language", f"{words}{nearest(row[2], task.languages)}")
            continue
        yield line, [row[0], row[1], language or row[2]]


def _with_languages(fault: Fault) -> Fault:
    """The fault of a line that does not name its language, with what the task can say instead."""
    return Fault(
        fault.reason,
        f"{fault.words}; each line names its language there, or in the key that `language_field` names. If all texts "
        "are in one language, give `language` and no `languages`",
    )


def _title_and_text(title: object, text: object) -> object:
    """A document's title, a blank and its text, as BEIR joins them; what is no text stays for `cells` to refuse."""
    if title is None or (isinstance(title, str) and BLANK.fullmatch(title)):
        return text
    if not isinstance(title, str) or (text is not None and not isinstance(text, str)):
        return title if not isinstance(title, str) else text
    return f"{title.strip()} {text or ''}"


def _grades(
    source: Source,
    tables: BeirTables,
    queries: BeirTexts,
    documents: BeirTexts,
    content: Digest,
    dropped: Counter[str],
    longest: int,
) -> dict[tuple[int, int], float]:
    """The grade of every judged pair, by the numbers of its query and document."""
    places = [{name: number for number, name in enumerate(texts.ids)} for texts in (queries, documents)]
    refusals, grades = _refusals(source), dict[tuple[int, int], float]()
    for line, values in tables.judgements(content, longest):
        refusals.rows += 1
        judged = values if isinstance(values, Fault) else _judgement(values, places, tables)
        if not isinstance(judged, Fault) and judged[0] in grades:
            judged = Fault("duplicate id", "the query and document of an earlier line; judge each pair once")
        if isinstance(judged, Fault):
            refusals.refuse(f"{tables.names['qrels']}:{line}", judged)
        else:
            grades[judged[0]] = judged[1]
    _close(source, tables.names["qrels"], refusals, dropped, len(grades))
    return grades


def _judgement(
    values: list[str], places: list[dict[str, int]], tables: BeirTables
) -> tuple[tuple[int, int], float] | Fault:
    """The judged pair and its grade, or what is wrong with the query's id, the document's id or the grade."""
    for name, place_of, table in zip(values, places, ("queries", "corpus"), strict=False):
        if name not in place_of:
            return Fault("unknown id", f"{tables.names[table]} has no `_id` {shortened(name)}")
    try:
        return (places[0][values[0]], places[1][values[1]]), int(values[2])
    except ValueError:
        return Fault("not a grade", f"'score' is {shortened(values[2])}; a grade is a whole number")


def _refusals(source: Source) -> Refusals:
    return Refusals(f"`on_error: drop` in source {source.name!r}", source.on_error == "drop")


def _close(source: Source, path: str, refusals: Refusals, dropped: Counter[str], remaining: int) -> None:
    """Counts what a file lacks. Raises `DataError` if that is too much, or all."""
    refusals.refuse_too_many(source, path)
    dropped.update(refusals.counts)
    if not remaining:
        raise DataError(f"source {source.name!r} ({path}) has no rows; write the file again")
