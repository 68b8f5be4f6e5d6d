"""The contract between a paper's method and the platform.

A method is a module (its heads, queues and temperatures are parameters and buffers, saved and resumed with the
checkpoint). It receives an encoder, this rank's part of a global batch, and a `gather`; it returns this rank's
share of the global loss. The platform sums loss shares and gradients over the ranks, so the result does not depend
on their number: a method divides by `batch.total`, never by its own row count."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from babeltune.method.own_share import OwnShare
from babeltune.schema.languages import match

if TYPE_CHECKING:
    from jaxtyping import Float, Int

EVERY = "*"
"""Stands for every language among those of a method's layers."""
LAST, FIRST_AND_LAST = (-1,), (1, -1)
"""Layers whose states are read."""


@dataclass(frozen=True)
class Tokens:
    """Sentences without padding between them: token ids end to end, and each sentence's length.

    With `longest`, the shapes do not depend on the lengths: spare tokens, which are in no sentence, may follow the
    last sentence. A loss must not depend on them."""

    ids: Int[Tensor, "tokens"]
    lengths: Int[Tensor, "sentences"]
    longest: int = 0
    """Tokens of a sentence at most, for kernels whose work is fixed beforehand. 0: there are no spare tokens."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sentence(self) -> Int[Tensor, "tokens"]:
        """Which sentence each token is in; `len(self)` for a spare one."""
        places = torch.arange(len(self.ids), device=self.lengths.device)
        return torch.searchsorted(self.lengths.cumsum(0), places, right=True)


@dataclass(frozen=True)
class Masked:
    """Sentences with some masked tokens, and what these were."""

    tokens: Tokens
    labels: Int[Tensor, "tokens"]
    """The id that a masked language model predicts for each token, -100 if it predicts none."""


class Encode(Protocol):
    """The student: one vector per sentence, as the exported model gives it (L2-normalised if it normalises).

    Each call draws its own dropout. Two calls with the same tokens give two views, as SimCSE needs them, and so does
    one call of `encode_together` that names a side twice. This also holds within `combined` and with `training.chunk`.
    To read one view twice, keep the vectors."""

    def __call__(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]: ...

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        """Each token's state in these layers, side by side. The first layer is 1, and the last one -1."""

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        """The embeddings of the token ids."""


class Gather(Protocol):
    """The rows of all ranks. `distributed.py` has them."""

    rank: int
    world: int

    def __call__(self, rows: Float[Tensor, "local dim"]) -> Float[Tensor, "global dim"]:
        """All ranks' rows in rank order, whatever their number per rank, with exact gradients."""

    def offset(self, local: int) -> int:
        """Where this rank's rows start among all ranks' rows."""


@dataclass(frozen=True)
class Cut:
    """The prefix of vectors for `training.matryoshka`: their first `dim` numbers. By default all of them, untouched."""

    dim: int | None = None
    unit: bool = False
    """Whether what is left gets length 1 again: if the student normalises."""

    @property
    def whole(self) -> bool:
        """Whether nothing is cut off."""
        return self.dim is None

    def __call__(self, vectors: Float[Tensor, "rows width"]) -> Float[Tensor, "rows dim"]:
        """The first numbers of each vector, with their gradient."""
        if self.dim is None:
            return vectors
        first = vectors[:, : self.dim]
        return normalize(first, dim=1) if self.unit else first


@dataclass(frozen=True)
class Graded:
    """This rank's graded pairs of a step, all of one set. The training step reads them, and no method does."""

    left: Tokens
    right: Tokens
    grades: Float[Tensor, "local"]
    total: int
    """Graded pairs of all ranks."""


@dataclass(frozen=True)
class Batch:
    """This rank's rows of a global batch of pairs. The source is the anchor side (`data.anchor_priority`)."""

    source: Tokens
    target: Tokens
    source_ids: Int[Tensor, "local"]
    """Text ids: equal ids mean the same sentence."""
    target_ids: Int[Tensor, "local"]
    total: int
    """Pairs in the global batch."""
    teacher_source: Float[Tensor, "local teacher_dim"] | None = None
    teacher_target: Float[Tensor, "local teacher_dim"] | None = None
    negatives: Tokens | None = None
    """`needs.hard_negatives` sentences per pair, pair by pair."""
    negatives_mask: Tensor | None = None
    """[local, needs.hard_negatives], False for missing negatives."""
    languages: Int[Tensor, "local 2"] | None = None
    """`needs.per_language`: the languages of source and target, by their place among those of the method."""
    words: Int[Tensor, "local 4"] | None = None
    """A word of each source and its translation in the target: first token, end, first token, end (`needs.words`).

    Counted within the sentence, special tokens included. At each visit of a pair one of its words is drawn; the pair
    is one row, so it never meets itself as a negative. (ML-CTL's code has a row for every word.)
    """
    alone: bool = False
    """Text of one language alone, the same on both sides: there are no translations in the global batch."""
    masked_source: Masked | None = None
    """The source with `needs.masked` of its tokens chosen for prediction, in the same places as in `source`."""
    masked_target: Masked | None = None
    graded: Graded | None = None
    cut: Cut = Cut()
    """How many first dimensions the loss reads. With `training.matryoshka` the loss is asked for once a dimension,
    the whole vectors last, and `encode` gives vectors cut like this. A method with `Needs.same_dimension` cuts the
    teacher's vectors alike. A method with a queue changes it only if `cut.whole`. The teacher's vectors in the batch
    are whole."""


