"""Builds the student that a sweep file describes: from a hub model, a folder (a promoted one), or from scratch."""

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModel, BertConfig, BertModel, PreTrainedModel

from babeltune.errors import TeacherError
from babeltune.models.cut import keep_layers, keep_tokens, load_encoder
from babeltune.models.dense import check_projection, saved_dense
from babeltune.models.encoder import Encoder
from babeltune.models.hub import model_folder
from babeltune.models.static import StaticEncoder, build_static, is_static
from babeltune.models.vocabulary import Vocabulary
from babeltune.schema.records import Student

DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"),
    *("embedding_dropout", "mlp_dropout"),
)
"""The names of dropout in the configurations of Hugging Face's encoders."""
WORD_STD, POSITION_STD = 0.005, 0.002
"""Standard deviations of the word and position embeddings of a student from scratch, at the start."""


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
            # Tokens first: the file is mapped, so what is cut away is never read, and layers are copied.
            if vocabulary.table_rows is not None:
                keep_tokens(backbone, torch.from_numpy(vocabulary.table_rows), vocabulary.pad)
            if student.keep_layers is not None:
                backbone = keep_layers(backbone, student.keep_layers, student.model)
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
        model, report = load_encoder(AutoModel, folder, config, use_safetensors=True)
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


def _check_length(student: Student, encoder: Encoder) -> None:
    limit = getattr(encoder.backbone.config, "max_position_embeddings", None)
    usable = limit - (encoder.offset or 0) if limit else student.max_tokens
    if student.max_tokens > usable:
        raise TeacherError(f"student.max_tokens {student.max_tokens} exceeds the {usable} positions of {student.model}")
