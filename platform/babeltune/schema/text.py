"""The frozen records of the text that a sweep file names: sources, and the dev and test sets made of them.

Nothing here reads a file. Field names are the keys of the sweep file, and their docstrings are its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal, Self, cast

from babeltune.schema.base import Strict, Tagged, changed
from babeltune.schema.bounds import Bound, a_name, at_least, delimiters, inside, not_empty, place, within


@dataclass(frozen=True, kw_only=True)
class AnySource(Strict):
    """Where text comes from: one file or data set that holds some languages side by side, or one file per language."""

    KIND, IMPLIED = "format", "tsv"
    name: Annotated[str, a_name]
    """The source's name in messages, reports and other keys."""
    format: str
    """The kind of file."""
    pairs: tuple[str, ...] | Literal["anchor", "all"] = "anchor"
    """Which languages of a row become pairs. `anchor`: each with the first of `anchor_priority`. `all`: every two. Or a
    list such as `[eng-fra]`."""
    cap: Annotated[int | None, at_least(1)] = None
    """At most this many pairs per language pair, drawn with the sweep's seed (of a `translate`: before translating)."""
    weight: Annotated[float, within(0.001, 1000)] = 1.0
    """How often its pairs are drawn, relative to the other sources of the same language pair: from 0.001 to 1,000."""
    on_error: Literal["fail", "drop"] = "fail"
    """A broken row stops the run, or is dropped and counted."""
    max_dropped: Annotated[float, Bound("from 0 to 1", lambda value: 0 <= value <= 1)] = 0.05
    """The share of rows that may be dropped as broken, of each file if several are joined by id. Beyond it the file is
    probably read in a wrong way."""
    synthetic: bool = False
    """Written by rule or machine, as a `translate` is: kept out of `split`, marked in the data digest."""
    license: Annotated[str | None, not_empty] = None
    """The licence of the text, such as `CC-BY-4.0`, which the card of a promoted model names."""
    train: bool = True
    """False for a source that only feeds a pivot or a translation."""

    # what sources without these keys say
    path = cast("str | None", None)
    columns = cast("dict[str, str] | None", None)
    paths = cast("dict[str, str] | None", None)
    column = "text"
    where = cast("Mapping[str, str]", MappingProxyType({}))
    id = cast("str | None", None)
    join = "id"
    header = True
    quoted = cast("bool | None", None)
    delimiter = ","
    encoding = cast("str | dict[str, str] | None", None)
    dataset = cast("str | None", None)
    split = "train"

    def of_file(self, language: str) -> Self:
        """The source with the encoding of one of `paths`."""
        if not isinstance(self.encoding, dict):
            return self
        return dataclasses.replace(self, encoding=self.encoding.get(language))  # type: ignore[call-arg]  # it has one

    @property
    def codec(self) -> str | None:
        """The encoding of its file."""
        return self.encoding if isinstance(self.encoding, str) else None


@dataclass(frozen=True, kw_only=True)
class RowSource(AnySource):
    """A table whose rows hold all languages."""

    columns: dict[str, str] | None = None
    """The column of each language: `{eng: english}`, or its number from 0 with `header: false`. ISO 639 codes of two or
    three letters are one language, with a script or without: `en`, `eng`, `eng_Latn`."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Values by column: only rows with these are read, such as `{lang: fr}`; needs `columns`."""
    id: str | None = None
    """The column that names a row, for `join: id`."""


@dataclass(frozen=True, kw_only=True)
class FileSource(RowSource):
    """One file with `path` and `columns`, or with `paths` and `column` one file per language, joined on `join`."""

    path: Annotated[str | None, place] = None
    """The file of all languages."""
    paths: dict[str, Annotated[str, place]] | None = None
    """The file of each language."""
    column: str = "text"
    """The column of the text in each file of `paths`."""
    join: Literal["id", "line"] = "id"
    """The key that joins the rows of `paths`: the column `id`, or the line."""


@dataclass(frozen=True, kw_only=True)
class HeadedSource(FileSource):
    """A table with a row of names, or without."""

    header: bool = True
    """Whether the first row has the names of the columns."""


@dataclass(frozen=True, kw_only=True)
class TextSource(AnySource):
    """Plain text."""

    encoding: str | dict[str, str] | None = None
    """The encoding of a text file, such as `cp1252`, or one for each language of `paths`. Absent: UTF-8, UTF-16 or
    UTF-32, which the first bytes tell."""


