"""What the data section must satisfy: sources that can be read, pairs that exist, tasks that can be scored.

Pure, as `bounds.py` is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from babeltune.data.translation import translation_problems
from babeltune.errors import nearest
from babeltune.schema.bounds import NAME, Key, Problem, record_problems, repeated
from babeltune.schema.languages import by_priority, meaning, same_variety
from babeltune.schema.records import Data, Source, Task, Words


def data_problems(data: Data) -> Iterator[Problem]:
    """Sources, tasks, and what they say of one another."""
    yield from record_problems(("data",), data)
    yield from record_problems(("data", "sampling"), data.sampling)
    yield from words_problems(("data", "words"), data.words)
    if data.split is not None:
        yield from record_problems(("data", "split"), data.split)
        if all(source.synthetic for source in data.train if source.train):
            yield ("data", "split"), "needs a training source that is not synthetic"
    names = [source.name for source in data.train]
    yield from repeated(names, lambda index: ("data", "train", index, "name"))
    if data.train and not any(source.train for source in data.train):
        yield ("data", "train"), "every source has `train: false`; nothing would be trained on"
    by_name = {source.name: source for source in data.train}
    for index, source in enumerate(data.train):
        yield from source_problems(("data", "train", index), source, by_name)
    files = [source for source in data.train if source.format != "pivot"]
    there = sorted({language for source in files for language in languages(source, by_name)})
    if there and not any(same_variety(a, b) for a in there for b in data.anchor_priority):
        yield (
            ("data", "anchor_priority"),
            f"none of {', '.join(data.anchor_priority)} is a language of data.train; allowed: {', '.join(there)}"
            f"{nearest(data.anchor_priority[0] if data.anchor_priority else '', there)}",
        )
    for kind, tasks in (("dev", data.dev), ("test", data.test)):
        yield from repeated_tasks(kind, tasks)
        for index, task in enumerate(tasks):
            yield from task_problems(("data", kind, index), task, data)
    dev = {_what_is_read(task): index for index, task in reversed(list(enumerate(data.dev)))}
    for index, task in enumerate(data.test):
        if (same := dev.get(_what_is_read(task))) is not None:
            yield (
                ("data", "test", index),
                f"reads what data.dev.{same} reads; trials are chosen by dev sets, so a test needs other text",
            )


def _what_is_read(task: Task) -> str:
    """The text of a task, whatever it is called and however it is scored."""
    source = replace(task.source, name="") if task.source is not None else None
    return repr((task.path, source, task.gold, task.qrels))


def words_problems(key: Key, words: Words) -> Iterator[Problem]:
    """How words are aligned: bounds, and lexicons where they are read."""
    yield from record_problems(key, words)
    if (words.align == "lexicon") != bool(words.lexicon):
        has = "lists none" if not words.lexicon else f"lists {len(words.lexicon)}, which {words.align!r} does not read"
        yield (*key, "lexicon"), f"{has}; give `align: lexicon` and the lexicons together, or neither"
    for index, lexicon in enumerate(words.lexicon):
        yield from source_problems((*key, "lexicon", index), lexicon, {})


def repeated_tasks(kind: str, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Tasks of one name are one set in several files: their kind agrees, and their sources have names of their own."""
    for index, task in enumerate(tasks):
        for earlier in tasks[:index]:
            if earlier.name == task.name and (earlier.task != task.task or parts_of(earlier) == parts_of(task)):
                problem = (
                    f"{task.name!r} is used twice; give each its own name, or name their sources apart if it is one set"
                )
                yield ("data", kind, index, "name"), problem
                break


def parts_of(task: Task) -> str | None:
    """What tells tasks of one name apart."""
    return task.language if task.source is None else task.source.name


