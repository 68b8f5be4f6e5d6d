"""The frozen records that the steps hand to one another. Nothing here reads a file or imports a library.

A sweep file is a `Sweep` (validated by `sweep_file.py`); one proposal makes it a `Trial`; training yields `Report`s.
Field names are the keys of the sweep file, and their docstrings are its reference. Those of sources and tasks are in
`text.py`, those of the search and of promotion in `search.py`. All are imported from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

from babeltune.schema.base import Number as Number
from babeltune.schema.base import Scalar as Scalar
from babeltune.schema.base import Strict as Strict
from babeltune.schema.base import Tagged, changed, from_plain
from babeltune.schema.bounds import (
    Bound,
    at_least,
    dimensions,
    inside,
    layer_choice,
    long_name,
    not_empty,
    or_word,
    part,
    place,
    positive,
    seeds,
    shape_name,
    share,
    two_rates,
    within,
)
from babeltune.schema.languages import known_by
from babeltune.schema.layers import as_words
from babeltune.schema.presets import FIELDS, NO_PRESET, PRESETS
from babeltune.schema.search import Budget as Budget
from babeltune.schema.search import ExpectedRegret as ExpectedRegret
from babeltune.schema.search import Gate as Gate
from babeltune.schema.search import Goal as Goal
from babeltune.schema.search import Halving as Halving
from babeltune.schema.search import Keep as Keep
from babeltune.schema.search import Nsga2 as Nsga2
from babeltune.schema.search import Objective as Objective
from babeltune.schema.search import Parameter as Parameter
from babeltune.schema.search import PlainSampler as PlainSampler
from babeltune.schema.search import Promotion as Promotion
from babeltune.schema.search import Sampler as Sampler
from babeltune.schema.search import Scheduler as Scheduler
from babeltune.schema.search import Tpe as Tpe
from babeltune.schema.text import AnySource as AnySource
from babeltune.schema.text import BeirSource as BeirSource
from babeltune.schema.text import Bitext as Bitext
from babeltune.schema.text import Clustering as Clustering
from babeltune.schema.text import CsvSource as CsvSource
from babeltune.schema.text import FileSource as FileSource
from babeltune.schema.text import HubSource as HubSource
from babeltune.schema.text import JsonLinesSource as JsonLinesSource
from babeltune.schema.text import Mined as Mined
from babeltune.schema.text import Mining as Mining
from babeltune.schema.text import MosesSource as MosesSource
from babeltune.schema.text import ParquetSource as ParquetSource
from babeltune.schema.text import PivotSource as PivotSource
from babeltune.schema.text import Retrieval as Retrieval
from babeltune.schema.text import SheetSource as SheetSource
from babeltune.schema.text import Source as Source
from babeltune.schema.text import Sts as Sts
from babeltune.schema.text import Task as Task
from babeltune.schema.text import Transfer as Transfer
from babeltune.schema.text import TranslateSource as TranslateSource
from babeltune.schema.text import TranslationFileSource as TranslationFileSource
from babeltune.schema.text import TsvSource as TsvSource

ROWS = Bound("0, or 100 to 10,000,000 rows", lambda value: value == 0 or 100 <= value <= 1e7)
TRIMMED = Bound(
    "true, false, or from 500 to 10,000,000 tokens", lambda value: isinstance(value, bool) or 500 <= value <= 1e7
)
FROM_PRESET = cast(int, None)
"""Stands for a number that the preset decides, until the student is made."""
HELDOUT = "heldout"
"""The dev set that `data.split` makes."""
UNTRAINED, TEACHER = "untrained", "teacher"
"""The rows of the leaderboard for the student before training, and for the teacher itself."""


@dataclass(frozen=True, kw_only=True)
class Sampling(Strict):
    """How batches are drawn, and from which pairs. Thresholds may be searched: pairs are scored once for all trials."""

    batches: Literal["one_pair", "mixed"] = "one_pair"
    """One language pair per global batch, or all pairs mixed (LaBSE)."""
    temperature: Annotated[float, positive] = 1.0
    """A language pair of n rows is drawn with weight n ** (1 / temperature): 1 is proportional, large is uniform."""
    least_margin: Annotated[float, at_least(0)] = 0.0
    """Pairs of a lower margin are not drawn: the cosine of the teacher's vectors over the mean cosine of both texts to
    their four nearest ones, in random pools of 16,384 pairs (Artetxe and Schwenk 2019). The teacher must know both
    languages. 0 leaves none out."""
    least_language: Annotated[float, share] = 0.0
    """Pairs are not drawn if py3langid is less sure that each text is in its language. 0.5: another language is as
    likely. 0 leaves none out, and short texts pass."""
    least_length_ratio: Annotated[float, share] = 0.0
    """Pairs are not drawn whose shorter text has less than this share of the longer one's characters, once the median
    ratio of their languages is divided out. 0 leaves none out."""
    least_characters: Annotated[int, at_least(0)] = 0
    """Pairs with a shorter text are not drawn."""
    most_characters: Annotated[int, at_least(1)] = 1_000_000
    """Pairs with a longer text are not drawn."""
    most_symbols: Annotated[float, within(0, 1)] = 1.0
    """Pairs are not drawn if this share of a text's characters, without blanks, is exceeded by digits, punctuation and
    other symbols: one of the heuristic filters of Tan et al. 2023 (section 3.1)."""
    least_distinct_words: Annotated[float, share] = 0.0
    """Pairs are not drawn if a smaller share of a text's words are distinct. A text without blanks is one word."""
    most_similarity: Annotated[float, within(0.7, 1)] = 1.0
    """Pairs are not drawn if an earlier pair of their languages is nearer than this, also one that is left out itself:
    by the Jaccard similarity of the trigrams of both texts together. 1 leaves none out. Scoring takes about 1 KB of
    memory a pair."""
    most_pairs: Annotated[int, at_least(1)] = 1_000_000_000
    """At most this many pairs of each two languages are drawn, and a larger number adds to those of a smaller one."""
    least_word_cosine: Annotated[float, share] = 0.0
    """Words are not learned if the cosine of their occurrences is lower. `data.words.least` bounds it from below."""
    least_word_pairs: Annotated[int, at_least(0)] = 0
    """Words are not learned if they share fewer sentence pairs with their translation. All share two at least."""


