"""How fast a student encodes: the median of many measurements, and how far these lie apart.

Students of one shape are equally fast. So a driver measures each shape that a sweep can propose once, before any trial
trains (`sweep/driver/baselines.py`). A trial without such a figure measures it itself. On a CPU one thread encodes, and
its own processor time counts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from babeltune.models.encoder import StudentEncoder, encode_all

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

MOST = 512  # sentences that are encoded for a measurement, drawn from those of the dev sets
BATCH = 64  # sentences of an off-the-shelf model's batch
SHORTEST = 1.0
"""Seconds of measuring, for a small student encodes all sentences in milliseconds, which other work disturbs."""
FEWEST = 3  # measurements of a slow student

_measured: dict[str, tuple[float, float]] = {}


def sentences_per_second(
    architecture: str,
    encoder: StudentEncoder,
    take: Callable[[NDArray[np.integer]], tuple[NDArray[np.integer], NDArray[np.integer]]],
    ids: NDArray[np.int64],
    device: torch.device,
) -> tuple[float, float]:
    """How many of the texts `ids` a student encodes in a second, from token ids to vectors, and the spread.

    It is measured once for each `architecture`, a name for all that decides the speed. `take` is as in `encode_all`."""
    if architecture not in _measured:
        drawn = np.random.default_rng(0).permutation(ids)[:MOST]
        times = _timings(lambda: encode_all(encoder, take, drawn, device=device), device)
        _measured[architecture] = speed_and_spread(len(drawn), list(times))
    return _measured[architecture]


def speed_and_spread(sentences: int, times: Sequence[float]) -> tuple[float, float]:
    """Sentences a second by the median of these seconds, and the width of their middle nine tenths as a share of it."""
    low, median, high = np.quantile(times, (0.05, 0.5, 0.95))
    return float(sentences / median), float((high - low) / median)


def bought_sentences_per_second(model: SentenceTransformer, texts: Sequence[str]) -> tuple[float, float]:
    """How many of the texts an off-the-shelf model encodes in a second, from its tokens to vectors, and the spread."""
    drawn = sorted((texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:MOST]), key=len)
    read = [model.preprocess(drawn[i : i + BATCH]) for i in range(0, len(drawn), BATCH)]
    batches = [
        {name: value.to(model.device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        for batch in read
    ]

    @torch.inference_mode()
    def encode() -> None:
        for batch in batches:
            model(batch)["sentence_embedding"].cpu()

    return speed_and_spread(len(drawn), list(_timings(encode, model.device)))


def _timings(work: Callable[[], object], device: torch.device) -> Iterator[float]:
    """Seconds of the work, again and again for a while."""
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    with _one_thread():
        work()  # the first time is slower
        began = clock()
        for rounds in itertools.count(1):
            started = clock()
            work()  # its vectors are on the CPU, so a GPU is done
            yield clock() - started
            if rounds >= FEWEST and clock() - began > SHORTEST:
                return


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
