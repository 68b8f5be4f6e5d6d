"""The dense layer that a saved model brings for its sentence vectors, on the pooled state.

It is a sentence-transformers module, or the pooler of a BERT: tanh(W h + b), where h is the first token's state. The
embeddings of LaBSE and LEALLA are the pooler's."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from babeltune.errors import TeacherError
from babeltune.models.hub import ModuleJson, model_folder, pooling_of
from babeltune.schema.records import Student

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def saved_dense(student: Student, config: PretrainedConfig) -> tuple[nn.Linear, bool] | None:
    """The layer of `student.model` and whether tanh follows; None if there is none, or its pooler is not wanted.

    Raises:
        TeacherError: the model pools otherwise than `student.pooling`, or has no such layer."""
    modules = _saved_json(student, "modules.json") or []
    check_modules(modules, student.model or "")
    for module in modules:
        kind, path = module["type"].rsplit(".", 1)[-1], module["path"]
        if kind == "Pooling":
            pooling = pooling_of(_saved_json(student, f"{path}/config.json") or {})
            if pooling != student.pooling:
                raise TeacherError(
                    f"student.pooling is {student.pooling!r}, but {student.model} was trained with {pooling!r}; "
                    f"set student.pooling to {pooling!r} "
                    "(a dense layer after it, with tanh or not, comes with the model)"
                )
        if kind == "Dense":
            written = _saved_json(student, f"{path}/config.json")
            settings: DenseJson = {} if written is None else written
            return read_dense(_folder(student) / path, settings, config.hidden_size, str(student.model))
    if student.pooling == "pooler":
        return trained_pooler(_folder(student), config, f"student.model {student.model!r}"), True
    return None


def check_projection(student: Student, width: int | None, projection: nn.Linear) -> None:
    """`TeacherError` if a layer has another width than `student.projection` asks for; None asks for none."""
    if width not in (None, projection.out_features):
        raise TeacherError(
            f"student.projection is {width}, but {student.model} comes with a projection to "
            f"{projection.out_features}; set student.projection to {projection.out_features}, or leave it out"
        )


def check_modules(modules: Sequence[ModuleJson], name: str) -> None:
    """`TeacherError` if a sentence-transformers model has modules that a student cannot have."""
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    for usual in ("Transformer", "Pooling", "Dense", "Normalize"):
        kinds = kinds[1:] if kinds[:1] == [usual] else kinds
    if kinds:
        raise TeacherError(
            f"{name!r} cannot be a student: it has more modules than Transformer, Pooling, Dense and Normalize, namely "
            f"{', '.join(kinds)}; use it as a teacher, or name the model that it was made from"
        )


def has_pooler(config: PretrainedConfig) -> bool:
    """Whether encoders of this architecture can have a pooler, which `add_pooling_layer` decides."""
    from transformers import AutoModel  # seconds, which a driver whose stores are there does not need

    kind = AutoModel._model_mapping[type(config)]
    return inspect.isclass(kind) and "add_pooling_layer" in inspect.signature(kind.__init__).parameters


def trained_pooler(folder: Path, config: PretrainedConfig, name: str) -> nn.Linear:
    """The dense layer of the pooler in a model's folder; tanh follows it. `name` is the model's in the errors.

    Raises:
        TeacherError: the architecture has no pooler, or the checkpoint no weights of it."""
    otherwise = "set pooling to mean, cls or max"
    if not has_pooler(config):
        raise TeacherError(f"{name} is a {config.model_type} encoder, which has no pooler; {otherwise}")
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 (a file is no mapping)
                if match := re.fullmatch(r"(?:\w+\.)?pooler\.dense\.(weight|bias)", key):
                    weights[match[1]] = file.get_tensor(key).float()
    if weights.keys() != {"weight", "bias"}:
        raise TeacherError(f"{name} has no weights of a pooler's dense layer (pooler.dense); {otherwise}")
    linear = nn.Linear(config.hidden_size, config.hidden_size)
    linear.load_state_dict(weights)
    return linear


class DenseJson(TypedDict, total=False):
    """The `config.json` of a `Dense` module."""

    in_features: int
    out_features: int
    bias: bool
    activation_function: str
    use_residual: bool


def read_dense(folder: Path, settings: DenseJson, width: int, name: str) -> tuple[nn.Linear, bool]:
    """The layer of a `Dense` module's folder on vectors of this width, and whether tanh follows.

    Raises:
        TeacherError: it is no such layer, or its weights are missing. `name` is the model's in the error."""
    activation = settings.get("activation_function", "torch.nn.modules.activation.Tanh").rsplit(".", 1)[-1]
    if activation not in ("Identity", "Tanh") or settings.get("use_residual") or settings["in_features"] != width:
        raise TeacherError(
            f"{name}: the dense layer {folder.name!r} ({settings}) is not a linear layer on the pooled vector, "
            "with tanh or nothing after it; name a model without it"
        )
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise TeacherError(f"{name}: {folder.name}/model.safetensors is missing; name a model saved as safetensors")
    linear = nn.Linear(width, settings["out_features"], bias=settings.get("bias", True))
    state = load_file(weights)
    linear.load_state_dict({name.removeprefix("linear."): tensor.float() for name, tensor in state.items()})
    return linear, activation == "Tanh"


def _folder(student: Student) -> Path:
    return model_folder(student.model or "", student.revision, setting="student.model")


def _saved_json(student: Student, name: str) -> Any:
    path = _folder(student) / name
    return None if not path.exists() else json.loads(path.read_text(encoding="utf-8"))
