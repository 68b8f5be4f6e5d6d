"""A smaller or faster form of a model: `babeltune export MODEL --out FOLDER`.

A static model becomes a table of whole numbers: a row is 8 or 4 bits a number, times one scale. The folder is read by
`small_encoder.py`, whose text its card carries. A Transformer becomes a graph (`onnx_graph.py`). Both
models are scored on a sweep's dev sets, item by item, before the folder is there."""

from __future__ import annotations

import ast
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
from babeltune.models.hub import open_model, prompt_of
from babeltune.promotion.canary import CANARY, canary_by, in_language, write_canary
from babeltune.promotion.candidate import dev_texts
from babeltune.promotion.drift import FILE, read_profile, same_text, write_profile
from babeltune.promotion.evaluate import weights_of
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.promotion.inherited_card import inherited
from babeltune.promotion.model_files import check_free, write_folder
from babeltune.promotion.model_names import sweep_of, trial_of
from babeltune.promotion.onnx_graph import whole_numbers, write_graph
from babeltune.promotion.readers import mark
from babeltune.promotion.sweep_scores import Comparison, compare_models
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import SweepFolder, find_sweep
from babeltune.sweep.sync.view import StorageView

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

Bits = Literal[32, 8, 4]
TIMED = 500  # texts of the dev sets that speeds are measured on


@dataclass(frozen=True, kw_only=True)
class SmallForm:
    """The request."""

    format: Literal["static", "onnx"] | None = None  # none: what the model is
    bits: Bits | None = None  # none: 8 of a static model, 32 of a graph
    dim: int | None = None  # the first numbers of each vector that are kept; None: all

    def of(self, model: SentenceTransformer, name: str) -> SmallForm:
        """The form with the model's defaults. Raises `SpecError` for 4 bits of a graph."""
        static = type(model[0]).__name__ == "StaticEmbedding"
        chosen = self.format or ("static" if static else "onnx")
        if chosen == "onnx" and self.bits == 4:
            raise SpecError(
                f"--int4 is for tables of static models, and {name} becomes a graph; give --int8, or neither"
            )
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
    """The loss of each mean over the sets of one kind: the first model's score minus the second's."""
    comparison: Comparison


