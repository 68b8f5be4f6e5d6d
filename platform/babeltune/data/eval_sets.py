"""Reads dev and test sets: from what a task names to the texts of every subset that is scored."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from babeltune.data.beir import read_beir
from babeltune.data.file_readers import MAX_LINE_BYTES, Fault, file_at, tsv_rows
from babeltune.data.prepared import TextTask
from babeltune.data.sources import digest_of, language_pairs, read_graded, read_labelled, read_source
from babeltune.data.texts import Texts
from babeltune.errors import DataError, nearest
from babeltune.schema.base import changed
from babeltune.schema.records import (
    BeirSource,
    Bitext,
    Clustering,
    Mined,
    Mining,
    Retrieval,
    Source,
    Sts,
    Task,
    Transfer,
)

MIXED_SEED = 42  # seed of a clustering set's `mixed` subset, which is the same in every sweep


@dataclass(frozen=True, kw_only=True)
class EvalRows:
    """All that a dev or test set says, before subsets and `limit`: columns of text, and what is known of their rows."""

    task: Task
    columns: Mapping[str, Sequence[str]]
    """Texts by language, all equally long but for mining. STS: by the names of the two columns. Retrieval in a
    folder: `queries` and `documents`."""
    languages: dict[str, list[str]] = field(default_factory=dict)
    """Retrieval in a folder: of each query and document, by the names of the two columns."""
    grades: list[float] = field(default_factory=list)
    """STS: of each row. Retrieval in a folder: of each pair of `gold`."""
    labels: Sequence[str] = ()  # clustering, transfer: of each row
    splits: Sequence[str] = ()  # transfer: of each row
    augmented: Mapping[str, Sequence[str]] = field(default_factory=dict)  # bitext: changed sentences by language
    own_documents: list[int] = field(default_factory=list)
    """Retrieval in a folder with `same_id: drop`: of each query, the document of its id, -1 if there is none."""
    gold: list[tuple[int, int]] = field(default_factory=list)
    """Mining: pairs of rows, of the first and the second language. Retrieval in a folder: queries and documents."""
    fit: EvalRows | None = None  # mining: the set that the threshold is fitted on
    digest: str
    dropped: dict[str, int] = field(default_factory=dict)  # broken rows by reason, if the source drops these

    def queries(self) -> Iterator[str]:
        """The sentences that make the set: of a folder for retrieval the queries, as dev and test sets share documents;
        else all."""
        yield from self.columns["queries"] if self.languages else self.texts()

    def texts(self) -> Iterator[str]:
        """All sentences; training on any of them is refused."""
        yield from itertools.chain(*self.columns.values(), *self.augmented.values())
        if self.fit is not None:
            yield from self.fit.texts()


# --- Reading -------------------------------------------------------------------------------------------------------


def read_eval(tasks: Sequence[Task], root: Path, longest: int = MAX_LINE_BYTES) -> list[EvalRows]:
    """Everything that the tasks' files hold; a line of more than `longest` bytes is broken.

    Raises `DataError` for text that cannot be read."""
    return [_read(task, root, longest) for task in tasks]


def labelled(kind: str, sets: Sequence[EvalRows]) -> Iterator[tuple[str, EvalRows]]:
    """The name of each set in counts and digests: `test/tatoeba`, or `test/tatoeba/fra` where several tasks share a
    name."""
    names = [rows.task.name for rows in sets]
    for rows in sets:
        name = f"{kind}/{rows.task.name}"
        several = names.count(rows.task.name) > 1
        yield (f"{name}/{rows.task.part}" if several else name), rows


def read_bitext(task: Bitext | Retrieval, root: Path, longest: int) -> EvalRows:
    """The rows, and the changed sentences if there are some."""
    rows = read_source(task.source, root, others={}, longest=longest)
    if isinstance(task, Retrieval) or task.augmented is None:
        return EvalRows(task=task, columns=rows.columns, digest=rows.digest, dropped=rows.dropped)
    changed = read_source(task.augmented, root, others={}, longest=longest)
    return EvalRows(
        task=task,
        columns=rows.columns,
        augmented=changed.columns,
        digest=digest_of(rows.digest, changed.digest),
        dropped=rows.dropped,
    )


def read_topics(task: Clustering | Transfer, root: Path, longest: int) -> EvalRows:
    """Texts with their topics and, for transfer, their splits."""
    columns = [task.label, task.split] if isinstance(task, Transfer) else [task.label]
    rows, (labels, *more) = read_labelled(task, columns, root, longest)
    digest, splits = rows.digest, more[0] if more else Texts.of([])
    if isinstance(task, Transfer):
        digest = digest_of(digest, digest) if task.source.paths is None else digest  # as recorded sweeps have it
        for name in (task.learnt, task.scored):
            if name not in splits:
                offered = sorted(set(splits))
                raise DataError(
                    f"transfer task {task.name!r}: no row has {name!r} in column {task.split!r}; "
                    f"there are: {', '.join(offered)}{nearest(name, offered)}"
                )
    return EvalRows(task=task, columns=rows.columns, labels=labels, splits=splits, digest=digest, dropped=rows.dropped)


def read_mining(task: Mining, root: Path, longest: int) -> EvalRows:
    """The two sides and gold, and those of the set that the threshold is fitted on."""
    rows = read_mined(task, Mined(source=task.source, gold=task.gold), root, longest)
    if task.fit is None:
        return rows
    fit = read_mined(task, task.fit, root, longest)
    return replace(rows, fit=fit, digest=digest_of(rows.digest, fit.digest))


def read_mined(task: Mining, mined: Mined, root: Path, longest: int) -> EvalRows:
    """One set for mining. Raises `DataError` for a gold pair that is broken or of unknown ids."""
    source = mined.source
    columns, digests, dropped, places = dict[str, Texts](), [], dict[str, int](), []
    for language, name in (source.paths or {}).items():
        side = read_source(changed(Source, source, {"paths": {language: name}}), root, others={}, longest=longest)
        columns[language] = side.columns[language]
        places.append({written: row for row, written in enumerate(side.ids)})
        digests.append(side.digest)
        dropped |= {reason: dropped.get(reason, 0) + count for reason, count in side.dropped.items()}
    path, content, gold = file_at(mined.gold, root), hashlib.sha256(), []
    for line, values in tsv_rows(path, ["0", "1"], content, header=False, longest=longest):
        if isinstance(values, Fault):
            raise DataError(f"{path}:{line}: {values.reason}: {values.words}; correct it")
        for name, place_of, language in zip(values, places, columns, strict=True):
            if name not in place_of:
                raise DataError(f"{path}:{line}: no row of {language!r} has the id {name!r}; correct it")
        gold.append((places[0][values[0]], places[1][values[1]]))
    digest = digest_of(*digests, content.hexdigest())
    return EvalRows(task=task, columns=columns, gold=gold, digest=digest, dropped=dropped)


def read_retrieval(task: Retrieval, root: Path, longest: int) -> EvalRows:
    """Queries and documents with their judgements, or the rows of a bitext. Raises `DataError` for a language that no
    judged query has, or none with a relevant document."""
    if not isinstance(task.source, BeirSource):
        return read_bitext(task, root, longest)
    judged = read_beir(task, root, longest)
    if missing := [language for language in task.languages if language not in judged.queries.languages]:
        raise DataError(
            f"retrieval task {task.name!r}: no judged query is in {', '.join(missing)} by its {task.language_field!r}; "
            f"remove it from `languages`; there are: {', '.join(dict.fromkeys(judged.queries.languages))}"
        )
    relevant = {
        judged.queries.languages[query]
        for (query, _), grade in zip(judged.pairs, judged.grades, strict=True)
        if grade > 0
    }
    if bare := [language for language in task.languages if language not in relevant]:
        raise DataError(
            f"retrieval task {task.name!r}: no query in {', '.join(bare)} has a relevant document (no score is above "
            "0); remove it from `languages`, or correct the judgements"
        )
    places = {name: number for number, name in enumerate(judged.documents.ids)}  # of a query with that id: its own
    return EvalRows(
        task=task,
        columns={"queries": judged.queries.texts, "documents": judged.documents.texts},
        languages={"queries": judged.queries.languages, "documents": judged.documents.languages},
        own_documents=[places.get(name, -1) for name in judged.queries.ids] if task.same_id == "drop" else [],
        gold=judged.pairs,
        grades=judged.grades,
        digest=judged.digest,
        dropped=judged.dropped,
    )


def _read(task: Task, root: Path, longest: int) -> EvalRows:
    match task:
        case Bitext():
            return read_bitext(task, root, longest)
        case Mining():
            return read_mining(task, root, longest)
        case Sts():
            left, right, grades, digest = read_graded(task, root, longest)
            return EvalRows(task=task, columns={"left": left, "right": right}, grades=grades, digest=digest)
        case Retrieval():
            return read_retrieval(task, root, longest)
        case _:
            return read_topics(task, root, longest)


# --- Subsets -------------------------------------------------------------------------------------------------------


def subsets(sets: Iterable[EvalRows], anchor_priority: Sequence[str]) -> list[TextTask]:
    """The tasks of dev or test sets, with `limit` applied. Bitext has a subset for each language pair; `right` is
    the anchor's side. Other sets have one of the graded pairs, texts or queries of each language."""
    return [subset for rows in sets for subset in _subsets(rows, anchor_priority)]


