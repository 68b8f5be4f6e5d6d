"""Methods on a frozen encoder, from the sweep file to the exported folder, and layers that an export keeps."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from babeltune.data.stored_arrays import open_matrix
from babeltune.data.teacher import load_teacher
from babeltune.errors import CheckpointError, TeacherError
from babeltune.files import write_json
from babeltune.method import EVERY
from babeltune.method.distributed import ProcessGroup
from babeltune.models.encoder import FrozenEncoder, TextIds, encode_all
from babeltune.planning.checks import method_problems
from babeltune.planning.preparation import prepare, wanted_of
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.planning.warnings import about_languages
from babeltune.promotion.candidate import Candidate, dev_texts, export_model
from babeltune.promotion.export import export, export_trial
from babeltune.promotion.fresh_scorer import score, score_items
from babeltune.promotion.model_card import routes
from babeltune.promotion.verdict import weigh
from babeltune.schema.records import Parameter, StartAverage, Teacher, Transformer
from babeltune.sweep.driver.baselines import teacher_scores, untrained_scores
from babeltune.sweep.state.folder import SweepFolder
from babeltune.training.build import make_method, make_student
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint
from babeltune.training.trainer import TrialTrainer
from collecting import Collect
from exports import load_export

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

FROZEN = """
version: 1
name: frozen
method: bilingual_aligner
config: {output: 24, temperature: 0.1}
objectives: [{metric: dev/everyday/accuracy}, {metric: dev/topics/ari}]
data:
  root: ROOT
  train:
    - {name: natural, path: train.tsv, columns: {eng: eng, fra: fra, kor: kor}}
  dev:
    - name: everyday
      source: {name: everyday, path: dev.tsv, columns: {eng: eng, fra: fra, kor: kor}}
    - name: topics
      task: clustering
      source: {name: topics, path: dev.tsv, columns: {eng: eng, fra: fra}}
      label: topic
