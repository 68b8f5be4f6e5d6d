"""The training loop on a real corpus, teacher and student, small."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from babeltune.data.prepared import write_prepared
from babeltune.errors import TrainingError
from babeltune.losses.gather import Ranks
from babeltune.method import load_method, make_config
from babeltune.records import Training, plain
from babeltune.spec.space import make_trial
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint, read_reports
from babeltune.training.learner import learning_rate_at, make_learner
from babeltune.training.loop import Meter, Run, train
from babeltune.training.reader import make_reader

CPU = torch.device("cpu")


class Collect:
    """Keeps reports, and says when to stop."""

    def __init__(self, most=100):
        self.reports, self.most = [], most

    def report(self, report):
        self.reports.append(report)
        return len(self.reports) < self.most


def test_a_point_is_the_mean_of_its_steps_and_the_least_of_what_is_named_so():
    meter = Meter(every=3)
    for step, (loss, least) in enumerate([(1.0, 5.0), (2.0, 3.0), (6.0, 4.0), (8.0, 9.0)], start=1):
        meter.add(step, {"loss": loss, "lealla/negatives_least": least}, 0.1, flush=step == 4)
    whole, rest = (point.values for point in meter.take())
    assert whole == {"train/loss": 3.0, "train/lealla/negatives_least": 3.0, "train/learning_rate": 0.1}
    assert rest == {"train/loss": 8.0, "train/lealla/negatives_least": 9.0, "train/learning_rate": 0.1}


def run(sweep, prepared, folder, collect=None, **training):
    trial = make_trial(sweep, 0, {})
    trial = replace(trial, training=replace(trial.training, **training))
    collect = collect or Collect()
    train(trial, prepared, folder, collect, Ranks(), CPU)
    return collect.reports


def weights(folder, index):
    return load_checkpoint(checkpoint_folder(folder, index))[0]


def same(a, b):
    return all(torch.equal(a[n][k], b[n][k]) for n in a for k in a[n]) and a.keys() == b.keys()


def test_a_trial_learns_and_reports_at_equal_shares_of_its_pairs(tiny, tmp_path):
    reports = run(*tiny, tmp_path, pairs=1920, reports=3)
    assert [r["pairs"] for r in reports] == [640, 1280, 1920]
    assert [r["last"] for r in reports] == [False, False, True]
    first, last = reports[0]["points"][0]["values"], reports[-1]["points"][-1]["values"]
    assert last["train/loss"] < first["train/loss"]
    assert 0 <= reports[-1]["metrics"]["dev/everyday/accuracy"] <= 1
    assert -1 <= reports[-1]["metrics"]["dev/sts/spearman"] <= 1
    assert reports[0]["facts"]["effective_negatives"] == 31


def test_between_reports_a_trial_leaves_its_step_and_loss(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.training.loop.PROGRESS_EVERY", 0.0)
    reports = run(*tiny, tmp_path)
    now = json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))
    assert (now["step"], now["steps"]) == (20, 20)
    assert now["loss"] > 0
    assert "warning" not in reports[-1]["facts"]


def test_labels_that_are_nearly_flat_are_warned_of(tiny, tmp_path):
    sweep, prepared = tiny
    reports = run(replace(sweep, config={"teacher_temperature": 5.0}), prepared, tmp_path)
    assert reports[-1]["facts"]["warning"] == "labels are nearly flat (100% of log N): lower teacher_temperature"


def test_the_same_seed_gives_the_same_weights_bit_for_bit_and_another_seed_does_not(tiny, tmp_path):
    sweep, prepared = tiny
    run(sweep, prepared, tmp_path / "a")
    run(sweep, prepared, tmp_path / "b")
    run(replace(sweep, seed=5), prepared, tmp_path / "c")
    assert same(weights(tmp_path / "a", 2), weights(tmp_path / "b", 2))
    assert not same(weights(tmp_path / "a", 2), weights(tmp_path / "c", 2))


@pytest.mark.parametrize(
    ("method", "config", "dropout"),
    [
        ("soft_contrastive", {}, 0.0),
        ("soft_contrastive", {}, 0.1),
        ("laser3_co", {"queue": 100}, 0.1),
        ("lealla", {}, 0.1),
    ],
)
def test_a_resumed_trial_equals_an_uninterrupted_one_bit_for_bit(tiny, tmp_path, method, config, dropout):
    sweep, prepared = tiny
    prepared = replace(prepared, copy_anchor=True)
    student = replace(sweep.student, dropout=dropout)
    sweep = replace(sweep, method=method, config=config, parameters={}, student=student)
    run(sweep, prepared, tmp_path / "whole", reports=4)
    run(sweep, prepared, tmp_path / "cut", Collect(most=2), reports=4)
    resumed = run(sweep, prepared, tmp_path / "cut", reports=4)
    assert [r["index"] for r in resumed] == [3, 4]
    assert same(weights(tmp_path / "whole", 4), weights(tmp_path / "cut", 4))
    assert [r.metrics["dev/everyday/accuracy"] for r in read_reports(tmp_path / "whole")] == [
        r.metrics["dev/everyday/accuracy"] for r in read_reports(tmp_path / "cut")
    ]


def test_the_filters_text_comes_by_length_and_its_queue_is_warm(tiny, tmp_path):
    sweep, prepared = tiny
    sweep = replace(sweep, method="laser3_co", config={"queue": 50}, parameters={})
    trial = Run(make_trial(sweep, 0, {}), prepared, tmp_path, Collect(), Ranks(), CPU)
    rows = np.concatenate([trial.schedule.rows(step) for step in range(len(trial.schedule))])
    lengths, groups = trial.reader.target_lengths()[rows], prepared.pair_groups()[rows]
    tokens = [trial.reader.sentences(np.asarray(prepared.pairs()[rows[:5], 1], np.int64)).lengths.tolist()]
    assert lengths[:5].tolist() == tokens[0]
    for group in set(groups.tolist()):
        found = lengths[groups == group]
        epoch = int((prepared.pair_groups() == group).sum())
        assert np.all(np.diff(found[:epoch]) >= 0)
        assert found[0] < found[: epoch - 1].max()
    vectors, ids = trial.learner.method.queue.candidates()
    assert len(set(ids.tolist())) == 50
    assert set(ids.tolist()) <= set(prepared.pairs()[:, 0].tolist())
    expected = torch.nn.functional.normalize(trial.reader.vectors(ids.numpy()), dim=1)
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


def test_gradient_caching_gives_the_gradient_of_the_whole_batch(tiny):
    sweep, prepared = tiny
    trial = make_trial(sweep, 0, {})

    def gradient(chunk):
        chosen = replace(trial, training=replace(trial.training, chunk=chunk))
        learner, reader = make_learner(chosen, prepared, Ranks(), CPU), make_reader(chosen, prepared, CPU)
        import numpy as np

        values = learner.backward(reader.batch(np.arange(32), 32))
        return values["loss"], torch.cat([p.grad.flatten() for p in learner.parameters if p.grad is not None])

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


RANKS = """
import json, multiprocessing, sys
import torch
import torch.distributed as dist
from babeltune.engine.trial import run

