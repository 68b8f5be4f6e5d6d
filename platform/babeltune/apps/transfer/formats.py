"""The published formats of XTREME's classification and tagging tasks become examples.

Sentence pairs: XNLI's original release (`xnli.test.tsv`, all languages in one file; `multinli.train.en.tsv`), PAWS-X'
(`translated_train.tsv`, `test_2k.tsv`), and what XTREME makes of both (`train-en.tsv`: two sentences and a label, no
header). Words: Universal Dependencies' CoNLL-U, PAN-X' `lang:token<tab>tag`, and XTREME's `token<tab>tag`. Quotes are
text, as XTREME's own reader has it; each file may be gzipped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from babeltune.data.file_readers import Fault, file_at, not_utf8, numbered_lines, refuse_broken, tsv_rows
from babeltune.data.sources import Refusals
from babeltune.errors import DataError, nearest, shortened

Task = Literal["xnli", "pawsx", "pos", "ner"]
UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
LABELS: dict[Task, tuple[str, ...]] = {
    "xnli": ("contradiction", "entailment", "neutral"),
    "pawsx": ("0", "1"),
    "pos": tuple(UPOS.split()),
    "ner": ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"),
}
"""A label's number is its place."""
TAGGED: tuple[Task, ...] = ("pos", "ner")
SPELLED = {"contradictory": "contradiction"}  # MultiNLI's machine-translated release calls it so
HEADERS = (("sentence1", "sentence2", "gold_label"), ("premise", "hypo", "label"), ("sentence1", "sentence2", "label"))
"""Header lines of XNLI, of its translated training set, and of PAWS-X."""
UNDECIDED = "-"  # XNLI's and MultiNLI's label if the annotators did not agree
WITHHELD = "XTREME's own test files withhold the labels: take the original release's test file"
PREFIX = re.compile(r"[a-z]{2,3}(-[a-z-]+)?:")  # PAN-X' language before a token
COLUMNS = 10  # columns of a CoNLL-U line


LabelledRows = Iterator[tuple[tuple[str, ...], tuple[int, ...]]]  # the texts or words of each row, and their labels


@dataclass(frozen=True, kw_only=True)
class Examples:
    """The rows of a file."""

    inputs: list[tuple[str, ...]]  # the two sentences of a pair, or the words of a sentence
    labels: list[tuple[int, ...]]  # one for a pair, one for each word of a sentence
    dropped: dict[str, int]  # rows left out by reason; of a tagged file, sentences
    digest: str  # SHA-256 of the content

    def __len__(self) -> int:
        return len(self.inputs)


def read_examples(path: str, task: Task, language: str, *, drop: bool = False) -> Examples:
    """Reads a file of the task; of one that holds several languages, the rows of `language`.

    Raises `DataError` for a file that cannot be read, for a label that the task does not have and, unless these are
    dropped, for the first broken row."""
    file = file_at(path)  # of a pair task's file the first line is read twice, which no pipe bears
    content = hashlib.sha256()
    refusals = Refusals("--on-error drop", drop)
    tagged = task in TAGGED
    examples = _tagged(file, task, content, refusals) if tagged else _pairs(file, task, language, content, refusals)
    return collected(str(file), examples, content, refusals)


def collected(place: str, examples: LabelledRows, content: hashlib._Hash, refusals: Refusals) -> Examples:
    """All rows of a file or data set. Raises `DataError` if there is none, or too many are broken."""
    inputs, labels = [], []
    for texts, numbers in examples:
        inputs.append(texts)
        labels.append(numbers)
    if not inputs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in refusals.counts.items())
        raise DataError(f"{place} has no rows{f' left; dropped: {reasons}' if reasons else ''}; correct the file")
    broken = refusals.counts.total() - refusals.unused
    refuse_broken(place, broken, len(inputs) + broken, refusals.counts)
    return Examples(inputs=inputs, labels=labels, dropped=dict(refusals.counts), digest=content.hexdigest())


def _pairs(file: Path, task: Task, language: str, content: hashlib._Hash, refusals: Refusals) -> LabelledRows:
    _, first = next(numbered_lines(file, hashlib.sha256()), (1, b""))
    if isinstance(first, Fault):
        raise DataError(f"{file}:1: {first.reason}: {first.words}; correct the file")
    head = first.decode(errors="replace").split("\t")
    names = next((names for names in HEADERS if set(names) <= set(head)), None)
    header, several = names is not None, names is not None and "language" in head
    if names is None:
        if len(head) == 2:
            raise DataError(f"{file}:1: two columns, where two sentences and a label are read; {WITHHELD}")
        names = ("0", "1", "2")
    languages: set[str] = set()
    matched = False
    for line, cells in tsv_rows(file, [*names, *(["language"] if several else [])], content, header=header):
        place = f"{file}:{line}"
        if isinstance(cells, Fault):
            refusals.refuse(place, cells)
            continue
        left, right, label, *rest = cells
        languages.update(rest)
        if rest and rest != [language]:
            continue
        matched = True
        if label == UNDECIDED:
            refusals.refuse(place, Fault("no gold label", f"{label!r}, where the annotators did not agree", "unused"))
            continue
        yield (left, right), (label_number(SPELLED.get(label, label), task, place),)
    if languages and not matched:
        offered = f"{', '.join(sorted(languages))}{nearest(language, languages)}"
        raise DataError(f"{file} has no rows of language {language!r}; languages: {offered}")


def label_number(label: str, task: Task, place: str) -> int:
    """A label's number. Raises `DataError` for one that the task does not have."""
    labels = LABELS[task]
    if label not in labels:
        words = f"unknown label {shortened(label)} for {task}{nearest(label, labels)}; allowed: {', '.join(labels)}"
        raise DataError(f"{place}: {words}; correct it, or name another --task")
    return labels.index(label)