def source_problems(key: Key, source: Source, others: dict[str, Source], least: int = 2) -> Iterator[Problem]:
    """One source: the fields of its format, its languages (at `least` so many) and its pairs."""
    if not NAME.fullmatch(source.name):
        yield (*key, "name"), f"{source.name!r} must be letters, digits, `_`, `.` or `-`"
    yield from record_problems(key, source)
    if source.format == "beir":
        yield (*key, "format"), "'beir' is for tasks of kind retrieval; name the columns or files of this text"
        return
    shape = list(shape_problems(key, source, others))
    yield from shape
    if shape:
        return
    known = languages(source, others)
    spelled: dict[str, str] = {}
    for language in known:
        if (first := spelled.setdefault(meaning(language).variety, language)) != language:
            yield key, f"source {source.name!r} holds {first} and {language}, which are one language; keep one of them"
    if len(known) < least and source.train:
        yield key, f"source {source.name!r} holds only {', '.join(known)}; a source needs two languages"
    if isinstance(source.pairs, tuple):
        if not source.pairs:
            yield (*key, "pairs"), "must list a pair, or be `anchor` or `all`"
        for index, pair in enumerate(source.pairs):
            if split_pair(pair, known) is None:
                offered = [f"{a}-{b}" for a in known for b in known if a != b]
                yield (
                    (*key, "pairs", index),
                    f"{pair!r} is not two languages of {source.name!r} joined by `-`; "
                    f"languages: {', '.join(known)}{nearest(pair, offered)}",
                )


def climbing(key: Key, paths: Mapping[str, str | None]) -> Iterator[Problem]:
    """Relative paths that leave the folder where they start."""
    for name, path in paths.items():
        if path and ".." in PurePath(path).parts and not PurePath(path).is_absolute():
            yield (*key, name), f"{path!r} leaves data.root; change data.root, or give a whole path"


FIELDS_OF = {
    "path": ("path", "columns"),
    "folder": ("path",),
    "paths": ("paths",),
    "dataset": ("dataset", "columns"),
    "pivot": ("left", "right"),
    "translate": ("translation",),
}
LOCATIONS = ("path", "columns", "paths", "dataset", "left", "right", "translation")


def shape_problems(key: Key, source: Source, others: dict[str, Source]) -> Iterator[Problem]:
    """Whether the fields that say where text lies go together, and with the format."""
    given = {name for name in LOCATIONS if getattr(source, name) is not None}
    alone = {"moses": ("paths",), "hub": ("dataset",), "beir": ("folder",)}
    alone |= {"pivot": ("pivot",), "translate": ("translate",)}
    shapes = alone.get(source.format, ("path", "paths"))
    wanted = [set(FIELDS_OF[shape]) for shape in shapes]
    if given not in wanted:
        rule = " or ".join(" + ".join(FIELDS_OF[shape]) for shape in shapes)
        has = ", ".join(sorted(given)) or "none of them"
        yield key, f"a source of format {source.format!r} needs {rule}, and no other of these; it has {has}"
        return
    yield from climbing(key, {"path": source.path, "dataset": source.dataset})
    yield from climbing((*key, "paths"), source.paths or {})
    for name, default, format_ in (("quoted", None, "tsv"), ("delimiter", Source.delimiter, "csv")):
        if getattr(source, name) != default and source.format != format_:
            yield (*key, name), f"is for a source of format {format_!r}, and this one is {source.format!r}"
    if source.where and source.columns is None:
        yield (*key, "where"), "chooses among the rows of one table; it goes with `columns`"
    if source.paths is not None:
        if source.format == "moses" and source.join not in ("id", "line"):
            yield (*key, "join"), f"{source.join!r} is not possible; Moses files are joined by line"
        elif source.format != "moses" and source.join not in ("id", "line"):
            yield (
                (*key, "join"),
                f"{source.join!r} is not possible; allowed: id, line{nearest(source.join, ['id', 'line'])}",
            )
        elif source.format != "moses" and source.join == "id" and source.id is None:
            yield (*key, "id"), "must name the column that joins the files, or say `join: line`"
    if source.format == "pivot":
        yield from pivot_problems(key, source, others)
    if source.translation is not None:
        read = {name: languages(o, others) for name, o in others.items() if o.format not in ("pivot", "translate")}
        yield from translation_problems((*key, "translation"), source.translation, read)
        yield from record_problems((*key, "translation"), source.translation)


