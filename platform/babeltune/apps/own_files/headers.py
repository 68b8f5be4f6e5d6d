"""Whether the first row of a table names its columns: a name does not look like the rest of its column.

Each column adds evidence for a header (above 0) or for text (below 0). It looks at known words, types, repetition,
scripts, the ends of sentences and lengths. Called by `tables`."""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from babeltune.apps.own_files.languages import agree, code_in, language_of

SAMPLED = 400  # rows that the first one is compared with
SURE = 2.0
"""A first row is a header from this evidence on, and text up to its negative. `init` says that it guessed between."""
MOST = 4.0  # the most that one column tells
HEADER_WORDS = {
    "id", "ids", "idx", "uid", "guid", "nr", "num", "number", "row", "line", "index", "key", "source",
    "target", "src", "tgt", "trg", "text", "texts", "sentence", "sentences", "sentence1", "sentence2",
    "segment", "string", "phrase", "word", "words", "term", "terms", "definition", "meaning", "score", "label",
    "translation", "translations", "translated", "original", "input", "output", "lang", "language", "locale",
    "url", "link", "date", "time", "category", "domain", "topic", "context", "comment", "comments", "note",
    "notes", "status", "file", "filename", "document", "doc", "page", "split", "set", "type", "name", "title",
    "author", "license", "quality", "similarity", "reference", "hypothesis", "premise", "question", "answer",
    "query", "passage", "pos", "gender", "approved", "version", "version1", "texte", "mot", "mots", "langue",
    "traduction", "cible", "commentaire", "domaine", "titre", "numéro", "remarque", "satz", "wort", "wörter",
    "quelle", "ziel", "ausgangstext", "zieltext", "quelltext", "übersetzung", "sprache", "bemerkung",
    "kommentar", "nummer", "bereich", "thema", "freigabe", "titel", "datum", "lfd", "texto", "frase", "oración",
    "oracion", "palabra", "palabras", "idioma", "traducción", "traduccion", "origen", "destino", "comentario",
    "número", "testo", "parola", "parole", "lingua", "traduzione", "origine", "tradução", "traducao", "palavra",
    "língua", "origem", "tekst", "zin", "woord", "taal", "vertaling", "bron", "doel", "zdanie", "słowo",
    "język", "tłumaczenie", "źródło", "текст", "предложение", "слово", "перевод", "язык", "источник",
    "оригинал", "номер", "речення", "переклад", "мова", "文", "原文", "译文", "譯文", "翻译", "翻譯", "句子",
    "文本", "词", "编号", "序号", "語言", "语言", "訳", "訳文", "翻訳", "文章", "単語", "番号", "例文", "対訳",
    "번역", "문장", "원문", "단어", "번호", "텍스트", "النص", "الترجمة",
}  # fmt: skip
"""Words that name columns, in lower case."""
PARTS = re.compile(r"[\s_./()\[\]:#|+-]+|(?<=[a-z])(?=[A-Z])|(?<=[^\W\d_])(?=\d)")
IDENTIFIER = re.compile(r"[a-z][a-z0-9]*([_.][A-Za-z0-9]+)+|[a-z]+([A-Z][a-z0-9]+)+")
TYPES = {
    "number": re.compile(r"[-+#]?[\d.,:%/ \u00a0-]*\d[\d.,:%/ \u00a0-]*"),
    "address": re.compile(r"\w+://\S+|www\.\S+|\S+@\S+\.\w+"),
    "key": re.compile(r"(?=\S*\d)(?=\S*[^\W\d])[\w.:/#-]+"),
}
"""Kinds of values that are no text."""
ENDS = ".!?…。！？।॥؟۔።។။"  # a sentence ends in one of these, before its closing quotation marks
CLOSING = '»"”」』’) '
LEAST_LETTERS = 3  # one name of a lone row has this number of letters
MOST_WORDS = 4  # a cell of more words is no name that a language or a known word gives away


class Evidence(NamedTuple):
    """Whether the first row is a header."""

    score: float  # above 0 for a header
    style: float = 0.0
    """The part of it that says only that the first row is shorter and ends otherwise. A greeting does, too."""

    @property
    def header(self) -> bool:
        return self.score >= SURE

    @property
    def sure(self) -> bool:
        return self.score <= -SURE or self.score - self.style >= SURE