@dataclass(frozen=True, kw_only=True)
class Split(Strict):
    """Holds out rows of the training text as a dev set named `heldout`, by connected component of shared sentences."""

    pairs: Annotated[int, at_least(1)] = 500
    """About this many pairs per language pair."""
    right_model: Literal["student", "teacher"] = "student"
    """The model of the anchor's side, as in a task."""


@dataclass(frozen=True, kw_only=True)
class Words(Strict):
    """How a word's translation in the other sentence is found, for methods that learn from words (`ml_ctl`)."""

    align: Literal["mutual", "lexicon"] = "mutual"
    """How the translation of a word is found. `mutual`: two words that occur in the same pairs, each the nearest of the
    other. `lexicon`: the words that a lexicon lists. Both words must occur once in their sentence."""
    least: Annotated[float, share] = 0.2
    """The least cosine between the occurrences of the two words (`mutual`)."""
    stop_words: Annotated[int, at_least(0)] = 100
    """This many of each language's most frequent words are left out."""
    stop_list: dict[str, Annotated[str, place]] = field(default_factory=dict)
    """Files of stop words by language, a word a line: `{eng: stop.txt}`. They take the place of the most frequent words
    there, as in the authors' code of ML-CTL."""
    lexicon: tuple[Source, ...] = ()
    """Files with a term and its translation in each row. A term may have several words."""


@dataclass(frozen=True, kw_only=True)
class Clean(Strict):
    """How training text is cleaned that is no translation."""

    language: Literal["off", "count", "drop"] = "off"
    """Pairs with a text that is surely in another language than its column says, by py3langid, are counted, or dropped
    and counted. `translate` sources are judged before they are translated, as Tan et al. 2023 do (section 3.1: language
    identification of monolingual text). Short texts, and languages that py3langid does not know, pass."""