@dataclass(frozen=True, kw_only=True)
class TsvSource(HeadedSource, TextSource):
    """Columns with tabs between."""

    format: Literal["tsv"] = "tsv"
    delimiter = "\t"
    quoted: bool | None = None
    """Fields in quotation marks are read as CSV's are, or with `false` the marks are text. Absent: the marks are text,
    and a file that a spreadsheet seems to have quoted is refused. A warning says if only texts that hold marks are
    quoted."""


@dataclass(frozen=True, kw_only=True)
class CsvSource(HeadedSource, TextSource):
    """Columns with commas between, or another character."""

    format: Literal["csv"] = "csv"
    quoted: bool | None = None
    """Whether quotation marks have a meaning. With `false` they are text, and every line is a row."""
    delimiter: Annotated[str, delimiters] = ","
    """The separator of columns, such as `;`. A first line `sep=;`, as Excel writes it, goes before this."""


@dataclass(frozen=True, kw_only=True)
class JsonLinesSource(FileSource, TextSource):
    """One JSON object a line."""

    format: Literal["jsonl"] = "jsonl"


@dataclass(frozen=True, kw_only=True)
class ParquetSource(FileSource):
    """A Parquet file."""

    format: Literal["parquet"] = "parquet"


@dataclass(frozen=True, kw_only=True)
class SheetSource(HeadedSource):
    """A workbook of Excel or LibreOffice."""

    format: Literal["xlsx", "ods"]
    sheet: str | None = None
    """The sheet's name. Absent: the only sheet with cells."""


@dataclass(frozen=True, kw_only=True)
class TranslationFileSource(RowSource):
    """A file of translation tools: TMX, XLIFF, gettext. The columns are language codes as the file has them."""

    format: Literal["tmx", "xliff", "po"]
    path: Annotated[str, place]
    """The file of all languages."""
    columns: dict[str, str]
    """The code in the file of each language: `{fra: fr-FR}`."""
    encoding: str | None = None
    """The encoding. Absent: the one that the file names."""


@dataclass(frozen=True, kw_only=True)
class MosesSource(TextSource):
    """One file per language, joined line by line."""

    format: Literal["moses"] = "moses"
    paths: dict[str, Annotated[str, place]]
    """The file of each language."""
    join: Literal["id", "line"] = "id"
    """Moses files are joined by line, whatever this says."""


@dataclass(frozen=True, kw_only=True)
class DataSetSource(AnySource):
    """The part of a data set of Hugging Face."""

    subset: Annotated[str | None, inside] = None
    """A configuration of the data set, or, with a slash, a pattern of its files such as `*/en-ko/train.parquet`;
    no address, and nothing outside of the data set."""
    split: Annotated[str, inside] = "train"
    """The split of the data set."""
    revision: Annotated[str | None, inside] = None
    """The data set's commit, tag or branch."""


@dataclass(frozen=True, kw_only=True)
class HubSource(DataSetSource, RowSource):
    """A data set of Hugging Face, by id or saved folder."""

    format: Literal["hub"] = "hub"
    dataset: Annotated[str, place]
    """The id of the data set on the hub, or a folder."""


@dataclass(frozen=True, kw_only=True)
class PivotSource(AnySource):
    """Pairs of two other sources, joined on equal text of a language, or on equal id."""

    format: Literal["pivot"] = "pivot"
    left: str
    """The name of the first source."""
    right: str
    """The name of the second source."""
    join: str = "id"
    """`id`, or the language whose equal text joins the two."""


@dataclass(frozen=True, kw_only=True)
class TranslateSource(AnySource):
    """Translations of one language of another source."""

    format: Literal["translate"] = "translate"
    translation: Translation
    """The source to translate, the language to translate into, and the model: see `translation.py`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "synthetic", True)


@dataclass(frozen=True, kw_only=True)
class BeirSource(DataSetSource):
    """Queries, documents and judgements, for tasks of kind `retrieval`: a folder in BEIR's layout, or a data set."""

    format: Literal["beir"] = "beir"
    path: Annotated[str | None, place] = None
    """The folder."""
    dataset: Annotated[str | None, place] = None
    """The id of the data set on the hub."""


FileOfText = TsvSource | CsvSource | JsonLinesSource | ParquetSource | SheetSource | TranslationFileSource | MosesSource
Source = Annotated[FileOfText | HubSource | PivotSource | TranslateSource | BeirSource, Tagged()]


@dataclass(frozen=True, kw_only=True)
class Mined(Strict):
    """Two monolingual sides, and which of their sentences translate each other: a set for mining, as BUCC's are."""

    source: Source
    """`paths` of two languages with `id`: the files are read apart, not joined."""
    gold: Annotated[str, place]
    """A file of two ids a line, a tab between, without a header, in the order of the source's languages."""