def pivot_problems(key: Key, source: Source, others: dict[str, Source]) -> Iterator[Problem]:
    """Whether a pivot's two sources exist and share what joins them."""
    names = [name for name, other in others.items() if other.format != "pivot"]
    for side in ("left", "right"):
        name = getattr(source, side)
        if name not in names:
            why = "is a pivot itself" if name in others else "is not a training source"
            yield (*key, side), f"{name!r} {why}; allowed: {', '.join(names) or 'none'}{nearest(name, names)}"
            return
    if source.left == source.right:
        yield (*key, "right"), f"{source.right!r} is also the left source; name another"
        return
    left, right = (languages(others[name], others) for name in (source.left or "", source.right or ""))
    if source.join == "id":
        for side in ("left", "right"):
            if others[getattr(source, side)].id is None:
                yield (
                    (*key, side),
                    f"source {getattr(source, side)!r} has no `id` column; name it there, or join on a language",
                )
    elif source.join not in set(left) & set(right):
        shared = [language for language in left if language in right]
        yield (
            (*key, "join"),
            f"{source.join!r} is not in both; allowed: id{''.join(f', {s}' for s in shared)}"
            f"{nearest(source.join, ['id', *shared])}",
        )


def languages(source: Source, others: dict[str, Source]) -> tuple[str, ...]:
    """The languages that a source holds, in the order in which it names them."""
    if source.format == "pivot":
        sides = [others[name] for name in (source.left, source.right) if name in others]
        return tuple(dict.fromkeys(language for side in sides for language in languages(side, others)))
    if source.translation is not None:
        return source.translation.original, source.translation.into
    return tuple(source.columns or source.paths or ())


def split_pair(pair: str, known: Iterable[str]) -> tuple[str, str] | None:
    """The two languages of `a-b`; either may hold a `-`. None when they are not two known ones."""
    codes = set(known)
    for index, character in enumerate(pair):
        left, right = pair[:index], pair[index + 1 :]
        if character == "-" and left in codes and right in codes and left != right:
            return left, right
    return None


