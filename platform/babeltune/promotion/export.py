"""Writes a trained encoder as a sentence-transformers folder.

The folder holds JSON, the tokenizer and safetensors: nothing in it runs code when loaded. Plain
`SentenceTransformer(folder).encode(texts)` gives the encoder's vectors, prompt included. A trained student is written
in the form that every sentence-transformers release since 2.3 reads. A method's layers follow the encoder as `Dense`
modules; layers for each language are the routes of a `Router` (release 5 on). `encode(texts, task=language)` chooses
one, and the first is the default."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from babeltune.data.prepared import Prepared
from babeltune.data.teacher import load_encoder
from babeltune.data.tokens import bare_tokenizer, load_tokenizer
from babeltune.errors import CheckpointError
from babeltune.files import json_text
from babeltune.method import EVERY, Method
from babeltune.models.dense import has_pooler
from babeltune.models.encoder import Encoder, FrozenEncoder, StudentEncoder
from babeltune.models.hub import quiet
from babeltune.models.static import StaticEncoder
from babeltune.promotion.model_files import write_folder
from babeltune.schema.records import Student, Sweep, Trial
from babeltune.training.build import token_set

KIND = "sentence_transformers.models."
"""The module path of sentence-transformers' modules, by the name that every release knows."""
LINEAR = "linear.Identity"


def export_trial(
    sweep: Sweep, trial: Trial, prepared: Prepared, encoder: StudentEncoder, method: Method, folder: Path
) -> None:
    """Writes a trial's encoder and the layers that its method keeps; raises as `export` does."""
    layers = method.layers()
    if isinstance(encoder, FrozenEncoder):
        teacher = load_encoder(sweep.teacher)

        def write(draft: Path) -> None:
            teacher.save(draft)
            _append_layers(draft, layers)

        write_folder(write, folder)
        return
    student, prompt, tokens = trial.student, sweep.evaluation.prompt, token_set(trial, prepared)
    if prompt is not None:  # it is scored with this prompt, and handed over with it
        student = replace(student, prompt=prompt)
    tokenizer = load_tokenizer(student, Path(tokens.tokenizer) if student.model is None or student.trim else None)
    export(encoder, tokenizer, student, folder, layers=layers)


def export(
    encoder: Encoder | StaticEncoder,
    tokenizer: PreTrainedTokenizerBase | Path,
    student: Student,
    folder: Path,
    *,
    layers: Mapping[str, nn.Sequential] | None = None,
    card: str = "",
) -> None:
    """Writes `encoder` and what follows it (`Method.layers`) to `folder`, whole or not at all.

    `tokenizer` is loaded, or a folder; `card` is its README.

    Raises:
        CheckpointError: the folder exists, or something but text and safetensors would be written."""

    def write(draft: Path) -> None:
        _write(encoder, tokenizer, student, draft)
        _append_layers(draft, layers or {})
        (draft / "README.md").write_text(card, encoding="utf-8")

    write_folder(write, folder)


def _write(
    encoder: Encoder | StaticEncoder, tokenizer: PreTrainedTokenizerBase | Path, student: Student, folder: Path
) -> None:
    loaded = tokenizer
    if isinstance(loaded, Path):
        loaded = AutoTokenizer.from_pretrained(loaded, trust_remote_code=False)
    loaded.save_pretrained(folder)
    if isinstance(encoder, StaticEncoder):
        modules = _write_static(encoder, loaded, student, folder)
    else:
        modules = _write_transformer(encoder, student, folder)
    if encoder.projection is not None:
        path = f"{len(modules)}_Dense"
        _write_dense(encoder.projection, "activation.Tanh" if encoder.tanh else LINEAR, folder / path)
        modules.append((path, "Dense"))
    if encoder.normalize:
        path = f"{len(modules)}_Normalize"
        (folder / path).mkdir()
        modules.append((path, "Normalize"))
    _json(folder / "modules.json", [_module(index, path, kind) for index, (path, kind) in enumerate(modules)])
    prompts = {"default": student.prompt} if student.prompt else {}
    name = "default" if student.prompt else None
    settings = {"prompts": prompts, "default_prompt_name": name, "similarity_fn_name": "cosine"}
    _json(folder / "config_sentence_transformers.json", settings)


