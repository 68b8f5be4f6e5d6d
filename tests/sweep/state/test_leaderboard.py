"""Which row of a leaderboard leads."""

import pytest

from babeltune.sweep.state.leaderboard import Row, leading

TEACHER = Row(name="teacher", state="finished")


def row(name, state, best=1):
    return Row(name=name, state=state, best=best)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([row("t0002", "stopped"), TEACHER, row("t0000", "finished"), row("t0001", "finished")], "t0000"),
        ([TEACHER, row("t0003", "failed", None), row("t0002", "pruned"), row("t0001", "running")], "t0002"),
        ([TEACHER, row("t0000", "running", None)], None),
    ],
)
def test_a_finished_trial_leads_before_any_other_and_a_baseline_never(rows, name):
    found = leading(rows)
    assert (found and found.name) == name
