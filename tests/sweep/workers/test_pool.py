import json
import os
import re
import signal

import psutil
import pytest
import ray
import torch

from babeltune.errors import ClusterError, DispatcherDiedError
from babeltune.sweep.state.messages import EndMessage, TrialEnd
from babeltune.sweep.workers import process_state as process_states
from babeltune.sweep.workers.nodes import nodes_there, worker_groups_that_fit
from babeltune.sweep.workers.pool import WorkerPool
from babeltune.sweep.workers.ray_train import ENVIRONMENT
from processes import command_line
from toy_trials import follow, groups_held, next_message, pool_of, toy, wait_until_free
from waiting import wait_until

FINISHED = TrialEnd("finished")
TWO_WORKERS = {"count": "auto", "workers": 2}


@pytest.fixture(scope="module")
def pool(ray_cluster, tmp_path_factory):
    storage = tmp_path_factory.mktemp("groups")
    with pool_of(**TWO_WORKERS, storage=storage) as opened:
        SHARED.append(opened)
        yield opened


SHARED: list[WorkerPool] = []


@pytest.fixture
def room(ray_cluster):
    """Every CPU of the cluster: the worker groups that the tests above share have ended."""
    while SHARED:
        SHARED.pop().__exit__(None, None, None)


def offer(pool, folder, name, **settings):
    pool.dispatcher.offer(name, toy(folder / name, **settings))


def starts(folder, name):
    return [json.loads(line) for line in (folder / name / "starts.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_two_groups_of_two_workers_run_six_trials(pool, tmp_path):
    assert pool.count == 2
    wait_until_free(pool, 2)
    names = [f"six-{number}" for number in range(6)]
    for name in names:
        offer(pool, tmp_path, name)
    assert [follow(pool, name) for name in names] == [([1, 2, 3], FINISHED)] * 6
    assert len({starts(tmp_path, name)[0]["pid"] for name in names}) == 2


def processes(title="RayTrainWorker"):
    """The ids of Ray's processes with this word in their title."""
    matches = set()
    for process in psutil.Process().children(recursive=True):
        matches |= {process.pid} if title in " ".join(command_line(process)[:1]) else set()
    return matches


def test_a_warm_group_starts_trial_after_trial_in_the_same_processes(pool, tmp_path):
    wait_until_free(pool, 2)
    warm = processes()
    assert len(warm) == 4
    for number in range(5):
        offer(pool, tmp_path, f"fast-{number}", steps=1)
        follow(pool, f"fast-{number}")
        assert starts(tmp_path, f"fast-{number}")[0]["pid"] in warm
    wait_until_free(pool, 2)
    assert processes() == warm


def test_a_group_has_no_process_that_it_does_not_need(pool):
    """Ray Train's own barrier is one, and what asks an autoscaler for it another."""
    assert processes()
    assert not processes("SynchronizationActor") | processes("AutoscalingCoordinator")


def test_a_used_group_draws_what_a_fresh_group_draws(pool, tmp_path):
    wait_until_free(pool, 2)
    draws = []
    for name in ("one", "two", "three"):
        offer(pool, tmp_path, name, seed=7)
        follow(pool, name)
        draws.append(json.loads((tmp_path / name / "checkpoint.json").read_text())["draw"])
    assert len(set(draws)) == 1


def test_a_stopped_trial_has_trained_exactly_to_its_report(pool, tmp_path):
    wait_until_free(pool, 2)
    offer(pool, tmp_path, "stopped", steps=5)
    assert [next_message(pool, "stopped").report.index for _ in range(2)] == [1, 2]
    offer(pool, tmp_path, "beside")
    assert follow(pool, "beside") == ([1, 2, 3], FINISHED), "meanwhile the other waits for its verdict"
    pool.dispatcher.stop("stopped")
    wait_until_free(pool, 2)
    assert json.loads((tmp_path / "stopped" / "checkpoint.json").read_text())["index"] == 2


def test_a_refused_trial_ends_with_its_reason_and_its_group_goes_on(pool, tmp_path):
    wait_until_free(pool, 2)
    before = processes()
    offer(pool, tmp_path, "refused", orders={"kind": "refuse", "at": 2})
    text = "the loss is nan at step 7; lower the learning rate"
    assert follow(pool, "refused") == ([1], TrialEnd("refused", "TrainingError", text))
    wait_until_free(pool, 2)
    assert processes() == before, "no process was started again"


@pytest.mark.long
def test_a_bug_on_one_rank_fails_its_trial_and_does_not_hang_its_worker_group(pool, tmp_path):
    wait_until_free(pool, 2)
    offer(pool, tmp_path, "bug", orders={"kind": "raise", "rank": 1, "at": 2})
    reports, end = follow(pool, "bug")
    assert (reports, end.kind, end.error_type) == ([1], "raised", "ValueError")
    assert "toy_trials.py" in end.text
    wait_until_free(pool, 2)
    offer(pool, tmp_path, "after-the-bug")
    assert follow(pool, "after-the-bug") == ([1, 2, 3], FINISHED)


@pytest.mark.long
def test_a_group_whose_own_process_dies_is_started_again_and_its_trial_goes_on(pool, tmp_path):
    wait_until_free(pool, 2)
    for name in ("bereft", "other"):
        offer(pool, tmp_path, name, steps=40, seconds=0.05)
        assert next_message(pool, name).report.index == 1
    killed = next(iter(pool._groups.values()))
    ray.kill(killed.controller)
    ray.wait([killed.run])
    pool.mend()
    for name in ("bereft", "other"):
        reports, reason = follow(pool, name)
        assert (reports[-1], reason) == (40, FINISHED)
    resumed = [[start["from"] > 0 for start in starts(tmp_path, name)] for name in ("bereft", "other")]
    assert sorted(resumed) == [[False], [False, True]]


def process_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))


