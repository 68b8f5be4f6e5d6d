"""The rules of the data section: sources and their pairs, tasks, and what they say of one another.

Pure: records go in, `(key, problem)` pairs come out."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from babeltune.data.translation import translation_problems
from babeltune.errors import nearest, shortened
from babeltune.planning.languages import languages, split_pair
from babeltune.schema.bounds import Key, Problem, repeated
from babeltune.schema.languages import code_of, meaning, same_variety
from babeltune.schema.records import (
    BeirSource,
    Bitext,
    Clustering,
    CsvSource,
    Data,
    FileSource,
    HubSource,
    Mining,
    MosesSource,
    PivotSource,
    Retrieval,
    Source,
    Sts,
    Task,
    Transfer,
    TranslateSource,
    Words,
)


def data_problems(data: Data) -> Iterator[Problem]:
    """Sources, tasks, and what they say of one another."""
    if not data.train:
        yield ("data", "train"), "must not be empty"
    if data.split is not None and all(source.synthetic for source in data.train if source.train):
        yield ("data", "split"), "needs a training source that is not synthetic"
    names = [source.name for source in data.train]
    yield from repeated(names, lambda index: ("data", "train", index, "name"))
    if data.train and not any(source.train for source in data.train):
        yield ("data", "train"), "every source has `train: false`; nothing would be trained on"
    by_name = {source.name: source for source in data.train}
    for index, source in enumerate(data.train):
        yield from source_problems(("data", "train", index), source, by_name, least=1)
    files = [source for source in data.train if not isinstance(source, PivotSource)]
    spoken = sorted({language for source in files for language in languages(source, by_name)})
    yield from words_problems(("data", "words"), data.words, spoken)
    anchors = data.anchor_priority
    if spoken and anchors and not any(same_variety(a, b) for a in spoken for b in anchors):
        names = [f"{name!r} is no code of a language: write {written}" for name in spoken if (written := code_of(name))]
        todo = f"; {', '.join(names)}" if names else nearest(anchors[0], spoken)
        words = f"none of {', '.join(anchors)} is a language of data.train; allowed: {', '.join(spoken)}{todo}"
        yield ("data", "anchor_priority"), words
    for index, anchor in enumerate(anchors):
        if anchor not in spoken and (written := code_of(anchor)):
            yield ("data", "anchor_priority", index), f"{anchor!r} is no code of a language; write {written}"
    for kind, tasks in data.sets.items():
        yield from repeated_tasks(kind, tasks)
        for index, task in enumerate(tasks):
            yield from task_problems(("data", kind, index), task, data)
    yield from read_twice("test", data, "dev", "trials are chosen by dev sets, so a test needs other text")
    yield from read_twice("graded", data, "dev", "dev sets score trials, so training needs other text")
    yield from read_twice("graded", data, "test", "a sealed test judges the model, so training needs other text")
    for index, task in enumerate(data.graded):
        if task.group is not None:
            yield ("data", "graded", index, "group"), "is for dev and test sets, which have metrics; remove it"


def read_twice(kind: str, data: Data, earlier: str, why: str) -> Iterator[Problem]:
    """Sets of a kind that read what one of an earlier kind reads."""
    places = {_what_is_read(task): index for index, task in reversed(list(enumerate(data.sets[earlier])))}
    for index, task in enumerate(data.sets[kind]):
        if (same := places.get(_what_is_read(task))) is not None:
            yield ("data", kind, index), f"reads what data.{earlier}.{same} reads; {why}"


def _what_is_read(task: Task) -> str:
    """The text of a task, whatever it is called and however it is scored."""
    source = replace(task.source, name="") if task.source is not None else None
    return repr([source, *(getattr(task, name, None) for name in ("path", "gold", "qrels"))])


def words_problems(key: Key, words: Words, spoken: Sequence[str]) -> Iterator[Problem]:
    """Lexicons, which are given where they are read, and lists of stop words, of languages of the training text."""
    if (words.align == "lexicon") != bool(words.lexicon):
        has = "lists none" if not words.lexicon else f"lists {len(words.lexicon)}, which {words.align!r} does not read"
        yield (*key, "lexicon"), f"{has}; give `align: lexicon` and the lexicons together, or neither"
    for index, lexicon in enumerate(words.lexicon):
        yield from source_problems((*key, "lexicon", index), lexicon, {})
    yield from climbing((*key, "stop_list"), words.stop_list)
    for code in words.stop_list:
        if not any(same_variety(code, language) for language in spoken):
            allowed = f"is no language of data.train; allowed: {', '.join(spoken)}{nearest(code, spoken)}"
            yield (*key, "stop_list", code), f"{code!r} {allowed}"


# --- Tasks ------------------------------------------------------------------------------------------------------------


def repeated_tasks(kind: str, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Tasks of one name are one set in several files: their kind agrees, and their sources have names of their own."""
    for index, task in enumerate(tasks):
        namesakes = [earlier for earlier in tasks[:index] if earlier.name == task.name]
        if any(earlier.task != task.task or earlier.part == task.part for earlier in namesakes):
            words = "give each its own name, or name their sources apart if it is one set"
            yield ("data", kind, index, "name"), f"{task.name!r} is used twice; {words}"


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
        case Sts() if (task.path is None) == (task.source is None):
            both = "; it has both" if task.path is not None else ""
            yield key, f"STS task {task.name!r} needs either a path or a source{both}"
        case Sts():
            if task.source is not None:
                yield from graded_problems((*key, "source"), task, task.source)
        case _ if isinstance(task.source, PivotSource | TranslateSource):
            words = f"{task.source.format!r} is for training; give the task files that hold the languages"
            yield (*key, "source", "format"), words
        case Retrieval():
            yield from retrieval_problems(key, task)
        case _:
            yield from labelled_problems(key, task)


