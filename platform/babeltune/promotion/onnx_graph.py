"""A Transformer as an ONNX graph, whole or with weights of eight bits. The folder is read by `onnx_encoder.py`.

Optimum, through which sentence-transformers exports, wants transformers 4. So torch exports here."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections import defaultdict
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from torch import nn

from babeltune.errors import SpecError
from babeltune.models.hub import prompt_of
from babeltune.promotion.canary import fixed_sentences
from babeltune.promotion.readers import GRAPH, MISSING, mark

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODULES = {"Transformer", "Pooling", "Dense", "Normalize"}  # modules that a graph can have
MOST_OFF = 0.15  # the share of a linear layer's output that eight bits may lose; beyond, it keeps 32
MOST_BYTES = 2**31  # bytes of a graph in one file, by the format (protobuf)


class Graph(nn.Module):
    """All modules of a model in turn: token ids and mask, [texts, tokens], become vectors, [texts, dim]."""

    def __init__(self, model: SentenceTransformer, dim: int | None) -> None:
        super().__init__()
        self.model, self.dim = model, dim

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        for module in self.model:
            features = module(features)
        vectors: torch.Tensor = features["sentence_embedding"]
        return vectors if self.dim is None else nn.functional.normalize(vectors[:, : self.dim], dim=1)


def whole_numbers(table: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row as whole numbers from -127 to 127, or from -7 to 7, and its scale: row = numbers * scale."""
    most = 2 ** (bits - 1) - 1
    scales = table.abs().amax(dim=1) / most
    return torch.round(table / torch.where(scales > 0, scales, 1)[:, None]).to(torch.int8), scales


class TokenTable(nn.Module):
    """A table of token vectors in whole numbers, each row with a scale of its own."""

    numbers: torch.Tensor
    scales: torch.Tensor

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        numbers, scales = whole_numbers(table.weight.detach(), 8)
        self.register_buffer("numbers", numbers)
        self.register_buffer("scales", scales[:, None])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The vectors of these tokens: [texts, tokens, dim]."""
        return self.numbers[ids] * self.scales[ids]


def in_whole_numbers(model: nn.Module) -> nn.Module:
    """A copy whose tables are `TokenTable`."""
    copy = deepcopy(model)
    for module in list(copy.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Embedding):
                setattr(module, name, TokenTable(child))
    return copy


def uneven_layers(model: SentenceTransformer) -> set[str]:
    """The names of the linear layers that lose more than `MOST_OFF` of a token's output, on average over the fixed
    sentences, if their inputs are eight bits with one scale. A few large inputs leave no bits to the others."""
    off: dict[str, list[torch.Tensor]] = defaultdict(list)

    def look(name: str, layer: nn.Linear, inputs: tuple[torch.Tensor]) -> None:
        rows = inputs[0].detach().flatten(0, -2)
        step = (rows.max().clamp(min=0) - rows.min().clamp(max=0)).clamp(min=1e-12) / 255
        lost, whole = (
            torch.linalg.norm(x @ layer.weight.T, dim=1) for x in (torch.round(rows / step) * step - rows, rows)
        )
        off[name].append(lost / whole.clamp(min=1e-12))

    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    hooks = [each.register_forward_pre_hook(partial(look, name)) for name, each in layers]
    try:
        model.encode(fixed_sentences(), show_progress_bar=False)
    finally:
        for hook in hooks:
            hook.remove()
    return {name for name, parts in off.items() if float(torch.cat(parts).mean()) > MOST_OFF}


def write_graph(model: SentenceTransformer, name: str, folder: Path, *, int8: bool, dim: int | None) -> None:
    """Writes the graph, the tokenizer and the prompt into a new folder.

    Raises `SpecError` for a model of other modules, one too large for a file, and without the extra `onnx`."""
    kinds = [type(module).__name__ for module in model]
    width = model.get_embedding_dimension() or 0
    if set(kinds) - MODULES or kinds[0] != "Transformer":
        fit = "a graph is made of a Transformer with pooling and dense layers; for a static model leave out --format"
        raise SpecError(f"{name} has the layers {', '.join(kinds)}; {fit}")
    if dim is not None and dim > width:
        raise SpecError(f"--dim {dim}: the vectors of {name} have {width} numbers; give at most that")
    if (size := sum(each.nbytes for each in model.parameters())) >= MOST_BYTES:
        raise SpecError(f"{name} has {size / 1e9:.1f} GB of weights, and a graph holds at most 2; train a smaller one")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or onnxruntime reports its use to Microsoft
    try:
        import onnx  # type: ignore[import-not-found, import-untyped, unused-ignore]
        import onnxscript  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
        from onnxruntime import quantization
    except ImportError as error:
        raise SpecError(f"--format onnx: {MISSING}") from error
    folder.mkdir()
    tokenizer = _tokenizer(model, name)
    tokenizer.save(str(folder / "tokenizer.json"))
    mark(folder, prompt=prompt_of(model))
    with TemporaryDirectory(dir=folder.parent) as place:
        whole = Path(place) / GRAPH if int8 else folder / GRAPH
        encoder = model.cpu().eval()
        _export(Graph(in_whole_numbers(encoder) if int8 else encoder, dim).eval(), tokenizer, whole)
        if int8:
            scopes = [f"'model.{name}'" for name in uneven_layers(model)]
            nodes = [(each.name, [fact.value for fact in each.metadata_props]) for each in onnx.load(whole).graph.node]
            # onnxruntime would give a table one scale. A weight of a product keeps seven bits: without VNNI, sums of
            # two products of eight bits overflow.
            products = {"op_types_to_quantize": ["MatMul", "Gemm"], "per_channel": True, "reduce_range": True}
            exact = [name for name, facts in nodes if any(scope in fact for scope in scopes for fact in facts)]
            quantization.quantize_dynamic(whole, folder / GRAPH, nodes_to_exclude=exact, **products)


def _tokenizer(model: SentenceTransformer, name: str) -> Tokenizer:
    """The model's tokenizer with its cut, and without padding, which the reader adds."""
    fast = getattr(model.tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise SpecError(f"{name} has a tokenizer of Python alone; a folder needs one with a tokenizer.json")
    tokenizer = Tokenizer.from_str(fast.to_str())
    tokenizer.enable_truncation(model.max_seq_length)
    tokenizer.no_padding()
    return tokenizer


def _export(graph: Graph, tokenizer: Tokenizer, path: Path) -> None:
    ids = torch.tensor([tokenizer.encode("a text").ids] * 2)
    example = (ids, torch.ones_like(ids))
    axes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [each.level for each in loggers]
    # The exporter prints its steps, and warns of what its libraries will change.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.ERROR)
        try:
            torch.onnx.export(
                graph,
                example,
                path,
                input_names=["input_ids", "attention_mask"],
                output_names=["vectors"],
                dynamic_shapes={"input_ids": axes, "attention_mask": axes},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)
