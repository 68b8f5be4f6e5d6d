"""Which language a column holds: by its name if that is a code, checked against its text with py3langid."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from babeltune.data.language_id import labels_of, likeliest
from babeltune.schema.languages import code_of, meaning

TOGETHER = 10  # sentences that are judged as one text: a short sentence alone tells little
SAMPLED = 400  # sentences of a column that are looked at
SURE = 0.6  # a column has a language if this share of its texts is in it
NO_CODES = {
    "id", "ids", "src", "tgt", "trg", "key", "row", "idx", "num", "line", "text", "doc", "ref", "url", "set", "tag",
    "sim", "nr", "no", "lid", "mt", "pos", "out", "raw", "seg", "sub", "old", "new", "yes", "in", "que", "ans", "mot",
}  # fmt: skip
"""Words over columns that happen to be codes of languages. They are believed only if the text agrees."""


@dataclass(frozen=True)
class Detection:
    """The language of a column, by its text."""

    code: str | None  # ISO 639-3 if the language has such a code; None if no language is common enough
    shares: tuple[tuple[str, float], ...] = ()  # the commonest languages with their share, for an error

    @property
    def words(self) -> str:
        return ", ".join(f"{code} {share:.0%}" for code, share in self.shares) or "no letters"


def alpha3(code: str) -> str:
    """The three-letter code of a language; the code itself if there is none. A script or region stays as written."""
    import langcodes

    base, mark, rest = code.partition("_") if "_" in code else code.partition("-")
    try:
        three = langcodes.Language.get(base).to_alpha3()
    except (LookupError, ValueError):
        return code
    return three + (mark + rest if meaning(code).variety != meaning(three).variety else "")


def language_of(texts: Sequence[str]) -> Detection:
    """The language of most of the texts."""
    some = [text for text in texts if any(map(str.isalpha, text))][:SAMPLED]
    if not some:
        return Detection(None)
    size = TOGETHER if len(some) >= 3 * TOGETHER else 1
    groups = [" ".join(some[start : start + size]) for start in range(0, len(some), size)]
    votes = Counter(likeliest(groups))
    shares = tuple((alpha3(code), count / len(groups)) for code, count in votes.most_common(3))
    best, share = shares[0]
    return Detection(best if share >= SURE else None, shares)


def code_in(name: str, *, rare: bool = False) -> str | None:
    """The language that a column's or file's name says: `fr`, `fra`, `eng_Latn`, `text_fr`, `translation.en`. With
    `rare`, a whole name may also be the code of a language that py3langid does not know, such as `kzj`."""
    whole = name.strip()
    if rare and re.fullmatch(r"[a-z]{3}", whole) and whole not in NO_CODES and meaning(whole).is_language:
        return whole
    parts = [whole, *reversed(re.split(r"[._\- /]", whole))]
    for part in parts:
        if re.fullmatch(r"[a-z]{2,3}([_-][A-Z]?[A-Za-z]{1,3})?", part) and _is_common(part):
            return part
    return next(filter(None, map(language_called, parts)), None)


@cache
def language_called(name: str) -> str | None:
    """The code of a language that is called so in some language: `German`, `Russisch`. Many words happen to be the name
    of a rare language, so there is none for languages that py3langid does not know."""
    if len(name) < (4 if name.isascii() else 2) or not name.isalpha() or name.lower() in NO_CODES:
        return None
    code = code_of(name)
    return code if code and labels_of(code) else None


def codes_in(value: str) -> list[str]:
    """The languages that a value of a language column names: `fr`, `French`, or two of them, `en-fr`."""
    whole = value.strip()
    if (re.fullmatch(r"[A-Za-z]{2,3}([_-][A-Za-z]{2,4})?", whole) and _is_common(whole)) or language_called(whole):
        pair = re.split(r"[-_]", whole)
        if len(pair) != 2 or not all(map(_is_common, pair)) or len(pair[1]) == 4 or pair[1].isupper():
            return [language_called(whole) or whole]
    parts = re.split(r"\s*(?:-+>?|_|→|/|\||>|\bto\b)\s*", whole)
    are_codes = [re.fullmatch(r"[A-Za-z]{2,3}", part) is not None and _is_common(part) for part in parts]
    codes = [part if is_code else language_called(part) for part, is_code in zip(parts, are_codes, strict=True)]
    return [code for code in codes if code] if len(parts) == 2 and all(codes) else []


def english_name(code: str) -> str:
    """The language's name in English."""
    import langcodes

    return langcodes.Language.get(code).display_name()


def _is_common(code: str) -> bool:
    """Whether the code is of a language with a two-letter code, or one that py3langid knows."""
    read = meaning(code)
    return read.is_language and (len(read.language) == 2 or bool(labels_of(code)))


def agree(language: str, detection: Detection) -> bool:
    """Whether the text can be in the language that the name says: it is, is close to it, or nobody can tell. Of a word
    that stands over many columns, such as `src`, nobody believes what nobody can tell."""
    labels = set(labels_of(language))
    if not labels:
        return language not in NO_CODES
    return any(labels & set(labels_of(code)) for code, share in detection.shares if share >= 0.2)
