"""Any model scored on a sweep's own sets, and what is said of sets that it was trained on or that are not sealed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from babeltune.errors import SpecError
from babeltune.promotion.candidate import export_model, find_candidate, lineage
from babeltune.promotion.compare import conclusion_of
from babeltune.promotion.evaluate import evaluate_model
from babeltune.promotion.model_card import model_card
from babeltune.promotion.promote import promote
from babeltune.promotion.sealed_test_log import read_openings
from babeltune.promotion.sweep_scores import compare_models, evaluate_in_sweep
from babeltune.tracking.registry import champion_of

pytestmark = pytest.mark.usefixtures("one_scoring_process")


@pytest.fixture
def exported(copied, tmp_path):
    """A model folder that nothing connects with its sweep."""
    _, folder, _ = copied
    export_model(find_candidate(f"{folder.id}/t0000", folder.path.parents[1]), tmp_path / "model")
    return str(tmp_path / "model")


def test_a_model_is_scored_on_a_sweeps_dev_sets(copied, exported):
    _, folder, cluster = copied
    evaluation = evaluate_in_sweep(folder.id, exported, cluster, test=False)
    trial = find_candidate(f"{folder.id}/t0000", folder.path.parents[1])
    name = folder.sweep().objectives[0].metric
    assert evaluation.scores[name] == pytest.approx(trial.report.metrics[name], abs=3e-3)
    assert not evaluation.warnings
    assert not read_openings(Path(cluster.storage))


def test_a_sweeps_sealed_tests_are_opened_for_any_model_and_that_is_recorded(copied, exported):
    _, folder, cluster = copied
    evaluation = evaluate_in_sweep(folder.id, exported, cluster, test=True)
    assert any(name.startswith("test/everyday/") for name in evaluation.scores)
    (opening,) = read_openings(Path(cluster.storage))
    assert opening["model"] == exported
    again = evaluate_in_sweep(folder.id, f"{folder.id}/t0000", cluster, test=True)
    assert "opened 2 times" in again.warnings[0]


def test_two_models_are_compared_on_the_dev_sets_of_the_trials_sweep(copied, tmp_path):
    _, folder, cluster = copied
    first = find_candidate(f"{folder.id}/t0000", folder.path.parents[1])
    export_model(first, tmp_path / "untrained", untrained=True)
    comparison = compare_models(str(tmp_path / "untrained"), f"{folder.id}/t0000", cluster)
    assert comparison.sweep == folder.id
    mean = comparison.overall[0]
    assert mean.challenger == pytest.approx(first.report.metrics["dev/everyday/accuracy"], abs=3e-3)
    assert mean.difference == pytest.approx(mean.challenger - mean.champion)
    assert mean.low <= mean.difference <= mean.high
    assert comparison.verdicts[0] == "better"
    assert {cell.name.rpartition("/")[2] for cell in comparison.cells} >= {"accuracy"}
    back = compare_models(f"{folder.id}/t0000", str(tmp_path / "untrained"), cluster)
    assert back.verdicts[0] == "worse"
    assert not read_openings(Path(cluster.storage))


def test_a_model_compared_with_itself_is_equal(copied, exported):
    _, folder, cluster = copied
    comparison = compare_models(f"{folder.id}/t0000", exported, cluster)
    assert set(comparison.verdicts) == {"equal"}
    assert all(cell.difference == 0 for cell in comparison.cells)


def test_two_models_without_a_sweep_need_one(copied, exported):
    _, folder, cluster = copied
    with pytest.raises(SpecError, match="name the sweep whose dev sets count: --sweep"):
        compare_models(exported, exported, cluster)
    with pytest.raises(SpecError, match="is one trial; name its sweep"):
        compare_models(exported, exported, cluster, sweep=f"{folder.id}/t0000")
    assert compare_models(exported, exported, cluster, sweep=folder.id).sweep == folder.id


def test_compared_models_are_shown_with_intervals(copied, exported, capsys):
    from rich.console import Console

    from babeltune.cli.render import compared_words, show_compared

    _, folder, cluster = copied
    comparison = compare_models(f"{folder.id}/t0000", exported, cluster)
    show_compared(comparison, Console(width=160))
    shown = capsys.readouterr().out
    assert f"A: {folder.id}/t0000, B: {exported}, on the dev sets of {folder.id}" in shown
    assert "mean bitext accuracy: A and B " in shown, "they are equal, or do not differ beyond chance"
    assert "dev sets (Holm): they differ in none." in shown
    mean = replace(comparison.overall[0], difference=0.05, differing=7)
    for low, high, conclusion, words in (
        (0.01, 0.09, "better", "B is better, by +0.0500 [+0.0100, +0.0900], p 1"),
        (-0.01, 0.11, "undecided", "A and B do not differ beyond chance: +0.0500 [-0.0100, +0.1100], p 1"),
    ):
        case = replace(mean, low=low, high=high)
        assert conclusion_of(case) == conclusion
        assert compared_words(conclusion, case).startswith(f"mean bitext accuracy: {words}")
        assert f"; they differ on 7 of {mean.items}" in compared_words(conclusion, case)


def test_a_trial_in_place_of_a_sweep_is_refused(copied, exported):
    _, folder, cluster = copied
    with pytest.raises(SpecError, match="is one trial; name its sweep"):
        evaluate_in_sweep(f"{folder.id}/t0000", exported, cluster, test=False)


def test_a_sweep_without_sealed_tests_cannot_open_them(copied, exported):
    _, folder, cluster = copied
    without_tests(folder)
    with pytest.raises(SpecError, match="no sealed tests; leave out --test"):
        evaluate_in_sweep(folder.id, exported, cluster, test=True)


def test_a_set_made_of_training_text_is_warned_of(copied, tmp_path):
    _, folder, cluster = copied
    sweep = folder.sweep()
    (tmp_path / "train.tsv").write_bytes(training_file(sweep).read_bytes())
    columns = ", ".join(f"{code}: {name}" for code, name in sweep.data.train[0].columns.items())
    source = f"{{name: s, path: train.tsv, columns: {{{columns}}}}}"
    section = f"data:\n  root: {tmp_path}\n  dev: [{{name: seen, source: {source}, limit: 40}}]\n"
    (tmp_path / "seen.yaml").write_text(section)
    evaluation = evaluate_model(f"{folder.id}/t0000", str(tmp_path / "seen.yaml"), cluster, test=False)
    assert any(word.startswith("seen: ") and "training text" in word for word in evaluation.warnings)


def training_file(sweep):
    from babeltune.planning.sweep_file import data_root

    return data_root(sweep) / sweep.data.train[0].path


def without_tests(folder):
    """Takes the sealed tests and the gates out of the sweep's record."""
    values = json.loads((folder.path / "sweep.json").read_text(encoding="utf-8"))
    values["data"]["test"], values["promotion"]["gates"] = [], []
    (folder.path / "sweep.json").write_text(json.dumps(values), encoding="utf-8")


