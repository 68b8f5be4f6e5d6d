"""Labels and deletion of a sweep whose storage is a bucket on a real S3 server; another machine is another cache."""

import threading

import pytest

from babeltune.errors import SweepError
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.deletion import delete, deletion_of
from babeltune.schema.cluster import Cluster
from babeltune.sweep.driver.changes import change, take_requests
from babeltune.sweep.state.folder import find_sweep
from babeltune.sweep.state.lease import only_driver
from babeltune.sweep.state.log import log_of
from babeltune.sweep.sync import driver as driver_module
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.view import StorageView, records_in
from made_sweeps import add_trial, make_sweep
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def machine(s3, tmp_path, monkeypatch):
    """The cluster as a machine with its own cache has it."""
    monkeypatch.setattr(driver_module, "RENEWAL_INTERVAL_S", 0.3)
    uri = f"{s3.uri}/{tmp_path.name}"
    return lambda name: Cluster(storage=uri, cache=str(tmp_path / name), mlflow=f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture
def folder(machine, tiny_file):
    """A finished sweep that machine `one` has sent to the bucket."""
    view = StorageView(machine("one"))
    folder = make_sweep(view.folder, read_sweep(tiny_file))
    add_trial(folder, 0, [0.1, 0.3], "finished", temperature=0.1)
    for path in [*records_in(folder.path), folder.trial(0) / "reports.jsonl"]:
        view.mirror.push(path)
    return folder


def name_sweep(view, folder, name, wait_s=PATIENCE_S):
    return change(view, folder, "label", {"name": name}, lambda log: log.labels.get("name") == name, wait_s)


def test_a_name_given_on_one_machine_is_known_on_another(folder, machine):
    two = StorageView(machine("two"))
    assert name_sweep(two, two.sweep("tiny"), "best")
    for name in ("one", "three"):
        remote = StorageView(machine(name)).sweep("best")
        assert remote.id == folder.id
        assert log_of(remote.path).labels == {"name": "best"}
    assert len(log_of(remote.path).trials[0].reports) == 2, "the ledger has all that it had"


def test_the_driver_on_another_machine_takes_what_is_asked(folder, machine):
    two = StorageView(machine("two"))
    beside = two.sweep("tiny")
    with DriverSync(machine("one"), folder) as driver_sync, only_driver(folder):
        answers = []
        asking = threading.Thread(target=lambda: answers.append(name_sweep(two, beside, "best")))
        asking.start()
        wait_until(lambda: take_requests(folder) or log_of(folder.path).labels.get("name") == "best")
        driver_sync.wake()
        asking.join(PATIENCE_S)
        assert answers == [True]
        with pytest.raises(SweepError, match="it runs, and `babeltune stop"):
            deletion_of(two, beside)
    assert StorageView(machine("three")).sweep("best").id == folder.id


def test_what_a_dead_driver_did_not_take_is_for_the_next_one(folder, machine):
    two = StorageView(machine("two"))
    beside = two.sweep("tiny")
    with DriverSync(machine("one"), folder), only_driver(folder):
        assert not name_sweep(two, beside, "early", wait_s=0.0)
    assert name_sweep(two, beside, "late")
    assert StorageView(machine("three")).sweep("late").id == folder.id


def test_a_deleted_sweep_is_gone_from_the_bucket_and_from_every_machine(folder, machine, s3):
    two, one = StorageView(machine("two")), StorageView(machine("one"))
    beside = two.sweep("tiny")
    going = deletion_of(two, beside)
    assert (going.trials, going.checkpoints) == (1, 0)
    assert going.bytes > 0
    delete(two, beside)
    assert not two.mirror.store.entries(f"sweeps/{folder.id}")
    for view in (one, two):
        view.update(every=True)
        with pytest.raises(SweepError, match="no sweep"):
            find_sweep(view.folder, "tiny")
