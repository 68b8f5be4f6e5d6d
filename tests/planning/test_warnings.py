"""What a sweep may do and probably does not mean."""

import json
from dataclasses import replace

import pytest
import torch

from babeltune.planning.plan import make_plan
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.warnings import about_gpus, about_length, about_prompts, about_sweep
from babeltune.schema.cluster import read_cluster


@pytest.mark.parametrize(
    ("given", "said"),
    [(["budget.unit=compute", "training.compute=5", "training.pairs=700"], True), (["training.pairs=700"], False)],
)
def test_pairs_beside_compute_are_said_to_have_no_effect(tiny_file, given, said):
    found = list(about_length(read_sweep(tiny_file, assignments=given)))
    assert ["training.pairs 700 has no effect" in words for words in found] == [True] * said


def test_more_trials_than_anybody_waits_for_are_said(tiny_file):
    def said(*assignments):
        return [words for words in about_sweep(read_sweep(tiny_file, assignments=assignments)) if "recording" in words]

    assert said("budget.trials=1e6")[0].startswith("budget.trials 1,000,000: recording alone takes about 3 hours")
    assert said("budget.trials=1e6", "budget.minutes=30") == said("budget.trials=1e4") == []


def test_a_prompt_that_is_not_the_models_is_said(tmp_path, tiny_file):
    settings = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))

    def said(prompt):
        beside = f"teacher.beside=[{{model: {tmp_path}, prompt: '{prompt}'}}]"
        return [*about_prompts(read_sweep(tiny_file, assignments=[beside], check=False))]

    assert said("query: ") == []
    assert said("") == [
        f"teacher.beside.0.prompt is '', and the files of '{tmp_path}' say 'query: ': its vectors differ"
    ]


def test_sets_on_which_no_baseline_is_scored_are_said(tiny_file):
    def warnings(*assignments):
        sweep = read_sweep(tiny_file, assignments=assignments, check=False)
        return [words for words in about_sweep(sweep) if words.startswith("baselines")]

    bought, heldout = "baselines=[some/model]", "data.split={pairs: 10, right_model: teacher}"
    assert warnings(bought) == warnings(heldout) == []
    assert warnings(bought, heldout) == ["baselines get no score of heldout: the teacher encodes the right side"]
    (words,) = warnings(bought, "data.test.0.right_model=teacher")
    assert words.startswith("baselines get no score of any sealed test: the teacher encodes the right side of ")
    assert words.endswith("; `babeltune evaluate MODEL --test --target-model MODEL` scores one by itself")


def test_gpus_that_this_machine_lacks_are_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cluster = read_cluster("clusters/local_gpu.yaml")
    assert [*about_gpus(cluster)] == [
        "cluster 'local_gpu' gives a trial 1 GPU, and this machine has none: `submit` is refused here; run it on a "
        "machine that has them, or leave --cluster out"
    ]
    assert [*about_gpus(replace(cluster, address="auto"))] == []


@pytest.mark.parametrize("name", ["quickstart", "soft_contrastive", "all_methods"])
def test_plan_warns_of_no_labels_that_our_search_spaces_do_not_try(name):
    """The default teacher's temperature makes hard labels; these files search others, and no trial has it."""
    warnings = make_plan(read_sweep(f"search_spaces/{name}.yaml"), samples=1).warnings
    assert not [words for words in warnings if "labels" in words]