@dataclass(frozen=True, kw_only=True)
class AnyTask(Strict):
    """A named dev or test set. `bitext`: retrieval over a `source`'s pairs. `mining`: finding the translations in two
    monolingual sides. `sts`: graded sentence pairs. `clustering`: texts with topics, to be found again by k-means.
    `transfer`: the same, learnt by a linear head from one language and predicted for the others. `retrieval`: search,
    queries among documents with judgements of relevance.

    Contrastive accuracy on a fixed pool of candidates, as papers report it on a held-out batch, is a bitext's accuracy
    with `limit`."""

    KIND = "task"
    name: Annotated[str, a_name]
    """Tasks of one kind may share a name: they are one set in several files."""
    each: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Writes this set once for many. `{language: [fra, deu]}` makes two sets, with `fra` and `deu` for `{language}` in
    every key and text. Several lists go together, the first with the first."""
    task: str
    """The kind of task."""
    group: Annotated[str | None, a_name] = None
    """Adds the mean `dev/<group>/<metric>` over the subsets of all tasks of this group, all with the same weight. With
    STS12 to STS16, STS-B and the English parts of STS17 and STS22 it is the English STS of MTEB."""

    # what the subsets of tasks without these keys say
    k = 4
    cutoff = 100
    right_model = "student"

    def sources(self) -> Iterator[tuple[tuple[str, ...], Source]]:
        """The sources that the task names, with their keys."""
        for name, value in vars(self).items():
            if isinstance(value, AnySource):
                yield (name,), cast("Source", value)
            elif isinstance(value, Mined):
                yield (name, "source"), value.source

    @property
    def part(self) -> str:
        """The rest of the name, which tells tasks of one name apart."""
        return next((source.name for _, source in self.sources()), getattr(self, "language", ""))

    def files(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The files that the task itself names, with their keys."""
        for name, value in vars(self).items():
            if name in ("path", "gold") and value is not None:
                yield (name,), value
            elif isinstance(value, Mined):
                yield (name, "gold"), value.gold


@dataclass(frozen=True, kw_only=True)
class LimitedTask(AnyTask):
    """A task that may score its first rows alone."""

    limit: Annotated[int | None, at_least(2)] = None
    """Score only the first rows (bitext: a smaller pool of candidates; the metric's name does not change; retrieval in
    a folder: the first queries of each language, and all documents)."""


@dataclass(frozen=True, kw_only=True)
class MatchedTask(AnyTask):
    """A task that matches two sides by a margin."""

    k: Annotated[int, at_least(1)] = 4
    """Neighbours of the margin."""
    margin: Literal["ratio", "distance", "absolute"] = "ratio"
    """The margin of xSIM and mining."""
    right_model: Literal["student", "teacher"] = "student"
    """The model of the right side, the second language of the subset's name such as `eng` of `fra-eng`
    (bitext: the anchor; mining: the source's second language). `teacher`: the sweep's teacher, which must know that
    language. It is LASER3's protocol: the student's x against the teacher's y. Metric names stay the same."""


@dataclass(frozen=True, kw_only=True)
class Bitext(MatchedTask, LimitedTask):
    """Retrieval over a source's pairs."""

    task: Literal["bitext"] = "bitext"
    source: Source
    """The rows; its `pairs` are the subsets `a-b` that are scored (`all`: every two of a multi-way set, each language
    encoded once)."""
    candidates: Literal["nearest", "all"] = "nearest"
    """The sentences that xSIM scores by margin: the `k` nearest by cosine, as LASER's code does, or all of the other
    side, as Tan et al. 2023 print it (section 3.3)."""
    compare: Literal["text", "index"] = "text"
    """Whether for xSIM an equal sentence of another row is right too, or the row alone."""
    augmented: Source | None = None
    """Changed sentences that are no translation of any row, of one language, such as xSIM++'s. They join the
    candidates wherever that language is the pair's second, whatever the `limit`, and give `xsimpp_error`."""


@dataclass(frozen=True, kw_only=True)
class Mining(MatchedTask):
    """Finding the translations in two monolingual sides."""

    task: Literal["mining"] = "mining"
    source: Source
    """The two sides, as in `Mined`."""
    gold: Annotated[str, place]
    """The file of the true pairs, as in `Mined`."""
    fit: Mined | None = None
    """The set that the threshold is fitted on. Without it there are only metrics named `_oracle`, whose
    threshold is fitted on what it is scored on."""


