"""The training loop on a real corpus, teacher and student, small."""

import json
import math
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune import train as alone
from babeltune.data import arrays
from babeltune.data.prepared import write_prepared
from babeltune.errors import SpecError, StorageError, TrainingError
from babeltune.files import plain
from babeltune.method import available, load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import MovingAverage, Training
from babeltune.training.averages import Averages
from babeltune.training.build import make_reader, make_train_step
from babeltune.training.checkpoint import (
    checkpoint_folder,
    last_good,
    load_checkpoint,
    read_reports,
    read_state,
    stage_of,
    state_of,
    stopped_folder,
)
from babeltune.training.step import TrainStep, halvings_after, learning_rate_at
from babeltune.training.trainer import TrialTrainer, train
from collecting import Collect
from every_method import GRADED, SETTINGS, assignments
from processes import ended
from waiting import PATIENCE_S

CPU = torch.device("cpu")
DROPOUT = "student.dropout=0.1"
STATIC = "student={kind: static, width: 32, projection: teacher, vocabulary: 500, max_tokens: 32}"
MATRYOSHKA = "training.matryoshka=[64, 16]"
AVERAGE = "training.average={kind: ema, decay: 0.9, every: 3}"
LAST = "training.average={kind: last, share: 0.7, every: 1}"
FROZEN = ("bilingual_aligner", "dimension_reduction")  # methods on a frozen encoder, which train no student


def test_a_point_is_the_mean_of_its_steps_and_the_least_of_what_is_named_so():
    meter = Averages(every=3)
    for step, (loss, least) in enumerate([(1.0, 5.0), (2.0, 3.0), (6.0, 4.0), (8.0, 9.0)], start=1):
        meter.add(step, {"loss": loss, "lealla/negatives_least": least}, 0.1, flush=step == 4)
    whole, rest = (point.values for point in meter.take())
    assert whole == {"train/loss": 3.0, "train/lealla/negatives_least": 3.0, "train/learning_rate": 0.1}
    assert rest == {"train/loss": 8.0, "train/lealla/negatives_least": 9.0, "train/learning_rate": 0.1}


def run(sweep, prepared, folder, collect=None, **training):
    trial = make_trial(sweep, 0, {})
    trial = replace(trial, training=replace(trial.training, **training))
    collect = collect or Collect()
    train(trial, prepared, folder, collect, ProcessGroup(), CPU)
    return collect.reports


def weights(folder, index):
    return load_checkpoint(checkpoint_folder(folder, index))[0]


def same(a, b):
    names = [{(part, name) for part in tensors for name in tensors[part]} for tensors in (a, b)]
    return names[0] == names[1] and all(torch.equal(a[part][name], b[part][name]) for part, name in names[0])


