"""Given pairs are read, dropped by reason, ranked by score, and the best kept up to a number of target tokens.

Tan et al. 2023, section 3.4, as in WMT 2019 and 2020's shared task. Pairs whose source is English are dropped. The rest
is ranked by margin, and the top n target tokens are kept. A smaller subset is the beginning of a larger one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.apps.pair_files import Columns, pair_rows
from babeltune.data import language_id
from babeltune.data.file_readers import Fault, refuse_broken
from babeltune.data.sources import Refusals
from babeltune.data.text_keys import text_key
from babeltune.errors import DataError
from babeltune.schema.languages import code_of, meaning

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENGLISH = "en"
ENGLISH_SOURCE = "English source"  # why a pair is left out


@dataclass(frozen=True, kw_only=True)
class CandidatePairs:
    """Sentences and their supposed translations, row by row, with what was left out so far."""

    source: list[str]
    target: list[str]
    read: int  # rows of the file
    digest: str  # SHA-256 of the content
    dropped: Counter[str] = field(default_factory=Counter)  # rows left out by reason

    def __len__(self) -> int:
        return len(self.source)

    def only(self, keep: Sequence[bool], reason: str) -> CandidatePairs:
        """The pairs that are kept, the others counted under the reason."""
        left_out = len(keep) - sum(keep)
        return CandidatePairs(
            source=[text for text, stays in zip(self.source, keep, strict=True) if stays],
            target=[text for text, stays in zip(self.target, keep, strict=True) if stays],
            read=self.read,
            digest=self.digest,
            dropped=self.dropped + Counter({reason: left_out}),
        )


def read_pairs(path: str, columns: Columns | None, *, drop: bool = False, codec: str | None = None) -> CandidatePairs:
    """The pairs of a file, as `pair_rows` reads them.

    Raises `DataError` for a file that cannot be read and, unless these are dropped, for the first broken row."""
    content = hashlib.sha256()
    refusals = Refusals("--on-error drop", drop)
    source, target = [], []
    for line, cells in pair_rows(path, columns, content, codec):
        refusals.rows += 1
        if isinstance(cells, Fault):
            refusals.refuse(f"{path}:{line}", cells)
        else:
            source.append(cells[0])
            target.append(cells[1])
    rows = refusals.rows
    refuse_broken(path, refusals.counts.total() - refusals.unused, rows - refusals.unused, refusals.counts)
    if not source:
        raise DataError(f"{path} has no pairs{' left' if rows else ''}; a row is a source and a target")
    return CandidatePairs(source=source, target=target, read=rows, digest=content.hexdigest(), dropped=refusals.counts)


def without_repetitions(pairs: CandidatePairs) -> CandidatePairs:
    """The first of equal pairs."""
    first: dict[tuple[str, str], int] = {}
    rows = zip(pairs.source, pairs.target, strict=True)
    return pairs.only([first.setdefault(pair, row) == row for row, pair in enumerate(rows)], "repeated pair")


def without_test(pairs: CandidatePairs, test: CandidatePairs) -> CandidatePairs:
    """The pairs without a side that is in a test file; case, punctuation and blanks do not count."""
    test_keys = {text_key(text) for text in (*test.source, *test.target)}
    rows = zip(pairs.source, pairs.target, strict=True)
    keep = [not test_keys & {text_key(text) for text in pair} for pair in rows]
    return pairs.only(keep, "a side is in the test file")


def checked_languages(languages: Sequence[str] | None) -> tuple[str, ...] | None:
    """The languages that a source can be in, English among them, as py3langid writes them. `DataError` for one that it
    does not know."""
    if languages is None:
        return None
    labels = {meaning(label).language: label for label in language_id.known_languages()}
    codes = {language: meaning(code_of(language) or language).language for language in languages}
    if strange := [language for language, code in codes.items() if code not in labels]:
        raise DataError(f"--languages: py3langid knows no language {strange[0]!r}; write codes, such as fr,de")
    return (*(labels[code] for code in codes.values()), ENGLISH)


def without_english(pairs: CandidatePairs, among: Sequence[str] | None) -> tuple[CandidatePairs, dict[str, int]]:
    """The pairs whose source is not English, and how many sources were taken for which language, commonest first.
    `among`: the languages that a source can be in."""
    languages = language_id.likeliest(pairs.source, among)
    without = pairs.only([language != ENGLISH for language in languages], ENGLISH_SOURCE)
    return without, dict(Counter(languages).most_common())


def tokens_of(text: str) -> int:
    """A text's tokens: what stands between blanks, as in WMT's shared tasks."""
    return len(text.split())


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Pairs, the best first; equal scores in the file's order."""

    source: list[str]
    target: list[str]
    scores: list[float]

    def rows(self, count: int) -> Iterator[tuple[str, str, float]]:
        """The best `count`."""
        return zip(self.source[:count], self.target[:count], self.scores[:count], strict=True)


def rank(pairs: CandidatePairs, scores: NDArray[np.floating]) -> tuple[Ranked, CandidatePairs]:
    """The pairs by score, and the pairs with those counted that have none (NaN)."""
    defined = ~np.isnan(scores)
    reason = "no margin: a zero vector, or no positive neighbourhood"
    pairs, scores = pairs.only(defined.tolist(), reason), scores[defined]
    order = np.argsort(-scores, kind="stable").tolist()
    ranked = Ranked(
        source=[pairs.source[row] for row in order],
        target=[pairs.target[row] for row in order],
        scores=[float(scores[row]) for row in order],
    )
    return ranked, pairs


def subset(ranked: Ranked, tokens: int) -> tuple[int, int]:
    """The number of best pairs that have at most `tokens` target tokens together, and the number of their tokens.

    It ends before the first pair that does not fit, so that subsets are nested."""
    total = 0
    for count, text in enumerate(ranked.target):
        if total + tokens_of(text) > tokens:
            return count, total
        total += tokens_of(text)
    return len(ranked.target), total


@dataclass(frozen=True)
class Subset:
    """A file of the best pairs, as `report.json` describes it."""

    limit: int
    """Target tokens that it may have."""
    file: str
    pairs: int
    tokens: int
    lowest_score: float | None


def write_subsets(folder: Path, ranked: Ranked, sizes: Sequence[int]) -> list[Subset]:
    """Writes `top-SIZE.tsv` for each size, lines of score, source and target; returns what each holds."""
    from babeltune.apps.mining.mine import whole_file
    from babeltune.apps.mining.sentences import in_a_field

    subsets = []
    for size in sizes:
        count, tokens = subset(ranked, size)
        name = f"top-{size}.tsv"
        with whole_file(folder / name) as file:
            for source, target, score in ranked.rows(count):
                file.write(f"{score:.6f}\t{in_a_field(source)}\t{in_a_field(target)}\n")
        lowest = ranked.scores[count - 1] if count else None
        subsets.append(Subset(size, name, count, tokens, lowest))
    return subsets
