"""A real pretrained multilingual encoder, multilingual-e5-small: trimmed, cut, trained a little, exported.

A script beside the repository makes it from two packages of the package index. `make long` runs this."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.candidate import dev_texts
from babeltune.promotion.export import export_trial
from babeltune.train import Printer
from babeltune.training.build import make_method, make_student, token_set
from babeltune.training.trainer import train
from corpora import BESIDE

BUILDER = BESIDE.parent / "tools" / "e5_small.py"
WIDTH = 384
pytestmark = [pytest.mark.long, pytest.mark.needs_encoder, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    if not BUILDER.exists():
        pytest.skip(f"{BUILDER} is not there, so no multilingual-e5-small can be made")
    folder = tmp_path_factory.mktemp("e5") / "whole"
    done = subprocess.run([sys.executable, str(BUILDER), str(folder)], capture_output=True, text=True, check=False)
    if "Could not find a version" in done.stderr:  # as from the network of tests that may reach no other machine
        pytest.skip("no package index is reached, so no multilingual-e5-small can be made")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def cut(whole, tiny_file, tiny_storage):
    """Makes a sweep's only trial, with this student, from the whole model; its data, and its student's encoder."""

    def build(**fields):
        student = {"model": str(whole), "prompt": "query: ", "max_tokens": 16, **fields}
        assignments = [f"student={student}".replace("True", "true"), "method=translation_ranking", "parameters={}"]
        assignments += ["config={hard_negatives: 0}", "training.pairs=16", "training.global_batch=8"]
        sweep = read_sweep(tiny_file, assignments=assignments)
        prepared, trial = prepare(sweep, tiny_storage), make_trial(sweep, 0, {})
        return sweep, prepared, trial, make_student(trial, prepared)

    return build


def exported(parts, folder):
    sweep, prepared, trial, encoder = parts
    export_trial(sweep, trial, prepared, encoder, make_method(trial, prepared, encoder), folder)
    return SentenceTransformer(str(folder))


def weights(model):
    return sum(each.numel() for each in model.parameters())


def test_a_trimmed_one_has_the_vectors_of_the_whole_one_on_text_that_is_cut(whole, cut, tmp_path):
    parts = cut(trim=True)
    before, after = SentenceTransformer(str(whole)), exported(parts, tmp_path / "cut")
    before.max_seq_length = 16
    texts = sorted({text for task in dev_texts(parts[1]) for text in task.texts()})
    lengths = [len(ids) for ids in before.tokenizer(["query: " + text for text in texts])["input_ids"]]
    assert max(lengths) > 16, "some text is longer than the student reads"
    np.testing.assert_allclose(after.encode(texts), before.encode(texts), atol=1e-6)
    pretrained = before[0].auto_model
    rows = len(pretrained.get_input_embeddings().weight) - token_set(parts[2], parts[1]).vocabulary
    assert weights(before) - weights(after) == WIDTH * rows + weights(pretrained.pooler), "no pooler is read"
    assert weights(after) < 0.4 * weights(before)


def test_a_limit_and_fewer_layers_make_a_small_model_that_trains(whole, cut, tmp_path):
    parts = cut(trim=8000, keep_layers=4)
    small = exported(parts, tmp_path / "small")
    assert len(small[0].auto_model.get_input_embeddings().weight) <= 8000
    assert len(small[0].auto_model.encoder.layer) == 4
    assert weights(small) < 12e6
    _, prepared, trial, _ = parts
    reports = train(trial, prepared, tmp_path / "trial", Printer(()), ProcessGroup(), torch.device("cpu"))
    assert reports[-1].metrics["model/parameters"] == weights(small)
    assert all(np.isfinite(list(reports[-1].metrics.values())))
