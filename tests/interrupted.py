"""A real sweep that is stopped while its second trial trains."""

from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import SweepFolder
from conftest import cluster_at
from made_sweeps import states
from waiting import when


def stopped_in_its_second_trial(sweep, storage):
    """The folder of the sweep, whose first trial has finished."""
    place = storage / "sweeps"

    def has_reported():
        return any((folder / "trials/t0001/reports.jsonl").exists() for folder in place.glob("*"))

    def stop():
        for folder in place.glob("*"):
            SweepFolder(folder).stop_request.touch()

    stopping = when(has_reported, stop)
    folder = submit(sweep, cluster_at(storage))
    stopping.join()
    assert folder.state() == "stopped"
    assert states(folder) == ["finished", "stopped"]
    return folder
