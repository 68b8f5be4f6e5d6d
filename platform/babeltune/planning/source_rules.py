"""What a source of text must satisfy: the fields of its format, its languages and its pairs.

Pure: records go in, `(key, problem)` pairs come out.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from babeltune.data.translation import translation_problems
from babeltune.errors import nearest, shortened
from babeltune.planning.languages import languages, split_pair
from babeltune.schema.bounds import Key, Problem
from babeltune.schema.languages import meaning
from babeltune.schema.records import Source


def source_problems(key: Key, source: Source, others: dict[str, Source], least: int = 2) -> Iterator[Problem]:
    """One source: the fields of its format, its languages (at `least` so many) and its pairs."""
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
        found = f"only {', '.join(known)}" if known else "no language"
        yield key, f"source {source.name!r} holds {found}; a source needs two languages"
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
    "data set": ("dataset",),
    "pivot": ("left", "right"),
    "translate": ("translation",),
}
OPTIONS = {
    "quoted": ("tsv", "csv"),
    "delimiter": ("csv",),
    "encoding": ("tsv", "csv", "jsonl", "moses", "po", "tmx", "xliff"),
    "sheet": ("xlsx", "ods"),
}
"""Keys that are for some formats only."""
LOCATIONS = ("path", "columns", "paths", "dataset", "left", "right", "translation")


def is_encoding(name: str) -> bool:
    """Whether Python decodes text of this encoding."""
    try:
        return codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        return False


def shape_problems(key: Key, source: Source, others: dict[str, Source]) -> Iterator[Problem]:
    """Whether the fields that say where text lies go together, and with the format."""
    given = {name for name in LOCATIONS if getattr(source, name) is not None}
    alone = {"moses": ("paths",), "hub": ("dataset",), "beir": ("folder", "data set")}
    alone |= {"pivot": ("pivot",), "translate": ("translate",)}
    alone |= dict.fromkeys(("tmx", "xliff", "po"), ("path",))
    shapes = alone.get(source.format, ("path", "paths"))
    wanted = [set(FIELDS_OF[shape]) for shape in shapes]
    if given not in wanted:
        rule = " or ".join(" + ".join(FIELDS_OF[shape]) for shape in shapes)
        has = ", ".join(sorted(given)) or "none of them"
        yield key, f"a source of format {source.format!r} needs {rule}, and no other of these; it has {has}"
        return
    yield from climbing(key, {"path": source.path, "dataset": source.dataset})
    yield from climbing((*key, "paths"), source.paths or {})
    for name, formats in OPTIONS.items():
        if getattr(source, name) != getattr(Source(name=""), name) and source.format not in formats:
            words = " or ".join(map(repr, formats))
            yield (*key, name), f"is for a source of format {words}, and this one is {source.format!r}"
    if source.format == "csv" and source.quoted is True:
        yield (*key, "quoted"), "true is what CSV means; leave it out, or say `false` if the marks are text"
    encodings = source.encoding if isinstance(source.encoding, dict) else {"": source.codec or "utf-8"}
    for language, codec in encodings.items():
        if not is_encoding(codec):
            yield (*key, "encoding"), f"{shortened(codec)} is unknown to Python; say for example cp1252"
        elif language and language not in (source.paths or {}):
            yield (*key, "encoding"), f"{language!r} is no language of `paths`"
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