def _subsets(rows: EvalRows, anchor_priority: Sequence[str]) -> list[TextTask]:
    match rows.task:
        case Bitext() as task:
            return bitext_subsets(task, rows, anchor_priority)
        case Mining() as task:
            return [mining_subset(task, rows)]
        case Clustering() as task:
            return clustering_subsets(task, rows)
        case Transfer() as task:
            return transfer_subsets(task, rows)
        case Retrieval() as task:
            return retrieval_subsets(task, rows, anchor_priority)
        case Sts() as task:
            return [sts_subset(task, rows)]


def bitext_subsets(task: Bitext, rows: EvalRows, anchor_priority: Sequence[str]) -> list[TextTask]:
    """A subset for each language pair, the anchor second, followed by the changed sentences of its language."""
    sides = {language: tuple(texts[: task.limit]) for language, texts in rows.columns.items()}
    candidates = {language: (*side, *rows.augmented.get(language, ())) for language, side in sides.items()}
    return [
        TextTask(
            **common(task),
            subset=f"{other}-{anchor}",
            left=sides[other],
            right=candidates[anchor],
            left_languages=(other,),
            right_languages=(anchor,),
            margin=task.margin,
            candidates=task.candidates,
            compare=task.compare,
        )
        for anchor, other in language_pairs(task.source, list(rows.columns), anchor_priority)
    ]