def header_evidence(rows: Sequence[Sequence[str]]) -> Evidence:
    """Compares the first row with the others."""
    first, *rest = rows[: SAMPLED + 1]
    filled = [cell.strip() for cell in first if cell.strip()]
    certainty = MOST if filled and all(map(is_name, filled)) else 0.0
    if not certainty and (len(set(filled)) < len(filled) or not filled):
        return Evidence(-MOST)
    if certainty:
        rest = [row for row in rest if list(row) != list(first)]  # a header that stands again
    if not rest:  # `Si, no.` are words before they are codes of languages
        words = any(cell.endswith(tuple(ENDS)) for cell in filled) or max(map(len, filled)) < LEAST_LETTERS
        return Evidence(-MOST if words else certainty or -MOST)
    if certainty and 2 * sum(all(map(is_name, row)) for row in rest) > len(rest):
        return Evidence(-MOST)  # the rows below could be names, too, such as `line 1`
    columns = [[value.strip() for value in column] for column in zip(*rest, strict=True)]
    evidence = [_of_column(name.strip(), column) for name, column in zip(first, columns, strict=True)]
    return Evidence(certainty + sum(each.score for each in evidence), sum(each.style for each in evidence))


def is_name(cell: str) -> bool:
    """Whether all parts of the cell are words that name columns, or languages."""
    parts = [part.casefold() for part in PARTS.split(cell.strip()) if part and not part.isdigit()]
    return bool(parts) and all(part in HEADER_WORDS or code_in(part) is not None for part in parts)


def _of_column(name: str, column: Sequence[str]) -> Evidence:
    """The evidence of one column, at most `MOST`."""
    values = [value for value in column if value]
    if not values or not name:
        return Evidence(0.0)
    counts = Counter(map(str.casefold, values))
    if name.casefold() in counts:
        return Evidence(-MOST if counts[name.casefold()] > len(values) / 20 else -MOST / 2)
    kinds = Counter(map(_kind, values))
    kind, count = kinds.most_common(1)[0]
    if kind != "text" and count >= 0.9 * len(values):
        return Evidence(-MOST if _kind(name) in (kind, "number") else MOST)
    if len(values) >= 20 and len(counts) <= max(3, len(values) // 20):
        return Evidence(MOST if _kind(name) == "text" else 0.0)  # a few labels, and this is none of them
    if _kind(name) == "number":
        return Evidence(-MOST * 3 / 4)
    style = _end(name, values) + _length(name, values)
    score = _by_words(name, values) + _script(name, values) + style
    return Evidence(max(-MOST, min(MOST, score)), min(max(0.0, style), max(0.0, score)))


def _kind(value: str) -> str:
    return next((kind for kind, form in TYPES.items() if form.fullmatch(value)), "text")


def _by_words(name: str, values: Sequence[str]) -> float:
    """Words that name columns. A language counts if the column is in it: `hi` over English text is a greeting."""
    parts = [part.casefold() for part in PARTS.split(name) if part and not part.isdigit()]
    if not parts or len(parts) > MOST_WORDS:
        return 0.0
    code = code_in(name) or code_in(parts[-1])
    if code is not None and agree(code, language_of(values)):
        return MOST
    words = sum(part in HEADER_WORDS for part in parts)
    if words and words + sum(code_in(part) is not None for part in parts if part not in HEADER_WORDS) == len(parts):
        return MOST
    return 2.0 if 2 * words >= len(parts) or IDENTIFIER.fullmatch(name) else 0.0


def _script(name: str, values: Sequence[str]) -> float:
    """Letters of another script than nearly all values have."""
    scripts = Counter(script for value in values for script in _scripts(value))
    common, count = next(iter(scripts.most_common(1)), ("", 0))
    here = _scripts(name)
    return 3.0 if here and common not in here and count >= 0.9 * len(values) else 0.0


def _scripts(text: str) -> set[str]:
    """The scripts of the letters, as the first word of their Unicode names says."""
    return {unicodedata.name(letter, "").partition(" ")[0] for letter in text[:100] if letter.isalpha()}


def _end(name: str, values: Sequence[str]) -> float:
    """Whether the cell ends as sentences do, and how many values do."""
    share = sum(value.rstrip(CLOSING)[-1:] in ENDS for value in values if value.rstrip(CLOSING)) / len(values)
    if name.rstrip(CLOSING).endswith(tuple(ENDS)):
        return -MOST if share >= 0.3 else 0.0
    return 2.0 if share >= 0.9 else 1.0 if share >= 0.6 else 0.0


def _length(name: str, values: Sequence[str]) -> float:
    """A name is shorter than nearly all texts. If the next rows are as short, the table is sorted by length."""
    lengths = sorted(map(len, values))

    def rank(text: str) -> float:
        return bisect_right(lengths, len(text)) / len(lengths)

    if rank(name) > 0.1:
        return -1.5 if len(values) > 2 else 0.0  # any two words are as short
    if len(values) < 20 or sorted(map(rank, values[:5]))[len(values[:5]) // 2] <= 0.15:
        return 0.0
    return 0.75 if rank(name) <= 0.02 else 0.5
