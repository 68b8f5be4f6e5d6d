"""Models that are served: their vectors in batches, and the version that an alias names now.

Nothing waits for a batch to fill: what comes while one is encoded is the next one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from babeltune.errors import BabeltuneError, SpecError
from babeltune.models.hub import ROUTED, open_model, prompt_of, routes_of
from babeltune.planning.sweep_file import REGISTERED
from babeltune.promotion.evaluate import weights_of
from babeltune.promotion.model_names import trial_of
from babeltune.promotion.readers import FolderReader, is_graph, reader_of
from babeltune.schema.cluster import Cluster
from babeltune.sweep.sync.view import StorageView
from babeltune.tracking.registry import champion_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

log = logging.getLogger(__name__)
BATCH = 64  # texts of a batch. A larger request waits for its next texts behind those of others.
QUICK_CHARACTERS = 8_192
"""Characters of a batch that a static model encodes in the event loop, in a millisecond or two. To wake another thread
takes longer."""


@dataclass(frozen=True)
class Encoded:
    """Vectors of texts, and what they were made of."""

    vectors: NDArray[np.float32]  # [texts, dim], as the model gives them
    tokens: list[int]  # tokens of each text, without those that were cut off
    cut: list[bool]  # whether the text was longer than the model reads

    def rows(self, start: int, end: int) -> Encoded:
        """The same of some texts."""
        return Encoded(self.vectors[start:end], self.tokens[start:end], self.cut[start:end])


class ServedEncoder(Protocol):
    """The encoder of the server. One thread calls it."""

    dim: int
    quick: bool  # whether a short batch takes less time than another thread

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The vectors of the texts, in their order."""


class ServedTable:
    """A static model, without the steps of `SentenceTransformer.encode` that only others need."""

    quick = True

    def __init__(self, model: SentenceTransformer) -> None:
        self.model, self.prompt = model, prompt_of(model)
        self.tokenizer = model.tokenizer
        self.dim = self.encode(["dimension"]).vectors.shape[1]

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The vectors of the texts, in their order."""
        read = self.tokenizer.encode_batch([self.prompt + text for text in texts], add_special_tokens=False)
        ids = [each.ids for each in read]
        tokens = torch.tensor(list(chain.from_iterable(ids)), dtype=torch.long, device=self.model.device)
        starts = torch.tensor([0, *accumulate(map(len, ids[:-1]))], device=self.model.device)
        with torch.inference_mode():
            vectors = self.model({"input_ids": tokens, "offsets": starts})["sentence_embedding"]
        return Encoded(vectors.cpu().numpy(), list(map(len, ids)), [bool(each.overflowing) for each in read])


class TransformerEncoder:
    """Any other model, as sentence-transformers runs it."""

    quick = False

    def __init__(self, model: SentenceTransformer) -> None:
        self.model, self.prompt = model, prompt_of(model)
        self.tokenizer, self.longest = model.tokenizer, model.max_seq_length
        self.dim = self.encode(["dimension"]).vectors.shape[1]

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The vectors of the texts, in their order."""
        ids = self.tokenizer([self.prompt + text for text in texts], verbose=False)["input_ids"]
        counts = list(map(len, ids))
        longest = self.longest or max(counts)
        vectors = self.model.encode(list(texts), batch_size=BATCH, show_progress_bar=False)
        tokens = [min(count, longest) for count in counts]
        return Encoded(vectors.astype(np.float32, copy=False), tokens, [count > longest for count in counts])


