"""The Transformer student: an encoder, pooling, an optional projection, an optional L2 norm; and any student's start.

It reads packed sentences (`method.Tokens`) and gives one vector each, the same that the exported model gives. It is
built from a hub model, a folder (such as a promoted model), or from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel, BertConfig, BertModel, PreTrainedModel

from babeltune.errors import TeacherError
from babeltune.method import Tokens
from babeltune.method.batch import FIRST_AND_LAST, LAST
from babeltune.models.dense import check_projection, has_pooler, saved_dense
from babeltune.models.hub import Pooling, model_folder, quiet
from babeltune.models.packing import Packing, enable_packing, pack, run_packed, run_padded
from babeltune.models.static import StaticEncoder, build_static, is_static
from babeltune.models.vocabulary import Vocabulary
from babeltune.products import use_onednn
from babeltune.schema.records import Student

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray


DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"),
    *("embedding_dropout", "mlp_dropout"),
)
"""What the configurations of Hugging Face's encoders call it."""
WORD_STD, POSITION_STD = 0.005, 0.002
"""Standard deviations of the word and position embeddings of a student from scratch, at the start."""


class Encoder(nn.Module):
    """A backbone and what turns its token states into sentence vectors.

    Runs packed where the backbone allows it (`packs`), else on padded batches; the vectors are the same.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        *,
        pooling: Pooling = "mean",
        projection: nn.Linear | None = None,
        tanh: bool = False,
        normalize: bool = True,
        pad_token_id: int = 0,
    ) -> None:
        """`tanh` follows the projection: with `cls` pooling they are a pooler such as LaBSE's."""
        super().__init__()
        self.backbone = backbone
        self.projection = projection
        self.pooling = pooling
        self.tanh = tanh
        self.normalize = normalize
        self.pad_token_id = pad_token_id
        use_onednn(self)
        self.offset = enable_packing(backbone, pad_token_id)

    @property
    def packs(self) -> bool:
        """Whether sentences run without padding."""
        return self.offset is not None

    @property
    def dim(self) -> int:
        """Width of a sentence vector."""
        return int(self.projection.out_features if self.projection else self.backbone.config.hidden_size)

    @property
    def width(self) -> int:
        """Width of a token's state."""
        return int(self.backbone.config.hidden_size)

    @property
    def layers(self) -> int:
        """How many layers of attention it has."""
        return int(self.backbone.config.num_hidden_layers)

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        """The embeddings of the token ids, part of the weights."""
        weight: Tensor = self.backbone.get_input_embeddings().weight
        return weight

    def forward(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        """One fp32 vector per sentence, in order; it does not depend on the other sentences of the batch."""
        vectors = self._pooled(tokens)
        with torch.autocast(vectors.device.type, enabled=False):
            if self.projection is not None:
                vectors = self.projection(vectors)
                vectors = vectors.tanh() if self.tanh else vectors
            return normalize(vectors, dim=-1) if self.normalize else vectors

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        """Each token's states in these layers side by side, in the order of `tokens.ids`."""
        if len(tokens.ids) == 0:
            return self._nothing().reshape(0, len(layers) * self.width)
        packing = pack(tokens)
        place = torch.empty_like(packing.taken)
        place[packing.taken] = torch.arange(len(place), device=place.device)
        return self._run(packing, layers)[place].float()

    def _pooled(self, tokens: Tokens) -> Float[Tensor, "sentences width"]:
        if len(tokens.ids) == 0:
            return self._nothing().reshape(len(tokens), 0, self.width).sum(1)
        packing = pack(tokens)
        return pool(self._run(packing), packing, self.pooling)[packing.rank]

    def _run(self, packing: Packing, layers: Sequence[int] = LAST) -> Float[Tensor, "tokens states"]:
        if self.offset is None:
            return run_padded(self.backbone, packing, self.pad_token_id, layers)
        return run_packed(self.backbone, packing, self.offset, layers)

    def _nothing(self) -> Float[Tensor, "0"]:
        """No number, from the weights, so that a loss without sentences has a gradient."""
        nothing: Tensor = next(self.backbone.parameters()).flatten()[:0]
        return nothing


class VectorTable(Protocol):
    """Vectors of one width, each found by its number, as a store of teacher vectors gives them."""

    width: int

    def rows(self, ids: NDArray[np.integer]) -> NDArray[np.generic]:
        """[len(ids), width] in the order of `ids`."""
        ...


class FrozenEncoder(nn.Module):
    """The teacher in a student's place. The one token of a sentence is its text id; its vector lies in the store."""

    packs = False

    def __init__(self, vectors: VectorTable, rows: NDArray[np.integer]) -> None:
        """`rows` [texts] are the store's rows of all texts."""
        super().__init__()
        self.vectors, self.rows = vectors, rows

    @property
    def dim(self) -> int:
        """Width of a sentence vector."""
        return self.vectors.width

    def forward(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        found = self.vectors.rows(self.rows[tokens.ids.cpu().numpy()])
        return torch.from_numpy(found.astype(np.float32)).to(tokens.ids.device)


StudentEncoder = Encoder | StaticEncoder | FrozenEncoder
"""What a trial may train, or leave as it is."""


class TextIds:
    """In place of the token store, for a `FrozenEncoder`: the one token of a sentence is its text id."""

    def take(self, ids: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        return np.asarray(ids), np.ones(len(ids), np.int64)


def pool(states: Float[Tensor, "tokens width"], packing: Packing, how: Pooling) -> Float[Tensor, "sentences width"]:
    """Each sentence's states as one fp32 vector, in the packing's order; zeros for a sentence without a token."""
    parts = []
    for (count, length), flat in zip(packing.groups, torch.split(states, packing.sizes), strict=True):
        group = flat.view(count, length, states.shape[1])
        if length == 0:
            parts.append(states.new_zeros(count, states.shape[1], dtype=torch.float32))
        elif how == "mean":
            parts.append(group.mean(1, dtype=torch.float32))
        elif how == "cls":
            parts.append(group.select(1, 0).float())
        else:
            parts.append(group.max(1).values.float())
    return torch.cat(parts)


def build_student(
    student: Student, vocabulary: Vocabulary, *, teacher_dim: int | None, seed: int, projected: bool = True
) -> Encoder | StaticEncoder:
    """The encoder that a sweep file describes, on CPU in fp32, with weights that depend on `seed` alone.

    A `model` that is a sentence-transformers model brings its own projection, and with `pooling: pooler` any other its
    pooler; without `projected` there is none. The global random state is left as it was.

    Raises:
        TeacherError: the model cannot be reached, is not in safetensors, is not an encoder, or contradicts `student`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        width = _projection_width(student, teacher_dim)
        if student.kind == "static":
            return build_static(student, vocabulary, projection=width if projected else None)
        if student.model is None:
            backbone = _from_scratch(student, vocabulary)
            dense = (nn.Linear(student.width, student.width), True) if student.pooling == "pooler" else None
        else:
            backbone = _from_hub(student, vocabulary.size)
            if vocabulary.kept is not None:
                keep_tokens(backbone, torch.from_numpy(vocabulary.kept), vocabulary.pad)
            dense = saved_dense(student, backbone.config)
        projection, tanh = dense or (None, False)
        if width is not None and projection is None:
            projection = nn.Linear(backbone.config.hidden_size, width)
        if projection is not None:
            check_projection(student, width, projection)
    encoder = Encoder(
        backbone,
        pooling="cls" if student.pooling == "pooler" else student.pooling,
        projection=projection if projected else None,
        tanh=tanh and projected,
        normalize=student.normalize,
        pad_token_id=vocabulary.pad,
    )
    _check_length(student, encoder)
    return encoder


def _projection_width(student: Student, teacher_dim: int | None) -> int | None:
    if student.projection != "teacher":
        return student.projection
    if teacher_dim is None:
        raise TeacherError(
            "student.projection is 'teacher', but this sweep has no teacher; give a number, or a teacher"
        )
    return teacher_dim


def _from_scratch(student: Student, vocabulary: Vocabulary) -> PreTrainedModel:
    if student.width % student.heads:
        raise TeacherError(
            f"student.width {student.width} does not divide by student.heads {student.heads}; "
            "choose a width that is a multiple of the heads"
        )
    config = BertConfig(
        vocab_size=vocabulary.size,
        hidden_size=student.width,
        num_hidden_layers=student.layers,
        num_attention_heads=student.heads,
        intermediate_size=student.feed_forward,
        hidden_dropout_prob=student.dropout,
        attention_probs_dropout_prob=student.dropout,
        max_position_embeddings=-(-student.max_tokens // 64) * 64,
        type_vocab_size=1,
        pad_token_id=vocabulary.pad,
    )
    model = BertModel(config, add_pooling_layer=False)
    # The layer norm that follows cancels the embeddings' scale, but Adam's steps do not shrink with it: small ones
    # learn faster. After 300 steps of 64 French and Russian pairs (MSE, learning rate 1e-3) retrieval among 500 is
    # 0.77, with BERT's 0.02 for all it is 0.62.
    embeddings = model.embeddings
    nn.init.normal_(embeddings.word_embeddings.weight, std=WORD_STD)
    nn.init.normal_(embeddings.position_embeddings.weight, std=POSITION_STD)
    nn.init.zeros_(embeddings.token_type_embeddings.weight)
    nn.init.zeros_(embeddings.word_embeddings.weight[vocabulary.pad])
    scratch: PreTrainedModel = model
    return scratch


def _from_hub(student: Student, vocabulary_size: int) -> PreTrainedModel:
    """The model's backbone without its pooler; weights from safetensors only, no code from the hub."""
    name = f"student.model {student.model!r}" + (f" (revision {student.revision})" if student.revision else "")
    folder = model_folder(student.model or "", student.revision, setting="student.model")
    if is_static(folder):
        raise TeacherError(f"{name} is a static model; set student.kind to static")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if getattr(config, "is_encoder_decoder", False):
            raise TeacherError(f"{name} is an encoder-decoder ({config.model_type}); name an encoder, such as XLM-R")
        for field in DROPOUTS:
            if hasattr(config, field):
                setattr(config, field, student.dropout)
        with quiet():
            model, report = AutoModel.from_pretrained(
                folder,
                trust_remote_code=False,
                config=config,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                **({"add_pooling_layer": False} if has_pooler(config) else {}),
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise TeacherError(
            f"{name} cannot be loaded as an encoder in safetensors: {str(error).strip().splitlines()[0]} "
            "Name a hub model that is reachable from here, or the path of a folder with a model.safetensors"
        ) from error
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise TeacherError(
            f"{name} lacks {len(missing)} weights of a {config.model_type} encoder, such as {missing[0]}; "
            "name a checkpoint of the whole encoder"
        )
    rows = model.get_input_embeddings().num_embeddings
    if vocabulary_size > rows:
        raise TeacherError(
            f"{name} has {rows} token embeddings, its tokenizer {vocabulary_size} tokens; use its own one"
        )
    loaded: PreTrainedModel = model
    return loaded


def keep_tokens(backbone: PreTrainedModel, kept: Int[Tensor, "vocabulary"], pad_token_id: int) -> None:
    """Cuts the token table to these rows, in place. `pad_token_id` is the new one."""
    weight = backbone.get_input_embeddings().weight.detach()
    table = nn.Embedding(len(kept), weight.shape[1], padding_idx=pad_token_id, _weight=weight[kept].clone())
    backbone.set_input_embeddings(table)
    new = {int(old): place for place, old in enumerate(kept)}
    for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"):
        if isinstance(old := getattr(backbone.config, name, None), int):
            setattr(backbone.config, name, new.get(old))
    backbone.config.vocab_size = len(kept)
    backbone.config.pad_token_id = pad_token_id


def _check_length(student: Student, encoder: Encoder) -> None:
    limit = getattr(encoder.backbone.config, "max_position_embeddings", None)
    usable = limit - (encoder.offset or 0) if limit else student.max_tokens
    if student.max_tokens > usable:
        raise TeacherError(f"student.max_tokens {student.max_tokens} exceeds the {usable} positions of {student.model}")


def encode_all(
    encoder: StudentEncoder,
    ragged_take: Callable[[NDArray[np.integer]], tuple[NDArray[np.integer], NDArray[np.integer]]],
    ids: Int[Tensor, "texts"] | NDArray[np.integer],
    *,
    batch_tokens: int | None = None,
    device: torch.device | str,
) -> NDArray[np.float32]:
    """[texts, dim] vectors of these texts, in order: fp32, evaluation mode, about `batch_tokens` tokens at a time.

    Left out, it is 4,096 on a CPU, where a small student is 10-25 % faster than at 16,384, which other devices get.

    `ragged_take` gives the token ids of texts end to end, and their lengths. The encoder, which is on `device`, keeps
    its training flag.
    """
    batch_tokens = batch_tokens or (4_096 if torch.device(device).type == "cpu" else 16_384)
    values, lengths = ragged_take(np.asarray(ids))
    whole = pack(Tokens(torch.from_numpy(values.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64))))
    vectors = torch.empty(len(lengths), encoder.dim)
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad(), torch.autocast(torch.device(device).type, enabled=False):
            at = taken = 0
            for count in _batches(whole.lengths, batch_tokens):
                part = whole.lengths[at : at + count]
                end = taken + int(part.sum())
                batch = Tokens(whole.ids[taken:end].to(device), part.to(device))
                vectors[at : at + count] = encoder(batch).cpu()
                at, taken = at + count, end
    finally:
        encoder.train(training)
    ordered: NDArray[np.float32] = vectors[whole.rank].numpy()
    return ordered


def _batches(lengths: Tensor, batch_tokens: int) -> list[int]:
    """Sentences per batch: each batch is closed by the sentence that reaches the next multiple of `batch_tokens`."""
    batch = (lengths.cumsum(0) - 1).clamp(min=0) // batch_tokens
    counts: list[int] = torch.unique_consecutive(batch, return_counts=True)[1].tolist()
    return counts
