"""Work that goes to the cluster as tasks, and what becomes of it where Ray fails."""

import os

import pytest
import ray

from babeltune.errors import ClusterError, DataError
from babeltune.sweep.workers.tasks import fetched, ray_refusals


def die():
    os._exit(1)


def break_off():
    raise ValueError("no such thing\nat all")


def refuse():
    raise DataError("line 7 is none")


@pytest.mark.parametrize(
    ("work", "kind", "words"),
    [
        (die, ClusterError, r"has failed \(WorkerCrashedError: .*; every trial keeps .* `babeltune resume` goes on"),
        (break_off, ClusterError, r"has failed \(ValueError: no such thing\); every trial"),
        (refuse, DataError, "^line 7 is none$"),
    ],
)
def test_what_ends_a_task_is_one_line_that_says_what_to_do(ray_cluster, work, kind, words):
    with pytest.raises(kind, match=words), ray_refusals():
        fetched(ray.remote(max_retries=0)(work).remote())
