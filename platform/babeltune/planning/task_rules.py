"""What a dev or test task must satisfy: its name, its files, and the fields of its kind.

Pure: records go in, `(key, problem)` pairs come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from babeltune.errors import nearest
from babeltune.planning.languages import languages
from babeltune.planning.source_rules import climbing, shape_problems, source_problems
from babeltune.schema.bounds import Key, Problem
from babeltune.schema.languages import meaning
from babeltune.schema.records import Bitext, Clustering, Data, Mining, Retrieval, Source, Sts, Task, Transfer


def repeated_tasks(kind: str, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Tasks of one name are one set in several files: their kind agrees, and their sources have names of their own."""
    for index, task in enumerate(tasks):
        for earlier in tasks[:index]:
            if earlier.name == task.name and (earlier.task != task.task or earlier.part == task.part):
                problem = (
                    f"{task.name!r} is used twice; give each its own name, or name their sources apart if it is one set"
                )
                yield ("data", kind, index, "name"), problem
                break


def task_problems(key: Key, task: Task, data: Data) -> Iterator[Problem]:
    """One dev or test task: its names, and the fields of its kind."""
    names = {other.name for other in (*data.dev, *data.test)} | {"heldout"}
    if task.name == "heldout":
        yield (*key, "name"), "'heldout' is kept for `data.split`"
    if task.group in names:
        yield (*key, "group"), f"{task.group!r} is the name of a task; give the group a name of its own"
    for place, path in task.files():
        yield from climbing((*key, *place[:-1]), {place[-1]: path})
    match task:
        case Mining():
            yield from mining_problems(key, task)
        case Retrieval():
            yield from retrieval_problems(key, task)
        case Sts():
            yield from sts_problems(key, task)
        case _:
            yield from labelled_problems(key, task)


def labelled_problems(key: Key, task: Bitext | Clustering | Transfer) -> Iterator[Problem]:
    """A bitext, or texts with labels to cluster or to learn."""
    if task.source.format in ("pivot", "translate"):
        yield from for_training((*key, "source"), task.source)
    else:
        yield from source_problems((*key, "source"), task.source, {}, least=2 if isinstance(task, Bitext) else 1)
        if not isinstance(task, Bitext):
            yield from clustering_problems((*key, "source"), task.source)
        if isinstance(task, Transfer) and task.language not in (known := languages(task.source, {})):
            yield (
                (*key, "language"),
                f"{task.language!r} is not a language of {task.source.name!r}, to learn from; "
                f"allowed: {', '.join(known)}{nearest(task.language, known)}",
            )
    if isinstance(task, Bitext) and task.augmented is not None:
        yield from source_problems((*key, "augmented"), task.augmented, {}, least=1)


def for_training(key: Key, source: Source) -> Iterator[Problem]:
    """A source that is made of others, which a task cannot have."""
    yield (*key, "format"), f"{source.format!r} is for training; give the task files that hold the languages"


def sts_problems(key: Key, task: Sts) -> Iterator[Problem]:
    """Graded pairs of sentences, from a file in SemEval's layout or from a source."""
    if (task.path is None) == (task.source is None):
        both = "; it has both" if task.path is not None else ""
        yield key, f"STS task {task.name!r} needs either a path or a source{both}"
    elif task.source is not None:
        yield from graded_problems((*key, "source"), task, task.source)


def mining_problems(key: Key, task: Mining) -> Iterator[Problem]:
    """Two sides read apart, and the same two languages in what the threshold is fitted on."""
    for place, source in task.sources():
        yield from source_problems((*key, *place), source, {})
        if source.paths is None or len(source.paths) != 2 or source.id is None or source.format == "moses":
            yield (
                (*key, *place),
                "must have `paths` of two languages, and `id`, the column that gold's ids are from",
            )
    if task.fit is not None and languages(task.fit.source, {}) != languages(task.source, {}):
        yield (
            (*key, "fit", "source"),
            f"must hold {' and '.join(languages(task.source, {}))} in this order, as `source`",
        )


def retrieval_problems(key: Key, task: Retrieval) -> Iterator[Problem]:
    """A folder of queries, documents and judgements with the languages of its queries, or a bitext."""
    source = task.source
    if source.format == "beir":
        yield from shape_problems((*key, "source"), source, {})
        yield from folder_problems(key, task)
    elif source.format in ("pivot", "translate"):
        yield from for_training((*key, "source"), source)
    else:
        yield from source_problems((*key, "source"), source, {})
        for name in ("language", "languages", "qrels", "language_field", "same_id"):
            if getattr(task, name) != getattr(Retrieval, name):
                yield (
                    (*key, name),
                    "is for a folder of `format: beir`; a bitext's source names its languages; remove it",
                )


def folder_problems(key: Key, task: Retrieval) -> Iterator[Problem]:
    """The languages of a folder, and fields that are a bitext's."""
    if (task.language is None) == (not task.languages):
        has = "neither" if task.language is None else "both"
        yield (
            key,
            f"retrieval task {task.name!r} needs `language`, if all texts are in one, or `languages`, those of the "
            f"queries, which each line names in its {task.language_field!r} (`language_field`); it has {has}",
        )
    varieties = [meaning(language).variety for language in task.languages]
    for index, variety in enumerate(varieties):
        if variety in varieties[:index]:
            first = task.languages[varieties.index(variety)]
            yield (*key, "languages", index), f"{task.languages[index]} and {first} are one language; keep one of them"
    if task.corpus != Retrieval.corpus:
        yield (*key, "corpus"), "is for a bitext; the documents of a folder are all in its corpus.jsonl; remove it"


def graded_problems(key: Key, task: Sts, source: Source) -> Iterator[Problem]:
    """Whether a source can hold an STS task's graded pairs, whose columns the task names."""
    if source.format in ("pivot", "translate", "moses") or source.paths is not None:
        yield (*key, "format"), "graded pairs are one file or data set: tsv, csv, jsonl, parquet or hub"
    elif source.columns is not None or source.id is not None:
        named = "columns" if source.columns is not None else "id"
        yield (*key, named), "an STS task names its columns itself: sentence1, sentence2 and score; remove it"
    else:
        yield from source_problems(key, task.graded(), {})


def clustering_problems(key: Key, source: Source) -> Iterator[Problem]:
    """Whether a source's rows can have a label each."""
    if source.format == "moses":
        yield (*key, "format"), "'moses' has one column; give the task files with a column of labels too"
    elif source.paths is not None and source.id is None:
        yield (*key, "id"), "must name the column that tells rows apart, so that each text finds its label"