def test_an_evaluation_says_how_many_sentences_it_has_encoded(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.training.trainer.PROGRESS_INTERVAL_S", 0.0)
    seen = []

    class Looking(Collect):
        def stopped(self):
            if (tmp_path / "progress.json").exists():
                seen.append(json.loads((tmp_path / "progress.json").read_text(encoding="utf-8")))
            return super().stopped()

    run(*tiny, tmp_path, Looking(), pairs=640, reports=1)
    stages = [stage for each in seen if (stage := stage_of(each)) is not None]
    texts = {text for task in tiny[1].tasks for text in task.texts_of("student")}
    assert {(stage.name, stage.of) for stage in stages} == {("evaluating", len(texts))}
    assert [stage.done for stage in stages] == sorted(stage.done for stage in stages)
    assert stages[-1].done == len(texts)
    assert seen[-1]["step"] == seen[-1]["steps"]
    assert seen[-1]["loss"] > 0
    seconds = [each["seconds"] for each in seen]
    assert 0 < seconds[0] < seconds[-1] == max(seconds)


@pytest.mark.trap(7, 38)
def test_a_trial_learns_and_reports_at_equal_shares_of_its_pairs(tiny, tmp_path):
    reports = run(*tiny, tmp_path, pairs=1920, reports=3)
    assert [r["pairs"] for r in reports] == [640, 1280, 1920]
    assert [r["last"] for r in reports] == [False, False, True]
    first, last = reports[0]["points"][0]["values"], reports[-1]["points"][-1]["values"]
    assert last["train/loss"] < first["train/loss"]
    assert 0 <= reports[-1]["metrics"]["dev/everyday/accuracy"] <= 1
    assert -1 <= reports[-1]["metrics"]["dev/sts/spearman"] <= 1
    assert reports[0]["facts"]["effective_negatives"] == 31


def test_text_of_one_language_alone_trains_in_batches_of_its_own(tiny_file, tmp_path, monkeypatch):
    """Its steps have no ranking term, and the means of that term are over the other steps."""
    more = "{name: more, path: natural_train.tsv, id: id, columns: {eng: eng}, cap: 60}"
    sources = [f"data.train=[{{name: two, path: natural_train.tsv, id: id, columns: {{eng: eng, fra: fra}}}}, {more}]"]
    sweep = read_sweep(
        tiny_file, assignments=[*sources, "method=lealla", "parameters={}", "teacher.target_side=copy_anchor"]
    )
    prepared = prepare(sweep, tmp_path)
    assert prepared.groups == ("eng-fra", "eng-eng")
    steps, step = [], TrainStep.step

    def recorded(self, batch, *seen):
        values = step(self, batch, *seen)
        steps.append((batch.alone, torch.equal(batch.source_ids, batch.target_ids), values))
        return values

    monkeypatch.setattr(TrainStep, "step", recorded)
    (tmp_path / "out").mkdir()
    reports = run(sweep, prepared, tmp_path / "out", pairs=1920)
    assert {(alone, same, "ams" in values) for alone, same, values in steps} == {
        (True, True, False),
        (False, False, True),
    }
    assert np.isfinite(reports[-1]["metrics"]["dev/everyday/accuracy"])


def test_a_trial_is_chosen_by_a_search_in_mixed_languages(tiny_file, tiny_storage, tmp_path):
    """From the file to the report; the best possible order is the one of the trial's own vectors."""
    text = "{name: everyday, path: natural_dev.tsv, columns: {eng: eng, fra: fra, kor: kor}}"
    pool = f"{{name: pool, task: retrieval, corpus: mixed, cutoff: 5, limit: 40, source: {text}}}"
    one = f"{{name: one, task: retrieval, limit: 40, source: {text}}}"
    sets = [f"data.dev=[{pool}, {one}]", "objectives=[{metric: dev/pool/ndcg_at_10}]"]
    sweep = read_sweep(tiny_file, assignments=sets)
    prepared = prepare(sweep, tiny_storage)
    assert [task.subset for task in prepared.tasks] == ["eng", "fra", "kor", "fra-eng", "kor-eng"]
    metrics = run(sweep, prepared, tmp_path)[-1]["metrics"]
    names = [f"dev/pool/{place}ndcg_at_10" for place in ("", "eng/", "fra/", "kor/")]
    mean, *each = (metrics[name] for name in names)
    assert mean == pytest.approx(sum(each) / 3)
    assert 0 < mean < metrics["dev/one/ndcg_at_10"] < 1, "among the texts of one language the search is easier"
    assert 0 < metrics["dev/pool/same_language_bias"] <= 1
    assert metrics["dev/pool/recall_at_5"] < metrics["dev/one/recall_at_100"] == 1, "of 40 documents all are found"


@pytest.mark.parametrize("queue", [100, 1000])
def test_a_queues_negatives_are_no_more_than_the_distinct_texts_in_it(tiny, tmp_path, queue):
    sweep, prepared = tiny
    sweep = replace(sweep, method="laser3_co", parameters={}, config={"queue": queue, "variant": "co"})
    facts = run(sweep, prepared, tmp_path)[-1]["facts"]
    held = weights(tmp_path, 2)["method"]["queue.ids"].unique()
    anchors = np.unique(prepared.pairs()[:, 0])
    assert facts["effective_negatives"] == facts["effective_negatives_least"] == min(queue, len(anchors))
    if queue > len(anchors):
        assert len(held[held >= 0]) == facts["effective_negatives"] < queue


def test_between_reports_a_trial_leaves_its_step_and_loss(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.training.trainer.PROGRESS_INTERVAL_S", 0.0)
    sweep, prepared = tiny
    reports = run(replace(sweep, config={"teacher_temperature": 0.2}), prepared, tmp_path)
    now = json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))
    assert (now["step"], now["steps"]) == (20, 20)
    assert now["loss"] > 0
    assert "warning" not in reports[-1]["facts"]


@pytest.mark.trap(10)
def test_labels_that_are_nearly_flat_are_warned_of(tiny, tmp_path):
    sweep, prepared = tiny
    reports = run(replace(sweep, config={"teacher_temperature": 5.0}), prepared, tmp_path)
    words = "labels are nearly flat (100% of log N): set teacher_temperature to auto, or lower it"
    assert reports[-1]["facts"]["warning"] == words


