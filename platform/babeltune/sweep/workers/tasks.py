"""Work in shards, as Ray tasks on the connected cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from babeltune.errors import BabeltuneError, ClusterError
from babeltune.sweep.sync.worker import files_of, put_files, with_files


@contextmanager
def ray_refusals() -> Iterator[None]:
    """Makes a `ClusterError` of what Ray cannot do: a process, or the node that it ran on, is gone or out of memory."""
    try:
        yield
    except ray.exceptions.RayError as error:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        why = (str(cause).strip().splitlines() or ["no words"])[0]
        raise ClusterError(
            f"a process that the sweep needs has failed ({type(cause).__name__}: {why}); every trial keeps its last "
            "checkpoint: `babeltune resume` goes on"
        ) from error


def first_of(references: list[Any], poll: Callable[[], None]) -> tuple[list[Any], list[Any]]:
    """Waits for one of these, calling `poll` about once a second, as `ray.wait` does."""
    while True:
        ready, rest = ray.wait(references, num_returns=1, timeout=1.0)
        if ready:
            return ready, rest
        poll()


def fetched(reference: Any, poll: Callable[[], None] = lambda: None) -> Any:
    """The result of a Ray task; an error of ours is raised as itself, without the worker's traceback."""
    first_of([reference], poll)
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BabeltuneError):
            raise error.cause from None
        raise


def ray_shards(
    function: Callable[..., int],
    arguments: Sequence[tuple[Any, ...]],
    *,
    gpu: bool = False,
    share: float = 0.0,
    carried: bool = False,
    poll: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """`shards.RunShards` by Ray tasks of one CPU each and, for functions that use a GPU, a `share` of one.

    `carried`: the nodes share no folder, so that the files travel with the tasks. `poll` is called about once a second.
    """
    remote = ray.remote(num_cpus=1, num_gpus=share if gpu else 0.0, max_retries=2)(with_files if carried else function)
    work = {remote.remote(*((function, a, files_of(a)) if carried else a)): a for a in arguments}
    waiting = list(work)
    try:
        while waiting:
            ready, waiting = first_of(waiting, poll)
            done = fetched(ready[0])
            if carried:
                done, made = done
                put_files(work[ready[0]], made)
            del work[ready[0]]
            yield done
    finally:
        for reference in waiting:
            ray.cancel(reference)