def mining_subset(task: Mining, rows: EvalRows) -> TextTask:
    """The two sides, in the order of the source's languages."""
    (first, left), (second, right) = rows.columns.items()
    return TextTask(
        **common(task),
        subset=f"{first}-{second}",
        left=tuple(left),
        right=tuple(right),
        gold=tuple(rows.gold),
        left_languages=(first,),
        right_languages=(second,),
        margin=task.margin,
        fit=mining_subset(task, rows.fit) if rows.fit is not None else None,
    )


def sts_subset(task: Sts, rows: EvalRows) -> TextTask:
    """The graded pairs."""
    first = task.language
    second = task.language2 or first
    return TextTask(
        **common(task),
        subset=first if first == second else f"{first}-{second}",
        left=tuple(rows.columns["left"][: task.limit]),
        right=tuple(rows.columns["right"][: task.limit]),
        scores=tuple(rows.grades[: task.limit]),
        left_languages=(first,),
        right_languages=(second,),
    )


def clustering_subsets(task: Clustering, rows: EvalRows) -> list[TextTask]:
    """The texts of each language and, if there are several, `mixed`: each row in one of them, drawn at random."""
    languages = list(rows.columns)
    chosen = {language: [language] * len(rows.labels) for language in languages}
    if len(languages) > 1:
        draws = np.random.default_rng(MIXED_SEED).integers(len(languages), size=len(rows.labels))
        chosen["mixed"] = [languages[draw] for draw in draws]
    return [
        TextTask(
            **common(task),
            subset=name,
            left=tuple(rows.columns[language][row] for row, language in enumerate(of_rows[: task.limit])),
            labels=tuple(rows.labels[: task.limit]),
            left_languages=tuple(of_rows[: task.limit]) if name == "mixed" else (name,),
        )
        for name, of_rows in chosen.items()
    ]


