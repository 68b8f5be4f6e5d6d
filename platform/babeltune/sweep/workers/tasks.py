"""Work in shards, as Ray tasks on the connected cluster."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray

from babeltune.errors import BabeltuneError, ClusterError
from babeltune.schema.storage_location import StorageLocation
from babeltune.stages import Count
from babeltune.sweep.sync.shards import Carrier, on_a_node
from babeltune.sweep.sync.worker import with_prepared
from babeltune.sweep.workers.nodes import cpus_there

PROGRESS_TIMEOUT_S = 1800.0
"""Seconds that a task may make no progress by default, as `progress_timeout` of cluster files."""
RESULT_TIMEOUT_S = 600.0
"""Seconds within which the result of a task that has ended must be here. The largest ones are lists of scores."""
AHEAD = 2  # tasks for each CPU whose files travel with them that are begun at a time: one runs, one waits
TELL_INTERVAL_S = 1.0  # seconds between two words of a task about how far it is
HANG = (
    "no process of {} has made progress for {:g} s, also after a new start: its disk, its network or its device hangs; "
    "what is done is kept: `babeltune resume` goes on"
)
NO_PROGRESS = (
    "a process that the sweep needs has made no progress for {:g} s: its disk, its network or its device hangs, or the "
    "cluster has no room for it; what is done is kept: `babeltune resume` goes on"
)


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


def first_of(references: list[Any], poll: Callable[[], None], seconds: float) -> tuple[list[Any], list[Any]]:
    """Waits at most this long for one of these, as `ray.wait` does, and calls `poll` about once a second."""
    deadline = time.monotonic() + seconds
    while True:
        ready, rest = ray.wait(references, num_returns=1, timeout=1.0)
        if ready or time.monotonic() > deadline:
            return ready, rest
        poll()


def fetched(reference: Any, poll: Callable[[], None] = lambda: None, *, seconds: float = PROGRESS_TIMEOUT_S) -> Any:
    """The result of a Ray task, or its own error. `ClusterError`, and its end, if it takes longer than `seconds`."""
    ready, _ = first_of([reference], poll, seconds)
    if not ready:
        kill([reference])
        raise ClusterError(NO_PROGRESS.format(seconds))
    try:
        return ray.get(reference, timeout=RESULT_TIMEOUT_S)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BabeltuneError):
            raise error.cause from None
        raise


def with_progress(
    where: StorageLocation | None, key: str, function: Callable[..., Any], *arguments: Any
) -> Iterator[tuple[int, int] | Any]:
    """For a Ray task that yields: how far `function` is, about once a second, and last what it returns.

    The function is called as by `with_prepared`, and with a `tell` that takes what is done and the total."""
    far: list[tuple[int, int]] = []

    def tell(done: int, of: int) -> None:
        far[:] = [(done, of)]

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(with_prepared, where, key, partial(function, tell=tell), *arguments)
        while not wait([work], timeout=TELL_INTERVAL_S).done:
            if far:
                yield far[0]
    yield work.result()


def followed(
    task: Any, tell: Count, poll: Callable[[], None] = lambda: None, *, seconds: float = PROGRESS_TIMEOUT_S
) -> Any:
    """The result of a task that `with_progress` runs. `ClusterError`, and its end, if it is no further in `seconds`."""
    results: list[Any] = []
    last, since = None, time.monotonic()
    while True:
        ready, _ = first_of([task], poll, since + seconds - time.monotonic())
        if not ready:
            kill([task])
            raise ClusterError(NO_PROGRESS.format(seconds))
        try:
            results.append(fetched(next(task), poll, seconds=seconds))
        except StopIteration:
            return results[-1]
        if results[-1] != last:
            last, since = results[-1], time.monotonic()
        for far in results[:-1]:
            tell(*far)
        del results[:-1]


def ray_shards(
    function: Callable[..., int],
    arguments: Sequence[tuple[object, ...]],
    *,
    gpu: bool = False,
    share: float = 0.0,
    carrier: Carrier | None = None,
    poll: Callable[[], None] = lambda: None,
    progress_timeout: float = PROGRESS_TIMEOUT_S,
) -> Iterator[int]:
    """`shards.RunShards` by Ray tasks of one CPU each and, for functions that use a GPU, a `share` of one.

    `carrier`: the nodes share no folder, so that the files travel with the tasks. Then `AHEAD` tasks for each CPU are
    there at a time, so that their files fit in memory. A file that several shards name goes to each node once. `poll`
    is called about once a second. If no task ends for `progress_timeout` seconds, they hang: they are killed and
    started again, once. `ClusterError` if no task ends then either."""
    options = ray.remote(num_cpus=1, num_gpus=share if gpu else 0.0, max_retries=2)
    remote = options(function if carrier is None else on_a_node)
    waiting, work, again = deque(arguments), dict[Any, tuple[object, ...]](), False
    packing = carrier and carrier.of(arguments)
    shared = packing and ray.put(packing.pack_shared())

    try:
        while waiting or work:
            most = len(arguments) if packing is None else AHEAD * cpus_there()
            while waiting and len(work) < most:
                each = waiting.popleft()
                parts = each if packing is None else (function, each, packing.pack(each), shared, packing.place(each))
                work[remote.remote(*parts)] = each
            ready, _ = first_of(list(work), poll, progress_timeout)
            if ready:
                done = fetched(ready[0], poll, seconds=progress_timeout)
                if packing is not None:
                    done, place = done
                    packing.unpack(work[ready[0]], place)
                del work[ready[0]]
                again = False
                yield done
                continue
            kill(work)
            if again:
                raise ClusterError(HANG.format(getattr(function, "__name__", "work"), progress_timeout))
            waiting.extendleft(reversed(work.values()))
            work.clear()
            again = True
    finally:
        for reference in work:
            ray.cancel(reference)


def kill(references: Iterable[Any]) -> None:
    """Ends tasks whose processes may be stopped."""
    for reference in references:
        ray.cancel(reference, force=True)