def test_a_group_is_left_as_it_was_found(pool, tmp_path):
    """A trial that changes whatever a process shares, and leaves memory behind; the next one sees a clean process."""
    wait_until_free(pool, 2)
    for name in ("untidy-1", "untidy-2"):
        offer(pool, tmp_path, name, orders={"kind": "untidy", "at": 1})
    for name in ("untidy-1", "untidy-2"):
        assert follow(pool, name) == ([1, 2, 3], FINISHED)
    for name in ("clean-1", "clean-2"):
        offer(pool, tmp_path, name, orders={"kind": "look", "at": 1})
    for name in ("clean-1", "clean-2"):
        assert follow(pool, name) == ([1, 2, 3], FINISHED)
        assert starts(tmp_path, name)[0]["pid"] in {starts(tmp_path, f"untidy-{n}")[0]["pid"] for n in (1, 2)}


def test_a_group_that_can_never_fit_is_refused_with_what_is_there(ray_cluster):
    with pytest.raises(ClusterError, match=r"8 workers with 1 CPU.*has 4 CPUs and 0 GPUs in all"):
        worker_groups_that_fit(8, 1, 0)
    with pytest.raises(ClusterError, match="0 GPUs in all"):
        worker_groups_that_fit(1, 1, 1)
    assert worker_groups_that_fit(1, 2, 0) == 2


@pytest.mark.long
def test_a_trial_function_that_cannot_be_loaded_is_an_error_and_nothing_stays_behind(ray_cluster, tmp_path, pool):
    with (
        pytest.raises(ClusterError, match="no_such_function"),
        pool_of(cpus_per_worker=0, run_trial="toy_trials:no_such_function", storage=tmp_path),
    ):
        pass


def left_behind():
    cpus = ray.cluster_resources().get("CPU", 0) - ray.available_resources().get("CPU", 0)
    names = ray.util.list_named_actors(all_namespaces=True)
    return groups_held(), cpus, [n for n in names if n["name"].startswith("dispatcher-")]


def test_nothing_is_left_after_a_block_that_ends_with_an_error_in_mid_trial(ray_cluster, tmp_path, pool):
    offer(pool, tmp_path, "long", steps=500, seconds=0.1)
    next_message(pool, "long")
    pool.__exit__(KeyError, KeyError("the driver fails"), None)
    wait_until(lambda: left_behind() == (set(), 0, []), left_behind)
    assert left_behind() == (set(), 0, [])


@pytest.mark.long
def test_a_dispatcher_that_dies_is_an_error_and_its_groups_end(room, tmp_path):
    with pool_of(workers=2, storage=tmp_path) as opened:
        offer(opened, tmp_path, "long", steps=500, seconds=0.1)
        next_message(opened, "long")
        os.kill(process_of(opened.dispatcher._actor), signal.SIGKILL)
        with pytest.raises(DispatcherDiedError, match="dispatcher died; `babeltune resume` goes on"):
            follow_and_mend(opened, "long")
    wait_until(lambda: not any(psutil.pid_exists(start["pid"]) for start in starts(tmp_path, "long")))