def test_labels_that_are_nearly_hard_are_warned_of(tiny, tmp_path):
    sweep, prepared = tiny
    noted = run(replace(sweep, config={"teacher_temperature": 0.1}), prepared, tmp_path / "soft")[-1]["facts"]
    assert "% of their weight is on the own pair" in noted["warning"]
    assert noted["warning"].endswith("set teacher_temperature to auto, raise it, or set labels: hard")
    meant = replace(sweep, config={"labels": "hard"})
    assert "warning" not in run(meant, prepared, tmp_path / "hard")[-1]["facts"]


def test_the_same_seed_gives_the_same_weights_bit_for_bit_and_another_seed_does_not(tiny, tmp_path):
    sweep, prepared = tiny
    run(sweep, prepared, tmp_path / "a")
    run(sweep, prepared, tmp_path / "b")
    run(replace(sweep, seed=5), prepared, tmp_path / "c")
    assert same(weights(tmp_path / "a", 2), weights(tmp_path / "b", 2))
    assert not same(weights(tmp_path / "a", 2), weights(tmp_path / "c", 2))


def test_every_installed_method_of_ours_is_trained_here():
    ours = {name for name, place in available().items() if place.startswith("babeltune_methods.")}
    assert ours == SETTINGS.keys()


def of_method(method, file, storage, *more):
    """The tiny sweep of this method, and what is prepared for it."""
    sweep = read_sweep(file, assignments=[*assignments(method), *more])
    return sweep, prepare(sweep, storage)


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("translation_ranking", "dimension_reduction")]


@pytest.mark.parametrize("method", ["ml_ctl", *LONG])
def test_numbers_of_64_bits_give_the_trial_that_those_of_32_give(
    tiny_file, tiny_storage, tmp_path, monkeypatch, method
):
    narrow = of_method(method, tiny_file, tiny_storage)
    monkeypatch.setattr(arrays, "NARROW", 40)
    wide = of_method(method, tiny_file, tmp_path / "wide")
    for prepared, width in ((narrow[1], 4), (wide[1], 8)):
        kept = [prepared.pairs(), prepared.teacher_rows(), *map(np.load, prepared.negatives.values())]
        kept += [np.load(each.words) for each in prepared.tokens.values() if each.words]
        assert {array.itemsize for array in kept} == {width}
    assert len(kept) == (2 if method == "dimension_reduction" else 3), "negatives of one, words of another"
    for number, (sweep, prepared) in enumerate((narrow, wide)):
        run(sweep, prepared, tmp_path / str(number), pairs=640, reports=1)
    assert same(weights(tmp_path / "0", 1), weights(tmp_path / "1", 1))


@pytest.mark.trap(13, 18, 37)
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("soft_contrastive", ()),
        ("laser3_co", ("config={variant: co, queue: 20}", DROPOUT)),
        ("soft_contrastive", (STATIC, DROPOUT, "training.embedding_learning_rate=4")),
        ("laser3_co", ("config={variant: co, queue: 20}", DROPOUT, MATRYOSHKA, "training.chunk=9")),
        ("laser3_co", ("config={variant: co, queue: 20}", DROPOUT, AVERAGE)),
        ("soft_contrastive", (STATIC, DROPOUT, AVERAGE)),
        ("soft_contrastive", (STATIC, LAST)),
        *((method, (DROPOUT,) if method not in FROZEN else ()) for method in SETTINGS),
    ],
)
def test_a_resumed_trial_equals_an_uninterrupted_one_bit_for_bit(tiny_file, tiny_storage, tmp_path, method, more):
    sweep, prepared = of_method(method, tiny_file, tiny_storage, *more)
    run(sweep, prepared, tmp_path / "whole", pairs=320)
    run(sweep, prepared, tmp_path / "cut", Collect(most=1), pairs=320)
    resumed = run(sweep, prepared, tmp_path / "cut", pairs=320)
    assert [r["index"] for r in resumed] == [1, 2], (
        "its last report is made again: the process that cut it may not have read it"
    )
    whole, cut = weights(tmp_path / "whole", 2), weights(tmp_path / "cut", 2)
    assert cut["optimizer"]
    assert same(whole, cut)
    assert [r.metrics["dev/everyday/accuracy"] for r in read_reports(tmp_path / "whole")] == [
        r.metrics["dev/everyday/accuracy"] for r in read_reports(tmp_path / "cut")
    ]


