"""`babeltune refit`: the best settings of a sweep, trained longer with several seeds, as a sweep of its own."""

import json
from dataclasses import replace

import pytest
import yaml

from babeltune.errors import SpecError, SweepError
from babeltune.planning.rules import problems
from babeltune.promotion.promote import promote
from babeltune.sweep.state.folder import RATES, SweepFolder
from babeltune.sweep.state.leaderboard import leaderboard, winner
from babeltune.sweep.state.refit import Gain, best_settings, gain_words, gains, refit_of, settings_of
from made_sweeps import rewrite_ledger

pytestmark = pytest.mark.usefixtures("one_scoring_process", "ray_cluster", "undrawn")
METRIC = "dev/everyday/accuracy"


def cluster_file(cluster, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        json.dumps({"storage": cluster.storage, "mlflow": cluster.mlflow, "worker_groups": 1}), encoding="utf-8"
    )
    return str(file)


@pytest.mark.long
def test_a_refit_trains_the_best_settings_longer_and_promotes_under_the_same_name(copied, command, tmp_path):
    sweep, folder, cluster = copied
    file = cluster_file(cluster, tmp_path)
    stores = {path.name for path in (folder.path.parents[1] / "stores").rglob("*") if "teacher" in str(path)}
    first = promote(folder.id, cluster)
    assert first.verdict == "promote", first.reasons
    said = command.prints(
        *("refit", sweep.name, "--top", "1", "--pairs", "1.25x", "--seeds", "2", "--cluster", file),
        *("--set", "budget.workers=1"),
    )
    best = winner(folder)
    assert f"settings of {best.name}: {best.metrics[METRIC]:.4f} -> " in said
    (place,) = (path for path in folder.path.parent.iterdir() if path.name.startswith(f"{sweep.name}-refit-"))
    made = SweepFolder(place)
    again = made.sweep()
    assert again.training.pairs == 1.25 * sweep.training.pairs
    trials = [row for row in leaderboard(made) if row.params]
    assert len(trials) == 2
    assert all(row.state == "finished" for row in trials), "nothing is stopped early"
    chosen = best_settings(folder, 1)
    assert sorted(row.params["seed"] for row in trials) == [0, 1]
    for row in chosen:
        assert sum(settings_of(other) == settings_of(row) for other in trials) == 2
    assert again.refit_of == tuple(f"{folder.id}/{row.name}" for row in chosen)
    after = {path.name for path in (folder.path.parents[1] / "stores").rglob("*") if "teacher" in str(path)}
    assert after == stores, "the teacher encodes nothing again"

    decision = promote(made.id, cluster)
    assert decision.contest is not None
    assert sweep.name in decision.contest.champion, "against the sweep's own champion"
    said = command.prints("status", made.id, "--cluster", file)
    assert f"trains longer the settings of {folder.id}/{chosen[0].name}" in " ".join(said.split())

    found = gains(folder, made)
    assert {gain.trial for gain in found} == {row.name for row in chosen}
    for gain in found:
        assert len(gain.after) == 2
        assert gain.gain == pytest.approx(gain.mean - gain.before)
        assert gain.low <= gain.gain <= gain.high


def test_a_refit_is_written_as_a_sweep_file(copied, command, tmp_path):
    sweep, _, cluster = copied
    file = cluster_file(cluster, tmp_path)
    said = command.prints("refit", sweep.name, "--seeds", "1", "--pairs", "5000", "--write", "-", "--cluster", file)
    values = yaml.safe_load(said)
    assert values["training"]["pairs"] == 5000
    assert values["scheduler"]["kind"] == "none"
    assert len(values["sampler"]["points"]) == values["budget"]["trials"]
    said = command.prints("refit", sweep.name, "--write", tmp_path / "refit.yaml", "--cluster", file)
    assert "babeltune submit" in said
    command.prints("plan", tmp_path / "refit.yaml", "--no-calibrate")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--top", "0"], 2, "--top"),
        (["--seeds", "0"], 2, "--seeds"),
        (["--pairs", "0.5x"], 2, "is below the sweep's own"),
        (["--pairs", "1"], 2, "is below the sweep's own"),
        (["--pairs", "ten times"], 2, "--pairs 'ten times': give a multiple such as 10x"),
        (["--pairs", "-3x"], 2, "give a multiple"),
        (["--pairs", "9" * 400 + "x"], 2, "--pairs"),
        (["--set", "training.nothing=1"], 2, "unknown key"),
        (["--write", "/nowhere/at/all.yaml"], 2, "cannot be written"),
    ],
)
def test_bad_words_are_one_line(copied, command, tmp_path, words, code, expected):
    sweep, _, cluster = copied
    ended, _, said = command("refit", sweep.name, *words, "--cluster", cluster_file(cluster, tmp_path))
    assert ended == code, said
    assert expected in " ".join(said.split())
    assert "Traceback" not in said


def test_what_cannot_be_trained_longer_is_refused(copied, command, tmp_path):
    _, folder, cluster = copied
    said = command.refuses("refit", "nothing-like-it", "--cluster", cluster_file(cluster, tmp_path))
    assert "no sweep 'nothing-like-it'" in said
    rewrite_ledger(folder, lambda line: {**line, "state": "PRUNED"} if line["event"] == "end" else line)
    with pytest.raises(SweepError, match="no finished trial to train longer"):
        refit_of(folder, top=3, length="10x", seeds=3)


def test_the_refit_of_any_search_is_a_sweep_that_plan_accepts(copied, tmp_path):
    _, folder, _ = copied
    values = folder.read("sweep.json")
    values["sampler"] |= {"kind": "tpe", "multivariate": True, "group": True, "first_points": "static"}
    folder.write("sweep.json", values)
    refit = refit_of(folder, top=1, length="2x", seeds=2)
    assert list(problems(refit)) == []
    assert (refit.sampler.kind, len(refit.sampler.points), refit.sampler.first_points) == ("random", 2, None)


def test_the_length_of_a_sweep_by_compute_is_a_multiple(copied):
    _, folder, _ = copied
    values = folder.read("sweep.json")
    values["budget"]["unit"], values["training"]["compute"] = "compute", 4.0
    folder.write("sweep.json", values)
    folder.write(RATES, {"rates": [40.0, 8.0]})
    assert refit_of(folder, top=1, length="10x", seeds=2).training.rates == (40.0, 8.0), "a second stays as long"
    assert refit_of(folder, top=1, length="10x", seeds=2).student.seed is None
    assert refit_of(folder, top=1, length="10x", seeds=2, one_start=True).student.seed == folder.sweep().seed
    assert refit_of(folder, top=1, length="10X", seeds=1).training.compute == 40.0
    with pytest.raises(SpecError, match="as long as their compute; give a multiple"):
        refit_of(folder, top=1, length="1000000", seeds=1)


def test_a_gain_is_one_line_with_its_interval():
    one = Gain(trial="t0001", before=0.5, after=(0.6, 0.7), mean=0.65, gain=0.15, low=-0.48, high=0.78)
    assert gain_words(one) == "settings of t0001: 0.5000 -> 0.6500 (0.6000, 0.7000), gain +0.1500 [-0.4800, +0.7800]"
    assert gain_words(replace(one, after=(0.6,), low=None, high=None)).endswith("gain +0.1500")
