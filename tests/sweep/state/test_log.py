"""The fold of a sweep's ledger: any prefix is a sweep, and who follows it sees what who reads it at once does."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.sweep.state.log import LEDGER, Ledger, SweepLog, append_event
from babeltune.sweep.state.messages import ENDED, ENDS

NUMBERS = st.integers(0, 3)
EVENTS = st.one_of(
    st.builds(lambda n, t: {"event": "propose", "number": n, "params": {"temperature": t}}, NUMBERS, st.floats(0, 1)),
    st.builds(lambda n, e: {"event": e, "number": n}, NUMBERS, st.sampled_from(["start", "stop"])),
    st.builds(
        lambda n, i, v: {"event": "report", "number": n, "index": i, "values": [v], "metrics": {"a": v}, "step": i},
        NUMBERS,
        st.integers(1, 4),
        st.floats(0, 1),
    ),
    st.builds(
        lambda n, end: {"event": "end", "number": n, "state": end, "values": None}, NUMBERS, st.sampled_from([*ENDS])
    ),
    st.just({"event": "leave", "state": "é"}),
    st.builds(lambda n: {"event": "give_up", "trials": [n]}, NUMBERS),
)
"""Events in any order: a sweep's own order is one of them."""
FOREIGN = st.sampled_from([b"5", b"[]", b'{"event": "end", "number": 1}', b'{"event": "other", "number": 1}', b"\xff{"])


def encoded(events):
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in events)


def folded(log):
    """What the log has of each trial, without what readers made of it."""
    return {number: {**asdict(trial), "derived": None} for number, trial in log.follow().trials.items()}


def read_at_once(path):
    return folded(SweepLog(path))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / LEDGER


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS | FOREIGN, max_size=12), st.lists(st.floats(0, 1), max_size=5))
def test_who_follows_a_ledger_sees_what_who_reads_it_at_once_sees(ledger, events, cuts):
    content = encoded(events)
    ledger.write_bytes(b"")
    followed = SweepLog(ledger)
    for end in [*sorted(int(cut * len(content)) for cut in cuts), len(content)]:
        ledger.write_bytes(content[:end])
        whole = content[: content.rfind(b"\n", 0, end) + 1]
        assert folded(followed) == read_at_once(ledger)
        ledger.write_bytes(whole)
        assert folded(followed) == read_at_once(ledger), "a line that was cut off is no event"


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=12), st.lists(EVENTS, max_size=12))
def test_any_prefix_of_a_ledger_is_a_sweep_and_what_has_happened_stays(ledger, before, after):
    ledger.write_bytes(encoded(before))
    first = read_at_once(ledger)
    ledger.write_bytes(encoded(before + after))
    then = read_at_once(ledger)
    proposed = {each["number"] for each in before if each["event"] == "propose"}
    assert {number for number, trial in first.items() if trial["params"] is not None} == proposed
    for number, trial in first.items():
        assert trial["logged"].items() <= then[number]["logged"].items(), "a report is what it was at first"
        assert trial["state"] not in ENDED or then[number]["state"] in ENDED, "a trial ends for good"
        assert (trial["end"] is None) == (trial["state"] not in ENDED)


def test_a_line_that_an_overtaken_driver_wrote_late_does_not_count(tmp_path):
    path = tmp_path / LEDGER
    append_event(path, "propose", 1, number=0, params={"by": "first"})
    append_event(path, "continue", 2)  # the second driver has the sweep
    late = Ledger(path, 1, mend=False)
    late.add("propose", 1, params={"by": "late"})
    log = SweepLog(path).follow()
    assert {number: trial.params for number, trial in log.trials.items()} == {0: {"by": "first"}}
    second = Ledger(path, 2)
    second.add("propose", 1, params={"by": "second"})
    late.add("end", 1, state="FAIL", values=None)
    for reader in (log.follow(), SweepLog(path).follow()):
        assert {number: trial.params["by"] for number, trial in reader.trials.items()} == {0: "first", 1: "second"}
        assert reader.ended == 0
    assert [line["params"]["by"] for line in Ledger(path, 3).lines] == ["first", "second"]