@dataclass(frozen=True, kw_only=True)
class Data(Strict):
    """Everything that is read: training sources, dev tasks, and sealed test tasks."""

    root: Annotated[str, place] = "."
    """The folder that relative paths start from. A relative `root` starts from the repository. `${NAME:-default}` is
    replaced."""
    anchor_priority: Annotated[tuple[str, ...], not_empty] = ("eng",)
    """The anchor of a pair is its language that comes first here."""
    train: tuple[Source, ...]
    """The training text."""
    dev: tuple[Task, ...] = ()
    """The sets that score every trial."""
    test: tuple[Task, ...] = ()
    """The sealed sets. Only a promotion and `evaluate --test` open them."""
    graded: tuple[Sts, ...] = ()
    """Graded pairs that train beside the pairs, such as STS-B's training rows. They are written as dev sets of `task:
    sts`. Grades are compared within a set alone, so their scales may differ."""
    split: Split | None = None
    """Holds out training rows as a dev set. Absent: nothing is held out."""
    sampling: Sampling = Sampling()
    """How batches are drawn from the language pairs."""
    words: Words = Words()
    """How translations of single words are found. Only some methods need them."""
    clean: Clean = Clean()
    """How pairs are treated that are no translations."""
    max_characters: Annotated[int, at_least(1)] = 1200
    """Pairs with a longer text are left out of training."""
    max_line_bytes: Annotated[int, within(1, 2**30)] = 1 << 20
    """Bytes of a line, of a quoted row, or of a text in a Parquet file. A longer one is a broken row."""
    overlap: Literal["exact", "near"] = "exact"
    """Which training rows are removed because their text is in a dev or test set. `exact`: equal texts, without case,
    punctuation and blanks. `near`: near-duplicates too. Near-duplicates are counted in any case."""

    @property
    def sets(self) -> dict[str, tuple[Task, ...]]:
        """The dev and test sets and the graded pairs, by their keys."""
        return {"dev": self.dev, "test": self.test, "graded": self.graded}

    def against_teacher(self, kind: Literal["dev", "test"]) -> tuple[str, ...]:
        """The names of the dev or test sets whose right side the teacher encodes."""
        names = [task.name for task in (self.dev if kind == "dev" else self.test) if task.right_model == "teacher"]
        if kind == "dev" and self.split is not None and self.split.right_model == "teacher":
            names.append("heldout")
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, kw_only=True)
class AnyStudent(Strict):
    """The encoder that is trained."""

    KIND = "kind"
    kind: str
    """`transformer`: a Hugging Face model, or a Transformer from scratch. `static`: the mean of a sentence's token
    vectors, from a table `width` wide; without layers, heads, positions and special tokens. It trains and encodes at a
    fraction of a Transformer's cost."""
    model: Annotated[str | None, place] = None
    """A hub id, a folder, or `models:/NAME@ALIAS`; absent: from scratch, as the fields up to `vocabulary` say."""
    revision: Annotated[str | None, inside] = None
    """The commit, tag or branch of a hub model."""
    start: Annotated[str | None, place] = None
    """The exported model whose weights and tokenizer the student begins with: a folder, `models:/NAME@ALIAS`, or a
    trial of the same storage, `SWEEP/t0003`. What this section says of the shape must be the model's, and what it
    leaves out is taken from it. Reading the file adds the content, `NAME@sha256:…`, which is part of a sweep's id."""
    embeddings_from: Annotated[str | None, place] = None
    """A static model whose tokenizer and token vectors a new Transformer begins with. It is named as in `start`.
    `width` is the width of its table or of its dense layer."""
    trim: Annotated[bool | int, TRIMMED] = False
    """Cuts a named model's tokenizer and token vectors to the tokens of the training and dev text (`trimming.py`).
    Text whose tokens are kept has the same vectors. A number keeps that many tokens, the most frequent ones. Words of
    other tokens are then split into shorter ones, and their vectors change."""
    width: Annotated[int, within(1, 1e5)] = FROM_PRESET
    """Absent: the preset's, or 256. Of a static student: of its table."""
    vocabulary: Annotated[int | Literal["teacher"], or_word("teacher", within(300, 1e7))] = 16_000
    """Tokens of the tokenizer that is trained on the corpus; `teacher`: the teacher's own tokenizer instead."""
    lowercase: bool = False
    """The tokenizer that is trained on the corpus reads all text in lower case, in training and in the export."""
    dropout: Annotated[float, share] = 0.0
    """Dropout of hidden states and attention, whatever a named model's own configuration says; of a static student's
    mean."""
    max_tokens: Annotated[int, within(3, 1e6)] = 128
    """Tokens of a sentence. Longer ones are cut."""
    projection: Annotated[int | Literal["teacher"] | None, or_word("teacher", at_least(1))] = None
    """Width of a linear layer after pooling; `teacher` means the teacher's width."""
    normalize: bool = True
    """Whether the vectors have length one."""
    prompt: str = ""
    """Put before every sentence, in training and in the exported model. A model's name never decides it."""
    seed: Annotated[int | None, seeds] = None
    """The seed of the first weights; absent: the trial's. Trials of several seeds that share it differ in the order of
    the pairs alone, and `promote --soup` can average them."""

    def __post_init__(self) -> None:
        for name, value in vars(PRESETS.get(getattr(self, "preset", None) or "", NO_PRESET)).items():
            if getattr(self, name) is FROM_PRESET:
                object.__setattr__(self, name, value)

    def changed(self, **fields: Scalar) -> Student:
        """The student with these fields, less those that its kind does not have. A preset among them brings its
        shape."""
        shape: dict[str, object] = dict.fromkeys(FIELDS, FROM_PRESET) if fields.get("preset") is not None else {}
        return cast("Student", changed(Student, self, shape | fields))


