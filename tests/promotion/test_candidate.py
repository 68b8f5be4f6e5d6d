"""What a candidate was chosen from and by, and what that is worth."""

from dataclasses import replace
from pathlib import Path

import pytest

from babeltune.data.prepared import IdTask
from babeltune.evaluation.distinct_rows import distinct_rows
from babeltune.promotion.candidate import chosen_among, export_model, find_candidate, selection_of
from babeltune.promotion.promote import promote
from babeltune.schema.records import Objective
from babeltune.tracking.registry import find_run
from babeltune.training.checkpoint import checkpoint_folder, read_reports, write_reports
from made_sweeps import rewrite_ledger
from registering import register

pytestmark = pytest.mark.usefixtures("one_scoring_process")
OLD = {"babeltune.sweep": "another-0123456789", "babeltune.trial": "t0000", "babeltune.report": "1"}


def without_metrics(line, reports):
    """A report's line of the ledger without what it scored, unless trial and report are known."""
    number = {number for number, _ in reports}
    is_report = line["event"] == "report" and line["number"] in number
    return {**line, "metrics": {}} if is_report and (line["number"], line["index"]) not in reports else line


def test_a_pruned_trial_was_a_candidate_and_one_without_a_report_was_none(copied):
    _, folder, cluster = copied
    end = {"event": "end", "number": 3}
    rewrite_ledger(folder, lambda line: {**line, "state": "PRUNED"} if end.items() <= line.items() else line)
    candidate = find_candidate(f"{folder.id}/t0000", Path(cluster.storage))
    assert chosen_among(candidate) == 3
    assert selection_of(candidate).among == 3


@pytest.mark.parametrize("metric", ["dev/everyday/f1", "dev/mean_cosine", "model/parameters", "train/loss"])
def test_a_metric_without_a_standard_error_is_worth_nothing_that_is_known(copied, metric):
    _, folder, cluster = copied
    candidate = find_candidate(folder.id, Path(cluster.storage))
    assert selection_of(replace(candidate, preferred=Objective(metric=metric))) is None


def test_languages_of_a_multi_way_set_are_the_same_rows():
    """All pairs of four languages have 100 rows, not 600; two sets of different sentences have both their rows."""
    columns = [tuple(range(100 * language, 100 * language + 100)) for language in range(4)]
    pairs = [(a, b) for a in range(4) for b in range(a)]

    def bitext(left, right, subset=""):
        return IdTask(name="t", kind="bitext", subset=subset, left=left, right=right)

    tasks = [bitext(columns[a], columns[b], f"{a}-{b}") for a, b in pairs]
    assert distinct_rows(tasks) == distinct_rows([tasks[0], tasks[5], *tasks[1:5]]) == 100
    changed = bitext(columns[0], (*columns[3], 7, 8))
    assert distinct_rows([*tasks, changed]) == 100
    assert distinct_rows([*tasks, bitext(tuple(range(900, 1000)), tuple(range(1000, 1100)))]) == 200
    topics = tuple("ab" * 50)
    of_topics = [IdTask(name="s", kind="transfer", subset=str(n), left=c, labels=topics) for n, c in enumerate(columns)]
    assert distinct_rows(of_topics) == 100
    assert distinct_rows([]) == 0


@pytest.mark.long
def test_the_level_is_corrected_for_the_best_of_n_whatever_the_metric_that_chose(copied, tmp_path):
    """On dev sets: the first objective has no standard error, and a rule may choose by another metric."""
    sweep, folder, cluster = copied
    objectives = (Objective(metric="dev/everyday/f1"),)
    folder.write("sweep.json", replace(sweep, objectives=objectives, data=replace(sweep.data, test=())))
    for place in folder.trials():  # the checkpoints that are kept are the best ones by another objective
        indices = {r.index for r in read_reports(place) if checkpoint_folder(place, r.index).exists()}
        write_reports(place, [r if r.index in indices else replace(r, metrics={}) for r in read_reports(place)])
        reports = {(int(place.name[1:]), index) for index in indices}
        rewrite_ledger(folder, lambda line, reports=reports: without_metrics(line, reports))
    run = find_run(cluster.mlflow, "searched", folder.id, 0)
    first = promote(folder.id, cluster, dry_run=True)
    assert (first.among, first.chosen_by, first.selection) == (3, "dev/everyday/f1", None)
    export_model(find_candidate(folder.id, Path(cluster.storage)), tmp_path / "model")
    register(cluster.mlflow, "searched", tmp_path / "model", run, "champion", OLD, replaces=None)
    chosen = promote(folder.id, cluster, prefer="max sts", dry_run=True)
    assert (chosen.chosen_by, chosen.selection.metric) == ("dev/sts/spearman", "dev/sts/spearman")
    assert chosen.selection.value == pytest.approx(chosen.dev["dev/sts/spearman"], abs=0.01)
    assert any("best of 3 trials" in reason and "is therefore 0.9833" in reason for reason in chosen.reasons)
