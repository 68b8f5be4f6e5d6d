"""Which row of a leaderboard leads, and by which metric it is sorted."""

from pathlib import Path

import pytest

from babeltune.errors import UnknownNameError
from babeltune.planning.goals import whole_name
from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import Row, check_known, leading

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
    leader = leading(rows)
    assert (leader and leader.name) == name


def test_a_metric_may_be_named_as_tables_show_it(tiny_file):
    sweep = read_sweep(tiny_file)
    names = ("everyday/accuracy", "dev/everyday/accuracy", "train/loss", "absent/accuracy")
    assert [whole_name(sweep.data, name) for name in names] == ["dev/everyday/accuracy", *names[1:]]


def test_of_many_metrics_only_the_nearest_are_named():
    rows = [Row(name="t0000", state="finished", metrics={f"dev/news/{i}/accuracy": 0.5 for i in range(60)})]
    with pytest.raises(UnknownNameError, match=r"known: (dev/news/\d+/accuracy, ){5}dev/news/\d+/accuracy and 54 more"):
        check_known(SweepFolder(Path("news")), rows, "dev/news/7/acuracy")
