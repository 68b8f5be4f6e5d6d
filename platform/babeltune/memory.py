"""The machine below a training: its memory, its garbage, and the instructions that it lacks."""

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator

import torch


def emulates_bf16() -> bool:
    """Whether bf16 is slow here: no GPU, and a processor without instructions for it (50 times slower than fp32)."""
    return not torch.cuda.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected in the block. Imports leave none, and looking for it takes a sixth of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def passed_over() -> Iterator[Callable[[], None]]:
    """Objects that exist at its beginning are no candidates for garbage in the block, nor are those that exist when
    what it yields is called. That collects the newer ones first. So no collection takes longer with more objects that
    stay: one of all that a driver has imported, and of some thousand trials, took half a second."""

    def pass_over() -> None:
        gc.collect()
        gc.freeze()

    gc.freeze()
    try:
        yield pass_over
    finally:
        gc.unfreeze()


def give_back_memory() -> None:
    """Returns freed heap to the system, if the C library can.

    Every batch has tensors of new sizes, which leave holes: without this a worker grew from 0.8 to 3 GB in 160 steps.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
