"""A smaller or faster form of a model: `babeltune export MODEL --out FOLDER`.

A static model becomes a table of whole numbers: a row is 8 or 4 bits a number, times one scale. The folder is read by
`small_encoder.py`, whose text its card carries. A Transformer becomes a graph (`onnx_graph.py`). Both
models are scored on a sweep's dev sets, item by item, before the folder is there."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from safetensors.numpy import save_file

from babeltune.data.prepared import read_prepared
from babeltune.errors import SpecError
from babeltune.files import draft_folder
from babeltune.models.hub import open_model
from babeltune.promotion.candidate import dev_texts
from babeltune.promotion.evaluate import weights_of
from babeltune.promotion.model_files import check_free, write_folder
from babeltune.promotion.model_names import sweep_of, trial_of
from babeltune.promotion.onnx_graph import write_graph
from babeltune.promotion.small_encoder import SmallEncoder
from babeltune.promotion.sweep_scores import Comparison, compare_models
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import find_sweep
from babeltune.sweep.sync.view import StorageView

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

Bits = Literal[32, 8, 4]
Written = tuple[str, Callable[[list[str]], "NDArray[np.float32]"], str]
"""How the card's code opens the folder; what encodes with it; and the folder that is scored."""
TIMED = 2000  # texts of the dev sets that speeds are measured on


@dataclass(frozen=True, kw_only=True)
class Form:
    """The request."""

    format: Literal["static", "onnx"] | None = None  # none: what the model is
    bits: Bits | None = None  # none: 8 of a static model, 32 of a graph
    dim: int | None = None  # the first numbers of each vector that are kept; None: all

    def of(self, model: SentenceTransformer, name: str) -> Form:
        """The form with the model's defaults. Raises `SpecError` for 4 bits of a graph."""
        static = type(model[0]).__name__ == "StaticEmbedding"
        chosen = self.format or ("static" if static else "onnx")
        if chosen == "onnx" and self.bits == 4:
            words = f"--int4 is for tables of static models, and {name} becomes a graph; give --int8, or neither"
            raise SpecError(words)
        return replace(self, format=chosen, bits=self.bits or (8 if chosen == "static" else 32))


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A model before and after."""

    folder: str | None
    """The new folder; None if a mean has lost more than it may."""
    format: Literal["static", "onnx"]
    bits: Bits
    dim: int
    """Numbers of a vector."""
    sizes: tuple[int, int]
    """Bytes of the files, before and after."""
    speeds: tuple[float, float]
    """Texts a second on this machine, tokenizing among it: sentence-transformers before, numpy or onnxruntime after."""
    losses: dict[str, float]
    """The loss of each mean of `comparison.overall`: the first model's minus the second's."""
    comparison: Comparison


def export_small(
    model: str,
    out: Path,
    cluster: Cluster,
    *,
    form: Form = Form(),  # a frozen record
    sweep: str | None = None,
    most_lost: float = 0.01,
) -> Exported:
    """Writes the model in its new form, if no mean of its scores loses more than `most_lost`.

    The scores are of the sweep's dev sets: by default that of the trial or of the registered model.

    Raises `SpecError` for a model that cannot have this form, if no sweep is known, and if `out` is there."""
    check_free(out)
    view = StorageView(cluster)
    view.update(every=True)
    trial = trial_of(model, view.folder)
    drafts_of = draft_folder("export", view.folder / "evaluations")
    with weights_of(model, trial, view) as (_, folder), drafts_of as drafts:
        sweep = sweep or sweep_of(model, trial, cluster)
        whole, small = open_model(folder), drafts / "small"
        form = form.of(whole, model)
        call, encode, scored = (_table if form.format == "static" else _graph)(whole, model, form, small)
        comparison = compare_models(folder, scored, cluster, sweep=sweep)
        losses = {cell.name: cell.champion - cell.challenger for cell in comparison.overall}
        tasks = dev_texts(read_prepared(find_sweep(view.folder, comparison.sweep).prepared))
        texts = list(dict.fromkeys(text for task in tasks for text in task.texts()))[:TIMED]
        exported = Exported(
            folder=str(out) if all(lost <= most_lost for lost in losses.values()) else None,
            format=form.format or "onnx",
            bits=form.bits or 32,
            dim=encode(["dimension"]).shape[1],
            sizes=(_bytes_of(Path(folder)), _bytes_of(small)),
            speeds=(_speed(whole.encode, texts), _speed(encode, texts)),
            losses=losses,
            comparison=replace(comparison, first=model, second=str(out)),
        )
        if exported.folder is not None:
            (small / "README.md").write_text(_card(exported, model, call), encoding="utf-8")
            write_folder(partial(shutil.copytree, small, dirs_exist_ok=True), out)
    return exported


def _table(whole: SentenceTransformer, name: str, form: Form, small: Path) -> Written:
    prompt = "" if whole.default_prompt_name is None else str(whole.prompts[whole.default_prompt_name])
    plain = small.with_name("plain")
    _write(whole, table_of(whole, name, form.dim), form.bits or 8, small, plain)
    return f'SmallEncoder(".", prompt={json.dumps(prompt)})', SmallEncoder(str(small), prompt).encode, str(plain)


def _graph(whole: SentenceTransformer, name: str, form: Form, small: Path) -> Written:
    write_graph(whole, name, small, int8=form.bits == 8, dim=form.dim)
    from babeltune.promotion.onnx_encoder import OnnxEncoder

    return 'OnnxEncoder(".")', OnnxEncoder(str(small)).encode, str(small)


def table_of(model: SentenceTransformer, name: str, dim: int | None = None) -> NDArray[np.float32]:
    """The vectors of all tokens: float32 [tokens, dim], after linear layers, whose mean is the mean's.

    Raises `SpecError` for a model of other layers, and for more numbers than its vectors have."""
    first, *others = model
    kinds = [type(module).__name__ for module in (first, *others)]
    linear = [module for module in others if type(module).__name__ == "Dense"]
    bent = [module for module in linear if not isinstance(module.activation_function, torch.nn.Identity)]
    if kinds[0] != "StaticEmbedding" or set(kinds[1:]) - {"Dense", "Normalize"} or bent:
        only = "only a static model, a table with linear layers after it, becomes a table of whole numbers"
        todo = "train one with `student: {kind: static}`"
        raise SpecError(f"{name} has the layers {', '.join(kinds)}; {only}; {todo}")
    with torch.inference_mode():
        rows = first.embedding.weight.detach().float()
        for module in linear:
            rows = module.linear(rows)
    table: NDArray[np.float32] = rows.detach().cpu().numpy()
    if dim is not None and dim > table.shape[1]:
        raise SpecError(f"--dim {dim}: the vectors of {name} have {table.shape[1]} numbers; give at most that")
    return np.ascontiguousarray(table[:, :dim])


def whole_numbers(table: NDArray[np.float32], bits: Bits) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Each row as whole numbers from -127 to 127, or from -7 to 7, and its scale: row = numbers * scale."""
    most = 2 ** (bits - 1) - 1
    scales = np.abs(table).max(axis=1) / most
    numbers = np.rint(table / np.where(scales > 0, scales, 1)[:, None])
    return numbers.astype(np.int8), scales.astype(np.float32)