def source_pairs(source: Source, others: dict[str, Source], priority: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (anchor, other) language pairs that a source yields, each once.

    The anchor comes first in `priority`; languages that are not in it come last, alphabetically.
    """
    known = languages(source, others)
    ordered = by_priority(known, priority)
    if source.pairs == "anchor":
        return tuple((ordered[0], other) for other in known if other != ordered[0])
    pairs = tuple(itertools.combinations(ordered, 2))
    if source.pairs == "all":
        return pairs
    listed = [split_pair(pair, known) or ("", "") for pair in source.pairs]
    return tuple(dict.fromkeys(found for pair in listed for found in (pair, pair[::-1]) if found in pairs))


def task_problems(key: Key, task: Task, data: Data) -> Iterator[Problem]:
    """One dev or test task: its names, and the fields of its kind."""
    names = {other.name for other in (*data.dev, *data.test)} | {"heldout"}
    if not NAME.fullmatch(task.name) or task.name == "heldout":
        rule = "is kept for `data.split`" if task.name == "heldout" else "must be letters, digits, `_`, `.` or `-`"
        yield (*key, "name"), f"{task.name!r} {rule}"
    if task.group is not None and (not NAME.fullmatch(task.group) or task.group in names):
        rule = "is the name of a task" if task.group in names else "must be letters, digits, `_`, `.` or `-`"
        yield (*key, "group"), f"{task.group!r} {rule}; give the group a name of its own"
    yield from record_problems(key, task)
    yield from climbing(key, {"path": task.path, "gold": task.gold})
    if task.fit is not None:
        yield from record_problems((*key, "fit"), task.fit)
        yield from climbing((*key, "fit"), {"gold": task.fit.gold})
    yield from stray_problems(key, task)
    if task.task == "mining":
        yield from mining_problems(key, task)
    elif task.task == "retrieval":
        yield from retrieval_problems(key, task)
    elif task.task != "sts":
        if task.source is None:
            yield key, f"{task.task} task {task.name!r} needs a source"
        elif task.source.format in ("pivot", "translate"):
            words = f"{task.source.format!r} is for training; give the task files that hold the languages"
            yield (*key, "source", "format"), words
        else:
            yield from source_problems((*key, "source"), task.source, {}, least=2 if task.task == "bitext" else 1)
            if task.task != "bitext":
                yield from clustering_problems((*key, "source"), task.source)
            if task.task == "transfer" and task.language not in languages(task.source, {}):
                known = languages(task.source, {})
                yield (
                    (*key, "language"),
                    f"{task.language!r} is not a language of {task.source.name!r}, to learn from; "
                    f"allowed: {', '.join(known)}{nearest(task.language or '', known)}",
                )
        if task.path is not None or (task.language is not None and task.task != "transfer"):
            yield key, f"{task.task} task {task.name!r} takes its rows from `source`; remove `path` and `language`"
        if task.augmented is not None:
            yield from source_problems((*key, "augmented"), task.augmented, {}, least=1)
    else:
        if (task.path is None) == (task.source is None) or task.language is None:
            both = "; it has both" if task.path is not None and task.source is not None else ""
            yield key, f"STS task {task.name!r} needs a language, and either a path or a source{both}"
        elif task.source is not None:
            yield from graded_problems((*key, "source"), task, task.source)


ONLY = {
    "language2": ("sts",),
    "augmented": ("bitext",),
    "compare": ("bitext",),
    "margin": ("bitext", "mining"),
    "right_model": ("bitext", "mining"),
    "gold": ("mining",),
    "fit": ("mining",),
    "split": ("transfer",),
    "learnt": ("transfer",),
    "scored": ("transfer",),
    **dict.fromkeys(("qrels", "languages", "language_field", "same_id", "corpus", "cutoff"), ("retrieval",)),
}
"""Fields of a task that only these kinds read."""


def stray_problems(key: Key, task: Task) -> Iterator[Problem]:
    """Fields that a task of another kind would read."""
    for field in dataclasses.fields(task):
        kinds = ONLY.get(field.name, ())
        if kinds and task.task not in kinds and getattr(task, field.name) != field.default:
            yield (
                (*key, field.name),
                f"is for tasks of kind {' or '.join(kinds)}, and this one is {task.task}; remove it",
            )


def mining_problems(key: Key, task: Task) -> Iterator[Problem]:
    """Two sides read apart, gold, and the same two languages in what the threshold is fitted on."""
    if task.source is None or task.gold is None:
        yield key, f"mining task {task.name!r} needs a source, of its two sides, and gold"
        return
    if task.limit is not None:
        yield (*key, "limit"), "is not for mining, whose gold speaks of all rows; remove it"
    fits = [] if task.fit is None else [((*key, "fit", "source"), task.fit.source)]
    for place, source in (((*key, "source"), task.source), *fits):
        yield from source_problems(place, source, {})
        if source.paths is None or len(source.paths) != 2 or source.id is None or source.format == "moses":
            yield place, "must have `paths` of two languages, and `id`, the column that gold's ids are from"
    if task.fit is not None and languages(task.fit.source, {}) != languages(task.source, {}):
        yield (
            (*key, "fit", "source"),
            f"must hold {' and '.join(languages(task.source, {}))} in this order, as `source`",
        )


def retrieval_problems(key: Key, task: Task) -> Iterator[Problem]:
    """A folder of queries, documents and judgements with the languages of its queries, or a bitext."""
    if task.path is not None:
        yield (*key, "path"), "is not for retrieval, which reads `source`; remove it"
    if task.k != Task.k:
        yield (*key, "k"), "is for margins; the number of documents in which recall looks is `cutoff`"
    source = task.source
    if source is None:
        yield key, f"retrieval task {task.name!r} needs a source: a folder of `format: beir`, or a bitext"
    elif source.format == "beir":
        if not NAME.fullmatch(source.name):
            yield (*key, "source", "name"), f"{source.name!r} must be letters, digits, `_`, `.` or `-`"
        yield from record_problems((*key, "source"), source)
        yield from shape_problems((*key, "source"), source, {})
        yield from folder_problems(key, task)
    elif source.format in ("pivot", "translate"):
        words = f"{source.format!r} is for training; give the task files that hold the languages"
        yield (*key, "source", "format"), words
    else:
        yield from source_problems((*key, "source"), source, {})
        for name in ("language", "languages", "qrels", "language_field", "same_id"):
            if getattr(task, name) != getattr(Task, name):
                yield (
                    (*key, name),
                    "is for a folder of `format: beir`; a bitext's source names its languages; remove it",
                )


def folder_problems(key: Key, task: Task) -> Iterator[Problem]:
    """The languages of a folder, and fields that are a bitext's."""
    if (task.language is None) == (not task.languages):
        has = "neither" if task.language is None else "both"
        yield (
            key,
            f"retrieval task {task.name!r} needs `language`, if all texts are in one, or `languages`, those of the "
            f"queries; it has {has}",
        )
    varieties = [meaning(language).variety for language in task.languages]
    for index, variety in enumerate(varieties):
        if variety in varieties[:index]:
            first = task.languages[varieties.index(variety)]
            yield (*key, "languages", index), f"{task.languages[index]} and {first} are one language; keep one of them"
    if task.corpus != Task.corpus:
        yield (*key, "corpus"), "is for a bitext; the documents of a folder are all in its corpus.jsonl; remove it"


def graded_problems(key: Key, task: Task, source: Source) -> Iterator[Problem]:
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


# --- Spellings ------------------------------------------------------------------------------------------------------


def respelled(data: Data) -> Data:
    """The data with one name for each language of the training text: its first, `anchor_priority` coming before all.

    Tasks keep the names that they give, which are those of their metrics.
    """
    read = (*data.train, *data.words.lexicon)
    codes = dict.fromkeys([*data.anchor_priority, *(code for source in read for code in languages(source, {}))])
    first: dict[str, str] = {}
    names = {code: first.setdefault(meaning(code).variety, code) for code in codes}
    if all(code == name for code, name in names.items()):
        return data
    return replace(
        data,
        anchor_priority=tuple(dict.fromkeys(names[code] for code in data.anchor_priority)),
        train=tuple(_respelled(source, names) for source in data.train),
        words=replace(data.words, lexicon=tuple(_respelled(source, names) for source in data.words.lexicon)),
    )


def _respelled(source: Source, names: Mapping[str, str]) -> Source:
    def renamed(by_language: dict[str, str] | None) -> dict[str, str] | None:
        found = {names[code]: value for code, value in (by_language or {}).items()}
        return found if len(found) == len(by_language or {}) and found else by_language  # else it is refused

    def pair_of(pair: str) -> str:
        sides = split_pair(pair, names)
        return pair if sides is None else "-".join(names[side] for side in sides)

    made = source.translation
    if made is not None:
        original, into = (names.get(code, code) for code in (made.original, made.into))
        made = replace(made, original=original, into=into)
    return replace(
        source,
        columns=renamed(source.columns),
        paths=renamed(source.paths),
        pairs=tuple(map(pair_of, source.pairs)) if isinstance(source.pairs, tuple) else source.pairs,
        join=names.get(source.join, source.join) if source.format == "pivot" and source.join != "id" else source.join,
        translation=made,
    )
