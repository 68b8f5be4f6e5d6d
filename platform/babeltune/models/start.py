"""Starts of a student: the shape of an exported sentence-transformers folder, and its token table.

A plan compares the shape with what the sweep file says. A Transformer from scratch takes its token table from a static
model's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from babeltune.errors import TeacherError
from babeltune.models.dense import check_modules
from babeltune.models.hub import check_files, listed_modules, pooling_of
from babeltune.models.static import build_static, is_static
from babeltune.models.vocabulary import Vocabulary
from babeltune.schema.records import Static

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from babeltune.models.encoder import Encoder

BERT_SHAPE = {
    "width": ("hidden_size", "dim", "d_model"),
    "layers": ("num_hidden_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_heads"),
    "feed_forward": ("intermediate_size", "hidden_dim"),
}
"""The names of a student's fields in configurations of Hugging Face's encoders."""


@dataclass(frozen=True, kw_only=True)
class StartShape:
    """The fields of a student that a folder decides; None if its files do not say."""

    kind: Literal["transformer", "static"]
    tokens: int  # tokens of its tokenizer
    width: int
    layers: int | None = None
    heads: int | None = None
    feed_forward: int | None = None
    pooling: str = "mean"
    projection: int | None = None  # width of its dense layer
    normalize: bool = False
    max_tokens: int | None = None  # at which it was exported to cut sentences
    positions: int | None = None
    prompt: str | None = None  # the default prompt; None if there is none

    def fields(self) -> dict[str, bool | int | str]:
        """The values by the names of a student's fields, without what is unknown, tokens and positions."""
        names = {"kind", "width", "layers", "heads", "feed_forward", "pooling", "projection", "normalize", "prompt"}
        return {name: value for name, value in vars(self).items() if name in names and value is not None}


def read_start(folder: Path) -> StartShape:
    """The shape of a model's folder.

    Raises:
        TeacherError: it is no sentence-transformers model that a student can begin from."""
    name = repr(str(folder))
    if not listed_modules(folder):
        raise TeacherError(f"{name} is no sentence-transformers model: it has no modules.json; name an exported folder")
    check_files(folder, name)
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return _static(folder, tokenizer) if is_static(folder) else _transformer(folder, tokenizer, name)
    except TeacherError:
        raise
    except Exception as error:  # tokenizers has no class of its own for a broken file
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TeacherError(f"{name} cannot be read as a model to begin from ({reason}); export it again") from error


def _static(folder: Path, tokenizer: Tokenizer) -> StartShape:
    kinds = {module["type"].rpartition(".")[2]: str(module["path"]) for module in listed_modules(folder)}
    with safe_open(folder / kinds["StaticEmbedding"] / "model.safetensors", "np") as file:
        (key,) = file.keys()
        _, width = file.get_slice(key).get_shape()
    dense = _dense_width(folder, kinds)
    return StartShape(
        kind="static",
        tokens=tokenizer.get_vocab_size(),
        width=width,
        projection=dense,
        normalize="Normalize" in kinds,
        max_tokens=(tokenizer.truncation or {}).get("max_length"),
        prompt=_prompt(folder),
    )


def _transformer(folder: Path, tokenizer: Tokenizer, name: str) -> StartShape:
    modules = listed_modules(folder)
    check_modules(modules, name)
    kinds = {module["type"].rpartition(".")[2]: str(module["path"]) for module in modules}
    config = _json(folder / "config.json")
    shape: dict[str, Any] = {
        field: next((config[key] for key in keys if isinstance(config.get(key), int)), None)
        for field, keys in BERT_SHAPE.items()
    }
    return StartShape(
        kind="transformer",
        tokens=tokenizer.get_vocab_size(),
        **shape,
        pooling=pooling_of(_json(folder / kinds["Pooling"] / "config.json")),
        projection=_dense_width(folder, kinds),
        normalize="Normalize" in kinds,
        max_tokens=_json(folder / "sentence_bert_config.json").get("max_seq_length"),
        positions=config.get("max_position_embeddings"),
        prompt=_prompt(folder),
    )


def _prompt(folder: Path) -> str | None:
    """The default prompt of an exported model, without which its vectors are others."""
    file = folder / "config_sentence_transformers.json"
    config = _json(file) if file.exists() else {}
    name = config.get("default_prompt_name")
    return config.get("prompts", {}).get(name) or None


def _dense_width(folder: Path, kinds: dict[str, str]) -> int | None:
    return int(_json(folder / kinds["Dense"] / "config.json")["out_features"]) if "Dense" in kinds else None


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# --- The token table of a static model ------------------------------------------------------------------------------


def embeddings_problem(width: int, start: StartShape) -> str | None:
    """Why a Transformer of this width cannot take its token table from that model; None if it can."""
    if start.kind != "static":
        return "is no static model; its token vectors are not made to stand alone: begin from it with student.start"
    if width not in (start.width, start.projection):
        dense = f" nor of its dense layer, {start.projection}" if start.projection else ""
        return f"has token vectors {start.width} wide, and student.width {width} is neither that{dense}; set it to one"
    return None


@torch.no_grad()
def take_embeddings(encoder: Encoder, folder: Path) -> None:
    """Gives a Transformer the token table of the static model in the folder, scaled to the spread of its own.

    The rows of a table of another width go through the model's dense layer, so that the mean of a sentence's rows is
    the static model's vector of it. The layer norm after the table cancels the scale, but Adam's steps do not shrink
    with it: `build.WORD_STD`.

    Raises:
        TeacherError: neither the table nor the dense layer is as wide as the Transformer."""
    static = build_static(Static(model=str(folder)), Vocabulary(0, 0), projection=None)
    table: Float[Tensor, "vocabulary width"] = static.word_embeddings.detach()
    table_here = encoder.word_embeddings
    if table.shape[1] != table_here.shape[1]:
        if static.projection is None or static.projection.out_features != table_here.shape[1]:
            raise TeacherError(
                f"student.embeddings_from has token vectors {table.shape[1]} wide, and the student is "
                f"{table_here.shape[1]} wide; set student.width to that"
            )
        table = static.projection(table)
    table_here.copy_(table[: len(table_here)] * (table_here.std() / table.std()))