class Quiet:
    def report(self, report):
        return True

def train(rank, world, store, job):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.set_num_threads(1)
    run(job, Quiet(), rank, world, "cpu")
    dist.destroy_process_group()

if __name__ == "__main__":
    processes = multiprocessing.get_context("fork")  # what was imported above is imported once
    for job in map(json.loads, sys.argv[1:]):
        world = job.pop("world")
        ranks = [processes.Process(target=train, args=(r, world, job["folder"] + ".store", job)) for r in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
        assert [rank.exitcode for rank in ranks] == [0] * world
"""


def test_the_number_of_workers_does_not_change_the_training(tiny, tmp_path):
    sweep, prepared = tiny
    write_prepared(prepared, tmp_path / "prepared.json")
    trial = make_trial(sweep, 0, {})
    trial = replace(trial, training=replace(trial.training, pairs=310, reports=1, global_batch=31))
    job = {"trial": plain(trial), "prepared": str(tmp_path / "prepared.json")}
    worlds = {world: tmp_path / f"w{world}" for world in (1, 2, 4)}
    jobs = [json.dumps({**job, "world": world, "folder": str(folder)}) for world, folder in worlds.items()]
    subprocess.run([sys.executable, "-c", RANKS, *jobs], check=True, timeout=250)
    results = {world: weights(folder, 1)["student"] for world, folder in worlds.items()}
    for world in (2, 4):
        for name, value in results[1].items():
            torch.testing.assert_close(
                results[world][name], value, rtol=2e-3, atol=2e-5, msg=f"{name} at {world} ranks"
            )


def test_every_need_of_a_method_reaches_its_batch(tiny):
    sweep, prepared = tiny
    trial = make_trial(sweep, 0, {})
    method = load_method(trial.method)
    needs = method.needs(make_config(method, trial.config))
    batch = make_reader(trial, prepared, CPU).batch(np.arange(4), 4)
    assert (batch.teacher_source is not None) == ("source" in needs.teacher)
    assert (batch.teacher_target is not None) == ("target" in needs.teacher)


def test_training_alone_writes_a_model_that_sentence_transformers_loads(tiny_file, tmp_path):
    model = tmp_path / "model"
    without_ray = "import runpy, sys; sys.modules['ray'] = None; "
    without_ray += "runpy.run_module('babeltune.train', run_name='__main__')"
    command = [
        sys.executable,
        "-c",
        without_ray,
        str(tiny_file),
        "--out",
        str(tmp_path / "run"),
        "--export",
        str(model),
        "--set",
        "evaluation={prompt: 'query: '}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "dev/everyday/accuracy" in done.stdout
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(model))
    assert loaded.encode(["Good morning."]).shape == (1, 384)
    assert loaded.prompts[loaded.default_prompt_name] == "query: "
    assert Path(tmp_path / "run" / "reports.jsonl").exists()
