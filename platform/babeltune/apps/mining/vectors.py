"""Vectors of sentences on disk, in shards that are found again by their text and their model.

A shard is a store of its own, complete or absent: an interrupted run encodes only what is missing, and two runs over
the same text share it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.apps.mining.sentences import Sentences
from babeltune.data.shards import RunShards, count_all, read_texts, run_here, write_texts
from babeltune.data.store import Array, Contents, build, digest_of_texts, folder_of, read_store
from babeltune.data.teacher import folder_digest
from babeltune.errors import DataError, StoreError, TeacherError, nearest
from babeltune.memory import give_back_memory
from babeltune.models.hub import routes_of
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.schema.languages import match
from babeltune.stages import Count, uncounted

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARD = 8_192  # sentences of a shard
KIND = "vectors"
Texts = Sentences | list[str]  # different sentences, on disk or in memory


@dataclass(frozen=True)
class EncodingModel:
    """A model's folder, and how its sentences are given to it."""

    folder: str
    digest: str
    prompt: str | None = None
    """Put before every sentence; absent: the model's own."""
    language: str | None = None
    """The language to use of a model with layers for each language."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dim] in fp32, in the order of the texts."""
        vectors = _loaded(self.folder, self.prompt)(list(texts), [self.language or ""] * len(texts))
        return vectors.astype(np.float32, copy=False)

    @property
    def width(self) -> int:
        """The dimensions of its vectors."""
        return int(self.encode(["dimension"]).shape[1])


def model_at(folder: str, *, prompt: str | None = None, language: str | None = None) -> EncodingModel:
    """A model that encodes sentences, from its folder, with its prompt or another one.

    A model with layers for each language encodes one `language`. Raises `DataError` for a language that it has no
    layers for, and for none if it has layers for each."""
    routes = sorted(routes_of(Path(folder)))
    if language is None and routes:
        todo = "say whose are wanted with --source-language and --target-language (encode: --language)"
        raise DataError(f"the model {folder} has layers for {', '.join(routes)}; {todo}")
    if language is not None and (language := match(written := language, routes)) is None:
        allowed = f"; there are {', '.join(routes)}{nearest(written, routes)}" if routes else "; leave it out"
        raise DataError(f"the model {folder} has no layers for the language {written!r}{allowed}")
    return EncodingModel(folder, folder_digest(Path(folder)), prompt, language)


_loaded = lru_cache(maxsize=1)(encoder_of)  # the model of this process


def embed(
    sentences: Texts,
    model: EncodingModel,
    root: Path,
    work: Path,
    *,
    run_shards: RunShards = run_here,
    progress: Count = uncounted,
) -> list[Path]:
    """The folders of the sentences' shards, in order; `open_matrix` opens them. Those that are missing are encoded.

    `work` is a folder for texts on their way, which every process that encodes must see."""
    folders, missing, present = [], [], 0
    for number, start in enumerate(range(0, len(sentences), SHARD)):
        texts = sentences[start : start + SHARD]
        folder = folder_of(root, KIND, _description(texts, model))
        folders.append(folder)
        if _is_sound(folder):
            present += len(texts)
        else:
            missing.append((model, str(write_texts(work / f"texts-{number:06}.json", texts)), str(root)))

    def tell(done: int, _: int) -> None:
        progress(present + done, len(sentences))

    count_all(run_shards(encode_shard, missing, gpu=True), len(sentences) - present, tell, "the model encoded")
    return folders


def encode_shard(model: EncodingModel, texts_file: str, root: str) -> int:
    """Builds the store of the texts in a file, anywhere that sees it; returns how many there are."""
    texts = read_texts(texts_file)

    def write(folder: Path) -> Contents:
        vectors = model.encode(texts)
        if not np.isfinite(vectors).all():
            raise TeacherError(f"the model {model.folder} gives vectors that are not finite; mine with another one")
        vectors.astype("<f4").tofile(folder / "rows.bin")
        return Contents(arrays={"rows": Array("<f4", vectors.shape[1], (("rows.bin", len(vectors)),))})

    build(Path(root), KIND, _description(texts, model), write)
    Path(texts_file).unlink(missing_ok=True)
    give_back_memory()
    return len(texts)


def _description(texts: Sequence[str], model: EncodingModel) -> dict[str, object]:
    """The identity of the vectors, without the place of the model's folder."""
    return {"texts": digest_of_texts(texts), "model": {**asdict(model), "folder": ""}}


def _is_sound(folder: Path) -> bool:
    with suppress(StoreError):
        if folder.exists():
            read_store(folder, verify=True)
            return True
    return False
