import pytest

from babeltune.schema.records import Point, Report
from babeltune.schema.storage_location import StorageLocation
from babeltune.sweep.state.log import Ledger, end_facts
from babeltune.sweep.state.messages import FAILURES, Order, ReportMessage, TrialAssignment, TrialEnd, end_of

ASSIGNMENT = TrialAssignment(
    folder="sweeps/a/trials/t0007",
    trial={"number": 7, "config": {"temperature": 0.05}},
    prepared="sweeps/a/prepared.json",
    seed=3,
    mirror=StorageLocation(uri="s3://bucket/x"),
)
REPORT = Report(
    index=2,
    step=20,
    pairs=640,
    seconds=1.5,
    metrics={"dev/score": 0.5},
    points=(Point(step=10, time_ms=1, values={"train/loss": 2.0}),),
    last=True,
    facts={"warning": "labels are nearly flat"},
)


@pytest.mark.parametrize(
    "record",
    [
        ASSIGNMENT,
        TrialAssignment(folder="t"),
        ReportMessage("t", REPORT),
        TrialEnd("raised", "ValueError", "ValueError: a bug"),
        Order("wait"),
        Order("train", "t", ASSIGNMENT),
    ],
)
def test_a_message_is_decoded_as_it_was_encoded(record):
    assert type(record).decode(record.encode()) == record


@pytest.mark.parametrize(
    ("record", "kind"),
    [({"state": "COMPLETE"}, "finished"), ({"state": "stopped", "reason": ""}, "stopped"), ({}, "stopped")],
)
def test_a_record_without_a_kind_is_of_a_trial_that_was_stopped_or_finished(record, kind):
    assert end_of(record) == TrialEnd(kind, text=record.get("reason", ""))


def test_a_recorded_kind_counts_whatever_its_text_says():
    end = TrialEnd("refused", "TrainingError", "stopped by the user's own method, the storage is fine")
    assert end_of({"state": "FAIL", **end_facts(end)}) == end


def test_the_ledger_keeps_the_kind_of_an_end(tmp_path):
    end = TrialEnd("objective", text="objective dev/score is nan at report 2")
    Ledger(tmp_path / "results.jsonl").add_end(3, "FAIL", None, end)
    (line,) = Ledger(tmp_path / "results.jsonl").lines
    assert end_of(line) == end
    assert end.failed
    assert {end.kind} <= FAILURES
