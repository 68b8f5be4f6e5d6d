"""Students by name, and students that read with their teacher's tokenizer."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from babeltune.data.stored_arrays import open_ragged
from babeltune.data.teacher import teacher_folder
from babeltune.data.tokens import load_tokenizer
from babeltune.files import plain
from babeltune.method.distributed import ProcessGroup
from babeltune.models.build import build_student
from babeltune.models.encoder import encode_all
from babeltune.models.vocabulary import Vocabulary
from babeltune.planning.availability import student_parameters
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_from, sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.sweep_yaml import spec_yaml
from babeltune.promotion.export import export
from babeltune.schema.presets import LAYERS, PRESETS, WIDTHS
from babeltune.schema.records import Teacher, Transformer, trial_from
from babeltune.training.build import token_set
from babeltune.training.checkpoint import read_reports
from babeltune.training.trainer import TrialTrainer
from collecting import Collect
from exports import load_export

PRINTED = {"small": (24, 128, 8, 512), "base": (24, 192, 12, 768), "large": (24, 256, 8, 1024)}
"""LEALLA, tables 1 and 7: layers, width, heads, feed-forward."""
ROWS = {
    "thin-deep-6-768": (6, 768, 12, 3072), "thin-deep-3-768": (3, 768, 12, 3072),
    "thin-deep-12-384": (12, 384, 12, 1536), "thin-deep-12-192": (12, 192, 12, 768),
    "thin-deep-24-384": (24, 384, 12, 1536), "thin-deep-24-256": (24, 256, 8, 1024),
    "thin-deep-24-192": (24, 192, 12, 768), "thin-deep-24-128": (24, 128, 8, 512),
    "thin-deep-24-64": (24, 64, 8, 256), "thin-deep-24-256-1x": (24, 256, 4, 256),
    "thin-deep-24-192-1x": (24, 192, 4, 192), "thin-deep-24-128-1x": (24, 128, 4, 128),
}  # fmt: skip
"""Rows 1 to 12 of LEALLA's table 7."""


def test_the_presets_are_the_papers_students_and_its_grid():
    assert {name: tuple(vars(PRESETS[f"lealla-{name}"]).values()) for name in PRINTED} == PRINTED
    assert (LAYERS, WIDTHS) == ((3, 6, 12, 24), (64, 128, 192, 256, 384, 512, 768))
    assert len(PRESETS) == 3 + 2 * len(LAYERS) * len(WIDTHS)
    for name, shape in PRESETS.items():
        assert shape.width % shape.heads == 0, name
        assert shape.feed_forward in (shape.width, 4 * shape.width), name
    wide, narrow = PRESETS["thin-deep-6-64"], PRESETS["thin-deep-6-64-1x"]
    assert (wide.feed_forward, narrow.feed_forward) == (256, 64)
    assert all(vars(PRESETS[f"thin-deep-24-{s.width}"]) == vars(s) for n, s in PRESETS.items() if "lealla" in n)


def test_the_presets_have_the_shapes_and_heads_that_table_7_prints():
    assert {name: tuple(vars(PRESETS[name]).values()) for name in ROWS} == ROWS


def test_a_sweep_that_began_with_an_earlier_preset_keeps_its_heads(tiny_file):
    given = ["student={preset: thin-deep-24-256-1x, vocabulary: 1000, projection: teacher}"]
    sweep = read_sweep(tiny_file, assignments=given)
    assert sweep.student.heads == 4
    recorded = plain(sweep)
    recorded["student"]["heads"] = 8  # what the preset was
    earlier = sweep_from(recorded)
    trial = make_trial(earlier, 0, {})
    assert earlier.student.heads == trial.student.heads == trial_from(plain(trial)).student.heads == 8
    again = read_sweep(tiny_file, assignments=[*given, "student.heads=8"])
    assert sweep_id(again) == sweep_id(earlier) != sweep_id(sweep)


def test_a_preset_may_be_overridden_field_by_field(tiny_file, tmp_path):
    given = ["student={preset: lealla-small, heads: 4, layers: 3, vocabulary: 1000, projection: teacher}"]
    sweep = read_sweep(tiny_file, assignments=given)
    student = make_trial(sweep, 0, {}).student
    assert (student.layers, student.width, student.heads, student.feed_forward) == (3, 128, 4, 512)
    encoder = build_student(student, Vocabulary(1000, 0), teacher_dim=384, seed=0)
    assert encoder.backbone.config.num_attention_heads == 4
    (tmp_path / "again.yaml").write_text(spec_yaml(sweep), "utf-8")
    assert read_sweep(tmp_path / "again.yaml") == sweep, "as the plan prints it"
    names = ["thin-deep-3-64", "thin-deep-6-128"]
    searched = ["student={vocabulary: 1000, projection: teacher}", "parameters.student.heads={const: 2}"]
    sweep = read_sweep(tiny_file, assignments=[*searched, f"parameters.student.preset={{choice: {names}}}"])
    student = make_trial(sweep, 0, {"student.preset": names[1], "student.heads": 2}).student
    assert (student.layers, student.width, student.heads) == (6, 128, 2)