@dataclass(frozen=True)
class Loss:
    """This rank's share: summed over ranks it is the loss of the global batch."""

    total: Float[Tensor, ""]
    terms: dict[str, Tensor] = field(default_factory=dict)
    """Named shares for the log, detached."""
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    """Shares of global means: label entropy, duplicate rate, mean cosine. Of a name that ends in `_least` the log keeps
    the least over its steps, and of the others the mean."""


@dataclass(frozen=True)
class Needs:
    """The needs of a method that the platform prepares: teacher vectors, negatives, order, tokens."""

    teacher: frozenset[Literal["source", "target"]] = frozenset()
    """Sides whose teacher vectors the loss reads."""
    hard_negatives: int = 0
    """Mined per pair with the teacher."""
    hard_negatives_below: float = 1.0
    """Mined candidates are less similar to the pair's own text than this (teacher cosine)."""
    same_dimension: bool = False
    """The student's vectors are compared with the teacher's, so their widths must agree."""
    in_batch_negatives: bool = False
    translations: bool = True
    """Every loss needs translations. If not, it also takes batches of text of one language (`Batch.alone`)."""
    order: Literal["shuffled", "length"] = "shuffled"
    """Each epoch of a language pair: a permutation, or by the target's length in tokens, the same every time."""
    frozen: bool = False
    """The encoder is the teacher itself, and every text's vector is computed once; only the method is trained."""
    per_language: bool = False
    """The method has layers for each training language: it is built with `languages`, and batches name them."""
    warm_up: int = 0
    """Teacher vectors of this many training anchors are given to `Method.warm_up` before the first step."""
    words: bool = False
    """Words and their translations by place; pairs in which none was found are left out of the trial."""
    masked: float = 0.0
    """Share of the tokens that are chosen for masked language modelling."""
    states: bool = False
    """The method reads token states: it gets their width and the size of the vocabulary."""
    layer: int = 0
    """The deepest layer, counted from 1, whose states are read beside the first's and the last's; 0: none."""
    vectors: bool = True
    """The method reads sentence vectors. If it does not, nothing would train a projection, and there is none."""
    fixed_width: bool = False
    """The method has a layer that takes the student's whole vectors, so `training.matryoshka` cannot cut them."""

    @property
    def prepared(self) -> Needs:
        """The needs that are prepared before the first trial; order, warm-up, masks, states and layers are matters of
        each trial."""
        of_trials = Needs()
        names = ("order", "warm_up", "masked", "states", "layer", "fixed_width", "translations")
        return dataclasses.replace(self, **{name: getattr(of_trials, name) for name in names})

    @property
    def negatives_key(self) -> str:
        """Names the mined negatives among those that `prepare` left."""
        return f"k={self.hard_negatives},below={self.hard_negatives_below:g}"


TeacherVectors = Callable[[], "tuple[Float[Tensor, 'pairs teacher'], Float[Tensor, 'pairs teacher'] | None]"]
"""Encodes one batch of pairs with the teacher: the source sides' vectors, and the target sides' if they are needed."""