def labelled_problems(key: Key, task: Bitext | Clustering | Transfer) -> Iterator[Problem]:
    """A bitext, or texts with labels to cluster or to learn."""
    yield from source_problems((*key, "source"), task.source, {}, least=2 if isinstance(task, Bitext) else 1)
    if not isinstance(task, Bitext):
        yield from clustering_problems((*key, "source"), task.source)
    elif task.augmented is not None:
        yield from source_problems((*key, "augmented"), task.augmented, {}, least=1)
    if isinstance(task, Transfer) and task.language not in (spoken := languages(task.source, {})):
        words = f"is not a language of {task.source.name!r}, to learn from; allowed: {', '.join(spoken)}"
        yield (*key, "language"), f"{task.language!r} {words}{nearest(task.language, spoken)}"


def mining_problems(key: Key, task: Mining) -> Iterator[Problem]:
    """Two sides read apart, and the same two languages in what the threshold is fitted on."""
    for place, source in task.sources():
        yield from source_problems((*key, *place), source, {})
        if source.paths is None or len(source.paths) != 2 or source.id is None:
            yield ((*key, *place), "must have `paths` of two languages, and `id`, the column that gold's ids are from")
    if task.fit is not None and languages(task.fit.source, {}) != languages(task.source, {}):
        words = f"must hold {' and '.join(languages(task.source, {}))} in this order, as `source`"
        yield (*key, "fit", "source"), words


def retrieval_problems(key: Key, task: Retrieval) -> Iterator[Problem]:
    """A folder of queries, documents and judgements with the languages of its queries, or a bitext."""
    source = task.source
    if isinstance(source, BeirSource):
        yield from shape_problems((*key, "source"), source, {})
        yield from folder_problems(key, task)
    else:
        yield from source_problems((*key, "source"), source, {})
        for name in ("language", "languages", "qrels", "language_field", "same_id"):
            if getattr(task, name) != getattr(Retrieval, name):
                words = "is for a folder of `format: beir`; a bitext's source names its languages; remove it"
                yield (*key, name), words


def folder_problems(key: Key, task: Retrieval) -> Iterator[Problem]:
    """The languages of a folder, and fields that are a bitext's."""
    if (task.language is None) == (not task.languages):
        has = "neither" if task.language is None else "both"
        needs = f"retrieval task {task.name!r} needs `language`, if all texts are in one, or `languages`"
        of_each = f"those of the queries, which each line names in its {task.language_field!r} (`language_field`)"
        yield key, f"{needs}, {of_each}; it has {has}"
    varieties = [meaning(language).variety for language in task.languages]
    for index, variety in enumerate(varieties):
        if variety in varieties[:index]:
            first = task.languages[varieties.index(variety)]
            yield (*key, "languages", index), f"{task.languages[index]} and {first} are one language; keep one of them"
    if task.corpus != Retrieval.corpus:
        yield (*key, "corpus"), "is for a bitext; the documents of a folder are all in its corpus.jsonl; remove it"


def graded_problems(key: Key, task: Sts, source: Source) -> Iterator[Problem]:
    """Whether a source can hold an STS task's graded pairs, whose columns the task names."""
    if not isinstance(source, FileSource | HubSource) or source.paths is not None:
        yield (*key, "format"), "graded pairs are one file or data set: tsv, csv, jsonl, parquet or hub"
    elif source.columns is not None or source.id is not None:
        setting = "columns" if source.columns is not None else "id"
        yield (*key, setting), "an STS task names its columns itself: sentence1, sentence2 and score; remove it"
    else:
        yield from source_problems(key, task.graded(), {})


def clustering_problems(key: Key, source: Source) -> Iterator[Problem]:
    """Whether a source's rows can have a label each."""
    if isinstance(source, MosesSource):
        yield (*key, "format"), "'moses' has one column; give the task files with a column of labels too"
    elif source.paths is not None and source.id is None:
        yield (*key, "id"), "must name the column that tells rows apart, so that each text finds its label"


# --- Sources ----------------------------------------------------------------------------------------------------------


