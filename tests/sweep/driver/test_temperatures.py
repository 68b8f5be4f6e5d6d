"""Temperatures that are `auto` in a sweep: measured before the first trial, recorded, and the same on a resume."""

import json

import pytest

from babeltune.cli.words import settings_words
from babeltune.errors import MethodError
from babeltune.files import write_whole
from babeltune.planning.preparation import prepare
from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.driver.assignment import assignment
from babeltune.sweep.driver.measurements import measure_temperatures
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import SweepFolder, read_log
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.log import LEDGER
from conftest import cluster_at
from interrupted import stopped_in_its_second_trial
from made_sweeps import states

pytestmark = pytest.mark.usefixtures("ray_cluster", "undrawn")
NAME = "teacher_temperature"


def trial_file(folder, number):
    return json.loads((folder.trial(number) / "trial.json").read_text("utf-8"))


@pytest.mark.long
def test_a_resumed_trial_has_the_temperature_with_which_it_began_everywhere(
    ray_cluster, with_stores, tiny_file, tmp_path
):
    storage = with_stores(tmp_path / "storage")
    sweep = read_sweep(
        tiny_file,
        assignments=[
            "budget={trials: 2}",
            "training={pairs: 6400, reports: 4, global_batch: 32, learning_rate: 2e-3}",
            "parameters={teacher_temperature: {choice: [auto]}, own_share: {float: [0.3, 0.8]}}",
        ],
    )
    folder = stopped_in_its_second_trial(sweep, storage)
    before = trial_file(folder, 1)
    assert before["config"][NAME] == before["fitted"][NAME]
    assert before["params"][NAME] == "auto"
    for share in (0.3, 0.8):
        assert f"gives a row's own pair {share} of a label among 32 pairs" in read_log(folder)
    # Another number in the ledger, as if another machine had measured it: the record decides, not a new measurement.
    ledger, trial_text = (place.read_bytes() for place in (folder.path / LEDGER, folder.trial(1) / "trial.json"))
    recorded = f'"fitted": {{"{NAME}": {before["fitted"][NAME]}}}'.encode()
    assert ledger.count(recorded) == 1
    write_whole(folder.path / LEDGER, ledger.replace(recorded, f'"fitted": {{"{NAME}": 0.23451}}'.encode()))
    assert assignment(sweep, folder, 1, before["params"]).trial["config"][NAME] == 0.23451
    (folder.trial(1) / "trial.json").write_text("", encoding="utf-8")
    assert folder.read("trials/t0001/trial.json")["config"][NAME] == 0.23451, "made again from the ledger"
    write_whole(folder.path / LEDGER, ledger)
    folder = submit(sweep, cluster_at(storage))
    assert states(folder) == ["finished", "finished"]
    assert (folder.trial(1) / "trial.json").read_bytes() == trial_text
    for row in leaderboard(folder):
        if row.name.startswith("t0"):
            number = trial_file(folder, int(row.name[1:]))["config"][NAME]
            assert (row.settings[NAME], row.params[NAME]) == (number, "auto")
            assert f"{NAME}={number}" in settings_words(row.settings)


def test_a_share_that_cannot_be_had_ends_a_sweep_before_its_first_trial(tiny, tiny_file, tmp_path):
    sweep = read_sweep(
        tiny_file, assignments=["config={teacher_temperature: auto}", "parameters={own_share: {float: [0.01, 0.5]}}"]
    )
    with pytest.raises(MethodError, match=r"own_share 0.01 cannot be had: in batches of 32"):
        measure_temperatures(sweep, tiny[1], SweepFolder(tmp_path))


def test_a_temperature_is_measured_with_a_student_that_can_be_proposed(tiny_file, tiny_storage, tmp_path):
    sweep = read_sweep(
        tiny_file,
        assignments=[
            "config={teacher_temperature: auto, own_share: 0.5}",
            'parameters={student.prompt: {const: "query: "}}',
        ],
    )
    folder = SweepFolder(tmp_path)
    measure_temperatures(sweep, prepare(sweep, tiny_storage), folder)
    assert "gives a row's own pair 0.5 of a label among 32 pairs" in read_log(folder)