@dataclass(frozen=True, kw_only=True)
class Transformer(AnyStudent):
    """A Transformer: a Hugging Face model, or one from scratch."""

    kind: Literal["transformer"] = "transformer"
    preset: Annotated[str | None, shape_name] = None
    """Decides layers, width, heads and feed_forward, less those that are given beside it, by a name of `presets.py`
    such as `lealla-small`."""
    layers: Annotated[int, within(1, 1000)] = FROM_PRESET
    """Absent: the preset's, or 2. A record has the number, so a preset that changes does not change what began."""
    heads: Annotated[int, within(1, 1e5)] = FROM_PRESET
    """Absent: the preset's, or 4."""
    feed_forward: Annotated[int, within(1, 1e6)] = FROM_PRESET
    """Absent: the preset's, or 1024."""
    keep_layers: Annotated[int | str | tuple[int, ...] | None, layer_choice] = None
    """Layers of `model` that stay; the others are cut before training. `4`: four, evenly from the first to the last.
    `first 4` and `last 4`: neighbours. `[0, 4, 8, 11]`: these, counted from 0. A searched choice names them in words,
    such as `{choice: [4, last 4, 0 4 8 11]}`. Absent: all stay."""
    pooling: Literal["mean", "cls", "max", "pooler"] = "mean"
    """How the vectors of tokens become that of the sentence. `pooler`: the state of the first token, a dense layer of
    the same width and tanh, as in LaBSE. A named BERT has this layer already."""
    ngrams: ClassVar[int] = 0
    token_vectors: ClassVar[Literal["random", "teacher", "teacher_tokens"]] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_layers is not None:
            object.__setattr__(self, "keep_layers", as_words(self.keep_layers))


@dataclass(frozen=True, kw_only=True)
class Static(AnyStudent):
    """The mean of a sentence's token vectors."""

    kind: Literal["static"] = "static"
    ngrams: Annotated[int, ROWS] = 0
    """Rows of a static student's second table, of the character n-grams within its tokens. Tokens that share letters
    share these vectors, so that rare words and endings learn from common ones. A step costs more; the export has one
    table of the sums. 0: none."""
    token_vectors: Literal["random", "teacher", "teacher_tokens"] = "random"
    """A static student's table at the start. `teacher`: of each token the mean of the teacher's vectors of
    the training pairs in which it occurs, in whatever language (`token_vectors.py`). `teacher_tokens`: the teacher's
    vector of each token alone, the shorter the more frequent the token is, from a teacher that knows all languages."""
    preset: ClassVar[str | None] = None
    keep_layers: ClassVar[None] = None
    layers, heads, feed_forward = NO_PRESET.layers, NO_PRESET.heads, NO_PRESET.feed_forward
    pooling: ClassVar[Literal["mean"]] = "mean"


Student = Annotated[Transformer | Static, Tagged()]