def source_problems(key: Key, source: Source, others: dict[str, Source], least: int = 2) -> Iterator[Problem]:
    """One source: the fields of its format, its languages (`least` of them or more) and its pairs."""
    if isinstance(source, BeirSource):
        yield (*key, "format"), "'beir' is for tasks of kind retrieval; name the columns or files of this text"
        return
    shape = list(shape_problems(key, source, others))
    yield from shape
    if shape:
        return
    codes = languages(source, others)
    spelled: dict[str, str] = {}
    for language in codes:
        if (first := spelled.setdefault(meaning(language).variety, language)) != language:
            yield key, f"source {source.name!r} holds {first} and {language}, which are one language; keep one of them"
    if len(codes) < least and source.train:
        holds = f"only {', '.join(codes)}" if codes else "no language"
        yield key, f"source {source.name!r} holds {holds}; a source needs two languages"
    if isinstance(source.pairs, tuple):
        if not source.pairs:
            yield (*key, "pairs"), "must list a pair, or be `anchor` or `all`"
        for index, pair in enumerate(source.pairs):
            if split_pair(pair, codes) is None:
                near = nearest(pair, [f"{a}-{b}" for a in codes for b in codes if a != b])
                words = f"is not two languages of {source.name!r} joined by `-`; languages: {', '.join(codes)}{near}"
                yield (*key, "pairs", index), f"{pair!r} {words}"


def climbing(key: Key, paths: Mapping[str, str | None]) -> Iterator[Problem]:
    """Relative paths that leave the folder where they start."""
    for name, path in paths.items():
        if path and ".." in PurePath(path).parts and not PurePath(path).is_absolute():
            yield (*key, name), f"{path!r} leaves data.root; change data.root, or give a whole path"


WHERE_TEXT_LIES: dict[type, tuple[tuple[str, ...], ...]] = {
    FileSource: (("path", "columns"), ("paths",)),
    HubSource: (("dataset", "columns"),),
    BeirSource: (("path",), ("dataset",)),
}
"""The keys that a source needs, if it has a choice, or its task may name the columns."""


def is_encoding(name: str) -> bool:
    """Whether Python decodes text of this encoding."""
    try:
        return codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        return False


def shape_problems(key: Key, source: Source, others: dict[str, Source]) -> Iterator[Problem]:
    """Whether the fields that say where text lies go together."""
    written = {name for name in ("path", "columns", "paths", "dataset") if getattr(source, name) is not None}
    allowed = next((keys for kind, keys in WHERE_TEXT_LIES.items() if isinstance(source, kind)), ())
    if allowed and written not in map(set, allowed):
        rule = " or ".join(map(" + ".join, allowed))
        has = ", ".join(sorted(written)) or "none of them"
        yield key, f"a source of format {source.format!r} needs {rule}, and no other of these; it has {has}"
        return
    yield from climbing(key, {"path": source.path, "dataset": source.dataset})
    yield from climbing((*key, "paths"), source.paths or {})
    if isinstance(source, CsvSource) and source.quoted:
        yield (*key, "quoted"), "true is what CSV means; leave it out, or say `false` if the marks are text"
    encodings = source.encoding if isinstance(source.encoding, dict) else {"": source.codec or "utf-8"}
    for language, codec in encodings.items():
        if not is_encoding(codec):
            yield (*key, "encoding"), f"{shortened(codec)} is unknown to Python; say for example cp1252"
        elif language and language not in (source.paths or {}):
            yield (*key, "encoding"), f"{language!r} is no language of `paths`"
    if source.where and source.columns is None:
        yield (*key, "where"), "chooses among the rows of one table; it goes with `columns`"
    if isinstance(source, FileSource) and source.paths is not None and source.join == "id" and source.id is None:
        yield (*key, "id"), "must name the column that joins the files, or say `join: line`"
    if isinstance(source, PivotSource):
        yield from pivot_problems(key, source, others)
    if isinstance(source, TranslateSource):
        derived = (PivotSource, TranslateSource)
        read = {name: languages(other, others) for name, other in others.items() if not isinstance(other, derived)}
        yield from translation_problems((*key, "translation"), source.translation, read)


def pivot_problems(key: Key, source: PivotSource, others: dict[str, Source]) -> Iterator[Problem]:
    """Whether a pivot's two sources exist and share what joins them."""
    names = [name for name, other in others.items() if not isinstance(other, PivotSource)]
    for side in ("left", "right"):
        name = getattr(source, side)
        if name not in names:
            why = "is a pivot itself" if name in others else "is not a training source"
            yield (*key, side), f"{name!r} {why}; allowed: {', '.join(names) or 'none'}{nearest(name, names)}"
            return
    if source.left == source.right:
        yield (*key, "right"), f"{source.right!r} is also the left source; name another"
        return
    left, right = (languages(others[name], others) for name in (source.left, source.right))
    if source.join == "id":
        for side in ("left", "right"):
            if others[getattr(source, side)].id is None:
                words = "has no `id` column; name it there, or join on a language"
                yield (*key, side), f"source {getattr(source, side)!r} {words}"
    elif source.join not in set(left) & set(right):
        shared = ["id", *(language for language in left if language in right)]
        words = f"is not in both; allowed: {', '.join(shared)}{nearest(source.join, shared)}"
        yield (*key, "join"), f"{source.join!r} {words}"