def test_a_student_has_the_shape_of_its_preset_wherever_it_is_made():
    student = Transformer(preset="thin-deep-3-64-1x", vocabulary=500, max_tokens=32)
    assert (student.layers, student.width, student.heads, student.feed_forward) == (3, 64, 4, 64)
    assert student.changed(preset="lealla-base").width == 192
    encoder = build_student(student, Vocabulary(500, 0), teacher_dim=None, seed=0)
    config = encoder.backbone.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (3, 64, 64)
    assert config.num_attention_heads == 4
    weights = sum(p.numel() for p in encoder.parameters())
    assert student_parameters(student, Teacher()) == pytest.approx(weights, rel=0.02)


def test_the_papers_sizes_come_out():
    """Table 1: 69, 107 and 147 million weights; the encoder's are 5, 11 and 19."""
    for (name, (_, width, *_)), whole, encoder in zip(PRINTED.items(), (69, 107, 147), (5, 11, 19), strict=True):
        student = Transformer(preset=f"lealla-{name}", vocabulary=501_153)
        size = student_parameters(student, Teacher()) / 1e6
        assert size == pytest.approx(whole, abs=1.0)
        assert size - 501_153 * width / 1e6 == pytest.approx(encoder, abs=1.0)


def test_presets_are_searched_like_any_other_setting(tiny_file):
    names = ["thin-deep-3-64", "thin-deep-6-64"]
    given = ["student={projection: teacher, vocabulary: 1000}", f"parameters.student.preset={{choice: {names}}}"]
    sweep = read_sweep(tiny_file, assignments=given)
    trial = make_trial(sweep, 0, {"student.preset": names[1]})
    assert (trial.student.layers, trial.student.width) == (6, 64)
    assert trial_from(plain(trial)) == trial


def test_the_printed_spec_of_a_preset_reads_back_as_the_same_sweep(tiny_file, tmp_path):
    sweep = read_sweep(tiny_file, assignments=["student={preset: lealla-small, vocabulary: teacher}"])
    (tmp_path / "again.yaml").write_text(spec_yaml(sweep), "utf-8")
    again = read_sweep(tmp_path / "again.yaml")
    assert again == sweep
    assert sweep_id(again) == sweep_id(sweep)


def test_a_student_may_read_with_its_teachers_tokenizer_and_is_exported_with_it(tiny_file, tiny_storage, tmp_path):
    given = ["student.vocabulary=teacher", "parameters={}", "training.pairs=128", "training.reports=1"]
    sweep = read_sweep(tiny_file, assignments=given)
    prepared = prepare(sweep, tiny_storage)
    trial = make_trial(sweep, 0, {})
    tokens = token_set(trial, prepared)
    assert tokens.vocabulary == 30_522 == len(load_tokenizer(trial.student, Path(tokens.tokenizer)))
    assert Path(tokens.tokenizer).parent == tiny_storage / "stores", "where every worker finds it"
    teachers = AutoTokenizer.from_pretrained(teacher_folder(sweep.teacher))
    texts, ids = open_ragged(Path(tokens.train)), prepared.pairs()[:3, 0]
    values, lengths = texts.take(ids)
    assert values[: lengths[0]].tolist()[0] == teachers.cls_token_id
    run = TrialTrainer(trial, prepared, tmp_path / "run", Collect(), ProcessGroup(), torch.device("cpu"))
    run.train()
    again = TrialTrainer(trial, prepared, tmp_path / "run", Collect(), ProcessGroup(), torch.device("cpu"))
    again.train()
    assert len(read_reports(tmp_path / "run")) == 1, "a resumed trial finds its tokens, and that it has ended"
    folder = tmp_path / "model"
    export(run.train_step.encoder, load_tokenizer(trial.student, Path(tokens.tokenizer)), trial.student, folder)
    encoder, tokenizer, _ = load_export(folder)
    assert tokenizer.get_vocab() == teachers.get_vocab()
    before, after = (encode_all(each, texts.take, ids, device="cpu") for each in (run.train_step.encoder, encoder))
    assert before == pytest.approx(after, abs=1e-6)