@dataclass(frozen=True, kw_only=True)
class FrozenModel(Strict):
    """A frozen encoder that gives vectors of sentences."""

    model: Annotated[str, place] = "bundled:all-MiniLM-L6-v2"
    """`bundled:all-MiniLM-L6-v2`, a hub id, or a folder: a Transformer, a static model or LASER's LSTM."""
    revision: Annotated[str | None, inside] = None
    """The commit, tag or branch of a hub model."""
    languages: Annotated[tuple[Annotated[str, not_empty], ...], not_empty] = ("eng",)
    """The languages that it knows. A sweep that needs others is refused."""
    pooling: Literal["model", "mean", "cls", "max", "pooler"] = "model"
    """How the vectors of tokens become that of the sentence. `model`: as its folder says. `pooler`: the dense layer and
    tanh of a BERT on `cls`."""
    normalize: bool = True
    """Whether its vectors have length one."""
    prompt: str = ""
    """Put before every sentence."""
    max_tokens: Annotated[int, within(3, 1e6)] = 128
    """Tokens of a sentence. Longer ones are cut."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` halves the time of encoding if the processor has it; its vectors differ in the third digit."""
    center: bool = False
    """Takes the model's mean vector from each of its vectors: that of 2,048 tokens of its own vocabulary. Cosines that
    all lie near 1, as multilingual-e5-small's, then spread, and count beside those of another encoder."""
    weight: Annotated[float, within(0.001, 1000)] = 1.0
    """The weight of its cosines in the mean, if there are others beside it."""


@dataclass(frozen=True, kw_only=True)
class Teacher(FrozenModel):
    """The frozen encoder that gives the targets."""

    beside: tuple[FrozenModel, ...] = ()
    """More encoders whose vectors are put side by side with those of `model`. A cosine of two such vectors is the
    weighted mean of the encoders' cosines. The teacher knows the languages that all of them know."""
    target_side: Literal["encode", "copy_anchor"] = "encode"
    """The vectors of the other side, if a method needs them: encode it (the teacher must know the language), or copy
    the anchor's vector."""

    @property
    def encoders(self) -> tuple[FrozenModel, ...]:
        """The encoder of `model`, and those beside it."""
        return FrozenModel(**{each.name: getattr(self, each.name) for each in fields(FrozenModel)}), *self.beside

    @property
    def title(self) -> str:
        """The names of all encoders."""
        return " + ".join(each.model for each in self.encoders)

    @property
    def common_languages(self) -> tuple[str, ...]:
        """The languages that all encoders know."""
        return tuple(code for code in self.languages if all(known_by(code, each.languages) for each in self.beside))


@dataclass(frozen=True, kw_only=True)
class Evaluation(Strict):
    """How dev sets are encoded during training."""

    prompt: str | None = None
    """Put before every sentence of a dev set. Absent: the prompt of the student."""


@dataclass(frozen=True, kw_only=True)
class AnyAverage(Strict):
    """An average of the weights, which is evaluated and exported in their place."""

    KIND = "kind"
    kind: str
    """`ema`: exponential moving average (Polyak and Juditsky 1992); `last`: the plain mean over the last steps
    (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization"); `start`: the mean with
    the student's first weights (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models")."""


@dataclass(frozen=True, kw_only=True)
class StepsAverage(AnyAverage):
    """An average over a training's steps."""

    every: Annotated[int, within(1, 1e6)] = 10
    """Steps from one reading of all weights to the next. More costs less: a table is long."""


@dataclass(frozen=True, kw_only=True)
class MovingAverage(StepsAverage):
    """An exponential moving average."""

    kind: Literal["ema"] = "ema"
    decay: Annotated[float, Bound("above 0 and below 1", lambda value: 0 < value < 1)] = 0.999
    """Decay at each step. It rises to this: at step t it is at most (1 + t) / (10 + t)."""


@dataclass(frozen=True, kw_only=True)
class LastAverage(StepsAverage):
    """The plain mean over the last steps."""

    kind: Literal["last"] = "last"
    share: Annotated[float, part] = 0.25
    """The share of the training's pairs, at its end, over which it averages. Earlier reports are of the weights
    themselves."""


@dataclass(frozen=True, kw_only=True)
class StartAverage(AnyAverage):
    """The mean of the student's weights and those that it began with, so that it forgets less of what it knew."""

    kind: Literal["start"] = "start"
    share: Annotated[float, part] = 0.5
    """The trained weights' share of the mean."""


Average = Annotated[MovingAverage | LastAverage | StartAverage, Tagged()]