def export_small(
    model: str,
    out: Path,
    cluster: Cluster,
    *,
    form: SmallForm = SmallForm(),  # a frozen record
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
        if form.format == "static":
            write_table(whole, model, small, bits=form.bits or 8, dim=form.dim)
        else:
            write_graph(whole, model, small, int8=form.bits == 8, dim=form.dim)
        comparison = compare_models(folder, str(small), cluster, sweep=sweep)
        encode = in_language(encoder_of(str(small)))
        texts = _timed_texts(view, comparison.sweep)
        exported = Exported(
            folder=str(out) if all(lost <= most_lost for lost in comparison.losses().values()) else None,
            format=form.format or "onnx",
            bits=form.bits or 32,
            dim=encode(["dimension"]).shape[1],
            sizes=(_bytes_of(Path(folder)), _bytes_of(small)),
            speeds=(_speed(whole.encode, texts), _speed(encode, texts)),
            losses=comparison.losses(),
            comparison=replace(comparison, first=model, second=str(out)),
        )
        if exported.folder is not None:
            card = inherited(Path(folder), _card(exported, model), loads=False)
            (small / "README.md").write_text(card, encoding="utf-8")
            write_canary(canary_by(encode), small / CANARY)
            _copy_profile(Path(folder), small, find_sweep(view.folder, comparison.sweep))
            write_folder(partial(shutil.copytree, small, dirs_exist_ok=True), out)
    return exported


def _copy_profile(whole: Path, small: Path, sweep: SweepFolder) -> None:
    """Gives the folder the profile of the training text in its own vectors, if the model has one of this sweep."""
    profile = read_profile(whole)
    if profile is None:
        return
    write_profile(small, read_prepared(sweep.prepared))
    if (new := read_profile(small)) is not None and not same_text(profile, new):
        (small / FILE).unlink()


def table_of(model: SentenceTransformer, name: str, dim: int | None = None) -> NDArray[np.float32]:
    """The vectors of all tokens: float32 [tokens, dim], after linear layers, whose mean is the mean's.

    Raises `SpecError` for a model of other layers, and for more numbers than its vectors have."""
    first, *others = model
    kinds = [type(module).__name__ for module in (first, *others)]
    linear = [module for module in others if type(module).__name__ == "Dense"]
    bent = [module for module in linear if not isinstance(module.activation_function, torch.nn.Identity)]
    if kinds[0] != "StaticEmbedding" or set(kinds[1:]) - {"Dense", "Normalize"} or bent:
        raise SpecError(
            f"{name} has the layers {', '.join(kinds)}; only a static model, a table with linear layers after it, "
            "becomes a table of whole numbers; train one with `student: {kind: static}`"
        )
    with torch.inference_mode():
        rows = first.embedding.weight.detach().float()
        for module in linear:
            rows = module.linear(rows)
    table: NDArray[np.float32] = rows.detach().cpu().numpy()
    if dim is not None and dim > table.shape[1]:
        raise SpecError(f"--dim {dim}: the vectors of {name} have {table.shape[1]} numbers; give at most that")
    return np.ascontiguousarray(table[:, :dim])


def packed(numbers: NDArray[np.int8], bits: Bits) -> NDArray[np.int8] | NDArray[np.uint8]:
    """The numbers as they are stored. `SpecError` for 4 bits and an odd row."""
    if bits == 8:
        return numbers
    if numbers.shape[1] % 2:
        raise SpecError(f"--int4 puts two numbers into a byte, and a vector has {numbers.shape[1]}; give an even --dim")
    above = (numbers + 8).astype(np.uint8)
    return above[:, ::2] | above[:, 1::2] << 4


def write_table(model: SentenceTransformer, name: str, folder: Path, *, bits: Bits, dim: int | None) -> None:
    """Writes the table, the tokenizer and the prompt into a new folder. Raises `SpecError` as `table_of`."""
    numbers, scales = (part.numpy() for part in whole_numbers(torch.from_numpy(table_of(model, name, dim)), bits))
    table = packed(numbers, bits)
    folder.mkdir()
    prompt = np.frombuffer(prompt_of(model).encode(), np.uint8)
    save_file({"table": table, "scales": scales, "prompt": prompt}, folder / "model.safetensors")
    model.tokenizer.save(str(folder / "tokenizer.json"))
    mark(folder)


def _timed_texts(view: StorageView, sweep: str) -> list[str]:
    tasks = dev_texts(read_prepared(find_sweep(view.folder, sweep).prepared))
    return list(dict.fromkeys(text for task in tasks for text in task.texts()))[:TIMED]


def _speed(encode: Callable[[list[str]], object], texts: list[str]) -> float:
    encode(texts[:64])  # what the first call pays for
    begin = time.perf_counter()
    encode(texts)
    return len(texts) / (time.perf_counter() - begin)


def _bytes_of(folder: Path) -> int:
    """Bytes of what encodes: weights, tokenizer and settings. A folder of the hub may hold other forms of the same
    weights, and a promoted model what it is compared by."""
    files = (path for path in folder.rglob("*") if path.suffix in (".safetensors", ".onnx", ".json"))
    return sum(path.stat().st_size for path in files if path.name not in (CANARY, FILE))


def _card(exported: Exported, model: str) -> str:
    """The new folder's README: what it lost, and how it is read."""
    name, reader = ("small_encoder.py", "SmallEncoder")
    if exported.format == "onnx":
        name, reader = ("onnx_encoder.py", "OnnxEncoder")
    source = bare(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    before, after = exported.sizes
    lines = [
        f"# {model}, {exported.bits} bits a number",
        "",
        f"Vectors of {exported.dim} numbers. {after / 1e6:.1f} MB, {after / before:.1%} of the model's "
        f"{before / 1e6:.1f} MB. Figures of the header, and of sealed tests, are the model's. On the dev sets of "
        f"`{exported.comparison.sweep}`:",
        "",
        "| mean | the model | this folder | difference | interval |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {cell.name} | {cell.champion:.4f} | {cell.challenger:.4f} | {cell.difference:+.4f} | "
        f"{cell.low:+.4f} to {cell.high:+.4f} |"
        for cell in exported.comparison.overall
    ]
    lines += [
        f"| {name} | {whole:.4f} | {small:.4f} | {small - whole:+.4f} | |"
        for name, (whole, small) in exported.comparison.means.items()
    ]
    call = f'vectors = {reader}(".").encode(["a text", "another"])'
    return "\n".join([*lines, "", "It is read so:", "", "```python", source, "", call, "```", ""])


def bare(source: str) -> str:
    """A module's code without texts and types, for those who copy it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)
