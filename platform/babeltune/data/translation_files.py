"""Reads what translators exchange: memories (TMX), catalogues of gettext (PO) and XLIFF. Used by `sources` and `init`.

A file is a stream of units: texts by language, as the file writes its code. Inline codes go, and the text that they
enclose stays. Units without a text in each language that is asked for are left out and counted."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, get_args

from babeltune.data.file_readers import BLANK, Digest, Fault, Row, cells, too_long
from babeltune.data.text_streams import SAMPLE_BYTES, UNREADABLE, chunks_of, unpacked
from babeltune.errors import DataError, list_of, nearest, shortened
from babeltune.schema.languages import meaning

Format = Literal["tmx", "xliff", "po"]
FORMATS: tuple[str, ...] = get_args(Format)
Unit = tuple[int, dict[str, list[str]] | Fault]  # the line, and the texts of each language; some languages have several
CODES = frozenset({"bpt", "ept", "ph", "it", "ut", "sub"})
"""Elements within text that hold codes of a format such as HTML, and no text."""
OTHER_TEXT = frozenset({"alt-trans", "seg-source", "match", "note", "prop", "ignorable"})
"""Elements beside a unit's text: other translations, remarks, and blanks between sentences."""
UNFINISHED = frozenset({"initial", "new", "needs-translation", "needs-adaptation", "needs-l10n"})
"""States of a target that is not translated yet."""
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
DEEPEST = 1_000  # elements within one another. A file with more is no translation file.
LONGEST_TAG = 1 << 24  # bytes of a tag or an attribute, which are in memory as a whole
SNIFFED_BYTES = 1 << 14  # bytes at the begin of a text that say whether it is a translation file
PO_BYTES = 1 << 26  # bytes of a PO file, which is in memory as a whole
PO_LINE = re.compile(
    r'\s*(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*)?"(?:[^"\\]|\\.)*"\s*)?', re.DOTALL
)
"""A line of a PO file: blank, a comment, or a text in quotation marks, with its keyword or going on."""
DECLARED = re.compile(rb"<\?xml[^>]{0,200}encoding\s*=\s*[\"']([\w.:-]{1,40})[\"']")
CHARSET = re.compile(rb"Content-Type:[^\n]{0,100}charset=([\w.:-]{1,40})", re.IGNORECASE)


def format_of(begin: str) -> Format | None:
    """The format of a file that begins with this text, if it is one of these."""
    if match := re.search(r"<(?:\w+:)?(tmx|xliff)\b", begin[:4096]):
        return "tmx" if match[1] == "tmx" else "xliff"
    return "po" if re.search(r'^msgid\s+"', begin, re.M) and re.search(r'^msgstr(\[\d\])?\s+"', begin, re.M) else None


def format_in(path: Path, encoding: str | None = None) -> Format | None:
    """The format of a file, if it is one of these. A pipe is not looked at: what it gives is read once."""
    if not path.is_file():
        return None
    with contextlib.suppress(*UNREADABLE), unpacked(path, encoding) as stream:  # what reads the text says it
        return format_of(stream.peek(1)[:SNIFFED_BYTES].decode(errors="replace"))
    return None


def units(path: Path, format_: str, content: Digest, longest: int, encoding: str | None = None) -> Iterator[Unit]:
    """The units of a file. Raises `DataError` for one that cannot be read, and for XML that declares entities."""
    try:
        if encoding is None:
            with unpacked(path) as stream:
                match = (CHARSET if format_ == "po" else DECLARED).search(stream.peek(SAMPLE_BYTES))
            name = match[1].decode() if match else ""
            encoding = None if name.lower().startswith(("utf", "ucs", "charset")) or not name else name
        with unpacked(path, encoding) as stream:
            yield from po_units(stream, path, content) if format_ == "po" else xml_units(stream, path, content, longest)
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split())}; fetch or export it again") from error


