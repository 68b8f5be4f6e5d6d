"""Which languages sources, tasks and a whole sweep hold, in which pairs, and one name for each language.

Pure: records go in, names and records come out."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from babeltune.schema.base import changed
from babeltune.schema.languages import by_priority, meaning
from babeltune.schema.records import (
    BeirSource,
    Data,
    Mining,
    PivotSource,
    Retrieval,
    Source,
    Sts,
    Sweep,
    Task,
    TranslateSource,
)


def languages(source: Source, others: dict[str, Source]) -> tuple[str, ...]:
    """The languages that a source holds, in the order in which it names them."""
    if isinstance(source, PivotSource):
        sides = [others[name] for name in (source.left, source.right) if name in others]
        return tuple(dict.fromkeys(language for side in sides for language in languages(side, others)))
    if isinstance(source, TranslateSource):
        return source.translation.original, source.translation.into
    return tuple(source.columns or source.paths or ())


def split_pair(pair: str, languages: Iterable[str]) -> tuple[str, str] | None:
    """The two languages of `a-b`; either may hold a `-`. None when they are not two known ones."""
    codes = set(languages)
    for index, character in enumerate(pair):
        left, right = pair[:index], pair[index + 1 :]
        if character == "-" and left in codes and right in codes and left != right:
            return left, right
    return None


def source_pairs(source: Source, others: dict[str, Source], priority: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (anchor, other) language pairs that a source yields, each once; of one language alone, it and itself.

    The anchor comes first in `priority`; languages that are not in it come last, alphabetically."""
    spoken = languages(source, others)
    ordered = by_priority(spoken, priority)
    if len(spoken) == 1:
        return ((spoken[0], spoken[0]),)
    if source.pairs == "anchor":
        return tuple((ordered[0], other) for other in spoken if other != ordered[0])
    pairs = tuple(itertools.combinations(ordered, 2))
    if source.pairs == "all":
        return pairs
    listed = [split_pair(pair, spoken) or ("", "") for pair in source.pairs]
    turned = (either for left, right in listed for either in ((left, right), (right, left)))
    return tuple(dict.fromkeys(pair for pair in turned if pair in pairs))


def respelled(data: Data) -> Data:
    """The data with one name for each language of the training text: its first, `anchor_priority` coming before all.

    Tasks keep the names that they give, which are those of their metrics."""
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
        by_code = {names[code]: value for code, value in (by_language or {}).items()}
        return by_code if len(by_code) == len(by_language or {}) and by_code else by_language  # else it is refused

    def pair_of(pair: str) -> str:
        sides = split_pair(pair, names)
        return pair if sides is None else "-".join(names[side] for side in sides)

    if isinstance(source, TranslateSource):
        original, into = (names.get(code, code) for code in languages(source, {}))
        source = replace(source, translation=replace(source.translation, original=original, into=into))
    elif isinstance(source, PivotSource) and source.join != "id":
        source = replace(source, join=names.get(source.join, source.join))
    else:
        by_language = {"columns": renamed(source.columns), "paths": renamed(source.paths)}
        source = changed(Source, source, by_language)
    return replace(source, pairs=tuple(map(pair_of, source.pairs))) if isinstance(source.pairs, tuple) else source


def task_languages(task: Task) -> tuple[str, ...]:
    """The languages of a task's texts."""
    match task:
        case Sts():
            return tuple(dict.fromkeys((task.language, task.language2 or task.language)))
        case Retrieval(source=BeirSource()):
            return task.languages or ((task.language,) if task.language is not None else ())
    return languages(task.source, {})


def right_languages(task: Task, priority: tuple[str, ...]) -> tuple[str, ...]:
    """The languages of a task's right sides: the anchors of a bitext's pairs, the second language of mining."""
    if isinstance(task, Mining):
        return languages(task.source, {})[1:]
    return tuple(dict.fromkeys(anchor for anchor, _ in source_pairs(task.source, {}, priority))) if task.source else ()


def taught_languages(sweep: Sweep) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The languages of the training pairs: those on the anchor side, and those on the other."""
    pairs = taught_pairs(sweep)
    return tuple(dict.fromkeys(a for a, _ in pairs)), tuple(dict.fromkeys(b for _, b in pairs))


def taught_pairs(sweep: Sweep) -> tuple[tuple[str, str], ...]:
    """The language pairs of the training text, anchor first."""
    by_name = {source.name: source for source in sweep.data.train}
    pairs = [source_pairs(s, by_name, sweep.data.anchor_priority) for s in sweep.data.train if s.train]
    return tuple(dict.fromkeys(pair for of_source in pairs for pair in of_source))


def strangers_in(counts: Mapping[str, int]) -> dict[str, int]:
    """The pairs of a source with a text in another language than its column says, by reason."""
    reasons = {name.removeprefix("dropped: "): count for name, count in counts.items()}
    return {name: count for name, count in reasons.items() if name == "swapped" or name.startswith("not in ")}
