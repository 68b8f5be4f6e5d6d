"""What the data section must satisfy as a whole: sources that agree, tasks that are not used twice.

Pure: records go in, `(key, problem)` pairs come out. `source_rules.py` and `task_rules.py` judge the single ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from babeltune.errors import nearest
from babeltune.planning.languages import languages
from babeltune.planning.source_rules import source_problems
from babeltune.planning.task_rules import repeated_tasks, task_problems
from babeltune.schema.bounds import Key, Problem, repeated
from babeltune.schema.languages import code_of, same_variety
from babeltune.schema.records import Data, Task, Words


def data_problems(data: Data) -> Iterator[Problem]:
    """Sources, tasks, and what they say of one another."""
    if not data.train:
        yield ("data", "train"), "must not be empty"
    yield from words_problems(("data", "words"), data.words)
    if data.split is not None and all(source.synthetic for source in data.train if source.train):
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
    anchors = data.anchor_priority
    if there and anchors and not any(same_variety(a, b) for a in there for b in anchors):
        yield (
            ("data", "anchor_priority"),
            f"none of {', '.join(anchors)} is a language of data.train; allowed: {', '.join(there)}"
            f"{nearest(anchors[0], there)}",
        )
    for index, anchor in enumerate(anchors):
        if anchor not in there and (written := code_of(anchor)):
            yield ("data", "anchor_priority", index), f"{anchor!r} is no code of a language; write {written}"
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
    return repr([source, *(getattr(task, name, None) for name in ("path", "gold", "qrels"))])


def words_problems(key: Key, words: Words) -> Iterator[Problem]:
    """Lexicons, which are given where they are read."""
    if (words.align == "lexicon") != bool(words.lexicon):
        has = "lists none" if not words.lexicon else f"lists {len(words.lexicon)}, which {words.align!r} does not read"
        yield (*key, "lexicon"), f"{has}; give `align: lexicon` and the lexicons together, or neither"
    for index, lexicon in enumerate(words.lexicon):
        yield from source_problems((*key, "lexicon", index), lexicon, {})
