"""The static student: the mean of a sentence's token vectors from a table, a linear layer, an L2 norm.

It has no attention, no positions and no special tokens, so a step costs what its batch touches. The table's gradient is
sparse and holds the rows of the batch's tokens alone. It is sentence-transformers' `StaticEmbedding`, `Dense` and
`Normalize`, and exported as these."""

from __future__ import annotations

import json
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, normalize

from babeltune.errors import TeacherError
from babeltune.method import Tokens
from babeltune.models.dense import check_projection, read_dense
from babeltune.models.hub import check_files, listed_modules, model_folder
from babeltune.models.vocabulary import Vocabulary
from babeltune.products import linear
from babeltune.schema.records import Student

if TYPE_CHECKING:
    from jaxtyping import Float, Int

STD = 0.05  # standard deviation of a table from scratch. The mean of ten rows 512 wide has about length 0.36.
NOISE = 0.2  # the factor of the random numbers of a table that begins with the teacher's vectors
FOLDED_ROWS = 8_192  # tokens whose n-grams are added up at a time, which takes some megabytes
USUAL = ("StaticEmbedding", "Dense", "Normalize")
"""The modules that a static student has, in order; the last two may be missing."""
LETTERS, SIGNS = (3, 4), (1, 2)
"""Fewest and most characters of an n-gram. The first pair is for alphabets, and Hangul is spelled letter by letter.
The second is for a script such as Han or Kana, where a character is a syllable or a word. With (3, 6) and (1, 3) a
training took 1.4 times as long and found .849 of held-out translations instead of .855."""
NGRAM_STD = 0.015
"""Standard deviation of the n-grams' table from scratch: less than the tokens' own, so that tokens of equal letters
start unlike."""


def mean_of_rows(
    table: Float[Tensor, "rows width"], ids: Int[Tensor, "ids"], counts: Int[Tensor, "means"], *, sparse: bool = True
) -> Float[Tensor, "means width"]:
    """Means of rows of the table: of the first `counts[0]` of `ids`, then of the next `counts[1]`, and so on.

    A mean of no rows is zero. With `sparse` the table's gradient is sparse. Otherwise it is dense, and every row must
    be among the `ids`."""
    means: Tensor = _MeanOfRows.apply(table, ids, counts, sparse)  # type: ignore[no-untyped-call]
    return means


