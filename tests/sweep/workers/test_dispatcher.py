import asyncio

import pytest

from babeltune.errors import ReplacedError
from babeltune.sweep.state.messages import TrialAssignment, TrialEnd
from babeltune.sweep.workers.dispatcher import TrialDispatcher
from babeltune.sweep.workers.dispatcher_state import MAX_ENDED_TRIALS, DispatcherState
from waiting import PATIENCE_S

LONG = 3600  # seconds, more than any step of these tests takes
FINISHED, STOPPED = TrialEnd("finished"), TrialEnd("stopped")


def assignment(**fields):
    return TrialAssignment(folder="t", trial=fields).encode()


class Driver:
    """Asks the dispatcher as a driver does: one poll for all trials."""

    def __init__(self, dispatcher):
        self.dispatcher, self.number = dispatcher, 0

    async def next(self):
        """The index of the next report, which is encoded as its number here, or the next end."""
        (news, *_) = await self.dispatcher.poll(self.number, LONG)
        self.number = news.number
        return news.end or int(news.report)

    async def go_on(self, index, trial="t"):
        await self.dispatcher.go_on([(trial, index)])


def report(dispatcher, index, *, last=False, trial="t"):
    return asyncio.ensure_future(dispatcher.report(trial, index, last, str(index)))


def leave(dispatcher, end, trial="t", group="worker-group", rank=0, world=1):
    return dispatcher.leave(group, trial, rank, world, end.encode())


async def others_go_on():
    """Lets every other coroutine go on until it waits for something that is yet to happen."""
    for _ in range(100):
        await asyncio.sleep(0)


def running(steps):
    """Runs the coroutine function on a new dispatcher and its driver."""

    async def bounded():
        dispatcher = TrialDispatcher()
        return await asyncio.wait_for(steps(dispatcher, Driver(dispatcher)), PATIENCE_S)

    return asyncio.run(bounded())


# The state alone


def begun(*trials):
    """A state whose worker groups `g-t` train these trials."""
    state = DispatcherState()
    for trial in trials:
        state.offer(trial, assignment())
        state.join(f"g-{trial}", "first")
        state.assign(f"g-{trial}")
    return state


def settled(*ends, world=None):
    """How the trial ended that these ranks left, and whether their group goes on."""
    state = begun("t")
    attempt = state.trials["t"].attempt
    for rank, end in enumerate(ends):
        state.rank_left("t", rank, end.encode(), False)
    state.settle("t", world or len(ends))
    return state.trials["t"].end, attempt.go_on


def test_ranks_that_end_alike_go_on_together():
    assert settled(FINISHED, FINISHED) == (FINISHED, True)
    refused = TrialEnd("refused", "TrainingError", "the loss is nan")
    assert settled(refused, refused) == (refused, True)
    full = TrialEnd("storage", "StorageError", "the disk is full")
    assert settled(full, full) == (full, True)


def test_a_bug_on_one_rank_fails_the_trial_and_restarts_the_group():
    bug = TrialEnd("raised", "ValueError", "ValueError: a bug")
    assert settled(TrialEnd("peer"), bug) == (bug, False)
    assert settled(bug) == (bug, True), "one rank alone is not out of step"


def test_a_rank_that_lost_its_peer_does_not_fail_the_trial():
    assert settled(TrialEnd("peer", text="gloo: closed"), world=2) == (None, False)


def test_a_trial_alone_cannot_blame_a_peer():
    alone = TrialEnd("peer", "RuntimeError", "RuntimeError: gloo is not a kind of glue")
    assert settled(alone) == (alone, True)


def test_a_trial_fails_after_three_restarts_without_a_new_report():
    state = begun("t")
    for number in range(3):
        state.join("g-t", f"group-{number}")
        assert state.trials["t"].end is None
    assert state.messages == ["t lost a worker process; it goes on from its last checkpoint"] * 3
    state.join("g-t", "last")
    end = state.trials["t"].end
    assert end.kind == "restarts"
    assert "given up after 3 restarts" in end.text


def test_a_new_report_grants_three_restarts_more():
    state = begun("t")
    for index in range(1, 7):
        state.join("g-t", f"group-{index}")
        state.report("t", index, False, "")
    assert state.trials["t"].end is None


def test_a_stopped_trial_ends_when_its_group_restarts():
    state = begun("t")
    state.stop("t")
    state.join("g-t", "second")
    assert state.trials["t"].end == STOPPED


def test_news_stay_until_they_are_acknowledged():
    state = begun("t", "u")
    state.report("t", 1, False, "one")
    state.report("u", 1, False, "two")
    assert [(news.number, news.trial, news.report) for news in state.news] == [(1, "t", "one"), (2, "u", "two")]
    state.acknowledge(1)
    assert [news.number for news in state.news] == [2]


