"""Storages whose folder has in its name what a URL takes for its own."""

from pathlib import Path

import pytest

from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.model_names import model_folder
from babeltune.promotion.promote import promote
from babeltune.schema.cluster import read_cluster
from babeltune.schema.paths import sqlite_file, sqlite_url
from babeltune.sweep.driver.run import submit
from babeltune.sweep.search.study import write_study
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.tracking.mlflow_client import artifact_folder, open_client
from babeltune.tracking.registry import champion_of
from served import tracking

pytestmark = pytest.mark.usefixtures("undrawn")
ODD = "50% ?mode=ro #1 {x}@b:c;d&e=f%41+ü"
"""A folder's name."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", ODD, "a?b", "a#b", "a%20b", "a b", "{a}", "file:a", "@", "[a]"])
def test_the_url_of_a_file_names_that_file(tmp_path, name):
    path = tmp_path / name / "study.db"
    assert sqlite_file(sqlite_url(path)) == path
    assert artifact_folder(sqlite_url(path)) == tmp_path / name / "artifacts"
    open_client(sqlite_url(path))
    assert (tmp_path / name / "artifacts").is_dir()


@pytest.mark.long
def test_a_sweep_runs_and_its_model_is_promoted_whatever_its_folder_is_called(ray_cluster, tiny_file, tmp_path):
    storages = [tmp_path / f"{ODD}{number}" for number in (1, 2)]
    for storage in storages:
        cluster = read_cluster(environ={"BABELTUNE_HOME": str(storage)})
        assert Path(cluster.storage) == storage
        sweep = read_sweep(tiny_file)
        folder = submit(sweep, cluster)
        rows = [row for row in leaderboard(folder) if row.params]
        assert [(folder.state(), len(rows))] == [("finished", 2)], rows
        assert write_study(sweep, folder.path, storage / "study.db") == 2
    decision = promote(None, cluster, out=storage / "given")
    assert decision.verdict == "promote", decision.reasons
    assert champion_of(cluster.mlflow, sweep.name, "champion").version == "1"
    assert Path(model_folder(f"models:/{sweep.name}@champion", cluster), "modules.json").is_file()
    assert promote(None, cluster).verdict == "tie"
    with tracking(cluster.mlflow, artifact_folder(cluster.mlflow), storage) as uri:
        client = open_client(uri)
        (experiment,) = [each for each in client.search_experiments() if each.name == sweep.name]
        assert len(client.search_runs([experiment.experiment_id])) == 1 + 2 + 2, "a sweep, its baselines and trials"
        run = client.create_run(client.create_experiment("by-hand"))
        client.log_text(run.info.run_id, "kept", "words.txt")
    assert [path.read_text() for path in (storage / "artifacts").rglob("words.txt")] == ["kept"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {storage.name for storage in storages}, "nothing was written beside them"
