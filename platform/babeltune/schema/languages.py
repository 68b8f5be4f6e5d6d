"""Which codes mean one language: `en`, `eng` and `eng_Latn` do, and `zho`, `cmn`, `zho-CN` and `zho_Hans`.

By the tables of ISO 639 and CLDR that `langcodes` brings: codes of two and of three letters, withdrawn ones, and the
individual language that CLDR takes for a macrolanguage (`swh` for `swa`, `npi` for `nep`). A script or region that is
the language's likely one adds nothing; another makes a variety of the same language (`zho_Hant`, `fra-CA`), which keeps
its own name and rows. A code that nobody knows stands for itself."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

SOUTHERN_PASHTO = {"pbt": "ps"}
"""CLDR's table takes `pbu` alone for Pashto, and FLORES calls its standard text `pbt`."""
WIDER = {"Hang": "Kore", "Hira": "Jpan", "Kana": "Jpan", "Hrkt": "Jpan"}
"""Scripts that are part of how a language is written."""


class Code(NamedTuple):
    """The meaning of a code."""

    language: str
    """The language alone."""
    variety: str
    """The variety with script and region; the likely ones if the code has none."""
    is_language: bool


@lru_cache(maxsize=4096)
def meaning(code: str) -> Code:
    """The language of the code; the code itself if nobody knows it."""
    import langcodes  # 0.2 s, and most commands name no language
    from langcodes.tag_parser import LanguageTagError

    try:
        tag = langcodes.Language.get(langcodes.standardize_tag(code, macro=True))
    except LanguageTagError:
        return Code(code, code, is_language=False)
    if tag.language is None or not tag.is_valid():
        return Code(code, code, is_language=False)
    language = SOUTHERN_PASHTO.get(tag.language, tag.language)
    full = tag.update_dict({"language": language, "script": WIDER.get(tag.script or "", tag.script)})
    return Code(language, str(full.maximize()), is_language=True)


def code_of(name: str) -> str | None:
    """The code of the language that is called so, in whatever language (`german`, `Deutsch`, `allemand`), or that is
    spoken in the country with this code (`jp`). None for a code, and for what nobody calls a language."""
    import langcodes
    from langcodes.tag_parser import LanguageTagError

    if meaning(name).is_language:
        return None
    try:
        country = langcodes.Language.get(f"und-{name}") if len(name) == 2 else None
        tag = langcodes.find(name.replace("_", " ")) if country is None else country.maximize()
    except (LookupError, LanguageTagError):
        return None
    if country is not None and tag.language == "en":  # also what is likely of a country that there is none of
        return None
    return tag.to_alpha3() + (f"_{tag.script}" if country is None and tag.script else "")


def script_of(code: str) -> str:
    """The script that the language is written in, such as `Cyrl`; the code itself if nobody knows it."""
    return next((part for part in meaning(code).variety.split("-") if len(part) == 4 and part.istitle()), code)


def same_variety(a: str, b: str) -> bool:
    """Whether two codes mean the same language, script and region, the likely ones filled in. `fra` and `fra-CA` do
    not."""
    return meaning(a).variety == meaning(b).variety


def known_by(language: str, codes: Iterable[str]) -> bool:
    """Whether a model that knows these languages knows this one, in whatever script."""
    return meaning(language).language in {meaning(each).language for each in codes}


def match(language: str, among: Sequence[str]) -> str | None:
    """The one of several that is this language: of the same name, else of the same variety, else of the same language;
    None if there is none."""
    if language in among:
        return language
    code = meaning(language)
    same = [name for name in among if meaning(name).variety == code.variety]
    return next(iter(same + [name for name in among if meaning(name).language == code.language]), None)


def by_priority(languages: Iterable[str], priority: Sequence[str]) -> list[str]:
    """The languages as `anchor_priority` orders them; those that are not in it come last, alphabetically."""
    ranks = {meaning(language).variety: rank for rank, language in reversed(list(enumerate(priority)))}
    return sorted(languages, key=lambda language: (ranks.get(meaning(language).variety, len(ranks)), language))