def unit_rows(path: Path, names: Sequence[str], units: Iterable[Unit]) -> Iterator[Row]:
    """The texts of some languages, a row for each unit, or several for one with several texts of a language.

    A name is a language's code as the file has it, or without its region: `fr` for `fr-FR`."""
    languages: dict[str, None] = {}
    seen = dict.fromkeys(names, False)
    for line, unit in units:
        if isinstance(unit, Fault):
            yield line, unit
            continue
        languages.update(dict.fromkeys(filter(None, unit)))
        texts = [text_in(unit, name) for name in names]
        seen |= {name: True for name, some in zip(names, texts, strict=True) if some}
        filled = [[text for text in some if not BLANK.fullmatch(text)] for some in texts]
        if missing := [name for name, some in zip(names, filled, strict=True) if not some]:
            reason = "no xml:lang" if "" in unit else "not translated"
            yield line, Fault(reason, f"no text in {list_of(missing)}", "left out")
            continue
        for place in range(max(map(len, filled))):
            yield line, cells([some[min(place, len(some) - 1)] for some in filled], names)
    for name, was_seen in seen.items():
        if not was_seen and languages:
            raise DataError(
                f"{path}: no text in {shortened(name)}; languages: {list_of(languages)}{nearest(name, languages)}"
            )


def text_in(unit: dict[str, list[str]], name: str) -> list[str]:
    """The unit's texts in a language: of that very code, else of all its regions."""
    if name in unit:
        return unit[name]
    if name == "msgid" or name == "msgstr":
        return list(unit.values())[name == "msgstr"] if len(unit) == 2 else []
    code = name.replace("_", "-").lower()
    tags = [tag for tag in unit if tag.replace("_", "-").lower() == code]
    if not tags and "-" not in code:
        tags = [tag for tag in unit if meaning(tag).language == meaning(name).language]
    if not tags and "msgid" in unit:
        tags = ["msgid"] if code == "en" else []  # gettext's own language
    return [text for tag in tags for text in unit[tag]]


def unit_languages(units: Iterable[Unit]) -> list[str]:
    """The languages of some units; without the region if the file has one of the language."""
    tags = list(dict.fromkeys(tag for _, unit in units if not isinstance(unit, Fault) for tag in unit if tag))
    short = [re.split("[-_]", tag)[0] for tag in tags]
    return [base if short.count(base) == 1 else tag for tag, base in zip(tags, short, strict=True)]


# --- XML -----------------------------------------------------------------------------------------------------------


