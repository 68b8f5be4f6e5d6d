"""What of an attempt goes on when its dispatcher dies, and what begins anew with another driver."""

import time

import pytest

from babeltune.errors import ClusterError, DispatcherDiedError
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Budget
from babeltune.signals import StopSignal
from babeltune.sweep.driver.attempt import DISPATCHER_DIED, DISPATCHERS, SweepRun, replacing_dispatchers
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.progress import SweepProgress
from toy_methods import toy_sweep


def dying(times, error=DispatcherDiedError):
    """A search whose first dispatchers die, and how often it began."""
    begun = []

    def search():
        begun.append(len(begun))
        if len(begun) <= times:
            raise error("the sweep's dispatcher died; `babeltune resume` goes on")

    return search, begun


@pytest.mark.parametrize("deaths", range(DISPATCHERS))
def test_a_sweep_outlives_three_deaths_of_its_dispatcher(deaths):
    (search, begun), notes = dying(deaths), []
    replacing_dispatchers(search, notes.append)
    assert (len(begun), notes) == (deaths + 1, [DISPATCHER_DIED] * deaths)


def test_the_fourth_death_of_the_dispatcher_ends_the_sweep_with_what_to_do():
    (search, begun), notes = dying(9), []
    with pytest.raises(DispatcherDiedError, match="`babeltune resume` goes on"):
        replacing_dispatchers(search, notes.append)
    assert (len(begun), notes) == (4, [DISPATCHER_DIED] * 3), "the last death is an error, and no note"


def test_what_is_no_death_of_a_dispatcher_ends_the_sweep_at_once():
    (search, begun), notes = dying(9, ClusterError), []
    with pytest.raises(ClusterError):
        replacing_dispatchers(search, notes.append)
    assert (len(begun), notes) == (1, [])


@pytest.fixture
def clock(monkeypatch):
    """Sets the monotonic clock."""
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)

    def clock(seconds):
        clock.now = seconds

    clock(1000.0)
    return clock


def driver(place, **budget):
    """An attempt of a new driver, where its search may begin."""
    sweep = toy_sweep(parameters={}, budget=Budget(**budget))
    folder = SweepFolder(place)
    folder.write("sweep.json", sweep)
    return SweepRun(sweep, Cluster(), folder, SweepProgress(sweep, folder), None, StopSignal(), False)


def test_the_minutes_of_a_budget_go_on_in_the_worker_groups_of_the_next_dispatcher(tmp_path, clock):
    attempt = driver(tmp_path, minutes=2)
    attempt._begin()
    clock(1090.0)
    attempt._begin()
    assert not attempt.stop.starts_no_more(), "30 s are left"
    clock(1121.0)
    assert attempt.stop.starts_no_more(), "90 s and 31 s: the first worker groups' time counts, once"
    attempt._begin()
    assert attempt.stop.starts_no_more(), "minutes that are over do not begin again"


def test_a_resumed_sweep_has_its_minutes_anew_from_where_its_search_begins(tmp_path, clock):
    first = driver(tmp_path, minutes=2)
    first._begin()
    clock(1121.0)
    second = driver(tmp_path, minutes=2)
    clock(1500.0)
    assert first.stop.starts_no_more()
    assert not second.stop.starts_no_more(), "it prepares"
    second._begin()
    clock(1619.0)
    assert not second.stop.starts_no_more()
    clock(1621.0)
    assert second.stop.starts_no_more()


def test_a_budget_without_minutes_never_ends_by_the_clock(tmp_path, clock):
    attempt = driver(tmp_path)
    attempt._begin()
    clock(1e12)
    assert not attempt.stop.starts_no_more()