def test_the_state_forgets_all_but_the_latest_ended_trials():
    state = begun(*map(str, range(MAX_ENDED_TRIALS + 20)))
    for number in range(MAX_ENDED_TRIALS + 20):
        state.rank_left(str(number), 0, FINISHED.encode(), False)
        state.settle(str(number), 1)
    assert list(state.trials) == [str(number) for number in range(20, MAX_ENDED_TRIALS + 20)]


# Waiting


def test_a_report_waits_for_its_verdict_and_a_repeated_one_has_the_same():
    async def steps(dispatcher, driver):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "group")
        first = report(dispatcher, 1)
        assert await driver.next() == 1
        again = report(dispatcher, 1)
        await others_go_on()
        assert not first.done()
        await dispatcher.stop("t")
        answer = await leave(dispatcher, FINISHED)
        return await first, await again, answer, await driver.next()

    assert running(steps) == (False, False, True, STOPPED)


def test_the_last_report_needs_no_verdict():
    async def steps(dispatcher, driver):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "group")
        assert await report(dispatcher, 1, last=True)
        assert await leave(dispatcher, FINISHED)
        return await driver.next(), await driver.next()

    assert running(steps) == (1, FINISHED)


def test_one_poll_brings_the_news_of_all_trials():
    async def steps(dispatcher, _):
        polled = asyncio.ensure_future(dispatcher.poll(0, LONG))
        for number in range(3):
            await dispatcher.offer(f"t{number}", assignment())
            await dispatcher.next(f"worker-group-{number}", "group")
        await others_go_on()
        assert not polled.done()
        for number in range(3):
            report(dispatcher, 1, trial=f"t{number}")
        return [news.trial for news in await polled]

    assert running(steps) == ["t0", "t1", "t2"]


def test_a_poll_without_news_is_answered_with_nothing():
    assert running(lambda dispatcher, _: dispatcher.poll(0, 0.0)) == []


def test_a_trial_that_hangs_fails_after_three_restarts():
    async def steps(dispatcher, driver):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "group-0")
        waiting = report(dispatcher, 1)
        await others_go_on()
        assert await dispatcher.stalled(0, LONG) == {}, "the search is slow, not the trial"
        assert await driver.next() == 1
        await driver.go_on(1)
        assert await waiting
        for number in range(1, 5):
            assert not (await dispatcher.stopped("t")).stopped
            assert await dispatcher.stalled(LONG, LONG) == {}, "it has just asked"
            assert await dispatcher.stalled(0, LONG) == {"worker-group": "t"}
            assert await dispatcher.stalled(0, LONG) == {}, "its group is started again already"
            again = asyncio.ensure_future(dispatcher.next("worker-group", f"group-{number}"))
            await others_go_on()
        again.cancel()
        return await driver.next()

    text = "no progress for 0 s; given up after 3 restarts without a new report"
    assert running(steps) == TrialEnd("restarts", text=text)


def test_a_report_without_a_verdict_is_answered_in_time_and_handed_over_again():
    async def steps(dispatcher, driver):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "group")
        assert await dispatcher.report("t", 1, False, "1", seconds=0) is None
        assert await dispatcher.report("t", 1, False, "1", seconds=0) is None
        assert await driver.next() == 1
        await driver.go_on(1)
        assert await dispatcher.report("t", 1, False, "1", seconds=0) is True
        assert await report(dispatcher, 1) is True
        again = report(dispatcher, 2)
        assert await driver.next() == 2, "the first report came once"
        await dispatcher.stop("t")
        return await again

    assert running(steps) is False


def test_a_rank_that_waits_for_the_others_is_answered_in_time_and_asks_again(monkeypatch):
    monkeypatch.setattr("babeltune.sweep.workers.dispatcher.POLL_TIMEOUT_S", 0.01)

    async def steps(dispatcher, driver):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "group")
        unsettled = [await leave(dispatcher, FINISHED, world=2) for _ in range(2)]
        late = await leave(dispatcher, FINISHED, rank=1, world=2)
        return unsettled, late, await leave(dispatcher, FINISHED, world=2), await driver.next()

    assert running(steps) == ([None, None], True, True, FINISHED)


