"""A sweep's front, promoted at once: versions, aliases, the tests that are opened, and rungs that are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from babeltune.cli import app
from babeltune.errors import PromotionError, SpecError, SweepError
from babeltune.evaluation.metric_names import PARAMETERS, SPEED, SPREAD
from babeltune.promotion.candidate import find_candidate
from babeltune.promotion.ladder import promote_front
from babeltune.promotion.promote import promote
from babeltune.promotion.sealed_test_log import read_openings
from babeltune.schema.records import Gate, Promotion
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.tracking import registry
from babeltune.tracking.registry import champion_of, versions_of
from babeltune.training.checkpoint import checkpoint_folder
from made_sweeps import rewrite_ledger
from notified import events_in, teller

pytestmark = pytest.mark.usefixtures("one_scoring_process")
COSTS = ((30e6, 100.0, 0.1), (20e6, 400.0, 0.1), (10e6, 800.0, 0.1))
"""Weights, sentences a second and their spread, of the three finished trials, the most accurate first."""


@pytest.fixture
def ladder(copied):
    """A sweep whose three finished trials are all on the front: (folder, cluster, their names, the best first)."""
    sweep, folder, cluster = copied
    objective = sweep.objectives[0].metric
    names = [row.name for row in leaderboard(folder) if row.state == "finished" and row.best is not None]

    def priced(line):
        if line["event"] != "report" or (name := f"t{line['number']:04d}") not in names:
            return line
        place, metrics = names.index(name), line["metrics"]
        costs = dict(zip((PARAMETERS, SPEED, SPREAD), COSTS[place], strict=True))
        return {**line, "metrics": {**metrics, **costs, objective: metrics[objective] - 0.1 * place}}

    rewrite_ledger(folder, priced)
    return folder, cluster, names


def holders(cluster):
    """The trial behind each alias of the registered name."""
    versions = {
        alias: champion_of(cluster.mlflow, "searched", alias) for alias in ("small", "fast", "best", "champion")
    }
    return {alias: version.tags["babeltune.trial"] for alias, version in versions.items() if version is not None}


def test_each_model_of_the_front_is_a_version_with_its_aliases(ladder, monkeypatch):
    folder, cluster, (best, middle, small) = ladder
    move = registry.move_alias

    def cut_off(uri, name, alias, version, *, replaces):
        if alias == "fast":
            raise PromotionError("cut off")
        move(uri, name, alias, version, replaces=replaces)

    with monkeypatch.context() as patch:
        patch.setattr(registry, "move_alias", cut_off)
        with pytest.raises(PromotionError, match="cut off"):
            promote_front(folder.id, cluster)
    assert holders(cluster) == {"small": small}
    rungs = promote_front(folder.id, cluster)
    assert [rung.row.name for rung in rungs] == [best, middle, small]
    assert [rung.aliases for rung in rungs] == [("best",), (), ("small", "fast")]
    assert holders(cluster) == {"best": best, "small": small, "fast": small}, "the champion stays as it is"
    for rung in rungs:
        low, high = rung.interval
        assert low < rung.row.metrics[rung.metric] < high
    looks = read_openings(Path(cluster.storage))
    assert len({look["weights"] for look in looks}) == len(rungs), "each rung is a look of its own"
    assert "for 3 models" in " ".join(rungs[0].decisions[-1].reasons), "and the last one knows of all"
    versions = len(versions_of(cluster.mlflow, "searched"))
    again = promote_front(folder.id, cluster)
    assert {decision.verdict for rung in again for decision in rung.decisions} == {"tie"}
    assert read_openings(Path(cluster.storage)) == looks, "nothing is opened to promote the same front again"
    assert len(versions_of(cluster.mlflow, "searched")) == versions


@pytest.mark.long
def test_a_rung_that_is_refused_is_named_and_hands_on_its_aliases(ladder, monkeypatch, tmp_path):
    folder, cluster, (best, middle, small) = ladder
    place = folder.trial(int(small[1:]))
    report = find_candidate(f"{folder.id}/{small}", Path(cluster.storage)).report
    next(checkpoint_folder(place, report.index).glob("*.safetensors")).write_bytes(b"altered")
    monkeypatch.setenv("BABELTUNE_HOME", cluster.storage)
    dry = CliRunner().invoke(app, ["promote", folder.id, "--front", "--dry-run", "--json"])
    assert dry.exit_code == 0, dry.output
    assert [rung["aliases"] for rung in json.loads(dry.stdout)] == [["best"], ["small", "fast"], []]
    assert holders(cluster) == {}
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["promote", folder.id, "--front"])
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    assert "sealed everyday" in lines["trial"]
    assert "20,000,000" in lines[middle]
    assert lines[middle].rstrip().endswith("@small @fast")
    assert "refuse" in lines[small]
    assert "SHA-256" in lines[f"{small}:"]
    assert holders(cluster) == {"best": best, "small": middle, "fast": middle}
    promote_front(folder.id, replace(cluster, notify=(teller(tmp_path / "events"),)))
    ((event, words),) = events_in(tmp_path / "events")
    assert (event, words.partition(": ")[0]) == ("refusal", f"{folder.id}/{small} is not promoted")


@pytest.mark.long
def test_an_alias_stays_with_a_model_that_the_rung_does_not_beat(ladder, tmp_path):
    folder, cluster, (best, _, small) = ladder
    telling = replace(cluster, notify=(teller(tmp_path / "events"),))
    decision = promote(f"{folder.id}/{best}", telling, alias="small")
    assert events_in(tmp_path / "events") == [("promotion", f"{folder.id}/{best} is promoted as {decision.registered}")]
    rungs = promote_front(folder.id, cluster)
    assert holders(cluster) == {"best": best, "small": best, "fast": small}
    assert [decision.verdict == "promote" for decision in rungs[-1].decisions] == [False, True]


def test_a_front_that_no_rung_passes_ends_as_a_refusal(copied_home):
    sweep, folder, cluster = copied_home
    folder.write("sweep.json", replace(sweep, promotion=Promotion(gates=(Gate(test="everyday", times_chance=1000),))))
    result = CliRunner().invoke(app, ["promote", folder.id, "--front"])
    assert result.exit_code == 3, result.output
    assert "1000 x chance" in result.stdout
    assert holders(cluster) == {}


def test_a_front_is_of_a_sweep_with_finished_trials(copied):
    _, folder, cluster = copied
    with pytest.raises(SpecError, match=f"--front chooses among the trials of a sweep, and '{folder.id}/t0000' is one"):
        promote_front(f"{folder.id}/t0000", cluster)
    rewrite_ledger(folder, lambda line: None if line["event"] == "end" and line["number"] != 0 else line)
    only = leaderboard(folder)
    assert [row.name for row in only if row.state == "finished" and row.best is not None] == ["t0000"]
    assert [rung.aliases for rung in promote_front(folder.id, cluster)] == [("small", "fast", "best")]
    rewrite_ledger(folder, lambda line: None if line["event"] == "end" else line)
    with pytest.raises(SweepError, match="no finished trial"):
        promote_front(folder.id, cluster)