def test_the_filters_text_comes_by_length_and_its_queue_is_warm(tiny, tmp_path):
    sweep, prepared = tiny
    sweep = replace(sweep, method="laser3_co", config={"queue": 50}, parameters={})
    trial = TrialTrainer(make_trial(sweep, 0, {}), prepared, tmp_path, Collect(), ProcessGroup(), CPU)
    rows = np.concatenate([trial.steps.schedule.rows(step) for step in range(len(trial.steps.schedule))])
    lengths, groups = trial.steps.reader.target_lengths()[rows], prepared.pair_groups()[rows]
    assert lengths[:5].tolist() == trial.steps.reader.batch(rows[:5], 5).target.lengths.tolist()
    for group in set(groups.tolist()):
        found = lengths[groups == group]
        epoch = int((prepared.pair_groups() == group).sum())
        assert np.all(np.diff(found[:epoch]) >= 0)
        assert found[0] < found[: epoch - 1].max()
    vectors, ids = trial.train_step.method.queue.candidates()
    assert len(set(ids.tolist())) == 50
    assert set(ids.tolist()) <= set(prepared.pairs()[:, 0].tolist())
    expected = torch.nn.functional.normalize(trial.steps.reader.vectors(ids.numpy()), dim=1)
    torch.testing.assert_close(vectors, expected)


def test_a_trial_resumes_from_the_checkpoint_before_a_damaged_one(tiny, tmp_path):
    sweep, prepared = tiny
    run(sweep, prepared, tmp_path / "whole", reports=4)
    run(sweep, prepared, tmp_path / "cut", Collect(most=3), reports=4)
    damaged = checkpoint_folder(tmp_path / "cut", 3) / "student.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    resumed = run(sweep, prepared, tmp_path / "cut", reports=4)
    assert resumed[-1]["index"] == 4
    assert same(weights(tmp_path / "whole", 4), weights(tmp_path / "cut", 4))


def test_a_used_process_trains_like_a_fresh_one(tiny, tmp_path):
    sweep, prepared = tiny
    run(sweep, prepared, tmp_path / "a")
    torch.manual_seed(99)
    torch.randn(1000)
    run(sweep, prepared, tmp_path / "b")
    assert same(weights(tmp_path / "a", 2), weights(tmp_path / "b", 2))


@pytest.mark.trap(7)
def test_gradient_caching_gives_the_gradient_of_the_whole_batch(tiny):
    sweep, prepared = tiny
    trial = make_trial(sweep, 0, {})

    def gradient(chunk):
        chosen = replace(trial, training=replace(trial.training, chunk=chunk))
        train_step, reader = make_train_step(chosen, prepared, ProcessGroup(), CPU), make_reader(chosen, prepared, CPU)
        import numpy as np

        values = train_step.backward(reader.batch(np.arange(32), 32))
        return float(values["loss"]), torch.cat([p.grad.flatten() for p in train_step.parameters if p.grad is not None])

    (loss, whole), (cached_loss, cached) = gradient(None), gradient(7)
    assert cached_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_not_finite_stops_the_trial_with_its_step_and_a_reason(tiny, tmp_path):
    with pytest.raises(TrainingError, match=r"step \d+: .*learning_rate"):
        run(*tiny, tmp_path, learning_rate=1e30, warmup=0.0, clip=None)


def test_a_trial_that_gives_all_sentences_one_vector_ends_with_its_reason(tiny, tmp_path):
    """A weight decay that leaves nothing of the matrices leaves the biases: one vector for all."""
    reports = run(*tiny, tmp_path, reports=4, learning_rate=1e-5, weight_decay=99_000, warmup=0.0)
    assert len(reports) == 1
    assert reports[0]["facts"]["collapsed"].startswith("collapsed: different dev sentences have a mean cosine of ")


def test_a_trial_out_of_patience_ends_early(tiny, tmp_path):
    reports = run(*tiny, tmp_path, reports=8, pairs=2560, learning_rate=1e-12, patience=2)
    assert len(reports) == 3
    assert reports[-1]["last"]


def test_only_the_best_and_the_last_checkpoint_are_kept(tiny, tmp_path):
    run(*tiny, tmp_path, reports=5, pairs=1600)
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    scores = [r.metrics["dev/everyday/accuracy"] for r in read_reports(tmp_path)]
    assert kept == sorted({5, scores.index(max(scores)) + 1})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_both_precisions_train(tiny, tmp_path, precision):
    reports = run(*tiny, tmp_path, precision=precision)
    assert math.isfinite(reports[-1]["points"][-1]["values"]["train/loss"])


def test_the_learning_rate_warms_up_and_decays():
    training = Training(pairs=1000, warmup=0.1, learning_rate=1.0)
    assert learning_rate_at(training, 50) == pytest.approx(0.5)
    assert learning_rate_at(training, 100) == pytest.approx(1.0)
    assert learning_rate_at(training, 550) == pytest.approx(0.5)
    assert learning_rate_at(replace(training, schedule="cosine"), 550) == pytest.approx(0.5)
    assert learning_rate_at(replace(training, schedule="constant"), 900) == 1.0


