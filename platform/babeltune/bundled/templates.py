"""Write templates.tsv: synthetic five-language sentences that teach the corpus's everyday words.

``python -m babeltune.bundled.templates`` fills the checked templates of templates.yaml and
rewrites the file next to it. The choice of fillers depends only on that file, so the result is
the same, byte for byte, on every machine. Its rows are training data only."""

import hashlib
import itertools
import re
from pathlib import Path
from typing import TypeAlias

import yaml

LANGUAGES = ("eng", "fra", "jpn", "kor", "rus")
FOLDER = Path(__file__).resolve().parent

Filler: TypeAlias = dict[str, str]
Chosen: TypeAlias = dict[str, Filler]

_SLOT = re.compile(r"\{(\w+)(?:\.(\w+)|@(\w+))?\}")
_KOREAN_CHOICE = re.compile(r"(.)\[(\w+)/(\w+)\]")
_ARTICLE = re.compile(r"\[a/an\] (\w)")


def _korean(match: re.Match[str]) -> str:
    """Pick the particle that follows the final sound of the syllable before it."""
    before, after_consonant, after_vowel = match.groups()
    final = (ord(before) - 0xAC00) % 28
    takes_vowel_form = final == 0 or (after_consonant == "으로" and final == 8)
    return before + (after_vowel if takes_vowel_form else after_consonant)


def _article(match: re.Match[str]) -> str:
    letter = match.group(1)
    return ("an " if letter.lower() in "aeiou" else "a ") + letter


def fill(pattern: str, language: str, chosen: Chosen) -> str:
    """Return one template's sentence in one language for the chosen fillers."""

    def text(match: re.Match[str]) -> str:
        slot, form, agrees_with = match.groups()
        if agrees_with:
            form = chosen[agrees_with][f"{language}_g"]
        return chosen[slot][f"{language}_{form}" if form else language]

    sentence = _SLOT.sub(text, pattern)
    if language == "kor":
        sentence = _KOREAN_CHOICE.sub(_korean, sentence)
    if language == "eng":
        sentence = _ARTICLE.sub(_article, sentence)
    return sentence[0].upper() + sentence[1:]


def rows(source: Path = FOLDER / "templates.yaml") -> list[tuple[str, ...]]:
    """Return every row of templates.tsv below its header."""
    data = yaml.safe_load(source.read_text(encoding="utf-8"))
    seed: str = data["seed"]
    limit: int = data["rows_per_template"]
    slots: dict[str, list[Filler]] = data["slots"]
    templates: list[dict[str, str]] = data["templates"]
    result: list[tuple[str, ...]] = []
    for number, template in enumerate(templates):
        names = sorted({m.group(1) for lang in LANGUAGES for m in _SLOT.finditer(template[lang])})
        combinations = list(itertools.product(*(range(len(slots[name])) for name in names)))
        combinations.sort(key=lambda each: hashlib.sha256(f"{seed}/{number}/{each}".encode()).hexdigest())
        for combination in sorted(combinations[:limit]):
            chosen = {name: slots[name][i] for name, i in zip(names, combination, strict=True)}
            sentences = tuple(fill(template[lang], lang, chosen) for lang in LANGUAGES)
            result.append((f"s{len(result) + 1:04d}", *sentences))
    return result


def render() -> str:
    """Return the whole text of templates.tsv."""
    lines = [("id", *LANGUAGES), *rows()]
    return "".join("\t".join(line) + "\n" for line in lines)


def main() -> None:
    (FOLDER / "templates.tsv").write_bytes(render().encode())


if __name__ == "__main__":
    main()