def test_a_model_without_sealed_tests_is_promoted_with_a_warning_and_marked(copied):
    _, folder, cluster = copied
    without_tests(folder)
    decision = promote(folder.id, cluster)
    assert decision.verdict == "promote", decision.reasons
    assert any("no sealed tests" in reason for reason in decision.reasons)
    card = (Path(decision.folder) / "README.md").read_text(encoding="utf-8")
    assert "## No sealed tests" in card
    version = champion_of(cluster.mlflow, folder.sweep().name, "champion")
    assert version.tags["babeltune.sealed_tests"] == "none"


def test_a_card_of_a_model_that_was_tested_does_not_say_otherwise(copied):
    _, folder, _ = copied
    candidate = find_candidate(f"{folder.id}/t0000", folder.path.parents[1])
    assert lineage(candidate)["babeltune.trial"] == "t0000"
    from babeltune.promotion.gates import Decision

    decision = Decision(
        verdict="promote", reasons=(), sweep=folder.id, trial="t0000", report=1, dev={}, test={"test/everyday/x": 1.0},
        chosen_by="dev/everyday/accuracy", among=3,
    )  # fmt: skip
    card = model_card(candidate.sweep, candidate.trial, candidate.report, candidate.prepared, decision)
    assert "No sealed tests" not in card
    assert "No sealed tests" in model_card(
        candidate.sweep, candidate.trial, candidate.report, candidate.prepared, replace(decision, test={})
    )
