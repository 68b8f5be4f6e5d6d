"""Work that goes to the cluster as tasks, and what becomes of it where Ray fails."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import ray

from babeltune.errors import ClusterError, DataError
from babeltune.sweep.sync.shards import Carrier
from babeltune.sweep.workers import tasks
from babeltune.sweep.workers.tasks import fetched, followed, ray_refusals, ray_shards, with_progress
from waiting import PATIENCE_S, wait_until

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers import no test


def die():
    os._exit(1)


def break_off():
    raise ValueError("no such thing\nat all")


def refuse():
    raise DataError("line 7 is empty")


def count_to(most, folder, prepared, tell):
    """Tells each number once the one before has been noticed."""
    for number in range(1, most + 1):
        tell(number, most)
        wait_until((folder / str(number)).exists)
    return f"counted for {prepared}"


def test_a_long_task_tells_how_far_it_is_before_it_returns(ray_cluster, tmp_path):
    noticed = []

    def tell(done, of):
        noticed.append((done, of))
        (tmp_path / str(done)).touch()

    task = ray.remote(with_progress).remote(None, "", count_to, 3, tmp_path, "the data")
    assert followed(task, tell) == "counted for the data"
    assert sorted(set(noticed)) == [(1, 3), (2, 3), (3, 3)]


def refuse_it(prepared, tell):
    raise DataError(f"{prepared} is empty")


def test_an_error_of_a_task_that_tells_is_raised_as_itself(ray_cluster):
    task = ray.remote(with_progress).remote(None, "", refuse_it, "line 7")
    with pytest.raises(DataError, match=r"^line 7 is empty$"):
        followed(task, lambda done, of: None)


def ignore(done, of):
    pass


def tell_once_and_hang(folder, prepared, tell):
    tell(1, 3)
    wait_until((folder / "never").exists)


@pytest.mark.parametrize("tells", [True, False])
def test_a_task_that_gets_no_further_is_ended_with_a_line_on_how_to_go_on(ray_cluster, tmp_path, tells):
    if tells:
        task = ray.remote(with_progress).remote(None, "", tell_once_and_hang, tmp_path, "the data")
    else:
        task = ray.remote(tell_once_and_hang).remote(tmp_path, None, ignore)
    result = partial(followed, task, ignore) if tells else partial(fetched, task)
    with pytest.raises(ClusterError, match=r"has made no progress for 3 s: .*`babeltune resume` goes on"):
        result(seconds=3.0)
    with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError)):
        ray.get(next(task) if tells else task, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("work", "kind", "words"),
    [
        (die, ClusterError, r"has failed \(WorkerCrashedError: .*; every trial keeps .* `babeltune resume` goes on"),
        (break_off, ClusterError, r"has failed \(ValueError: no such thing\); every trial"),
        (refuse, DataError, "^line 7 is empty$"),
    ],
)
def test_what_ends_a_task_is_one_line_that_says_what_to_do(ray_cluster, work, kind, words):
    with pytest.raises(kind, match=words), ray_refusals():
        fetched(ray.remote(max_retries=0)(work).remote())


def stop_once(number, times, folder):
    """A task whose process is stopped this many times, as by a debugger or a file system that hangs."""
    begun = len(list(folder.glob(f"{number}-*")))
    (folder / f"{number}-{begun}").touch()
    if begun < times:
        os.kill(os.getpid(), signal.SIGSTOP)
    return number


def reverse(source, out):
    data = Path(source).read_bytes()
    Path(out).write_bytes(data[::-1])
    return len(data)


def test_files_travel_with_a_few_tasks_at_a_time(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "AHEAD", 1)
    count = int(ray.cluster_resources()["CPU"]) + 2
    arguments = [(str(tmp_path / f"{number}.in"), str(tmp_path / f"{number}.out")) for number in range(count)]
    for source, _ in arguments[:-1]:
        Path(source).write_bytes(b"ab")
    results = ray_shards(reverse, arguments, carrier=Carrier())
    done = [next(results)]
    Path(arguments[-1][0]).write_bytes(b"abc")  # its task is not begun, so that nothing of it is in memory
    assert sorted([*done, *results]) == [2] * (count - 1) + [3]
    assert Path(arguments[-1][1]).read_bytes() == b"cba"


@pytest.mark.long
def test_tasks_that_hang_are_killed_and_started_again(ray_cluster, tmp_path):
    arguments = [(number, int(number == 1), tmp_path) for number in range(3)]
    assert sorted(ray_shards(stop_once, arguments, progress_timeout=30.0)) == [0, 1, 2]
    assert len(list(tmp_path.glob("1-*"))) == 2


@pytest.mark.long
def test_tasks_that_hang_again_end_the_sweep_with_a_line_on_how_to_go_on(ray_cluster, tmp_path):
    with pytest.raises(ClusterError, match=r"no process of stop_once has made progress for 20 s.*`babeltune resume`"):
        list(ray_shards(stop_once, [(0, 2, tmp_path)], progress_timeout=20.0))
