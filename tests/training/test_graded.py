"""Graded pairs that train beside the pairs."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from babeltune.data.prepared import GradedPairs
from babeltune.errors import DataError, SpecError
from babeltune.method.contract import Graded, Tokens
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.model_card import sources
from babeltune.training.build import make_steps
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint
from babeltune.training.graded import GradedSteps, graded_loss, sizes_of
from babeltune.training.trainer import train
from collecting import Collect
from corpora import bundled
from every_method import GRADED

CPU = torch.device("cpu")


def test_the_loss_is_cosents_over_all_ordered_pairs():
    vectors, grades = torch.randn(12, 5, dtype=torch.float64), torch.tensor([0.0, 3, 3, 5, 1, 4])
    sides = [Tokens(torch.arange(start, start + 6), torch.ones(6, dtype=torch.long)) for start in (0, 6)]
    found = graded_loss(lambda tokens: vectors[tokens.ids], Graded(*sides, grades, 6), ProcessGroup())
    cosines = [float(torch.cosine_similarity(vectors[i], vectors[i + 6], dim=0)) for i in range(6)]
    wrong = sum(math.exp(20 * (cosines[i] - cosines[j])) for i in range(6) for j in range(6) if grades[i] < grades[j])
    assert found.item() == pytest.approx(math.log(1 + wrong), rel=1e-9)


def test_a_step_has_pairs_of_one_set_each_once_and_sets_come_in_proportion():
    sets = np.repeat([0, 1], [30, 90])
    pairs = GradedPairs(np.column_stack([sets, np.arange(120), np.arange(120)]), np.zeros(120))
    steps = GradedSteps(pairs, batch=16, seed=3)
    drawn = [steps.rows(step) for step in range(400)]
    assert all(len(set(rows.tolist())) == 16 and len(set(sets[rows].tolist())) == 1 for rows in drawn)
    assert len({int(row) for rows in drawn for row in rows}) == 120
    assert 60 <= Counter(int(sets[rows[0]]) for rows in drawn)[0] <= 140
    assert len(GradedSteps(pairs, batch=50, seed=3).rows(1)) in (30, 50)
    assert all(np.array_equal(steps.rows(step), rows) for step, rows in enumerate(drawn[:5]))


@pytest.mark.parametrize(("graded", "total", "world"), [(32, 31, 4), (1, 64, 3), (100, 7, 2)])
def test_every_graded_pair_is_one_ranks(graded, total, world):
    assert sum(sizes_of(graded, total, world)) == graded
    assert min(sizes_of(graded, total, world)) >= 0


def test_grades_are_learned_and_the_pairs_train_as_before(tiny_file, tiny_storage, tmp_path):
    finished = {}
    for weight in (0.0, 3.0):
        sweep = read_sweep(tiny_file, assignments=[*GRADED, f"training.graded_weight={weight}"])
        prepared, folder = prepare(sweep, tiny_storage), tmp_path / str(weight)
        trial = make_trial(sweep, 0, {})
        trial = replace(trial, training=replace(trial.training, pairs=1920, graded_batch=16))
        collect = Collect()
        train(trial, prepared, folder, collect, ProcessGroup(), CPU)
        points = collect.reports[-1]["points"][-1]["values"]
        assert ("train/graded" in points) == bool(weight)
        steps = make_steps(trial, prepared, ProcessGroup(), CPU)
        steps.train_step.encoder.load_state_dict(load_checkpoint(checkpoint_folder(folder, 2))[0]["student"])
        everything = replace(steps.reader, graded=GradedSteps(prepared.graded(), 100, 0)).graded_pairs(0, 0, 32, 32)
        with torch.no_grad():
            finished[weight] = graded_loss(steps.train_step.encoder, everything, ProcessGroup()).item()
        pairs = [int(row) for rows in map(steps.schedule.rows, range(5)) for row in rows]
        finished[weight, "pairs"] = pairs
    assert finished[3.0] < finished[0.0] - 0.5
    assert finished[3.0, "pairs"] == finished[0.0, "pairs"]


def test_graded_pairs_with_a_text_of_an_evaluation_set_are_left_out_and_counted(tiny_file, tmp_path):
    graded = tmp_path / "graded.tsv"
    rows = ["sentence1\tsentence2\tscore", "She speaks fluent Spanish and some Arabic.\tA new text.\t1"]
    graded.write_text("\n".join([*rows, "One.\tTwo.\t3", "Three.\tFour.\t4"]), encoding="utf-8")
    written = f"data.graded=[{{name: mine, path: {graded}, language: eng, limit: 3}}]"
    prepared = prepare(read_sweep(tiny_file, assignments=[written]), tmp_path / "storage")
    assert prepared.counts["rows"]["graded/mine"]["rows"] == 3
    assert prepared.counts["rows"]["graded/mine"]["train"] == 2
    assert prepared.counts["overlap"]["graded/mine"]["dev/sts"] == 1
    assert prepared.graded().grades.tolist() == [3, 4]
    graded.write_text("\n".join([*rows, "One.\tTwo.\t3", "Three.\tFour.\t3"]), encoding="utf-8")
    with pytest.raises(DataError, match=r"graded/mine: no two pairs of different grades are left; graded/mine: rows 3"):
        prepare(read_sweep(tiny_file, assignments=[written]), tmp_path / "storage")


def test_graded_pairs_with_a_text_of_held_out_rows_are_left_out(tiny_file, tmp_path):
    """A row of the training text may be a graded pair, too; held out, it is a dev set."""
    texts, graded = bundled(2000, "eng", "fra"), tmp_path / "graded.tsv"
    rows = [f"{text}\tSomething else {number}.\t{number % 5}" for number, text in enumerate(texts["eng"])]
    graded.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]), encoding="utf-8")
    written = f"data.graded=[{{name: mine, path: {graded}, language: eng}}]"
    prepared = prepare(read_sweep(tiny_file, assignments=[written, "data.split={pairs: 20}"]), tmp_path / "storage")
    heldout = {text for task in prepared.tasks if task.name == "heldout" for text in task.texts()}
    assert heldout
    assert not heldout & set(prepared.graded().pairs[:, 1].tolist())
    assert prepared.counts["overlap"]["graded/mine"]["dev/heldout"] > 0


@pytest.mark.parametrize("overlap", ["exact", "near"])
def test_near_duplicates_of_an_evaluation_set_are_counted_or_left_out(tiny_file, tmp_path, overlap):
    graded = tmp_path / "graded.tsv"
    near = "He said that she speaks fluent Spanish and also some Arabic.\tA new text.\t1"
    graded.write_text(f"sentence1\tsentence2\tscore\n{near}\nOne.\tTwo.\t3\nThree.\tFour.\t4", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text(
        "sentence1\tsentence2\tscore\nHe said that she speaks fluent Spanish and some Arabic.\tYes.\t2\nNo.\tMaybe.\t1",
        encoding="utf-8",
    )
    written = f"data.graded=[{{name: mine, path: {graded}, language: eng}}]"
    dev = f"data.dev.1.path={tmp_path / 'dev.tsv'}"
    sweep = read_sweep(tiny_file, assignments=[written, dev, f"data.overlap={overlap}"])
    prepared = prepare(sweep, tmp_path / "storage")
    assert prepared.counts["rows"]["graded/mine"]["train"] == {"exact": 3, "near": 2}[overlap]
    counted = prepared.counts["contamination"]["sources"].get("graded/mine", {})
    assert counted == {"exact": {"dev/sts": {"left": {"near": 1}}}, "near": {}}[overlap]


@pytest.mark.parametrize(
    ("assignments", "error"),
    [
        (GRADED[1:], r"data.graded.0.*: reads what data.dev.1 reads; dev sets score trials"),
        ((GRADED[0], "data.graded=[{name: a, path: sts.tsv, language: eng, group: b}]"), "dev and test sets, which"),
        ((*GRADED, "method=bilingual_aligner", "parameters={}"), "the encoder is the frozen teacher"),
        (("training.graded_weight=2",), "training.graded_weight: is of graded pairs, and data.graded lists none"),
        (("parameters.training.graded_batch={choice: [8, 16]}",), "graded_batch: is of graded pairs"),
        ((GRADED[0], "data.graded=[{name: a, path: none.tsv, language: eng}]"), "none.tsv"),
    ],
)
def test_graded_pairs_that_cannot_train_are_refused(tiny_file, assignments, error):
    with pytest.raises(SpecError, match=error):
        read_sweep(tiny_file, assignments=assignments, reachable=True)


def test_each_writes_graded_sets_once_for_many_files(tiny_file):
    each = "data.graded=[{name: a, path: 'a/{language}.tsv', language: '{language}', each: {language: [eng, fra]}}]"
    sweep = read_sweep(tiny_file, assignments=[each])
    assert [(task.path, task.language) for task in sweep.data.graded] == [("a/eng.tsv", "eng"), ("a/fra.tsv", "fra")]


def test_the_card_says_where_graded_pairs_are_from(tiny_file):
    assert "| sts | sts.tsv of babeltune | CC0-1.0 |" in sources(read_sweep(tiny_file, assignments=GRADED))