@dataclass(frozen=True, kw_only=True)
class Training(Strict):
    """One trial's optimisation. Lengths are in pairs seen, so that trials with other batch sizes compare."""

    pairs: Annotated[int, within(1, 1e12)] = 200_000
    """Pairs that a trial sees."""
    compute: Annotated[float | None, within(1e-3, 1e9)] = None
    """Seconds of one worker instead of `pairs`, with `budget.unit: compute`; they are counted and not timed
    (`compute.py`). A trial sees as many pairs as these pay for, so that a cheap student sees more than an expensive
    one."""
    rates: Annotated[tuple[float, float] | None, two_rates] = None
    """The rates that `compute` counts with: 10^9 operations, and 10^9 bytes moved, that a worker does in a second.
    Absent: the sweep measures them once and `status` shows them. Written out, a sweep repeats exactly."""
    reports: Annotated[int, within(1, 1e6)] = 5
    """Evaluations and checkpoints at equal shares of `pairs`, which are equal shares of `compute`."""
    global_batch: Annotated[int, within(2, 1e7)] = 64
    """Pairs per step over all workers."""
    batch_parts: Annotated[int, within(1, 1e6)] = 1
    """Parts of a global batch whose pairs are no negatives of each other, as on accelerators that do not share their
    vectors (Park et al. 2024, table 13). 1: all pairs of the batch are."""
    chunk: Annotated[int | None, at_least(1)] = None
    """Sentences per forward pass and worker (gradient caching); absent: the whole batch at once."""
    learning_rate: Annotated[float, positive] = 5e-4
    """The highest learning rate of AdamW."""
    embedding_learning_rate: Annotated[float, within(1e-3, 1e4)] = 1.0
    """The learning rate of the token embeddings, as a multiple of `learning_rate`."""
    schedule: Literal["linear", "cosine", "constant", "steps", "plateau"] = "linear"
    """The learning rate after the warm-up. `linear` and `cosine`: a line or half a cosine down to zero. `constant`: no
    change. `steps`: a tenth of the rate from 2/6, from 4/6 and from 5/6 of the pairs on. `plateau`: half of it after
    each plateau, four reports without a better first objective."""
    warmup: Annotated[float, share] = 0.05
    """Share of the pairs over which the learning rate rises from zero."""
    weight_decay: Annotated[float, at_least(0)] = 0.01
    """Weight decay of matrices; embeddings, biases, norms and temperatures are not decayed."""
    beta1: Annotated[float, share] = 0.9
    """AdamW: the decay of the mean gradient."""
    beta2: Annotated[float, share] = 0.999
    """AdamW: the decay of the mean squared gradient."""
    epsilon: Annotated[float, positive] = 1e-8
    """AdamW: what is added to the root of the mean squared gradient."""
    clip: Annotated[float | None, positive] = 1.0
    """Largest norm of the gradient; null clips nothing."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the student's forward and backward pass; losses and scores are fp32."""
    capture: Literal["off", "auto"] = "off"
    """`auto` records the training step of a Transformer as CUDA graphs, on a GPU and with one worker (`capture.py`). A
    report says in how many steps they ran, or why not. Nobody has run this on a GPU yet: it is tested on CPUs alone, so
    it is off."""
    patience: Annotated[int | None, at_least(1)] = None
    """Stop after this many reports without a better first objective."""
    graded_weight: Annotated[float, at_least(0)] = 1.0
    """The weight of the loss of `data.graded`, CoSENT's, beside the method's (`graded.py`). 0: it is not learned."""
    graded_batch: Annotated[int, within(2, 1e6)] = 32
    """Graded pairs of a step over all workers, all of one set, which is drawn in proportion to its rows."""
    matryoshka: Annotated[tuple[int, ...], dimensions] = ()
    """Dimensions such as `[384, 256, 128, 64]`. The loss is added up over the first 384, 256, … numbers of each vector,
    with equal weights. Each dev set is scored at each of them (Kusupati et al. 2022, section 3, "Matryoshka
    Representation Learning"; sentence-transformers' `MatryoshkaLoss`). The student's own width is always among them.
    What is cut is normalised again if the student normalises. Absent: whole vectors alone."""
    checkpoint_minutes: Annotated[float | None, positive] = 10.0
    """Minutes of training after which a trial writes a checkpoint between two reports. A killed trial goes on from it,
    bit for bit. The trained weights do not depend on it. null: only reports have checkpoints."""
    average: Average | None = None
    """An average of the weights that is evaluated, checkpointed and exported in their place. Absent: the weights."""