class Method(nn.Module, ABC):
    """A paper's training objective."""

    name: ClassVar[str]
    Config: ClassVar[type]
    """A frozen dataclass; every field's docstring cites its equation or section."""

    def __init__(self, config: Any, *, student_dim: int, teacher_dim: int, width: int = 0, vocabulary: int = 0) -> None:
        """`width` (of a token's state) and `vocabulary` are given if `needs.states`."""
        super().__init__()
        self.config = config
        self.student_dim = student_dim
        self.teacher_dim = teacher_dim
        self.width = width
        self.vocabulary = vocabulary

    @classmethod
    @abstractmethod
    def needs(cls, config: Any) -> Needs:
        """The needs of this configuration."""

    @classmethod
    def uses(cls, config: Any) -> Sequence[str]:
        """The names of other methods that this configuration consists of."""
        return ()

    @abstractmethod
    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        """This rank's share of the loss of one global batch.

        With `training.matryoshka` it is called once a dimension (`batch.cut`), on the same encoded sentences."""

    def warm_up(self, vectors: Float[Tensor, "rows teacher_dim"], ids: Int[Tensor, "rows"]) -> None:
        """Takes the teacher's vectors of `needs.warm_up` anchors (fewer if there are fewer texts), and their text ids.

        Called once, on every rank alike, before the first step of a trial that does not resume."""

    def layers(self) -> Mapping[str, nn.Sequential]:
        """The layers after the encoder that the exported model keeps, by the language of the texts that they take.

        `EVERY` takes all languages; otherwise a text of another language takes the first entry. A sequence holds linear
        layers, with or without ReLU, and dropout."""
        return {}

    @torch.no_grad()
    def finish(
        self, vectors: Float[Tensor, "texts student_dim"], languages: Sequence[str]
    ) -> Float[Tensor, "texts dim"]:
        """The encoder's vectors of texts in these languages, as the exported model gives them: through the layers of
        each language, without dropout, and at length 1. Without layers, they stay as they are."""
        layers = self.layers()
        if not layers:
            return vectors
        first, languages_there = next(iter(layers)), list(layers)
        route_of = {language: match(language, languages_there) or first for language in dict.fromkeys(languages)}
        routes = [route_of[language] for language in languages]
        order: list[int] = []
        finished: list[Tensor] = []
        training = self.training
        self.eval()
        for name, layer in layers.items():
            rows = [row for row, route in enumerate(routes) if route == name]
            finished.append(normalize(layer(vectors[rows].float()), dim=1))
            order += rows
        self.train(training)
        return torch.cat(finished)[torch.tensor(order, dtype=torch.long).argsort()]

    @classmethod
    def negatives(cls, config: Any, global_batch: int) -> int:
        """Negatives that each anchor sees, if the text has as many; recorded with every run."""
        return global_batch - 1 if cls.needs(config).in_batch_negatives else 0

    @classmethod
    def warning(cls, means: Mapping[str, float]) -> str:
        """Warnings of a training whose terms and diagnostics average to `means`."""
        return ""

    @classmethod
    def fits(cls, config: Any) -> Mapping[str, OwnShare]:
        """The own shares of the settings that are `auto`, by name; the platform measures it and trains with the
        numbers.

        A setting that is `auto` and not read is left out."""
        return {}

    @classmethod
    def label_warning(cls, config: Any, vectors: TeacherVectors) -> str:
        """Warnings of the labels that this configuration makes of the teacher's vectors.

        The plan asks this before anything is trained. A method that makes none does not call `vectors`."""
        return ""


def joined(*sides: Tokens) -> Tokens:
    """The sentences of several sides, one side after the other, and then the spare tokens of all."""
    ids, lengths = torch.cat([side.ids for side in sides]), torch.cat([side.lengths for side in sides])
    if not (longest := max(side.longest for side in sides)):
        return Tokens(ids, lengths)
    return Tokens(torch.empty_like(ids).index_copy(0, places_in_joined(*sides), ids), lengths, longest)


def places_in_joined(*sides: Tokens) -> Int[Tensor, "tokens"]:
    """Where each token of the sides is in `joined`."""
    spare = torch.cat([torch.arange(len(side.ids), device=side.ids.device) >= side.lengths.sum() for side in sides])
    return torch.where(spare, (~spare).sum() + spare.cumsum(0), (~spare).cumsum(0)) - 1


def encode_together(encode: Encode, *sides: Tokens) -> list[Float[Tensor, "sentences dim"]]:
    """The vectors of several sides from one packed forward pass, which groups equal lengths best.

    An encoder that knows better, since several terms share it, has a `together` of its own."""
    if (together := getattr(encode, "together", None)) is not None:
        shared: list[Tensor] = together(*sides)
        return shared
    return list(torch.split(encode(joined(*sides)), [len(side) for side in sides]))


def encode_sides(encode: Encode, batch: Batch) -> list[Float[Tensor, "sentences dim"]]:
    """The vectors of source and target, from one pass; of text of one language, those of the source twice."""
    return [encode(batch.source)] * 2 if batch.alone else encode_together(encode, batch.source, batch.target)


def states_together(
    encode: Encode, *sides: Tokens, layers: Sequence[int] = FIRST_AND_LAST
) -> list[Float[Tensor, "tokens states"]]:
    """The token states of several sides from one packed forward pass. Those of spare tokens mean nothing."""
    states = encode.states(joined(*sides), layers)
    if any(side.longest for side in sides):
        states = states.index_select(0, places_in_joined(*sides))
    return list(torch.split(states, [len(side.ids) for side in sides]))


def tokens_from(sentences: list[list[int]]) -> Tokens:
    """Tokens of these sentences, for tests and small inputs."""
    return Tokens(
        ids=torch.tensor([t for s in sentences for t in s], dtype=torch.long),
        lengths=torch.tensor([len(s) for s in sentences], dtype=torch.long),
    )