def packed(numbers: NDArray[np.int8], bits: Bits) -> NDArray[np.int8] | NDArray[np.uint8]:
    """The numbers as they are stored. `SpecError` for 4 bits and an odd row."""
    if bits == 8:
        return numbers
    if numbers.shape[1] % 2:
        raise SpecError(f"--int4 puts two numbers into a byte, and a vector has {numbers.shape[1]}; give an even --dim")
    above = (numbers + 8).astype(np.uint8)
    return above[:, ::2] | above[:, 1::2] << 4


def _write(whole: SentenceTransformer, table: NDArray[np.float32], bits: Bits, small: Path, plain: Path) -> None:
    """Writes the small folder, and its vectors as a plain sentence-transformers folder, which is scored."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, StaticEmbedding

    numbers, scales = whole_numbers(table, bits)
    small.mkdir()
    save_file({"table": packed(numbers, bits), "scales": scales}, small / "model.safetensors")
    whole.tokenizer.save(str(small / "tokenizer.json"))
    table = numbers * scales[:, None]
    modules = [StaticEmbedding(whole.tokenizer, embedding_weights=table), Normalize()]
    model = SentenceTransformer(modules=modules, prompts=whole.prompts, default_prompt_name=whole.default_prompt_name)
    model.save(str(plain), create_model_card=False)


def _speed(encode: Callable[[list[str]], object], texts: list[str]) -> float:
    encode(texts[:64])  # what the first call pays for
    begin = time.perf_counter()
    encode(texts)
    return len(texts) / (time.perf_counter() - begin)


def _bytes_of(folder: Path) -> int:
    """Bytes of the weights and of all JSON. A folder of the hub may hold other forms of the same weights."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".safetensors", ".onnx", ".json"))


def _card(exported: Exported, model: str, call: str) -> str:
    """The new folder's README: what it lost, and how it is read."""
    reader = "small_encoder.py" if exported.format == "static" else "onnx_encoder.py"
    source = Path(__file__).with_name(reader).read_text(encoding="utf-8")
    before, after = exported.sizes
    lines = [
        f"# {model}, {exported.bits} bits a number",
        "",
        f"Vectors of {exported.dim} numbers. {after / 1e6:.1f} MB, {after / before:.1%} of the model's "
        f"{before / 1e6:.1f} MB. On the dev sets of `{exported.comparison.sweep}`:",
        "",
        "| mean | the model | this folder | difference | interval |",
        "|---|---:|---:|---:|---:|",
    ]
    for cell in exported.comparison.overall:
        scores = f"{cell.champion:.4f} | {cell.challenger:.4f} | {cell.difference:+.4f}"
        lines.append(f"| {cell.name} | {scores} | {cell.low:+.4f} to {cell.high:+.4f} |")
    call = f'vectors = {call}.encode(["a text", "another"])'
    return "\n".join([*lines, "", "It is read so:", "", "```python", source.rstrip(), "", "", call, "```", ""])