class _Context(Protocol):
    """The tensors that torch keeps between forward and backward pass."""

    saved_tensors: tuple[Tensor, Tensor]
    shape: torch.Size
    sparse: bool

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _MeanOfRows(torch.autograd.Function):
    """Neither pass copies the rows. The gradient is a sum for each row and names it once.

    With the ids in order, a row's gradient is a sum over neighbours: nothing is written twice, and the order of the
    sum is the batch's."""

    @staticmethod
    def forward(ctx: _Context, table: Tensor, ids: Tensor, counts: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(ids, counts)
        ctx.shape, ctx.sparse = table.shape, sparse
        return embedding_bag(ids, table, counts.cumsum(0) - counts, mode="mean")

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ids, counts = ctx.saved_tensors
        shares = gradients[0] / counts.clamp(min=1).unsqueeze(1)
        ordered, places = ids.sort(stable=True)
        means = torch.arange(len(counts), device=ids.device).repeat_interleave(counts)[places]
        rows, repeats = torch.unique_consecutive(ordered, return_counts=True)
        sums = embedding_bag(means, shares, repeats.cumsum(0) - repeats, mode="sum")
        if ctx.sparse:
            sums = torch.sparse_coo_tensor(rows[None], sums, ctx.shape, is_coalesced=True, check_invariants=False)
        return sums, None, None, None


class TokenNgrams(nn.Module):
    """The table of the vectors of character n-grams, and which n-grams each token has.

    Tokens that share letters share vectors, so rare ones learn too. A token's vector is its own row plus the mean of
    its n-grams' rows, which lie in this second table under a hash. This is fastText's idea (Bojanowski et al. 2017),
    within a token: the vectors do not depend on the sentence, so that an export adds them up and stays one table."""

    ids: Int[Tensor, "ngrams"]
    ends: Int[Tensor, "vocabulary"]

    def __init__(self, tokens: Sequence[str], *, width: int, buckets: int, special: Sequence[int] = ()) -> None:
        """`tokens` are the vocabulary by id, `special` the ids that have no n-grams."""
        super().__init__()
        weight = torch.empty(buckets, width).normal_(std=NGRAM_STD)
        self.table = nn.EmbeddingBag(buckets, width, sparse=True, _weight=weight)
        hashed = [[] if i in special else [hash_of(gram, buckets) for gram in ngrams(t)] for i, t in enumerate(tokens)]
        self.register_buffer("ids", torch.tensor([i for row in hashed for i in row], dtype=torch.int64), False)
        self.register_buffer("ends", torch.tensor([len(row) for row in hashed]).cumsum(0), False)

    def forward(self, tokens: Int[Tensor, "tokens"]) -> Float[Tensor, "tokens width"]:
        """The mean vector of each token's n-grams; zeros for a token without any."""
        ends = self.ends[tokens]
        firsts = torch.where(tokens > 0, self.ends[tokens - 1], 0)
        counts = ends - firsts
        starts = counts.cumsum(0) - counts
        places = torch.arange(int(counts.sum()), device=tokens.device) + (firsts - starts).repeat_interleave(counts)
        return mean_of_rows(self.table.weight, self.ids[places], counts)


def ngrams(token: str) -> list[str]:
    """The n-grams of a token in lower case, with `<` for the blank before it and `>` for its end."""
    hangul = any("가" <= character <= "힣" for character in token)
    text = unicodedata.normalize("NFD" if hangul else "NFC", token.lower()).replace("▁", "<") + ">"
    # Kana, Han and what follows them say as much in one character as others in a few letters.
    least, most = LETTERS if hangul or max(text) <= "\u2e80" else SIGNS
    return [text[i : i + n] for n in range(least, most + 1) for i in range(len(text) - n + 1)]


def hash_of(ngram: str, buckets: int) -> int:
    """The row of an n-gram, the same in every process."""
    return zlib.crc32(ngram.encode()) % buckets


class StaticEncoder(nn.Module):
    """A table of token vectors and what turns their mean into a sentence vector.

    A sentence without a token has the vector that the linear layer gives for zeros."""

    packs, tanh = True, False

    def __init__(
        self,
        table: Float[Tensor, "vocabulary width"],
        *,
        ngrams: TokenNgrams | None = None,
        projection: nn.Linear | None = None,
        dropout: float = 0.0,
        normalize: bool = True,
    ) -> None:
        """`ngrams` add to the table's vectors; `dropout` is of the mean, before the linear layer."""
        super().__init__()
        self.table = _bag(table)
        self.ngrams = ngrams
        self.dropout = nn.Dropout(dropout)
        self.projection = projection
        self.normalize = normalize

    @property
    def dim(self) -> int:
        """Width of a sentence vector."""
        return int(self.projection.out_features if self.projection else self.table.embedding_dim)

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        """The vectors of the token ids, part of the weights."""
        weight: Tensor = self.table.weight
        return weight

    @torch.no_grad()
    def folded(self) -> StaticEncoder:
        """An encoder of the same vectors whose n-grams are part of its table."""
        if self.ngrams is None:
            return self
        every = torch.arange(len(self.word_embeddings), device=self.word_embeddings.device)
        parts = [self._vectors(rows) for rows in torch.split(every, FOLDED_ROWS)]
        folded = StaticEncoder(
            torch.cat(parts), projection=self.projection, dropout=self.dropout.p, normalize=self.normalize
        )
        return folded.train(self.training)

    @torch.no_grad()
    def begin_with(self, vectors: Float[Tensor, "vocabulary teacher"]) -> None:
        """Sets the table and the linear layer such that a sentence begins at the mean of its tokens' vectors.

        Their directions of most variance go into the table's first columns, and the linear layer leads back. What the
        two held becomes small noise. The table keeps its standard deviation, and the learning rate its meaning."""
        width = min(self.table.embedding_dim, vectors.shape[1])
        scale = STD / vectors.square().mean().sqrt().clamp(min=1e-12)
        directions = torch.linalg.eigh(vectors.T @ vectors)[1].flip(1)[:, :width]
        for weight in (self.table.weight, *(self.ngrams.parameters() if self.ngrams else ())):
            weight *= NOISE
        self.table.weight[:, :width] += scale * (vectors @ directions)
        if self.projection is not None:
            self.projection.weight *= NOISE
            self.projection.weight[:, :width] += directions

    def keep(self, token_ids: Int[Tensor, "kept"]) -> None:
        """Cuts the table to these rows, in this order."""
        self.table = _bag(self.table.weight.detach()[token_ids].clone())

    def forward(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        """One fp32 vector per sentence, in order; it does not depend on the other sentences of the batch."""
        with torch.autocast(tokens.ids.device.type, enabled=False):
            vectors = self.dropout(self._means(tokens))
            if self.projection is not None:
                vectors = linear(vectors, self.projection.weight, self.projection.bias)
            return normalize(vectors, dim=-1) if self.normalize else vectors

    def _means(self, tokens: Tokens) -> Float[Tensor, "sentences width"]:
        """The mean token vector of each sentence."""
        ids, counts = tokens.ids, tokens.lengths.to(tokens.ids.device)
        means = mean_of_rows(self.word_embeddings, ids, counts)
        if self.ngrams is None:
            return means
        rows, places = torch.unique(ids, return_inverse=True)
        return means + mean_of_rows(self.ngrams(rows), places, counts, sparse=False)

    def _vectors(self, rows: Int[Tensor, "rows"]) -> Float[Tensor, "rows width"]:
        """The vectors of these tokens."""
        vectors = self.word_embeddings[rows]
        return vectors if self.ngrams is None else vectors + self.ngrams(rows)


def _bag(table: Float[Tensor, "vocabulary width"]) -> nn.EmbeddingBag:
    rows, width = table.shape
    return nn.EmbeddingBag(rows, width, mode="mean", sparse=True, _weight=table)


def build_static(student: Student, vocabulary: Vocabulary, *, projection: int | None) -> StaticEncoder:
    """A static student from scratch or from the folder that it names, with weights from the global random state.

    `projection` is the width of its linear layer, or None for none; a named model brings its own.

    Raises:
        TeacherError: the named model is no static one, lacks weights, or contradicts `student`."""
    if student.model is not None:
        encoder = _from_folder(student, vocabulary.size, projection)
    else:
        table = torch.empty(vocabulary.size, student.width).normal_(std=STD)
        layer = None if projection is None else _linear(student.width, projection)
        ngrams = None if student.ngrams == 0 else _ngrams(student, vocabulary)
        encoder = StaticEncoder(
            table, ngrams=ngrams, projection=layer, dropout=student.dropout, normalize=student.normalize
        )
    if vocabulary.table_rows is not None:
        encoder.keep(torch.from_numpy(vocabulary.table_rows))
    return encoder


def _ngrams(student: Student, vocabulary: Vocabulary) -> TokenNgrams:
    tokens = vocabulary.tokenizer
    if tokens is None:
        raise TeacherError("student.ngrams needs the student's tokenizer; set it to 0, or give the tokenizer")
    names = [tokens.id_to_token(i) or "" for i in range(vocabulary.size)]
    special = [i for i, token in tokens.get_added_tokens_decoder().items() if token.special]
    return TokenNgrams(names, width=student.width, buckets=student.ngrams, special=special)


def _linear(width: int, projection: int) -> nn.Linear:
    """A linear layer without torch's random bias: that is longer than a mean of token vectors, so that at the start
    all sentences would have nearly the same vector."""
    layer = nn.Linear(width, projection)
    nn.init.zeros_(layer.bias)
    return layer


def is_static(folder: Path) -> bool:
    """Whether the folder is a sentence-transformers model whose first module is a `StaticEmbedding`."""
    return _kinds(folder)[:1] == ["StaticEmbedding"]


def _kinds(folder: Path) -> list[str]:
    return [str(module.get("type", "")).rsplit(".", 1)[-1] for module in listed_modules(folder)]


def _from_folder(student: Student, vocabulary_size: int, projection: int | None) -> StaticEncoder:
    folder = model_folder(student.model or "", student.revision, setting="student.model")
    name = f"student.model {student.model!r}"
    check_files(folder, name)
    kinds = _kinds(folder)
    allowed = iter(USUAL)
    if not all(kind in allowed for kind in kinds) or kinds[:1] != ["StaticEmbedding"]:
        raise TeacherError(
            f"{name} is no static model: its modules are {', '.join(kinds) or 'none'}, and a static student has "
            f"{', '.join(USUAL)}; set student.kind to transformer, or name another model"
        )
    paths = {kind: folder / str(module["path"]) for kind, module in zip(kinds, listed_modules(folder), strict=True)}
    table = _table(paths["StaticEmbedding"], name)
    if vocabulary_size > len(table):
        raise TeacherError(
            f"{name} has {len(table)} token vectors, its tokenizer {vocabulary_size} tokens; use its own tokenizer"
        )
    layer = None
    if "Dense" in paths:
        settings = json.loads((paths["Dense"] / "config.json").read_text(encoding="utf-8"))
        layer, tanh = read_dense(paths["Dense"], settings, table.shape[1], name)
        if tanh:
            raise TeacherError(f"{name}: tanh follows its dense layer, which a static student does not have")
    if projection is not None and layer is None:
        layer = _linear(table.shape[1], projection)
    if layer is not None:
        check_projection(student, projection, layer)
    return StaticEncoder(table, projection=layer, dropout=student.dropout, normalize=student.normalize)


def _table(folder: Path, name: str) -> Tensor:
    """The token vectors of a `StaticEmbedding`."""
    try:
        weights = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise TeacherError(
            f"{name}: {folder / 'model.safetensors'} cannot be read ({error}); name another model"
        ) from error
    table = weights.get("embedding.weight", weights.get("embeddings"))
    if table is None or table.ndim != 2 or "mapping" in weights or "weights" in weights:
        raise TeacherError(
            f"{name} holds {', '.join(sorted(weights))}, and one table `embedding.weight` is read; load it with "
            "sentence-transformers and save it again"
        )
    floats: Tensor = table.float()
    return floats
