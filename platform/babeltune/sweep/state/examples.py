"""A few translations by the best trial of a sweep, before and after training: `examples.json`.

The driver makes it when the sweep ends, or else the command that writes a report (`driver/examples.py`). So a report
shows it without any model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from babeltune.sweep.state.folder import SweepFolder

EXAMPLES = "examples.json"  # the file in the sweep's folder


@dataclass(frozen=True, kw_only=True)
class ExampleSentence:
    """A sentence of the dev set, and where t-SNE puts its vector."""

    language: str
    text: str
    row: int  # sentences of the same row are translations of one another
    before: tuple[float, float]
    after: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Similarities:
    """Cosines of sentences in two languages: entry (i, j) is of row i in one and row j in the other."""

    left: str
    right: str
    before: tuple[tuple[float, ...], ...]
    after: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class LanguageAlignment:
    """How near the example sentences of one language are to their translations in the first language."""

    language: str
    cosine_before: float
    cosine_after: float  # the mean cosine of translations
    found_before: float
    found_after: float  # the share of sentences whose translation is nearest among the examples


@dataclass(frozen=True, kw_only=True)
class ExampleSentences:
    """Example sentences of one dev set in several languages, by the untrained student and by the best checkpoint."""

    trial: str = ""
    report: int = 0
    dev_set: str = ""
    languages: tuple[str, ...] = ()  # the language that all translations have in common, then the others
    sentences: tuple[ExampleSentence, ...] = ()
    similarities: tuple[Similarities, ...] = ()
    alignment: tuple[LanguageAlignment, ...] = ()
    missing: str = ""  # why there are none; empty if there are


def read_examples(folder: SweepFolder) -> ExampleSentences:
    """The examples of the sweep. If there are none, `missing` says why."""
    values = folder.read(EXAMPLES)
    if values is None:
        why = f"{EXAMPLES} is damaged" if (folder.path / EXAMPLES).exists() else "the sweep has not ended since"
        return ExampleSentences(missing=f"{why}; a sweep makes them when it ends, or `babeltune report`")
    try:
        return TypeAdapter(ExampleSentences).validate_python(values)
    except ValidationError:
        return ExampleSentences(missing=f"{EXAMPLES} is of another version of babeltune")