@dataclass(frozen=True, kw_only=True)
class Sweep(Strict):
    """A whole sweep file."""

    version: Literal[1] = 1
    """The version of this format."""
    name: Annotated[str, long_name]
    """The sweep's name. Its id is the name and a digest of what decides results."""
    description: str = ""
    """The sweep's purpose, in a sentence or two. Reports and MLflow show it."""
    method: str
    """The method that trains. `babeltune methods` lists them."""
    config: dict[str, object] | Literal["paper"] = field(default_factory=dict)
    """Fixed settings of the method, by the names of its `Config`. `paper` takes all values of the paper, less those
    that are searched."""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """The settings that are searched. A bare name is a setting of the method. `method`, `training.x`, `student.x` and
    `data.sampling.x` name others."""
    objectives: tuple[Objective, ...]
    """The objectives. The first one ranks the trials."""
    data: Data
    """The texts: what is trained on, what scores trials, and what is sealed until promotion."""
    student: Student = Transformer()
    """The encoder that is trained."""
    teacher: Teacher = Teacher()
    """The encoder that gives the targets."""
    evaluation: Evaluation = Evaluation()
    """How the dev sets are encoded."""
    training: Training = Training()
    """How long and how each trial trains."""
    scheduler: Scheduler = field(default_factory=Halving)
    """Which trials stop early."""
    sampler: Sampler = field(default_factory=Tpe)
    """How the next settings are chosen."""
    budget: Budget = field(default_factory=Budget)
    """How many trials there are, and what they may cost."""
    keep: Keep = field(default_factory=Keep)
    """Which checkpoints stay."""
    promotion: Promotion = field(default_factory=Promotion)
    """The gates of a model before it is registered."""
    baselines: tuple[str, ...] = ()
    """Models that need no training, to compare with: hub ids (`NAME@REVISION` pins one) or folders for
    sentence-transformers. Each is a row of the leaderboard. Promotion says whether the winner beats it. They do not
    change any result."""
    refit_of: tuple[str, ...] = ()
    """The trials whose settings this sweep trains longer, as `babeltune refit` writes them: `SWEEP/t0003`."""
    seed: Annotated[int, seeds] = 0
    """The seed of all random numbers: the search, the order of pairs, and first weights."""

    @property
    def fixed(self) -> dict[str, object]:
        """The fields that `config` gives one by one."""
        return {} if self.config == "paper" else self.config


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One proposal, resolved: all that a training process needs besides the stores. Plain JSON both ways."""

    number: int
    seed: int
    method: str
    config: dict[str, object]
    student: Student
    training: Training
    sampling: Sampling
    objectives: tuple[Objective, ...]
    params: dict[str, Scalar] = field(default_factory=dict)
    """The searched values by their names in the sweep file."""
    fitted: dict[str, float] = field(default_factory=dict)
    """The settings that were `auto`, and the numbers that were measured for them; `config` has these."""
    speed: tuple[float, float] | None = None
    """Sentences a second of its student's shape and their spread, if they were measured before any trial trained."""

    @property
    def first_seed(self) -> int:
        """The seed of the first weights."""
        return self.seed if self.student.seed is None else self.student.seed


@dataclass(frozen=True, kw_only=True)
class Point:
    """Metrics at one optimizer step."""

    step: int
    time_ms: int
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A trial's report at an evaluation: its number from 1, the scores, the training points since the last one."""

    index: int
    step: int
    pairs: int
    seconds: float
    metrics: dict[str, float]
    points: tuple[Point, ...] = ()
    checkpoint: str = ""
    last: bool = False
    steps: int = 0
    """Steps of the whole training."""
    facts: dict[str, Scalar] = field(default_factory=dict)
    """World size, backend, effective negatives, threads: recorded with the run."""


def with_fitted(trial: Trial, numbers: Mapping[str, float]) -> Trial:
    """The trial with these numbers in place of `auto`; `settings.lealla.margin` names one of a combined method."""
    config: dict[str, Any] = dict(trial.config)
    for name, value in numbers.items():
        *path, last = name.split(".")
        inner = config
        for section in path:
            inner[section] = dict(inner[section])  # the sweep's own settings stay as they are
            inner = inner[section]
        inner[last] = value
    return replace(trial, config=config, fitted=dict(numbers))


def trial_from(values: Mapping[str, Any]) -> Trial:
    """The `Trial` that `plain` wrote; the values were validated when the trial was proposed."""
    return from_plain(Trial, values)