@dataclass(frozen=True, kw_only=True)
class Sts(LimitedTask):
    """Graded pairs of sentences."""

    task: Literal["sts"] = "sts"
    source: Source | None = None
    """A file or data set without `columns`."""
    path: Annotated[str | None, place] = None
    """A TSV, if there is no `source`."""
    language: str
    """The language of both sentences, which are in the three columns below."""
    language2: str | None = None
    """The language of the second sentence, if it is another one; the subset is then `fra-eng`."""
    sentence1: str = "sentence1"
    """The column of the first sentence."""
    sentence2: str = "sentence2"
    """The column of the second sentence."""
    score: str = "score"
    """The column of the grade."""

    def graded(self) -> Source:
        """Where both sentences are, with the grades as the rows' ids."""
        source = self.source or TsvSource(name=self.name, path=self.path)
        columns = {"sentence1": self.sentence1, "sentence2": self.sentence2}
        return changed(Source, source, {"columns": columns, "id": self.score})


@dataclass(frozen=True, kw_only=True)
class LabelledTask(LimitedTask):
    """Texts with a topic each."""

    source: Source
    """The rows; the subsets are the languages. Clustering of several languages has `mixed` too, each row in one of
    them."""
    label: str = "label"
    """The column of the topic, in each file."""


@dataclass(frozen=True, kw_only=True)
class Clustering(LabelledTask):
    """Texts with topics, to be found again by k-means."""

    task: Literal["clustering"] = "clustering"


@dataclass(frozen=True, kw_only=True)
class Transfer(LabelledTask):
    """Texts with topics, learnt by a linear head from one language and predicted for the others."""

    task: Literal["transfer"] = "transfer"
    language: str
    """The language that is learnt from."""
    split: str = "split"
    """The column that tells training rows from scored rows, in each file."""
    learnt: str = "train"
    """The value of `split` in training rows."""
    scored: str = "test"
    """The value of `split` in scored rows."""


@dataclass(frozen=True, kw_only=True)
class Retrieval(LimitedTask):
    """Search: queries among documents with judgements of relevance."""

    task: Literal["retrieval"] = "retrieval"
    source: Source
    """A folder of format `beir`, or a bitext. In a bitext `fra-eng`, each French sentence is a query, and its
    translation the relevant document. A text of several rows is one query or document, relevant for each of them."""
    language: str | None = None
    """In a folder: the language of all texts, if there is one."""
    qrels: Annotated[str, inside] = "test"
    """In a folder: which judgements are read, `qrels/test.tsv`. In a data set: the split of its
    judgements. Queries without a judgement are left out."""
    languages: tuple[str, ...] = ()
    """In a folder: the languages of the queries, if there are several. Each is a subset, searched for in
    all documents. Queries and documents name their own in `language_field`; a document may be in any language."""
    language_field: str = "language"
    """In a folder: the key of the language in each line of the corpus and the queries."""
    same_id: Literal["keep", "drop"] = "keep"
    """In a folder: `drop` never finds a document for the query of its own id, which is the query itself in
    ArguAna and Quora. BEIR's own evaluation does so for all sets."""
    corpus: Literal["target", "mixed"] = "target"
    """In a bitext, the documents are the translations in one language, or with `mixed` the texts of all
    languages together. Then each language is a subset, a query's translations into all others are relevant, and the
    query itself is never found."""
    cutoff: Annotated[int, within(1, 10_000)] = 100
    """The number of documents in which recall looks, `recall_at_100`."""


Task = Annotated[Bitext | Mining | Sts | Clustering | Transfer | Retrieval, Tagged()]


@dataclass(frozen=True, kw_only=True)
class Translation(Strict):
    """The key `translation` of a source of format `translate`."""

    text: str
    """The source, by name, that holds the text; with `train: false` it may hold this one language alone."""
    original: str
    """The text's language, as that source calls it."""
    into: Annotated[str, not_empty]
    """The language of the translations."""
    model: Annotated[str, place]
    """A hub id or a folder; weights in safetensors, and no code is run."""
    revision: Annotated[str | None, inside] = None
    """The commit, tag or branch of a hub model."""
    source_code: str | None = None
    """The tokenizer's `src_lang`: `khm_Khmr` (NLLB), `km` (M2M-100)."""
    target_token: str | None = None
    """The token that a translation begins with: `eng_Latn` (NLLB), `__en__` (M2M-100)."""
    prefix: str = ""
    """Put before every text: `translate English to German: ` (T5), `>>fra<< ` (Marian)."""
    beams: Annotated[int, at_least(1)] = 4
    """Beams of the search. 1 is greedy."""
    max_tokens: Annotated[int, within(3, 1e6)] = 128
    """Longer originals, and translations that do not end within it, are dropped and counted."""