def transfer_subsets(task: Transfer, rows: EvalRows) -> list[TextTask]:
    """The scored rows of each language, and with each the rows of one language that are learnt from."""

    def texts(language: str, split: str, limit: int | None) -> TextTask:
        chosen = [row for row, name in enumerate(rows.splits) if name == split][:limit]
        return TextTask(
            **common(task),
            subset=language,
            left=tuple(rows.columns[language][row] for row in chosen),
            labels=tuple(rows.labels[row] for row in chosen),
            left_languages=(language,),
        )

    learnt = texts(task.language, task.learnt, None)
    return [replace(texts(language, task.scored, task.limit), fit=learnt) for language in rows.columns]


def retrieval_subsets(task: Retrieval, rows: EvalRows, anchor_priority: Sequence[str]) -> list[TextTask]:
    """The queries of each language and all documents of a folder; or a bitext's pairs or languages as `corpus` says."""
    if isinstance(task.source, BeirSource):
        return [judged_subset(task, rows, language) for language in task.languages or (task.language or "",)]
    texts = {language: column[: task.limit] for language, column in rows.columns.items()}
    if task.corpus == "mixed":
        return [translations_subset(task, texts, language, list(texts), language) for language in texts]
    return [
        translations_subset(task, texts, other, [anchor], f"{other}-{anchor}")
        for anchor, other in language_pairs(task.source, list(rows.columns), anchor_priority)
    ]


def judged_subset(task: Retrieval, rows: EvalRows, language: str) -> TextTask:
    """The queries of one language, `limit` applied, and all documents, with the judgements of these queries."""
    chosen = [row for row, name in enumerate(rows.languages["queries"]) if name == language][: task.limit]
    places = {row: place for place, row in enumerate(chosen)}
    judged = [(pair, grade) for pair, grade in zip(rows.gold, rows.grades, strict=True) if pair[0] in places]
    same_texts = [rows.own_documents[row] for row in chosen] if rows.own_documents else []
    document_languages = rows.languages["documents"] if task.languages else [language]
    return TextTask(
        **common(task) | {"k": task.cutoff},
        subset=language,
        left=tuple(rows.columns["queries"][row] for row in chosen),
        right=tuple(rows.columns["documents"]),
        gold=tuple((places[query], document) for (query, document), _ in judged),
        scores=tuple(grade for _, grade in judged),
        own_documents=tuple(same_texts),
        left_languages=(language,),
        right_languages=tuple(document_languages),
        mixed=bool(task.languages),
    )


def translations_subset(
    task: Retrieval, texts: Mapping[str, Sequence[str]], language: str, among: list[str], subset: str
) -> TextTask:
    """The distinct texts of a language as queries, and as documents those of the languages `among`, each once.

    Relevant are the translations in every row that has the query. If the query is itself a document, it is never found.
    """
    queries = {text: number for number, text in enumerate(dict.fromkeys(texts[language]))}
    distinct = [(other, text) for other in among for text in dict.fromkeys(texts[other])]
    documents = {document: number for number, document in enumerate(distinct)}
    pairs = dict.fromkeys(
        (queries[query], documents[other, text])
        for other in among
        if other != language
        for query, text in zip(texts[language], texts[other], strict=True)
    )
    same_texts = [documents[language, text] for text in queries] if language in among else []
    document_languages = [other for other, _ in distinct] if len(among) > 1 else among
    return TextTask(
        **common(task) | {"k": task.cutoff},
        subset=subset,
        left=tuple(queries),
        right=tuple(text for _, text in distinct),
        gold=tuple(pairs),
        own_documents=tuple(same_texts),
        left_languages=(language,),
        right_languages=tuple(document_languages),
        mixed=task.corpus == "mixed",
    )


def common(task: Task) -> dict[str, Any]:
    """The fields that every subset takes over from its task."""
    return {
        "name": task.name,
        "kind": task.task,
        "group": task.group or "",
        "k": task.k,
        "right_model": task.right_model,
    }
