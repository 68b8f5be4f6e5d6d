"""What a user has had computed in a month, and what a cluster's quota refuses."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from babeltune.errors import QuotaError, SweepError
from babeltune.files import plain
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion import deletion
from babeltune.promotion.deletion import delete
from babeltune.schema.cluster import Cluster, Quota
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.log import LEDGER, append_event, log_of
from babeltune.sweep.sync.audit import ACTOR, who
from babeltune.sweep.sync.quota import hours_of, left_of
from babeltune.sweep.sync.view import StorageView
from made_sweeps import make_sweep

HOUR_MS = 3_600_000


def at(*date):
    """Milliseconds since 1970 of a date in UTC."""
    return round(datetime(*date, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def cluster(tmp_path):
    return Cluster(storage=str(tmp_path), mlflow=f"sqlite:///{tmp_path}/mlflow.db", quota=Quota(gpu_hours=10.0))


@pytest.fixture
def folder(tmp_path, tiny_file):
    return make_sweep(tmp_path, read_sweep(tiny_file))


def driver(folder, when, user="ana", gpus=2.0, token=None):
    """The line with which a driver begins."""
    keys = ("facts", "digests", "environment", "contaminated", "teacher", "world")
    holder = {"user": user, "by_system": True, "cpus": 4.0, "gpus": gpus}
    facts = {"spec": plain(folder.sweep()), "mlflow_metrics": None, "holder": holder, **{key: {} for key in keys}}
    append_event(folder.path / LEDGER, "submit", token, time_ms=when, **facts)


def event(folder, kind, when, number=0, **more):
    append_event(folder.path / LEDGER, kind, number=number, time_ms=when, **more)


def end(folder, when, number=0):
    event(folder, "end", when, number, state="COMPLETE", values=None)


def test_a_trial_counts_from_its_start_to_its_end_times_its_share(folder):
    noon = at(2026, 5, 4, 12)
    driver(folder, noon)
    event(folder, "start", noon)
    event(folder, "start", noon + HOUR_MS, 1)
    event(folder, "stop", noon + 2 * HOUR_MS)
    end(folder, noon + 3 * HOUR_MS, 1)
    hours = hours_of(folder, noon / 1000)
    assert hours == {("ana", "2026-05", "gpu_hours"): 8.0, ("ana", "2026-05", "cpu_hours"): 16.0}


def test_a_trial_over_the_end_of_a_month_counts_in_both(folder):
    night = at(2026, 12, 31, 23)
    driver(folder, night)
    event(folder, "start", night)
    end(folder, night + 4 * HOUR_MS)
    hours = hours_of(folder, 0)
    assert hours["ana", "2026-12", "gpu_hours"] == pytest.approx(2.0)
    assert hours["ana", "2027-01", "gpu_hours"] == pytest.approx(6.0)


def test_hours_after_a_crash_and_those_of_another_driver_are_their_own(folder):
    noon = at(2026, 5, 4, 12)
    driver(folder, noon)
    event(folder, "start", noon)
    event(folder, "report", noon + HOUR_MS, index=1, values=[0.1])
    driver(folder, noon + 20 * HOUR_MS, "bob", gpus=1.0)  # ana's driver has died after its last line
    event(folder, "start", noon + 20 * HOUR_MS)
    end(folder, noon + 23 * HOUR_MS)
    hours = hours_of(folder, 0)
    assert hours["ana", "2026-05", "gpu_hours"] == 2.0
    assert hours["bob", "2026-05", "gpu_hours"] == 3.0


def test_what_an_overtaken_driver_writes_late_ends_no_trial_of_the_next_one(folder):
    noon = at(2026, 5, 4, 12)
    driver(folder, noon, token=1)
    event(folder, "start", noon, token=1)
    driver(folder, noon + HOUR_MS, "bob", gpus=1.0, token=2)
    event(folder, "start", noon + HOUR_MS, token=2)
    event(folder, "stop", noon + 2 * HOUR_MS, token=1)
    event(folder, "end", noon + 4 * HOUR_MS, token=2, state="COMPLETE", values=None)
    assert hours_of(folder, 0)["bob", "2026-05", "gpu_hours"] == 3.0


def test_a_note_long_after_a_crash_is_no_hour_of_computing(folder):
    noon = at(2026, 5, 4, 12)
    driver(folder, noon)
    event(folder, "start", noon)
    event(folder, "report", noon + HOUR_MS, index=1, values=[0.1])
    append_event(folder.path / LEDGER, "label", time_ms=noon + 120 * HOUR_MS, note="it crashed")
    append_event(folder.path / LEDGER, "continue", time_ms=noon + 121 * HOUR_MS)
    assert hours_of(folder, 0)["ana", "2026-05", "gpu_hours"] == 2.0


def test_a_deletion_that_is_cut_short_counts_no_hour_twice(folder, cluster, monkeypatch):
    spend(folder, 4.0)
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "remove_folder", lambda *_: (_ for _ in ()).throw(OSError(13, "Permission denied")))
        with pytest.raises(SweepError, match="cannot be removed"):
            delete(StorageView(cluster), folder)
    assert [quota.used for quota in left_of(StorageView(cluster))] == [4.0]
    delete(StorageView(cluster), folder)
    assert [quota.used for quota in left_of(StorageView(cluster))] == [4.0]


def test_a_ledger_that_names_no_user_and_a_broken_line_count_for_nobody(folder):
    noon = at(2026, 5, 4, 12)
    event(folder, "start", noon)
    with (folder.path / LEDGER).open("ab") as file:
        file.write(b'{"event": "submit"\n[]\n')
    end(folder, noon + HOUR_MS)
    assert hours_of(folder, 0) == {}


def spend(folder, hours, user=None, *, hour=0):
    now = datetime.now(UTC)
    begun = at(now.year, now.month, 1, hour)
    driver(folder, begun, user or who(), gpus=1.0)
    event(folder, "start", begun)
    end(folder, begun + round(hours * HOUR_MS))


def test_a_submit_above_the_quota_is_refused_in_one_line(folder, cluster, tiny_file):
    spend(folder, 10.5)
    sweep = read_sweep(tiny_file, assignments=["name=next"])
    with pytest.raises(QuotaError) as refused:
        submit(sweep, cluster)
    text, month = str(refused.value), f"{datetime.now(UTC):%B %Y}"
    assert text.startswith(f"{who()}, has used 10.50 of 10 GPU hours in {month} (UTC); next month it begins anew")
    assert "--over-quota" not in text
    assert ("\n" in text, refused.value.exit_code) == (False, 3)
    assert [path.name for path in folder.path.parent.iterdir()] == [folder.id], "nothing of it was made"
    with pytest.raises(QuotaError, match="--over-quota goes on all the same"):
        submit(sweep, replace(cluster, quota=Quota(gpu_hours=10.0, over_quota=True)))


def test_the_quota_of_one_user_is_not_spent_by_another(folder, cluster, monkeypatch):
    spend(folder, 10.5, "bob")
    view = StorageView(cluster)
    assert [(quota.user, quota.used, quota.by_system) for quota in left_of(view)] == [(who(), 0.0, True)]
    monkeypatch.setenv(ACTOR, "bob@laptop.example.org")
    (quota,) = left_of(view)
    assert (quota.user, quota.used, quota.by_system) == ("bob", 10.5, False)
    assert "by the word of the job's sender alone" in str(quota)


def test_a_deleted_sweep_gives_no_hours_back(folder, cluster, tmp_path, tiny_file):
    spend(folder, 4.0)
    delete(StorageView(cluster), folder)
    assert [quota.used for quota in left_of(StorageView(cluster))] == [4.0]
    again = make_sweep(tmp_path, read_sweep(tiny_file))
    spend(again, 3.0, hour=5)
    assert [quota.used for quota in left_of(StorageView(cluster))] == [7.0]
    delete(StorageView(cluster), again)
    assert [quota.used for quota in left_of(StorageView(cluster))] == [7.0]
    (record,) = (tmp_path / "deleted").iterdir()
    record.write_text("[", encoding="utf-8")
    assert [quota.used for quota in left_of(StorageView(cluster))] == [0.0]


def test_plan_and_submit_say_what_is_left(folder, tmp_path, tiny_file, command):
    spend(folder, 12.0)
    file = tmp_path / "here.yaml"
    file.write_text(f"name: here\nstorage: {tmp_path}\nquota: {{gpu_hours: 10, cpu_hours: 1000}}\n", encoding="utf-8")
    out = command.prints("plan", tiny_file, "--no-calibrate", "--cluster", file)
    assert "has used 12.00 of 10 GPU hours" in " ".join(out.split())
    assert "has used 48.00 of 1,000 CPU hours" in " ".join(out.split())
    code, out, err = command("submit", tiny_file, "--set", "name=next", "--cluster", file)
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].startswith("error: ")
    code, _, err = command("submit", tiny_file, "--over-quota", "--cluster", file)
    assert (code, err.count("\n")) == (2, 1)
    assert "has no `over_quota: true`" in err


def test_a_sweep_that_ran_counts_for_its_user(searched):
    sweep, folder = searched
    hours = hours_of(folder, (folder.path / LEDGER).stat().st_mtime)
    ended = [trial for trial in log_of(folder.path).trials.values() if trial.end is not None]
    seconds = sum(trial.reports[-1].seconds for trial in ended if trial.reports)
    ((key, value),) = ((key, value) for key, value in hours.items() if key[2] == "cpu_hours")
    assert key[0] == who()
    assert value * 3600 >= 2 * seconds, "two workers of a CPU each had it for as long as they trained, or longer"
    assert sweep.budget.workers == 2