class ExportEncoder:
    """A folder of `export`: a table, or a graph."""

    def __init__(self, reader: FolderReader, table: bool) -> None:
        self.reader, self.quick = reader, table
        self.dim = self.encode(["dimension"]).vectors.shape[1]

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The vectors of the texts, in their order."""
        whole = [self.reader.prompt + text for text in texts]
        read = self.reader.tokenizer.encode_batch(whole, add_special_tokens=not self.quick)
        vectors = self.reader.encode(list(texts))
        return Encoded(vectors, [len(each.ids) for each in read], [bool(each.overflowing) for each in read])


def encoder_of(folder: str, name: str) -> ServedEncoder:
    """The encoder of a sentence-transformers folder, or of one of `export`. Raises `TeacherError`, and `SpecError` for
    a model with layers for each language."""
    reader = reader_of(Path(folder))
    if reader is not None:
        return ExportEncoder(reader, table=not is_graph(Path(folder)))
    if routes_of(Path(folder)):
        raise SpecError(f"{name} {ROUTED}")
    model = open_model(folder)
    static = type(next(iter(model))).__name__ == "StaticEmbedding"
    return ServedTable(model) if static else TransformerEncoder(model)


@dataclass(frozen=True)
class RequestPart:
    """Texts of one request that are encoded together."""

    encoder: ServedEncoder
    texts: list[str]
    done: asyncio.Future[Encoded]


class Batches:
    """Makes batches of texts that come one by one. It lives in one event loop, and its encoders in one thread."""

    def __init__(self) -> None:
        self.waiting = 0
        """Texts that no batch has yet."""
        self.sizes: Callable[[int], object] = lambda size: None
        """Called with the number of texts of each batch."""
        self._pieces: deque[RequestPart] = deque()
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1)

    async def encode(self, encoder: ServedEncoder, texts: list[str]) -> Encoded:
        """The vectors of the texts, in their order, all by this encoder."""
        parts = [await self._piece(encoder, texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        if len(parts) == 1:
            return parts[0]
        return Encoded(
            np.concatenate([part.vectors for part in parts]),
            [count for part in parts for count in part.tokens],
            [cut for part in parts for cut in part.cut],
        )

    async def _piece(self, encoder: ServedEncoder, texts: list[str]) -> Encoded:
        piece = RequestPart(encoder, texts, asyncio.get_running_loop().create_future())
        self._pieces.append(piece)
        self.waiting += len(texts)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await piece.done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            self.sizes(sum(len(piece.texts) for piece in batch))
            if batch[0].encoder.quick and sum(len(text) for piece in batch for text in piece.texts) <= QUICK_CHARACTERS:
                results = encode_all(batch)
                await asyncio.sleep(0)  # other requests are read before the next batch
            else:
                results = await loop.run_in_executor(self._thread, encode_all, batch)
            for piece, result in zip(batch, results, strict=True):
                if piece.done.done():  # whoever asked is gone
                    continue
                if isinstance(result, Encoded):
                    piece.done.set_result(result)
                else:
                    piece.done.set_exception(result)
        self._running = None

    def _next(self) -> list[RequestPart]:
        """The pieces that came first and go to one encoder, up to `BATCH` texts."""
        batch, size = list[RequestPart](), 0
        while self._pieces and (not batch or self._pieces[0].encoder is batch[0].encoder):
            if size + len(self._pieces[0].texts) > BATCH:
                break
            piece = self._pieces.popleft()
            self.waiting -= len(piece.texts)
            if not piece.done.done():
                batch.append(piece)
                size += len(piece.texts)
        return batch


def encode_all(batch: Sequence[RequestPart]) -> list[Encoded | Exception]:
    """The result of each piece. If the batch fails, each is encoded alone, so that one text fails no other's."""
    encoder, texts = batch[0].encoder, [text for piece in batch for text in piece.texts]
    try:
        whole = encoder.encode(texts)
    except Exception as error:
        return [error] if len(batch) == 1 else [encode_all([piece])[0] for piece in batch]
    ends = list(accumulate(len(piece.texts) for piece in batch))
    return [whole.rows(end - len(piece.texts), end) for piece, end in zip(batch, ends, strict=True)]


class Served:
    """A model by the name that a user gave, and what the name stands for now."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        """Loads it. Raises the errors of a name that stands for nothing."""
        if "@" in name and "/" not in name and not Path(name).is_dir():
            name = REGISTERED + name
        self.source, self.cluster = name, cluster
        self.name = name.removeprefix(REGISTERED) if name.startswith(REGISTERED) else name.rstrip("/")
        self.batches = Batches()
        self.version, self.encoder = self._load(self._version_now())
        """The registered version, which is empty if the name is no alias, and its encoder."""

    def newer(self) -> tuple[str, ServedEncoder] | None:
        """The version that the alias names now, loaded, if it is another one. Raises `BabeltuneError`."""
        version = self._version_now()
        return None if version == self.version else self._load(version)

    def _version_now(self) -> str:
        """The alias's version; empty if there is none."""
        if not self.source.startswith(REGISTERED):
            return ""
        name, _, alias = self.source.removeprefix(REGISTERED).partition("@")
        version = champion_of(self.cluster.mlflow, name, alias)
        return "" if version is None else version.version

    def _load(self, version: str) -> tuple[str, ServedEncoder]:
        view = StorageView(self.cluster)
        trial = trial_of(self.source, view.folder)
        with weights_of(self.source, trial, view) as (_, folder):
            encoder = encoder_of(folder, self.source)
        return version, encoder

    async def follow(self, interval_s: float, failed: Callable[[], object]) -> None:
        """Takes each new version once it is loaded, and until then keeps the one before. Calls `failed` each time that
        the registry or the new version cannot be read."""
        problem = ""
        while self.version:
            await asyncio.sleep(interval_s)
            try:
                if (newer := await asyncio.to_thread(self.newer)) is not None:
                    log.warning("%s: version %s serves now, %s before", self.name, newer[0], self.version)
                    self.version, self.encoder = newer
                problem = ""
            except BabeltuneError as error:
                failed()
                if str(error) != problem:
                    problem = str(error)
                    log.warning("%s: version %s goes on: %s", self.name, self.version, problem)
