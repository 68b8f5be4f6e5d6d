"""Cuts a pretrained encoder to some of its layers (`student.keep_layers`) and some of its tokens (`student.trim`)."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from babeltune.errors import TeacherError
from babeltune.models.dense import has_pooler
from babeltune.models.hub import quiet
from babeltune.schema.layers import LayerChoice, layer_numbers, layers_problem

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Int
    from torch import Tensor
    from transformers import PretrainedConfig

IN_LAYER = re.compile(r"(.*?\.)([0-9]+)(\..*)")
"""The name of a weight in a list of modules: the list, the number in it, and the rest."""


def keep_layers(model: PreTrainedModel, choice: LayerChoice, name: str) -> PreTrainedModel:
    """The encoder with these of its layers. `name` is the model's, for the errors.

    It is made anew from its shorter configuration, as whoever loads the export makes it. So an architecture whose
    layers differ by their number is either cut right or refused.

    Raises:
        TeacherError: it has no such layers, or its layers do not fit at other places."""
    layers = model.config.num_hidden_layers
    if problem := layers_problem(choice, layers, name):
        raise TeacherError(f"student.keep_layers {problem}")
    numbers = layer_numbers(choice, layers)
    kind = model.config.model_type
    weights = cut_weights(model.state_dict(), layers, numbers)
    if weights is None:
        raise TeacherError(
            f"student.keep_layers {choice!r}: {name!r} is of kind {kind!r}, whose weights are no list of {layers} "
            "layers; remove it, or name another model"
        )
    try:
        config = cut_config(model.config, layers, numbers)
        cut, report = load_encoder(type(model), None, config, state_dict=weights)
        strange = sorted([*report["missing_keys"], *report["unexpected_keys"]])
    except (ValueError, RuntimeError, KeyError, IndexError) as error:
        strange = [str(error).strip().splitlines()[0]]
    if strange:
        raise TeacherError(
            f"student.keep_layers {choice!r}: {name!r} is of kind {kind!r}, and these layers do not fit at their new "
            f"places ({strange[0]}); keep layer 0 among them, or name another model"
        )
    return cut


def load_encoder(
    architecture: Any, folder: Path | None, config: PretrainedConfig, **how: object
) -> tuple[PreTrainedModel, dict[str, list[str]]]:
    """The encoder in fp32 without its pooler, and which weights were missing or left over. No code of it runs."""
    with quiet():
        model, report = architecture.from_pretrained(
            folder,
            trust_remote_code=False,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            **({"add_pooling_layer": False} if has_pooler(config) else {}),
            **how,
        )
    return model, report


def cut_config(config: PretrainedConfig, layers: int, numbers: tuple[int, ...]) -> PretrainedConfig:
    """The configuration of an encoder of `layers` layers that keeps those with these numbers."""
    cut = copy.deepcopy(config)
    cut.num_hidden_layers = len(numbers)
    # Such as ModernBERT's `layer_types`, which says which layers see all of a text.
    for field, value in vars(config).items():
        if isinstance(value, list) and len(value) == layers:
            setattr(cut, field, [value[number] for number in numbers])
    return cut


def cut_weights(weights: dict[str, Tensor], layers: int, numbers: tuple[int, ...]) -> dict[str, Tensor] | None:
    """The weights of the kept layers under their new numbers; None if the model has no list of `layers` layers."""
    matches = [match for name in weights if (match := IN_LAYER.fullmatch(name))]
    lists: dict[str, set[int]] = {}
    for match in matches:
        lists.setdefault(match[1], set()).add(int(match[2]))
    whole = {name for name, members in lists.items() if members == set(range(layers))}
    if not whole:
        return None
    cut = dict(weights)
    inside = [match for match in matches if match[1] in whole]
    for match in inside:
        del cut[match[0]]
    places = {number: place for place, number in enumerate(numbers)}
    return cut | {
        f"{match[1]}{places[int(match[2])]}{match[3]}": weights[match[0]] for match in inside if int(match[2]) in places
    }


def keep_tokens(backbone: PreTrainedModel, token_ids: Int[Tensor, "vocabulary"], pad_token_id: int) -> None:
    """Cuts the token table to these rows, in place. `pad_token_id` is the new one."""
    weight = backbone.get_input_embeddings().weight.detach()
    table = nn.Embedding(len(token_ids), weight.shape[1], padding_idx=pad_token_id, _weight=weight[token_ids].clone())
    backbone.set_input_embeddings(table)
    new = {int(old): place for place, old in enumerate(token_ids)}
    for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"):
        if isinstance(old := getattr(backbone.config, name, None), int):
            setattr(backbone.config, name, new.get(old))
    backbone.config.vocab_size = len(token_ids)
    backbone.config.pad_token_id = pad_token_id