def test_the_steps_are_those_of_torch():
    """Chen et al.'s code: MultiStepLR over 400 epochs, a tenth after 2/6, 4/6 and 5/6 of them."""
    training = Training(pairs=400, warmup=0.0, learning_rate=2e-6, schedule="steps")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2e-6)
    milestones = [math.ceil(400 * share) for share in (2 / 6, 4 / 6, 5 / 6)]
    peer = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for epoch in range(400):
        assert learning_rate_at(training, epoch) == pytest.approx(peer.get_last_lr()[0])
        optimizer.step()
        peer.step()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.20001, 0.3, 0.5]), max_size=30), st.sampled_from(["maximize", "minimize"]))
def test_a_plateau_is_torchs(scores, goal):
    """Li's code: ReduceLROnPlateau(factor .5, patience 3)."""
    training = Training(pairs=400, warmup=0.0, learning_rate=0.1, schedule="plateau")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    mode = {"maximize": "max", "minimize": "min"}[goal]
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=3)
    for count, score in enumerate(scores, 1):
        peer.step(score)
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate_at(training, 200, halvings_after(scores[:count], goal)) == pytest.approx(expected)


def test_a_plateau_halves_the_rate_and_a_resumed_trial_goes_on_at_half(tiny, tmp_path, monkeypatch):
    """Reports that never get better: the rate is halved after five, and so in a trial that is cut there."""
    monkeypatch.setattr("babeltune.training.trainer.dev_scores", lambda *_: {"dev/everyday/accuracy": 0.5})
    shape = {"reports": 7, "pairs": 7 * 64, "schedule": "plateau", "warmup": 0.0}
    whole = run(*tiny, tmp_path / "whole", **shape)
    rates = [report["points"][-1]["values"]["train/learning_rate"] for report in whole]
    assert rates == [rates[0]] * 5 + [rates[0] / 2] * 2
    run(*tiny, tmp_path / "cut", Collect(most=5), **shape)
    cut = run(*tiny, tmp_path / "cut", **shape)
    assert [report["points"][-1]["values"]["train/learning_rate"] for report in cut[-2:]] == rates[-2:]


@pytest.mark.parametrize("method", ["soft_contrastive", "laser3_co"])
@pytest.mark.parametrize("looks", [(3,), (14, 1, 5)])
def test_a_trial_stopped_between_reports_goes_on_at_that_step_bit_for_bit(tiny, tmp_path, monkeypatch, method, looks):
    sweep, prepared = tiny
    config = {"queue": 100} if method == "laser3_co" else {}
    sweep = replace(sweep, method=method, config=config, parameters={})
    sweep = replace(sweep, student=replace(sweep.student, dropout=0.1))
    whole = run(sweep, prepared, tmp_path / "whole")
    monkeypatch.setattr("babeltune.training.trainer.STOP_POLL_INTERVAL_S", 0.0)
    stopped = stopped_folder(tmp_path / "cut")
    step = 0
    for look in looks:
        run(sweep, prepared, tmp_path / "cut", Collect(stop_at=look))
        step += look
        assert read_state(stopped)["interval"]["step"] == step
    cut = run(sweep, prepared, tmp_path / "cut", seen := Collect())
    assert seen.looks == 20 - step, "no step is repeated"
    assert not stopped.exists()
    assert same(weights(tmp_path / "whole", 2), weights(tmp_path / "cut", 2))
    timed = ("train/pairs_per_second", "model/sentences_per_second", "model/sentences_per_second_spread")
    for one, other in zip(whole[-len(cut) :], cut, strict=True):
        assert {k: v for k, v in one["metrics"].items() if k not in timed} == {
            k: v for k, v in other["metrics"].items() if k not in timed
        }
        assert [(p["step"], p["values"]) for p in one["points"]] == [(p["step"], p["values"]) for p in other["points"]]


EVERY_STEP = 1e-9  # minutes between two checkpoints that are over after any step


@pytest.mark.parametrize("average", [None, MovingAverage(decay=0.9, every=3)])
def test_checkpoints_between_reports_change_nothing_that_is_trained(tiny, tmp_path, average):
    run(*tiny, tmp_path / "without", seen := Collect(), checkpoint_minutes=None, average=average)
    assert seen.checkpoints == 0
    run(*tiny, tmp_path / "with", seen := Collect(), checkpoint_minutes=EVERY_STEP, average=average)
    assert seen.checkpoints == 18, "after each step but those with a report"
    assert same(weights(tmp_path / "without", 2), weights(tmp_path / "with", 2))
    assert not stopped_folder(tmp_path / "with").exists(), "a report's checkpoint replaces it"


