"""Who waits for another process waits for a limited time: a process that is stopped is not seen to have ended."""

import ast
import sys
import time
from pathlib import Path

import pytest
import ray
from ray.util import placement_group

import babeltune
from babeltune.errors import ReplacedError
from babeltune.sweep.workers import worker_groups
from babeltune.sweep.workers.pool_settings import PoolSettings
from babeltune.sweep.workers.worker import DispatcherReporter, Place, answer_of
from babeltune.sweep.workers.worker_groups import WorkerGroup, WorkerGroups
from toy_trials import a_report
from waiting import PATIENCE_S, wait_until

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers import no test

WAITS = ("join", "wait", "result", "acquire", "communicate")
OF_HEAD = (
    *("ray.nodes", "ray.get_actor", "ray.available_resources", "ray.cluster_resources"),
    *("available_resources_per_node", "placement_group_table", "get_placement_group_table"),
)
"""Questions to the head, for whose answers Ray waits without a deadline. `from_head` asks them."""
WITHOUT = {
    "reproduce.py: process.join": "training on this machine, which takes as long as the trial did",
    "tasks.py: work.result": "work that has ended",
    "lease.py: ray.get_actor": "at a driver's start, which waits for the head in any case",
    "lease.py: ray.nodes": "the same",
    "watched_process.py: process.wait": "a process of ours that has closed its standard error, so that it ends",
    "ray_internals.py: state._connect_and_get_accessor().get_placement_group_table": "what `from_head` asks",
    "ray_internals.py: available_resources_per_node": "the same",
    "trial_proxy.py: self._follower.result": "no future: a follower's next result, if there is one",
    "trial_proxy.py: self._followers[tracked].result": "no future: a follower's next result, if there is one",
}
"""Waits without a deadline, and why they may."""


def waits(path):
    """The calls of this file that wait without a deadline."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(OF_HEAD):
            yield f"{path.name}: {ast.unparse(node.func)}"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        called, limited = ast.unparse(node.func), any(word.arg == "timeout" for word in node.keywords)
        if called in ("ray.get", "ray.wait"):
            if not limited:
                yield f"{path.name}: {called}"
        elif node.func.attr in WAITS and not limited and not node.args:
            yield f"{path.name}: {called}"


def test_every_wait_for_another_process_has_a_deadline():
    files = sorted(Path(babeltune.__file__).parent.rglob("*.py"))
    assert {wait for path in files for wait in waits(path)} == WITHOUT.keys()


class Silent:
    """An actor that takes calls and answers none."""

    def get_result(self):
        time.sleep(PATIENCE_S)

    report = stopped = lambda self, *_: time.sleep(PATIENCE_S)


@pytest.fixture
def silent(ray_cluster):
    actor = ray.remote(num_cpus=0)(Silent).remote()
    yield actor
    ray.kill(actor)


def test_a_controller_that_does_not_say_why_it_ended_is_not_waited_for(silent, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_groups, "CONTROLLER_TIMEOUT_S", 1.0)
    settings = PoolSettings(count=1, workers=1, cpus_per_worker=1, gpus_per_worker=0, run_trial="", storage=tmp_path)
    groups = WorkerGroups(settings, "a dispatcher")
    groups["one"] = WorkerGroup(silent, ray.put(None))
    assert groups.why_ended("one") == "its controller has not said why within 1 s"


def test_a_rank_whose_dispatcher_is_silent_ends_and_fails_no_trial(silent, monkeypatch):
    monkeypatch.setattr("babeltune.sweep.workers.worker.ANSWER_TIMEOUT_S", 1.0)
    reporter = DispatcherReporter(silent, "t", Place("a group", 0, 1, "cpu"))
    assert reporter.stopped(), "all ranks leave the trial at one step"
    with pytest.raises(ReplacedError, match="dispatcher has not answered a worker for 1 s"):
        reporter.report(a_report(1))
    with pytest.raises(ReplacedError):
        answer_of(silent.get_result.remote())


class Orphan:
    """An actor that asks for room, as a controller does that has outlived the raylet of its node."""

    def ask(self):
        return placement_group([{"CPU": 1}]).id.binary()


def test_an_ended_group_whose_controller_lives_on_holds_no_room(ray_cluster, tmp_path):
    actor = ray.remote(num_cpus=0)(Orphan).remote()
    settings = PoolSettings(count=1, workers=1, cpus_per_worker=1, gpus_per_worker=0, run_trial="", storage=tmp_path)
    groups = WorkerGroups(settings, "a dispatcher")
    groups._ended.add(actor._actor_id.binary())
    assert not groups.free_ended()
    for _ in range(2):
        ray.get(actor.ask.remote(), timeout=PATIENCE_S)
        assert groups.free_ended()
        wait_until(lambda: not groups.free_ended())
    ray.kill(actor)