@pytest.mark.parametrize("how", ["joined by others", "retired"])
def test_ranks_that_others_replaced_are_refused_whatever_they_say(how):
    async def steps(dispatcher, driver):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("lost", "old")
        assert not (await dispatcher.stopped("t", "old")).stopped
        place = "lost" if how == "joined by others" else "another"
        if how == "retired":
            await dispatcher.retire("lost")
        assert (await dispatcher.next(place, "new")).trial == "t"
        for call in (
            dispatcher.report("t", 1, False, "1", "old"),
            dispatcher.stopped("t", "old"),
            dispatcher.leave("lost", "t", 0, 1, FINISHED.encode(), False, "old"),
        ):
            with pytest.raises(ReplacedError, match="other ranks have taken the place"):
                await call
        assert (await dispatcher.next("lost", "old")).kind == "close"
        reported = asyncio.ensure_future(dispatcher.report("t", 1, False, "1", "new"))
        assert await driver.next() == 1
        await driver.go_on(1)
        assert await reported
        assert await dispatcher.leave(place, "t", 0, 1, FINISHED.encode(), False, "new")
        return await driver.next()

    assert running(steps) == FINISHED


def test_ranks_that_cannot_hear_a_stop_are_let_go_and_their_group_is_replaced():
    async def steps(dispatcher, _):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "group")
        await dispatcher.stop("t")
        answer = asyncio.ensure_future(leave(dispatcher, FINISHED, world=2))
        await others_go_on()
        assert await dispatcher.abandon(LONG, []) == {}
        assert (await dispatcher.stopped("t")).stopped, "as often as it asks and does not end"
        assert await dispatcher.abandon(0, []) == {"worker-group": "t"}
        late = await leave(dispatcher, FINISHED, rank=1, world=2)
        return await answer, late

    assert running(steps) == (False, False)


def test_a_worker_group_hangs_that_has_no_trial_and_asks_for_none():
    async def steps(dispatcher, _):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "group")
        assert await dispatcher.stalled(LONG, 0) == {}, "it has one"
        assert await leave(dispatcher, FINISHED)
        await others_go_on()
        assert await dispatcher.stalled(0, LONG) == {}, "it has just had one"
        assert await dispatcher.stalled(LONG, 0) == {"worker-group": None}
        assert await dispatcher.stalled(LONG, 0) == {}, "it is started again already"
        waiting = asyncio.ensure_future(dispatcher.next("worker-group", "new"))
        await others_go_on()
        assert await dispatcher.stalled(LONG, 0) == {}, "it waits for one"
        await dispatcher.offer("u", assignment())
        return (await waiting).trial

    assert running(steps) == "u"


def test_a_trial_offered_to_a_group_that_dies_before_taking_it_is_not_lost():
    async def steps(dispatcher, _):
        dead = asyncio.ensure_future(dispatcher.next("worker-group", "group-1"))
        await others_go_on()
        reborn = asyncio.ensure_future(dispatcher.next("worker-group", "group-2"))
        await others_go_on()
        await dispatcher.offer("t", assignment())
        return (await dead).kind, (await reborn).trial

    assert running(steps) == ("wait", "t")


def test_each_trial_of_many_wakes_one_idle_worker_group():
    async def steps(dispatcher, _):
        idle = [asyncio.ensure_future(dispatcher.next(f"worker-group-{number}", "group")) for number in range(20)]
        await others_go_on()
        assert await dispatcher.free() == 20
        for number in range(20):
            await dispatcher.offer(f"t{number}", assignment())
        return [(await each).trial for each in idle]

    assert running(steps) == [f"t{number}" for number in range(20)]


def test_a_retired_worker_groups_trial_goes_to_the_next_one_with_its_reports():
    async def steps(dispatcher, driver):
        await dispatcher.offer("t", assignment(a=1))
        await dispatcher.next("gone", "group")
        report(dispatcher, 1)
        await others_go_on()
        assert await dispatcher.retire("gone") == "t"
        assert (await dispatcher.next("gone", "group")).kind == "close"
        assert (await dispatcher.next("other", "its group")).assignment.trial == {"a": 1}
        return await driver.next()

    assert running(steps) == 1


def test_a_group_that_shall_be_new_restarts_between_trials_only():
    async def steps(dispatcher, _):
        await dispatcher.offer("t", assignment())
        await dispatcher.next("worker-group", "old")
        await dispatcher.renew("worker-group")
        answer = await leave(dispatcher, FINISHED)
        await dispatcher.offer("u", assignment())
        again = await dispatcher.next("worker-group", "new")
        second = await leave(dispatcher, FINISHED, trial="u")
        idle = asyncio.ensure_future(dispatcher.next("worker-group", "new"))
        await others_go_on()
        await dispatcher.renew("worker-group")
        return answer, again.trial, second, (await idle).kind

    assert running(steps) == (False, "u", True, "renew")


def test_many_trials_are_asked_to_ask_less_often():
    async def steps(dispatcher, _):
        for number in range(1000):
            await dispatcher.offer(f"t{number}", assignment())
            await dispatcher.next(f"worker-group-{number}", "group")
        return (await dispatcher.stopped("t0")).ask_again_s

    assert running(steps) == pytest.approx(5.0)