class Units:
    """Gathers units of TMX and XLIFF from what an XML parser meets."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.done: list[Unit] = []
        self.line: Callable[[], int] = lambda: 0
        """The line that the parser is at."""
        self.met = 0
        """Tags and pieces of text so far."""
        self._depth, self._skipped = 0, 0
        self._files = ("", "")
        self._unit: dict[str, list[str]] | None = None
        self._language, self._state, self._size, self._line = "", "", 0, 0
        self._text: list[str] | None = None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        self.met, self._depth = self.met + 1, self._depth + 1
        name = tag.rpartition("}")[2]
        if self._depth > DEEPEST:
            raise DataError(f"more than {DEEPEST:,} elements stand within one another; export the file again")
        if self._depth == 1 and name not in ("tmx", "xliff"):
            raise DataError(f"the document is {shortened(name)}, and neither TMX nor XLIFF; export the file again")
        if self._skipped or name in OTHER_TEXT or (self._text is not None and name in CODES):
            self._skipped += 1
            if "lb" in (attributes.get("ctype"), attributes.get("type")):
                self._add(" ")
        elif name in ("xliff", "file"):
            source = attributes.get("srcLang") or attributes.get("source-language")
            target = attributes.get("trgLang") or attributes.get("target-language")
            self._files = (source or self._files[0], target or self._files[1])
        elif name in ("tu", "trans-unit", "segment"):
            self._unit, self._state, self._size = {}, attributes.get("state", ""), 0
            self._line = self.line()
        elif name == "tuv":
            self._language = attributes.get(LANGUAGE) or attributes.get("lang", "")
        elif name in ("seg", "source", "target") and self._unit is not None:
            self._text = []
            if name != "seg":
                self._language = self._files[name == "target"] or name
                self._state = attributes.get("state", self._state)
        elif attributes.get("ctype") == "lb":
            self._add(" ")

    def data(self, text: str) -> None:
        """A piece of text."""
        self.met += 1
        if not self._skipped:
            self._add(text)

    def _add(self, text: str) -> None:
        if self._text is not None:
            self._size += len(text) + 1
            if self._size <= self._longest:
                self._text.append(text)

    def end(self, tag: str) -> None:
        """An element ends."""
        self._depth -= 1
        name = tag.rpartition("}")[2]
        if self._skipped:
            self._skipped -= 1
        elif name in ("seg", "source", "target") and self._unit is not None and self._text is not None:
            self._size += 1
            if self._size <= self._longest and not (name == "target" and self._state in UNFINISHED):
                self._unit.setdefault(self._language, []).append("".join(self._text).strip())
            self._text = None
        elif name in ("tu", "trans-unit", "segment") and self._unit is not None:
            whole = self._size <= self._longest
            self.done.append((self._line, self._unit if whole else too_long(self._size, self._longest)))
            self._unit = None

    def close(self) -> None:
        """Required by `XMLParser`; there is nothing left to do."""


def xml_units(stream: IO[bytes], path: Path, content: Digest, longest: int) -> Iterator[Unit]:
    """The units of TMX or XLIFF, as UTF-8."""
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
    from defusedxml.ElementTree import XMLParser  # type: ignore[import-untyped]

    gathered = Units(longest)
    parser = XMLParser(target=gathered, encoding="utf-8")
    gathered.line = lambda: int(parser.parser.CurrentLineNumber)
    units_before, silent = 0, 0
    try:
        for chunk in chunks_of(stream):
            content.update(chunk)
            parser.feed(chunk)
            silent = silent + len(chunk) if gathered.met == units_before else 0
            units_before = gathered.met
            if silent > LONGEST_TAG:
                raise DataError(f"{LONGEST_TAG >> 20} MB without the end of a tag; export the file again")
            yield from gathered.done
            gathered.done.clear()
        parser.close()
    except ParseError as error:
        todo = "name its encoding (--encoding cp1252) if it declares another one, or " if error.code == 4 else ""
        raise DataError(f"{path}: not XML: {error}; {todo}export the file again") from error
    except DefusedXmlException as error:
        words = f"{path} declares an entity or names another file ({type(error).__name__})"
        raise DataError(f"{words}, which may fill the memory; remove its declarations") from error
    except DataError as error:
        raise DataError(f"{path}:{gathered.line()}: {error}") from error


# --- gettext -------------------------------------------------------------------------------------------------------


def po_units(stream: IO[bytes], path: Path, content: Digest) -> Iterator[Unit]:
    """The entries of a PO file: `msgid`, or the header's `X-Source-Language`, and the header's `Language`."""
    import polib  # type: ignore[import-untyped]

    raw = stream.read(PO_BYTES + 1)
    content.update(raw)
    if len(raw) > PO_BYTES:
        raise DataError(f"{path} has more than {PO_BYTES >> 20} MB; split it (`msggrep`)")
    try:
        text = raw.decode("utf-8-sig")
        # The library takes a line without a quotation mark, and cuts the text's first or last character for it.
        for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
            if not PO_LINE.fullmatch(line):
                raise DataError(
                    f"{path}:{number}: {shortened(line)} is no line of a PO file, which is a comment or a keyword with "
                    "a text in quotation marks; correct it"
                )
        catalogue = polib.pofile(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; name its charset in the header") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a PO file: {' '.join(str(error).split())[:200]}; correct it") from error
    source = catalogue.metadata.get("X-Source-Language") or "msgid"
    target = catalogue.metadata.get("Language") or "msgstr"
    for entry in catalogue:
        texts = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:
            forms = [text for _, text in sorted(entry.msgstr_plural.items())]
            singular = [(entry.msgid, forms[0])] if len(forms) > 1 else []
            texts = singular + [(entry.msgid_plural, form) for form in forms[len(singular) :]]
        reason = "obsolete" if entry.obsolete else "fuzzy" if entry.fuzzy else ""
        for original, translation in texts:
            if reason:
                yield entry.linenum, Fault(reason, "the translation is not in use", "left out")
            else:
                yield entry.linenum, {source: [original], target: [translation]}