@pytest.mark.long
def test_nothing_is_left_of_a_group_that_was_starting_again(room, tmp_path):
    """Its controller had a new placement group that no rank had reported yet."""
    before = groups_held()
    with pool_of(storage=tmp_path) as opened:
        offer(opened, tmp_path, "killed", steps=500, seconds=0.1)
        next_message(opened, "killed")
        first = groups_held()
        os.kill(starts(tmp_path, "killed")[0]["pid"], signal.SIGKILL)
        wait_until(lambda: groups_held() - first)
    assert groups_held() == before


@pytest.mark.long
def test_a_worker_that_hangs_is_replaced_and_its_trial_goes_on(room, tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "3")
    with pool_of(workers=2, storage=tmp_path) as opened:
        offer(opened, tmp_path, "hung", steps=20, seconds=0.05)
        assert next_message(opened, "hung").report.index == 1
        hung = starts(tmp_path, "hung")[0]["pid"]
        os.kill(hung, signal.SIGSTOP)
        reports, reason = follow(opened, "hung")
        assert (reports[-1], reason) == (20, FINISHED)
        _, second = starts(tmp_path, "hung")
        assert second["from"] > 0
        assert second["pid"] != hung
        assert not psutil.pid_exists(hung), "what hangs is ended"


def follow_and_mend(pool, name):
    """As a search does; the last report and how the trial ended."""
    index = 0
    while True:
        while (message := pool.dispatcher.take(name)) is None:
            pool.dispatcher.receive(0.2)
            pool.mend()
        if isinstance(message, EndMessage):
            return index, message.end
        index = message.report.index
        pool.dispatcher.go_on(name, index)


@pytest.mark.long
def test_a_trial_that_hangs_in_python_goes_on_in_new_workers(room, tmp_path):
    notes = []
    settings = {**TWO_WORKERS, "count": 1, "progress_timeout": 3.0, "note": notes.append}
    with pool_of(**settings, storage=tmp_path) as opened:
        offer(opened, tmp_path, "hung", steps=6, orders={"kind": "hang_once", "at": 3})
        assert follow_and_mend(opened, "hung") == (6, FINISHED)
    first, second = starts(tmp_path, "hung")
    assert (first["from"], second["from"]) == (0, 2)
    assert not psutil.pid_exists(first["pid"]), "what hangs is ended"
    assert [note.split(";")[0] for note in notes] == ["hung makes no progress for 3 s"]


def test_the_place_of_an_abandoned_group_is_back_once_another_node_has_come(ray_cluster, tmp_path):
    pool = pool_of(**TWO_WORKERS, storage=tmp_path)
    room = pool._room()
    pool._given_up.append(set(nodes_there()))
    assert pool._room() == room - 1
    pool._given_up[0] = {"a node that is gone"}
    assert pool._room() == room