@pytest.mark.parametrize(("minutes", "name"), [(None, "stopped"), (10.0, "stopped"), (10.0, "stopped.old")])
def test_a_killed_trial_goes_on_from_a_checkpoint_between_reports_bit_for_bit(
    tiny, tmp_path, monkeypatch, minutes, name
):
    run(*tiny, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(*tiny, tmp_path / "cut", Collect(dies_at=13), checkpoint_minutes=EVERY_STEP)
    stopped = stopped_folder(tmp_path / "cut")
    assert read_state(stopped)["interval"]["step"] == 14
    stopped.rename(stopped.with_name(name))
    monkeypatch.setattr("babeltune.training.trainer.STOP_POLL_INTERVAL_S", 0.0)
    run(*tiny, tmp_path / "cut", seen := Collect(), checkpoint_minutes=minutes)
    assert seen.looks == 6, "no step is repeated, whatever the file says by now"
    assert all(path.name.isdigit() for path in stopped.parent.iterdir())
    assert same(weights(tmp_path / "whole", 2), weights(tmp_path / "cut", 2))


def test_a_long_evaluation_sends_heartbeats(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.training.trainer.PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr("babeltune.training.trainer.STOP_POLL_INTERVAL_S", math.inf)
    run(*tiny, tmp_path, seen := Collect())
    batches, subsets = 2, len(tiny[1].tasks)
    assert seen.looks == 2 * (batches + subsets), "in each of two evaluations"


@pytest.mark.parametrize("look", [1, 3], ids=["as it encodes", "as it scores"])
def test_a_trial_stopped_in_an_evaluation_repeats_no_step(tiny, tmp_path, monkeypatch, look):
    whole = run(*tiny, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("babeltune.training.trainer.PROGRESS_INTERVAL_S", 0.0)
        patch.setattr("babeltune.training.trainer.STOP_POLL_INTERVAL_S", math.inf)
        assert run(*tiny, tmp_path / "cut", Collect(stop_at=look)) == []
    assert read_state(stopped_folder(tmp_path / "cut"))["interval"]["step"] == 10
    assert json.loads((tmp_path / "cut" / "progress.json").read_text(encoding="utf-8"))["step"] == 10
    monkeypatch.setattr("babeltune.training.trainer.STOP_POLL_INTERVAL_S", 0.0)
    cut = run(*tiny, tmp_path / "cut", seen := Collect())
    assert seen.looks == 10, "the steps of the second half"
    assert same(weights(tmp_path / "whole", 2), weights(tmp_path / "cut", 2))
    assert [r["metrics"]["dev/everyday/accuracy"] for r in whole] == [
        r["metrics"]["dev/everyday/accuracy"] for r in cut
    ]


@pytest.mark.parametrize("fault", ["damaged", "unwritten"])
def test_a_stop_without_a_good_checkpoint_repeats_the_steps_since_the_report(tiny, tmp_path, monkeypatch, fault):
    run(*tiny, tmp_path / "whole")
    monkeypatch.setattr("babeltune.training.trainer.STOP_POLL_INTERVAL_S", 0.0)
    folder = tmp_path / "cut"
    checkpoints = folder / "checkpoints"
    if fault == "unwritten":
        folder.mkdir()
        checkpoints.write_text("in the way")
    run(*tiny, folder, Collect(stop_at=3))
    if fault == "unwritten":
        checkpoints.unlink()
    else:
        file = stopped_folder(folder) / "optimizer.safetensors"
        file.write_bytes(file.read_bytes()[:100])
    run(*tiny, folder, seen := Collect())
    assert seen.looks == 20
    assert same(weights(tmp_path / "whole", 2), weights(folder, 2))


RANKS = """
import json, multiprocessing, sys
from pathlib import Path
import scipy.stats, transformers.models.bert.modeling_bert  # what was imported before a fork is imported once
import torch
import torch.distributed as dist
from babeltune.training import trainer
from babeltune.training.checkpoint import read_state, stopped_folder
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.workers.run_trial import run

class Until:
    def __init__(self, reports, look):
        self.left, self.look, self.leaves = reports, look, look > 0

    def report(self, report):
        assert not self.leaves, "a report of an evaluation that it shall leave"
        self.left -= 1
        return self.left > 0

    def stopped(self):
        self.look -= 1
        return self.look == 0

def train(rank, world, store, job):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.set_num_threads(1)
    if look := job.pop("look", 0):  # in evaluations only, and always
        trainer.STOP_POLL_INTERVAL_S, trainer.PROGRESS_INTERVAL_S = float("inf"), 0.0
    left = job.pop("reports", 100)
    run(TrialAssignment(**job), Until(left, look), rank, world, "cpu")
    if look and rank == 0:
        assert read_state(stopped_folder(Path(job["folder"])))["interval"]["step"], "what was trained is kept"
    dist.destroy_process_group()

if __name__ == "__main__":
    processes = multiprocessing.get_context("fork")
    for number, job in enumerate(map(json.loads, sys.argv[1:])):
        world = job.pop("world")
        store = f'{job["folder"]}.store{number}'
        ranks = [processes.Process(target=train, args=(r, world, store, job)) for r in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert [rank.exitcode for rank in ranks] == [0] * world
"""


WORLDS = {
    **dict.fromkeys(SETTINGS, (2,)),
    "soft_contrastive": (2, 4),
    "laser3_co": (2, 4),
    "laser3_co co": (4,),
    "soft_contrastive static": (2, 4),
    "laser3_co matryoshka": (2,),
    "soft_contrastive static matryoshka": (2,),
    "soft_contrastive static average": (2,),
    "soft_contrastive static parts": (2, 4),
    "soft_contrastive graded": (2, 4),
    "soft_contrastive static graded": (4,),
}
CHUNKED = ("lealla", "translation_ranking")  # over several workers, in chunks: gradient caching changes nothing either
LEFT = {"left as it encodes": 1, "left as it scores": 3}
"""The poll of its first evaluation at which rank 0 gets a stop request."""


@pytest.mark.long
@pytest.mark.trap(1, 37)
def test_the_number_of_workers_does_not_change_the_training(tiny_file, tiny_storage, tmp_path):
    """Nor does a resume at four workers, of a queue that is smaller than a batch, bit for bit: after a report, or after
    a stop in an evaluation, that rank 0 alone notices and that all leave."""
    jobs, changes = [], {"pairs": 190, "global_batch": 31, "epsilon": 1e-4}
    reports = {name: 2 if name == "laser3_co" else 1 for name in WORLDS}  # only what is cut off needs two
    more = {"laser3_co co": ("config.variant=co",), "bilingual_aligner": ("config.dropout=0",)}
    more["soft_contrastive static"] = (STATIC,)
    more["laser3_co matryoshka"] = ("config.variant=co", MATRYOSHKA)
    more["soft_contrastive static matryoshka"] = (STATIC, MATRYOSHKA)
    more["soft_contrastive static average"] = (STATIC, AVERAGE)
    more["soft_contrastive static parts"] = (STATIC, "training.batch_parts=3")
    more["soft_contrastive graded"] = (*GRADED, "training.graded_batch=13")
    more["soft_contrastive static graded"] = (STATIC, *GRADED)
    for name, worlds in WORLDS.items():
        sweep, prepared = of_method(name.split()[0], tiny_file, tiny_storage, *more.get(name, ()))
        write_prepared(prepared, tmp_path / f"{name}.json")
        trial = replace(make_trial(sweep, 0, {}), speed=(1.0, 0.0))  # so that no rank measures it for a second
        trial = replace(trial, training=replace(trial.training, **changes, reports=reports[name]))
        job = {"trial": plain(trial), "prepared": str(tmp_path / f"{name}.json")}
        for world in (1, *worlds):
            chunk = 5 if name in CHUNKED and world > 1 else None
            its = replace(trial, training=replace(trial.training, chunk=chunk))
            jobs.append({**job, "trial": plain(its), "world": world, "folder": str(tmp_path / f"{name} {world}")})
        if name == "laser3_co":
            cut = {**job, "world": 4, "folder": str(tmp_path / "cut")}
            jobs += [{**cut, "reports": 1}, cut]
            for place, look in LEFT.items():
                left = {**job, "world": 4, "folder": str(tmp_path / place)}
                jobs += [{**left, "look": look}, left]
    subprocess.run([sys.executable, "-c", RANKS, *map(json.dumps, jobs)], check=True, timeout=PATIENCE_S)
    for folder in ("cut", *LEFT):
        assert same(weights(tmp_path / "laser3_co 4", 2), weights(tmp_path / folder, 2))
    for name, world in ((name, world) for name, worlds in WORLDS.items() for world in worlds):
        alone, shared = (weights(tmp_path / f"{name} {ranks}", reports[name]) for ranks in (1, world))
        for part in {"student", "method"} & alone.keys():
            for key, value in alone[part].items():
                at = f"{key} of {name} at {world} ranks"
                torch.testing.assert_close(shared[part][key], value, rtol=2e-3, atol=2e-5, msg=at)
    apart, together = (weights(tmp_path / f"soft_contrastive static{name} 1", 1) for name in (" parts", ""))
    assert not same(apart, together)


@pytest.mark.long
def test_every_rank_scores_against_the_stored_right_sides_of_the_teacher(tiny_file, tiny_storage, tmp_path):
    sweep, prepared = of_method("laser3_co", tiny_file, tiny_storage, "data.dev.0.right_model=teacher")
    write_prepared(prepared, tmp_path / "prepared.json")
    trial = replace(make_trial(sweep, 0, {}), speed=(1.0, 0.0))
    trial = replace(trial, training=replace(trial.training, pairs=190, reports=2, global_batch=31))
    job = {"trial": plain(trial), "prepared": str(tmp_path / "prepared.json")}
    jobs = [{**job, "world": world, "folder": str(tmp_path / str(world))} for world in (1, 2)]
    subprocess.run([sys.executable, "-c", RANKS, *map(json.dumps, jobs)], check=True, timeout=PATIENCE_S)
    for one, both in zip(*(read_reports(tmp_path / str(world)) for world in (1, 2)), strict=True):
        names = [name for name in one.metrics if name.startswith("dev/")]
        assert "dev/everyday/fra-eng/xsim_error" in names
        assert [both.metrics[name] for name in names] == pytest.approx([one.metrics[name] for name in names], abs=0.04)


@pytest.mark.parametrize("shown", [True, False])
def test_a_rank_goes_on_from_what_rank_0_sees_or_not_at_all(tiny, tmp_path, monkeypatch, shown):
    """A shared folder may show a checkpoint later on another node."""
    monkeypatch.setattr("babeltune.training.trainer.VISIBILITY_TIMEOUT_S", PATIENCE_S if shown else 1.0)
    there, here = tmp_path / "there", tmp_path / "here"
    run(*tiny, there)
    shutil.copytree(there, here)
    (here / "checkpoints" / "000002").rename(here / "late")
    ranks = SimpleNamespace(world=2, rank=1, of_first=lambda value, device: state_of(there))
    rank = SimpleNamespace(ranks=ranks, folder=here, device=CPU)
    if shown:
        threading.Timer(1.0, lambda: (here / "late").rename(here / "checkpoints" / "000002")).start()
        TrialTrainer.see_the_same(rank)
        assert len(last_good(here)) == 2
    else:
        words = r"^the storage shows rank 1 other checkpoints in .* than rank 0 for 1 s"
        with pytest.raises(StorageError, match=words):
            TrialTrainer.see_the_same(rank)


def test_every_need_of_a_method_reaches_its_batch(tiny):
    sweep, prepared = tiny
    trial = make_trial(sweep, 0, {})
    method = load_method(trial.method)
    needs = method.needs(make_config(method, trial.config))
    batch = make_reader(trial, prepared, CPU).batch(np.arange(4), 4)
    assert (batch.teacher_source is not None) == ("source" in needs.teacher)
    assert (batch.teacher_target is not None) == ("target" in needs.teacher)


@pytest.mark.long
def test_training_alone_writes_a_model_that_sentence_transformers_loads(tiny_file, tmp_path):
    model = tmp_path / "model"
    without_ray = "import runpy, sys; sys.modules['ray'] = None; "
    without_ray += "runpy.run_module('babeltune.train', run_name='__main__')"
    options = ("--out", tmp_path / "run", "--export", model, "--set", "evaluation={prompt: 'query: '}")
    done = ended(sys.executable, "-c", without_ray, tiny_file, *options)
    assert done.returncode == 0, done.stderr
    assert "dev/everyday/accuracy" in done.stdout
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(model))
    assert loaded.encode(["Good morning."]).shape == (1, 384)
    assert loaded.prompts[loaded.default_prompt_name] == "query: "
    assert Path(tmp_path / "run" / "reports.jsonl").exists()


@pytest.mark.slow
def test_training_alone_refuses_a_folder_with_something_else_before_it_prepares(tiny_file, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    words = r"--out .*: the folder is not empty and holds no run of this command"
    with pytest.raises(SpecError, match=words) as refused:
        alone.main([str(tiny_file), "--out", str(tmp_path)])
    assert refused.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_training_alone_goes_on_in_its_folder_though_its_preparation_was_cut_off(tiny_file, tmp_path, monkeypatch):
    out = tmp_path / "run"

    def cut(sweep, storage, **_):
        (storage / "stores").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(alone, "prepare", cut)
        with pytest.raises(KeyboardInterrupt):
            alone.main([str(tiny_file), "--out", str(out)])
    alone.main([str(tiny_file), "--out", str(out)])
    assert (out / "reports.jsonl").exists()