# --- Tagged words --------------------------------------------------------------------------------------------------


Word = tuple[int, str, str]  # line, form and tag


@dataclass(frozen=True)
class Broken:
    """Why a sentence cannot be used, and where."""

    line: int
    fault: Fault


def _tagged(file: Path, task: Task, content: hashlib._Hash, refusals: Refusals) -> LabelledRows:
    """The words of each sentence of a CoNLL-U or two-column file, which its first line tells apart."""
    parse: Callable[[list[tuple[int, str]]], list[Word] | Broken] | None = None
    for block in _blocks(raw for _, raw in numbered_lines(file, content)):
        if isinstance(block, Broken):
            refusals.refuse(f"{file}:{block.line}", block.fault)
            continue
        if parse is None:
            line = block[0][1]
            if (line.startswith("#") and "\t" not in line) or line.count("\t") == COLUMNS - 1:
                parse = _conllu
            else:
                prefixed = PREFIX.match(line)
                parse = _two_columns(prefixed[0] if prefixed else "")
        words = parse(block)
        if isinstance(words, Broken):
            refusals.refuse(f"{file}:{words.line}", words.fault)
        elif words:
            numbers = tuple(label_number(tag, task, f"{file}:{line}") for line, _, tag in words)
            yield tuple(form for _, form, _ in words), numbers


def _blocks(lines: Iterable[bytes | Fault]) -> Iterator[list[tuple[int, str]] | Broken]:
    """The numbered_lines lines between blank ones; broken if one of them is too long or not UTF-8."""
    block: list[tuple[int, str]] = []
    broken: Broken | None = None
    number = 0
    for number, raw in enumerate(lines, 1):
        if isinstance(raw, Fault):
            broken = broken or Broken(number, raw)
            continue
        if raw.strip() and not raw.startswith(b"-DOCSTART-"):
            try:
                block.append((number, raw.decode()))
            except UnicodeDecodeError as error:
                broken = broken or Broken(number, not_utf8(raw, error))
            continue
        if block or broken:
            yield broken or block
        block, broken = [], None
    if block or broken:
        yield broken or block


def _two_columns(prefix: str) -> Callable[[list[tuple[int, str]]], list[Word] | Broken]:
    """The reader of `token<tab>tag` lines whose tokens begin with a prefix."""

    def parse(block: list[tuple[int, str]]) -> list[Word] | Broken:
        words = []
        for line, text in block:
            form, *tags = text.split("\t")
            if len(tags) != 1 or not tags[0].strip():
                way_out = f"; {WITHHELD}" if not tags else ""
                return Broken(line, Fault("column count", f"{shortened(text)} is no token, tab and tag{way_out}"))
            if not form.startswith(prefix):
                words_of = f"{shortened(form)} does not begin with {prefix!r} as line 1 does"
                return Broken(line, Fault("language", words_of))
            form = form.removeprefix(prefix).strip()
            if not form:
                return Broken(line, Fault("empty token", f"nothing before the tag {tags[0].strip()!r}"))
            words.append((line, form, tags[0].strip()))
        return words

    return parse


def _conllu(block: list[tuple[int, str]]) -> list[Word] | Broken:
    """The words of a sentence as XTREME reads them (its `ud-conversion-tools` and `udpos_preprocess`)."""
    # A fused form (`2-3 du`) stands for its parts. It has the tag of the part that is nearest to the root, the first of
    # equally near ones. Empty nodes (`8.1`) are left out, and so are blanks and zero-width non-joiners within a word.
    # Sentences whose words a treebank withholds (all `_` but one at most) are broken.
    words: list[Word] = []
    heads: list[int] = []
    fused: dict[int, tuple[int, int, str]] = {}
    for line, text in block:
        if text.startswith("#"):
            continue
        fields = text.split("\t")
        if len(fields) != COLUMNS:
            return Broken(line, Fault("column count", f"{len(fields)} in {shortened(text)}; CoNLL-U has {COLUMNS}"))
        number, form, tag, head = fields[0], fields[1], fields[3], fields[6]
        if re.fullmatch(r"[0-9]{1,9}-[0-9]{1,9}", number):
            first, last = map(int, number.split("-"))
            fused[first] = (line, last, form)
        elif number == str(len(words) + 1):
            words.append((line, form, tag))
            heads.append(int(head) if re.fullmatch("[0-9]{1,9}", head) else 0)
        elif not re.fullmatch(r"\d+\.\d+", number):
            return Broken(line, Fault("word number", f"{number!r}, where {len(words) + 1} is next"))
    withheld = sum(form == "_" for _, form, _ in words)
    if words and withheld and withheld >= len(words) - 1:
        why = "the treebank's licence keeps them: fill them in first"
        return Broken(words[0][0], Fault("withheld words", why, "unused"))
    whole: list[Word] = []
    at = 1
    while at <= len(words):
        line, form, tag = words[at - 1]
        if at in fused:
            line, last, form = fused[at]
            if not at < last <= len(words):
                return Broken(line, Fault("word number", f"{at}-{last} spans words that are not there"))
            tag = words[min(range(at, last + 1), key=lambda part: _depth(part, heads)) - 1][2]
            at = last
        whole.append((line, form.replace("\u200c", "").replace(" ", "") or form, tag))
        at += 1
    return whole


def _depth(word: int, heads: list[int]) -> int:
    """Steps from a word to the root, or as many as there are words on a circle."""
    steps = 0
    while 0 < word <= len(heads) and steps < len(heads):
        word, steps = heads[word - 1], steps + 1
    return steps