def _module(index: int, path: str, kind: str) -> dict[str, object]:
    return {"idx": index, "name": str(index), "path": path, "type": f"{KIND}{kind}"}


def _write_static(
    encoder: StaticEncoder, tokenizer: PreTrainedTokenizerBase, student: Student, folder: Path
) -> list[tuple[str, str]]:
    """The table, and a tokenizer that cuts as training did: `StaticEmbedding` leaves this to the tokenizer's file."""
    cutting = bare_tokenizer(tokenizer)
    cutting.enable_truncation(student.max_tokens)
    cutting.save(str(folder / "tokenizer.json"))
    table = {"embedding.weight": encoder.folded().word_embeddings.detach().cpu().contiguous()}
    save_file(table, folder / "model.safetensors")
    return [("", "StaticEmbedding")]


def _write_transformer(encoder: Encoder, student: Student, folder: Path) -> list[tuple[str, str]]:
    """The backbone and its pooling."""
    with quiet():
        encoder.backbone.save_pretrained(folder)
    width = encoder.backbone.config.hidden_size
    # Without it transformers makes a new pooler, which nothing reads, and warns that it is untrained.
    arguments = {"model_args": {"add_pooling_layer": False}} if has_pooler(encoder.backbone.config) else {}
    settings = {"max_seq_length": student.max_tokens, "do_lower_case": False, **arguments}
    _json(folder / "sentence_bert_config.json", settings)
    kinds = ("cls_token", "mean_tokens", "max_tokens")
    modes = {f"pooling_mode_{mode}": mode.startswith(encoder.pooling) for mode in kinds}
    _json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    return [("", "Transformer"), ("1_Pooling", "Pooling")]


def _append_layers(folder: Path, layers: Mapping[str, nn.Sequential]) -> None:
    """Puts the layers, and an L2 norm, after the modules of a sentence-transformers folder."""
    if not layers:
        return
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))

    def append(kind: str) -> Path:
        path = f"{len(modules)}_{kind}"
        modules.append(_module(len(modules), path, kind))
        (folder / path).mkdir()
        return folder / path

    if EVERY in layers:
        for linear, activation in _dense_layers(layers[EVERY]):
            _write_dense(linear, activation, append("Dense"))
    else:
        _write_routes(layers, append("Router"))
    append("Normalize")
    _json(folder / "modules.json", modules)


def _write_routes(layers: Mapping[str, nn.Sequential], folder: Path) -> None:
    """A `Router` with a route for each language."""
    routes: dict[str, list[str]] = {language: [] for language in layers}
    for language, layer in layers.items():
        for linear, activation in _dense_layers(layer):
            name = f"{language}_{len(routes[language])}_Dense"
            _write_dense(linear, activation, folder / name)
            routes[language].append(name)
    types = {name: f"{KIND}Dense" for names in routes.values() for name in names}
    parameters = {"default_route": next(iter(routes)), "allow_empty_key": True}
    _json(folder / "router_config.json", {"types": types, "structure": routes, "parameters": parameters})


def _dense_layers(layers: nn.Sequential) -> list[tuple[nn.Linear, str]]:
    """Each linear layer with the activation after it; dropout does nothing in a model that is used."""
    dense: list[tuple[nn.Linear, str]] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            dense.append((layer, LINEAR))
        elif isinstance(layer, nn.ReLU) and dense and dense[-1][1] == LINEAR:
            dense[-1] = (dense[-1][0], "activation.ReLU")
        elif not isinstance(layer, nn.Dropout):
            fit = "only linear layers, each with or without a ReLU after it, and dropout can be exported"
            raise CheckpointError(f"a method's layers hold {type(layer).__name__} ({layers}); {fit}")
    return dense


def _write_dense(linear: nn.Linear, activation: str, folder: Path) -> None:
    shape = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": linear.bias is not None}
    _json(folder / "config.json", {**shape, "activation_function": f"torch.nn.modules.{activation}"})
    weights = {f"linear.{name}": tensor.detach().cpu().contiguous() for name, tensor in linear.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def _json(path: Path, values: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json_text(values, indent=2) + "\n", encoding="utf-8")