teacher: {model: ROOT/encoder, languages: [eng], max_tokens: 32}
training: {pairs: 320, reports: 2, global_batch: 32, learning_rate: 3e-3, chunk: 8}
scheduler: {kind: none}
sampler: {kind: random}
budget: {trials: 2, workers: 1}
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory, tiny):
    """A sweep over a little bundled text, whose rows have a topic too (how long they are), with a small encoder that
    nobody trained; and what is prepared for it."""
    place, (small, prepared) = tmp_path_factory.mktemp("frozen"), tiny
    for name, rows in (("train", 81), ("dev", 31)):
        lines = (data_root(small) / f"natural_{name}.tsv").read_text(encoding="utf-8").splitlines()[:rows]
        topics = ["topic", *("long" if len(line) > 150 else "short" for line in lines[1:])]
        rows = (f"{line}\t{topic}\n" for line, topic in zip(lines, topics, strict=True))
        (place / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    trial = make_trial(small, 0, {})
    encoder = make_student(trial, prepared)
    export_trial(small, trial, prepared, encoder, make_method(trial, prepared, encoder), place / "encoder")
    (place / "frozen.yaml").write_text(FROZEN.replace("ROOT", str(place)), encoding="utf-8")
    sweep = read_sweep(place / "frozen.yaml")
    return sweep, prepare(sweep, place / "storage")


def problems(sweep):
    """What speaks against the sweep, a line each."""
    return [f"{'.'.join(map(str, key))}: {problem}" for key, problem in method_problems(sweep)]


def trained(sweep, prepared, folder, most=100, **changes):
    sweep = replace(sweep, **changes)
    assert problems(sweep) == []
    trial = make_trial(sweep, 0, {})
    run = TrialTrainer(trial, prepared, folder, Collect(most), ProcessGroup(), torch.device("cpu"))
    return sweep, run, run.train()


METHODS = [
    ("bilingual_aligner", {"output": 24, "depth": 1, "hidden": 40, "temperature": 0.1}),
    ("bilingual_aligner", {"output": 24, "intra": True}),
    ("dimension_reduction", {"dim": 32}),
]


@pytest.mark.parametrize(("method", "config"), METHODS)
def test_a_method_on_a_frozen_encoder_learns_and_its_export_gives_its_vectors(frozen, tmp_path, method, config):
    sweep, prepared = frozen
    sweep, run, reports = trained(sweep, prepared, tmp_path / "run", method=method, config=config)
    assert not prepared.tokens
    assert isinstance(run.train_step.encoder, FrozenEncoder)
    first, last = reports[0].points[0].values["train/loss"], reports[-1].points[-1].values["train/loss"]
    assert last < first
    assert -1 <= reports[-1].metrics["dev/topics/mixed/ari"] <= 1
    layers = run.train_step.method.layers()
    assert reports[-1].metrics["model/parameters"] == sum(p.numel() for p in run.train_step.method.parameters())

    export_trial(sweep, run.trial, prepared, run.train_step.encoder, run.train_step.method, tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = prepared.all_texts()
    languages = [prepared.languages[number] for number in prepared.text_languages()]
    assert model.get_embedding_dimension() == config.get("output", config.get("dim"))
    for language in ("eng", "fra", "kor"):
        ids = np.array([i for i, other in enumerate(languages) if other == language][-40:])
        stored = encode_all(run.train_step.encoder, TextIds().take, ids, device="cpu")
        expected = run.train_step.method.finish(torch.from_numpy(stored), [language] * len(ids)).numpy()
        chosen = {} if EVERY in layers else {"task": language}
        found = model.encode([texts[i] for i in ids], **chosen)
        assert np.abs(found - expected).max() < 1e-5
        if language == "eng":  # the first language's layers are the default
            assert np.abs(model.encode([texts[i] for i in ids]) - expected).max() < 1e-5
    scores = score(str(tmp_path / "model"), dev_texts(prepared), "dev")
    for name, value in reports[-1].metrics.items():
        if name.startswith("dev/"):
            assert scores[name] == pytest.approx(value, abs=1e-5), name


def test_a_promotion_scores_the_exported_layers_with_the_languages_of_the_texts(frozen, tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    sweep, run, reports = trained(*frozen, folder.trial(0))
    write_json(folder.trial(0) / "trial.json", run.trial)
    folder.write("sweep.json", sweep)
    candidate = Candidate(folder, sweep, run.trial, reports[-1], run.prepared)

    class Here:
        """Scores in this process."""

        @staticmethod
        def scored(models, tasks, prefix, target):
            assert target is None
            return {name: score_items(model, tasks, prefix, None) for name, model in models.items()}

    export_model(candidate, tmp_path / "model")
    export_model(candidate, tmp_path / "untrained", untrained=True)
    assert weigh(candidate, tmp_path, Here()).verdict == "promote"
    export_model(candidate, tmp_path / "other" / "model", untrained=True)
    assert weigh(candidate, tmp_path / "other", Here()).verdict == "refuse"


def test_a_resumed_trial_equals_an_uninterrupted_one_bit_for_bit(frozen, tmp_path):
    config = {"output": 8, "depth": 2, "hidden": 16, "dropout": 0.5}
    trained(*frozen, tmp_path / "whole", config=config)
    trained(*frozen, tmp_path / "cut", most=1, config=config)
    trained(*frozen, tmp_path / "cut", config=config)
    whole, cut = (load_checkpoint(checkpoint_folder(tmp_path / name, 2))[0] for name in ("whole", "cut"))
    assert whole.keys() == cut.keys() == {"student", "method", "optimizer"}
    assert all(torch.equal(whole[part][name], cut[part][name]) for part in whole for name in whole[part])


def test_the_baselines_are_untrained_layers_and_the_raw_encoder(frozen):
    sweep, prepared = frozen
    untrained, raw = untrained_scores(make_trial(sweep, 0, {}), prepared), teacher_scores(prepared)
    assert "dev/topics/mixed/ari" in raw
    assert any(raw[name] != untrained[name] for name in raw)


def test_every_text_is_encoded_and_kept_in_fp32(frozen):
    _, prepared = frozen
    assert (prepared.teacher_rows() >= 0).all()
    assert open_matrix(Path(prepared.teacher)).rows(np.arange(2)).dtype == np.float32
    assert prepared.trained_languages == ("eng", "fra", "kor")


def test_a_reduced_model_is_a_teacher_and_not_a_student(frozen, tmp_path):
    """LEALLA's synchronized variant: the dimension reduction is trained first, then frozen."""
    sweep, run, _ = trained(*frozen, tmp_path / "run", method="dimension_reduction", config={"dim": 16})
    export_trial(sweep, run.trial, run.prepared, run.train_step.encoder, run.train_step.method, tmp_path / "model")
    texts = ["Good morning.", "Where is the station?"]
    expected = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    teacher = load_teacher(Teacher(model=str(tmp_path / "model"), max_tokens=32))
    assert teacher.dim == 16
    assert np.abs(teacher.encode(texts) - expected).max() < 1e-6
    with pytest.raises(TeacherError, match=r"cannot be a student: .* namely Dense, Normalize;"):
        load_export(tmp_path / "model")


@pytest.mark.trap(20)
@pytest.mark.parametrize(
    "settings",
    [{}, {"prompt": "query: ", "normalize": False}, {"pooling": "max"}, {"pooling": "cls", "normalize": False}],
)
def test_a_teacher_is_written_as_it_encodes(frozen, tmp_path, settings):
    """D20: of a model such as LaBSE the dense layer with tanh stays; a pooling of the sweep's own replaces it."""
    sweep, _ = frozen
    encoder, tokenizer, student = load_export(Path(sweep.teacher.model))
    encoder.tanh, encoder.pooling = True, "cls"
    export(encoder, tokenizer, student, tmp_path / "labse")
    teacher = load_teacher(Teacher(model=str(tmp_path / "labse"), max_tokens=8, **settings))
    teacher.save(tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = ["Good morning.", "Where is the station, and when does the last train leave for the coast?"]
    vectors = teacher.encode(texts)
    assert np.abs(model.encode(texts) - vectors).max() < 1e-6
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1) == settings.get("normalize", True)
    assert (teacher.dim == encoder.dim) == ("pooling" not in settings)


def test_a_sweep_over_frozen_and_trained_methods_prepares_for_both(frozen):
    sweep, _ = frozen
    methods = {"method": Parameter(choice=("dimension_reduction", "translation_ranking"))}
    wanted = wanted_of(replace(sweep, config={}, parameters=methods))
    assert (wanted.frozen, wanted.trained) == (True, True)
    assert problems(replace(sweep, config={}, parameters=methods, student=Transformer(layers=1))) == []


def test_a_model_with_layers_for_each_language_is_neither(frozen, tmp_path):
    sweep, run, _ = trained(*frozen, tmp_path / "run")
    export_trial(sweep, run.trial, run.prepared, run.train_step.encoder, run.train_step.method, tmp_path / "model")
    with pytest.raises(TeacherError, match="layers for each language"):
        load_teacher(Teacher(model=str(tmp_path / "model")))
    (problem,) = problems(replace(sweep, teacher=replace(sweep.teacher, model=str(tmp_path / "model"))))
    assert re.search(r"^teacher.model: .* layers for each language", problem)
    with pytest.raises(TeacherError, match=r"cannot be a student: .* namely Router, Normalize;"):
        load_export(tmp_path / "model")
    words = "".join(routes(run.trial, run.prepared))
    assert 'encode(texts, task="fra")' in words
    assert "`eng`" in words


def test_a_students_layers_are_exported_too(tiny, tmp_path):
    """LEALLA's distillation-first: the layer after the encoder belongs to the model."""
    sweep, prepared = tiny
    config = {"variant": "distillation_first", "embedding": 12, "gamma": 0.0}
    sweep, run, reports = trained(
        sweep, replace(prepared, copy_anchor=True), tmp_path / "run", method="lealla", config=config, parameters={},
        teacher=replace(sweep.teacher, target_side="copy_anchor"),
    )  # fmt: skip
    export_trial(sweep, run.trial, prepared, run.train_step.encoder, run.train_step.method, tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert model.get_embedding_dimension() == 12
    scores = score(str(tmp_path / "model"), dev_texts(prepared), "dev")
    assert scores["dev/everyday/accuracy"] == pytest.approx(reports[-1].metrics["dev/everyday/accuracy"], abs=1e-5)
    assert scores["dev/sts/spearman"] == pytest.approx(reports[-1].metrics["dev/sts/spearman"], abs=1e-4)


def test_layers_that_no_module_can_hold_are_refused(frozen, tmp_path, monkeypatch):
    sweep, run, _ = trained(*frozen, tmp_path / "run")
    layers = {EVERY: nn.Sequential(nn.Linear(4, 4), nn.GELU())}
    monkeypatch.setattr(run.train_step.method, "layers", lambda: layers)
    with pytest.raises(CheckpointError, match="hold GELU"):
        export_trial(sweep, run.trial, run.prepared, run.train_step.encoder, run.train_step.method, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_student_that_nothing_trains_is_refused_and_foreign_languages_are_said(frozen):
    sweep, _ = frozen
    frozen_encoder = "the encoder is the frozen teacher"
    for section, changes, problem in (
        ("student", {"layers": 6}, f"student.layers: 6: {frozen_encoder}"),
        ("evaluation", {"prompt": "query: "}, f"evaluation.prompt: 'query: ': {frozen_encoder}"),
        ("training", {"average": StartAverage()}, f"training.average.kind: 'start': {frozen_encoder}"),
        ("teacher", {"precision": "bf16"}, "teacher.precision: the exported model's encoder runs in fp32"),
    ):
        changed = Transformer(**changes) if section == "student" else replace(getattr(sweep, section), **changes)
        found = problems(replace(sweep, **{section: changed}))
        assert [line[: len(problem)] for line in found] == [problem]
    said = list(about_languages(sweep))
    assert len(said) == 1
    assert "is not said to know fra, kor" in said[0]
    only = replace(sweep.data.train[0], columns={"eng": "eng", "fra": "fra"})
    said = list(about_languages(replace(sweep, data=replace(sweep.data, train=(only,)))))
    assert "no layers for kor" in said[1]