@pytest.mark.long
def test_a_group_that_hangs_between_two_trials_is_started_again(room, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.sweep.workers.pool.STOP_TIMEOUT_S", 3.0)
    notes = []
    settings = {**TWO_WORKERS, "workers": 1, "count": 1, "progress_timeout": 3.0, "note": notes.append}
    with pool_of(**settings, storage=tmp_path) as opened:
        offer(opened, tmp_path, "last", steps=1, orders={"kind": "hang_after", "at": 1})
        assert follow_and_mend(opened, "last") == (1, FINISHED)
        offer(opened, tmp_path, "next", steps=1)
        assert follow_and_mend(opened, "next") == (1, FINISHED)
    assert notes[0].endswith("has asked for no trial for 3 s; it is started again")
    (first,), (second,) = starts(tmp_path, "last"), starts(tmp_path, "next")
    assert first["pid"] != second["pid"]


@pytest.mark.long
def test_a_groups_own_process_may_die_again_once_the_group_has_made_a_report(room, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.sweep.workers.pool.MAX_RUN_RESTARTS", 1)

    def kill(pool):
        (worker_group,) = pool._groups.values()
        ray.kill(worker_group.controller)
        ray.wait([worker_group.run])
        pool.mend()

    with pool_of(storage=tmp_path) as opened:
        offer(opened, tmp_path, "bereft", steps=500, seconds=0.05)
        for _ in range(2):
            next_message(opened, "bereft")
            kill(opened)
        with pytest.raises(ClusterError, match="cannot train"):
            kill(opened)


@pytest.mark.long
def test_a_first_trial_that_leaks_is_noticed(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(process_states, "FIRST", 64 * 2**20)
    process_state = process_states.ProcessState(threads)
    assert process_state.leak() == ""
    holders = process_states.ProcessState(threads), torch.ones(700, 2**18)
    assert re.fullmatch(r"\d+ MiB of memory", holders[0].leak())


@pytest.mark.long
def test_a_group_that_leaks_is_replaced_before_its_next_trial(room, tmp_path):
    """One that maps a large store does not leak."""
    with pool_of(storage=tmp_path) as opened:
        for name, orders in (("first", {}), ("second", {"kind": "map", "at": 2})):
            offer(opened, tmp_path, name, orders=orders)
            assert follow(opened, name) == ([1, 2, 3], FINISHED)
        offer(opened, tmp_path, "leaky", orders={"kind": "leak", "at": 2})
        assert follow(opened, "leaky") == ([1, 2, 3], FINISHED), "the trial itself is none the worse"
        offer(opened, tmp_path, "next")
        assert follow(opened, "next") == ([1, 2, 3], FINISHED)
        pids = [starts(tmp_path, name)[0]["pid"] for name in ("first", "second", "leaky", "next")]
        assert pids[0] == pids[1] == pids[2] != pids[3]
        assert not psutil.pid_exists(pids[0])


@pytest.mark.long
def test_isolation_gives_every_trial_new_workers(room, tmp_path):
    with pool_of(workers=2, storage=tmp_path, isolation="process") as opened:
        for name in ("one", "two", "three"):
            offer(opened, tmp_path, name)
            assert follow(opened, name) == ([1, 2, 3], FINISHED)
        assert len({starts(tmp_path, name)[0]["pid"] for name in ("one", "two", "three")}) == 3


@pytest.mark.long
def test_a_stopped_dispatcher_ends_the_search_with_a_line_on_how_to_go_on(room, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.sweep.workers.dispatcher_client.DISPATCHER_TIMEOUT_S", 3.0)
    with pool_of(storage=tmp_path) as opened:
        offer(opened, tmp_path, "going", steps=500, seconds=0.05)
        assert next_message(opened, "going").report.index == 1
        stopped = process_of(opened.dispatcher._actor)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(ClusterError, match=r"dispatcher has not answered for 3 s.*`babeltune resume` goes on"):
            opened.mend()
    wait_until(lambda: not psutil.pid_exists(stopped))
    assert left_behind()[0] == set()


@pytest.mark.long
@pytest.mark.parametrize("meanwhile", ["a verdict", "training"])
def test_all_ranks_end_whose_dispatcher_is_silent_whatever_they_do(room, tmp_path, meanwhile):
    """A group of two that waits for a verdict or trains, and one that waits for a trial."""
    settings = {**TWO_WORKERS, "run_trial": "toy_trials:impatient"}
    with pool_of(**settings, storage=tmp_path) as opened:
        wait_until_free(opened, 2)
        for name in ("one", "two"):  # so both groups have loaded the function
            offer(opened, tmp_path, name, steps=1)
            follow(opened, name)
        wait_until_free(opened, 2)
        (tmp_path / "busy").mkdir()
        offer(opened, tmp_path, "busy", steps=5, endless=meanwhile == "training")
        if meanwhile == "training":
            wait_until((tmp_path / "busy" / "trains").exists)
        else:
            assert next_message(opened, "busy").report.index == 1
        os.kill(process_of(opened.dispatcher._actor), signal.SIGSTOP)
        runs = [group.run for group in opened._groups.values()]
        wait_until(lambda: len(ray.wait(runs, num_returns=2, timeout=0)[0]) == 2)
        ray.get(runs, timeout=0)
        wait_until(lambda: not processes(), processes)  # so no GPU is held


@pytest.mark.long
def test_a_dispatcher_that_wakes_after_its_ranks_gave_up_loses_no_trial(room, tmp_path):
    """The ranks have left the trial, as for a stop, but it has neither ended nor been stopped."""
    settings = {**TWO_WORKERS, "count": 1, "run_trial": "toy_trials:impatient"}
    with pool_of(**settings, storage=tmp_path) as opened:
        (tmp_path / "busy").mkdir()
        offer(opened, tmp_path, "busy", endless=True)
        wait_until((tmp_path / "busy" / "trains").exists)
        dispatcher = process_of(opened.dispatcher._actor)
        os.kill(dispatcher, signal.SIGSTOP)
        wait_until((tmp_path / "busy" / "left").exists)
        os.kill(dispatcher, signal.SIGCONT)
        assert follow(opened, "busy") == ([1, 2, 3], FINISHED)
