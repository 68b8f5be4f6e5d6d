"""The static student: sentence-transformers' own modules, rows that a batch touches, and what a plan refuses."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from babeltune.data.stored_arrays import open_ragged
from babeltune.data.tokens import TokenCut, build_token_store, load_tokenizer, tokenizer_key, train_tokenizer
from babeltune.errors import SpecError, TeacherError
from babeltune.method import needs_of, tokens_from
from babeltune.method.distributed import ProcessGroup
from babeltune.models.build import build_student
from babeltune.models.encoder import encode_all
from babeltune.models.static import StaticEncoder, TokenNgrams, hash_of, ngrams
from babeltune.models.vocabulary import Vocabulary
from babeltune.planning.availability import model_vocabulary, model_width
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.rules import student_problems
from babeltune.planning.space import make_trial, preparations
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.export import export, export_trial
from babeltune.schema.records import Static, Training, Transformer
from babeltune.training import row_adam
from babeltune.training.build import make_reader, make_train_step
from babeltune.training.dev_evaluation import dev_scores
from babeltune.training.row_adam import RowAdam
from babeltune.training.step import make_optimizers
from every_method import SETTINGS, assignments
from exports import load_export

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

STATIC = "student={kind: static, width: 32, projection: teacher, vocabulary: 500, max_tokens: 32}"
CPU = torch.device("cpu")
TEXTS = [
    "Where does the night bus stop?",
    "The old man reads his newspaper aloud every single morning before the others wake up.",
    "Le vieil homme lit son journal à haute voix.",
    "",
    "밤 버스는 어디에 서나요?",
]


LETTERS = "student={kind: static, width: 32, projection: teacher, vocabulary: 500, max_tokens: 32, ngrams: 200}"


@pytest.fixture
def begun(tiny_file, tiny_storage):
    """A sweep with these assignments, what it has prepared, a trial of these parameters, its train step and reader."""

    def begin(*settings, **params):
        sweep = read_sweep(tiny_file, assignments=settings)
        prepared, trial = prepare(sweep, tiny_storage), make_trial(sweep, 0, params)
        step, reader = make_train_step(trial, prepared, ProcessGroup(), CPU), make_reader(trial, prepared, CPU)
        return sweep, prepared, trial, step, reader

    return begin


def encoder(seed=0, **fields):
    student = Static(width=16, **fields)
    return build_student(student, Vocabulary(50, 0), teacher_dim=24, seed=seed)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    return train_tokenizer(TEXTS * 10, 330, folder=tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    "fields",
    [
        {"projection": 24},
        {"projection": None, "normalize": False},
        {"projection": 8, "max_tokens": 6, "prompt": "query: "},
        {"projection": 24, "ngrams": 300},
    ],
    ids=["dense", "table alone", "prompt and cut", "n-grams"],
)
def test_the_export_is_stock_sentence_transformers_with_the_trained_vectors(tokenizer_folder, tmp_path, fields):
    student = Static(width=16, **fields)
    tokenizer = load_tokenizer(student, tokenizer_folder)
    encoder = build_student(
        student, Vocabulary(len(tokenizer), 0, tokenizer=tokenizer.backend_tokenizer), teacher_dim=None, seed=0
    )
    store = build_token_store(tmp_path, TEXTS, tokenizer, TokenCut(student.prompt, student.max_tokens, special=False))
    ours = encode_all(encoder, open_ragged(store).take, np.arange(len(TEXTS)), device="cpu")
    export(encoder, tokenizer, student, tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    kinds = [type(module).__name__ for module in model]
    dense = ["Dense"] if student.projection else []
    assert kinds == ["StaticEmbedding", *dense, *(["Normalize"] if student.normalize else [])]
    np.testing.assert_allclose(model.encode(TEXTS), ours, atol=1e-6)
    again, _, read = load_export(tmp_path / "model")
    assert (read.kind, read.max_tokens, read.prompt) == ("static", student.max_tokens, student.prompt)
    vectors = encode_all(again, open_ragged(store).take, np.arange(len(TEXTS)), device="cpu")
    np.testing.assert_allclose(vectors, ours, atol=1e-6 if student.ngrams else 0)
    assert model_width(str(tmp_path / "model")) == encoder.dim
    assert model_vocabulary(str(tmp_path / "model")) == len(tokenizer)


def test_a_vector_does_not_depend_on_the_batch_and_a_sentence_without_tokens_has_one():
    model, sentences = encoder(projection="teacher"), [[1, 2, 3], [], [4], [2, 2, 9]]
    together = model(tokens_from(sentences))
    for sentence, vector in zip(sentences, together, strict=True):
        torch.testing.assert_close(model(tokens_from([sentence]))[0], vector)
    assert together.shape == (4, 24)
    assert model(tokens_from([])).shape == (0, 24)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens_from(sentences)), together)


def test_the_tables_gradient_is_the_dense_one_and_names_the_rows_of_the_batch_alone():
    model, tokens = encoder(projection="teacher"), tokens_from([[1, 2, 2], [7], [9, 1]])
    weights = torch.randn(3, 24)
    (model(tokens) * weights).sum().backward()
    dense = nn.EmbeddingBag.from_pretrained(model.word_embeddings.detach().clone(), freeze=False, mode="mean")
    vectors = model.projection(dense(tokens.ids, torch.tensor([0, 3, 4])))
    (nn.functional.normalize(vectors, dim=-1) * weights).sum().backward()
    sparse = model.word_embeddings.grad.coalesce()
    assert sparse.indices()[0].tolist() == [1, 2, 7, 9]
    torch.testing.assert_close(sparse.to_dense(), dense.weight.grad)


def test_a_sentence_without_tokens_gives_the_table_no_gradient():
    model = encoder(projection=None)
    model.table.weight.requires_grad_()
    (model(tokens_from([[], [7], []])) * torch.randn(3, model.dim)).sum().backward()
    assert model.word_embeddings.grad.indices()[0].tolist() == [7]
    model.word_embeddings.grad = None
    model(tokens_from([[], []])).sum().backward()
    assert model.word_embeddings.grad.indices().numel() == 0


def with_ngrams(tokens, buckets=1000, special=()):
    torch.manual_seed(0)
    ngrams = TokenNgrams(tokens, width=8, buckets=buckets, special=special)
    return StaticEncoder(torch.randn(len(tokens), 8), ngrams=ngrams, normalize=False)


def test_a_tokens_vector_is_its_own_plus_the_mean_of_its_ngrams():
    model = with_ngrams(["[PAD]", "▁cats", "[PAD]", "▁cat"], special=[0, 2])
    table = model.ngrams.table.weight
    for row, grams in ((1, ngrams("▁cats")), (3, ["<ca", "cat", "at>", "<cat", "cat>"])):
        expected = model.word_embeddings[row] + table[[hash_of(gram, 1000) for gram in grams]].mean(0)
        torch.testing.assert_close(model(tokens_from([[row]]))[0], expected)
    torch.testing.assert_close(model(tokens_from([[0, 2]]))[0], model.word_embeddings[[0, 2]].mean(0))


def test_the_ngrams_gradient_is_that_of_the_plain_means_and_names_each_row_once():
    model = with_ngrams(["▁cats", "[PAD]", "▁cat", "고양이"], buckets=20, special=[1])
    tokens, weights = torch.tensor([3, 1, 0, 2, 0]), torch.randn(5, 8)
    (model.ngrams(tokens) * weights).sum().backward()
    gradient = model.ngrams.table.weight.grad
    table = model.ngrams.table.weight.detach().clone().requires_grad_()
    grams = [[hash_of(gram, 20) for gram in ngrams(t)] for t in ("고양이", "", "▁cats", "▁cat", "▁cats")]
    means = [table[row].mean(0) if row else torch.zeros(8) for row in [*grams[:1], [], *grams[2:]]]
    (torch.stack(means) * weights).sum().backward()
    torch.testing.assert_close(gradient.to_dense(), table.grad)
    assert gradient._indices()[0].tolist() == sorted({i for row in [grams[0], *grams[2:]] for i in row})


def test_tokens_that_share_letters_learn_from_one_another():
    model = with_ngrams(["▁перевод", "▁перевода", "▁dog"])
    before = model(tokens_from([[0], [1], [2]])).detach()
    model(tokens_from([[0]])).sum().backward()
    gradient = model.ngrams.table.weight.grad.coalesce()
    assert len(gradient.indices()[0]) == len({hash_of(gram, 1000) for gram in ngrams("▁перевод")})
    torch.optim.SparseAdam(model.ngrams.parameters(), lr=0.1).step()
    moved = (model(tokens_from([[0], [1], [2]])) - before).abs().mean(1)
    assert moved[0] > moved[1] > 0.02
    assert moved[2] < 0.01


@pytest.mark.parametrize(
    ("token", "pieces"), [("가요", ["가", "요"]), ("▁東京", ["東", "東京", "京>"]), ("ÉTÉ", ["été", "té>"]), ("▁", [])]
)
def test_ngrams_follow_the_script(token, pieces):
    grams = ngrams(token)
    if token == "가요":  # letter by letter
        assert "\u1100\u1161\u110b" in grams
        assert "\u1161" not in grams
    else:
        assert set(pieces) <= set(grams)
    assert bool(grams) == bool(pieces)


def test_ngrams_folded_into_the_table_give_the_same_vectors():
    model = with_ngrams([f"▁wort{i}" for i in range(9)])
    sentences = tokens_from([[1, 2, 3], [], [4], [2, 2, 8]])
    folded = model.folded()
    assert folded.ngrams is None
    torch.testing.assert_close(folded(sentences), model(sentences))
    assert with_ngrams(["a"]).word_embeddings.shape == (1, 8)
    plain = encoder()
    assert plain.folded() is plain


def test_a_student_with_ngrams_trains_and_its_dev_scores_are_those_of_its_export(begun, tmp_path):
    sweep, prepared, trial, train_step, reader = begun(LETTERS, "training.learning_rate=0.01")
    losses = [train_step.step(reader.batch(np.arange(24), 24), 100 + step)["loss"] for step in range(12)]
    assert losses[-1] < losses[0]
    scores = dev_scores(train_step.encoder, train_step.method, trial, prepared, ProcessGroup(), CPU)
    export_trial(sweep, trial, prepared, train_step.encoder, train_step.method, tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert scores["model/parameters"] == sum(parameter.numel() for parameter in model.parameters())
    texts = prepared.all_texts()[:20]
    store = open_ragged(Path(next(iter(prepared.tokens.values())).evaluation))
    ours = encode_all(train_step.encoder, store.take, np.arange(20), device="cpu")
    np.testing.assert_allclose(model.encode(texts), ours, atol=1e-5)


def test_different_sentences_differ_at_the_start():
    sentences = tokens_from([[2 * row, 2 * row + 1] for row in range(20)])
    vectors = encoder(projection="teacher")(sentences).detach()
    cosines = (vectors @ vectors.T)[~torch.eye(20, dtype=torch.bool)]
    assert float(cosines.mean()) < 0.2


def test_dropout_gives_two_calls_two_views_in_training_and_none_in_evaluation():
    model, tokens = encoder(dropout=0.3), tokens_from([[1, 2, 3], [4, 5]])
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_a_step_changes_the_rows_of_its_batch_and_no_other(begun):
    *_, train_step, reader = begun(STATIC)
    assert isinstance(train_step.encoder, StaticEncoder)
    before = train_step.encoder.word_embeddings.detach().clone()
    batch = reader.batch(np.arange(8), 8)
    train_step.step(batch, 200)
    touched = torch.unique(torch.cat([batch.source.ids, batch.target.ids]))
    changed = (train_step.encoder.word_embeddings.detach() != before).any(1).nonzero()[:, 0]
    assert changed.tolist() == touched.tolist()
    assert 0 < len(touched) < len(before) / 2


def test_special_tokens_are_not_read_and_kinds_do_not_share_tokens(tokenizer_folder, tmp_path):
    student = Static()
    tokenizer = load_tokenizer(student, tokenizer_folder)
    store = open_ragged(build_token_store(tmp_path, TEXTS, tokenizer, TokenCut("", 128, special=False)))
    ids, lengths = store.take(np.arange(len(TEXTS)))
    assert not set(ids.tolist()) & set(tokenizer.all_special_ids)
    assert lengths[TEXTS.index("")] == 0
    assert tokenizer_key(student, "corpus") != tokenizer_key(Transformer(), "corpus")


READS_STATES = ("ml_ctl",)
FROZEN = ("bilingual_aligner", "dimension_reduction")


@pytest.mark.parametrize("method", [name for name in SETTINGS if name not in FROZEN])
def test_every_method_that_reads_sentence_vectors_trains_a_static_student(tiny_file, begun, method):
    settings = [*assignments(method), STATIC]
    if method in READS_STATES:
        with pytest.raises(SpecError, match=r"student\.kind: 'static': method 'ml_ctl' reads token states"):
            read_sweep(tiny_file, assignments=settings)
        return
    _, _, trial, train_step, reader = begun(*settings, "training.learning_rate=0.01")
    assert not needs_of(trial.method, trial.config).states
    if rows := needs_of(trial.method, trial.config).warm_up:
        train_step.method.warm_up(*reader.anchors(rows, trial.seed))
    losses = [train_step.step(reader.batch(np.arange(24), 24), 100 + step)["loss"] for step in range(12)]
    assert losses[-1] < losses[0]


def test_gradient_caching_gives_the_gradient_of_the_whole_batch(tiny_file, tiny_storage):
    sweep = read_sweep(tiny_file, assignments=[STATIC])
    prepared = prepare(sweep, tiny_storage)

    def gradients(chunk):
        trial = make_trial(sweep, 0, {})
        trial = replace(trial, training=replace(trial.training, chunk=chunk))
        train_step, reader = make_train_step(trial, prepared, ProcessGroup(), CPU), make_reader(trial, prepared, CPU)
        train_step.backward(reader.batch(np.arange(32), 32))
        return [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in train_step.parameters]

    for whole, cached in zip(gradients(None), gradients(7), strict=True):
        torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-6)


def test_embeddings_have_their_own_rate_and_no_decay():
    module = nn.ModuleDict({"table": nn.Embedding(9, 4), "places": nn.Embedding(5, 4), "linear": nn.Linear(4, 3)})
    training = Training(learning_rate=1e-3, weight_decay=0.1, embedding_learning_rate=10)
    (optimizer,) = make_optimizers(module, module["table"].weight, training)
    settings = {
        id(parameter): (group["rate"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    names = {name: settings[id(parameter)] for name, parameter in module.named_parameters()}
    expected = {"table.weight": (10, 0), "places.weight": (1, 0), "linear.weight": (1, 0.1), "linear.bias": (1, 0)}
    assert names == expected


@pytest.mark.parametrize("kind", ["static", "transformer"])
def test_the_factor_of_the_embeddings_reaches_their_first_step(begun, kind):
    """Adam's first step has the rate's length whatever the gradient, so a factor of 4 is 4 times the change."""

    def change(factor):
        student = STATIC if kind == "static" else "student.width=32"
        *_, train_step, reader = begun(student, f"training.embedding_learning_rate={factor}", "training.epsilon=1e-30")
        before = train_step.encoder.word_embeddings.detach().clone()
        train_step.step(reader.batch(np.arange(8), 8), 200)
        return float((train_step.encoder.word_embeddings.detach() - before).abs().max())

    assert change(4) == pytest.approx(4 * change(1), rel=1e-3)


def test_a_file_keeps_its_sweeps_id_though_kinds_and_factors_were_added(tiny_file):
    sweep = read_sweep(tiny_file)
    explicit = read_sweep(tiny_file, assignments=["student.kind=transformer", "training.embedding_learning_rate=1"])
    assert sweep_id(sweep) == sweep_id(explicit)
    assert sweep_id(sweep) != sweep_id(read_sweep(tiny_file, assignments=["training.embedding_learning_rate=2"]))


@pytest.mark.parametrize("student", [STATIC, STATIC.replace("static", "transformer")])
def test_a_setting_of_one_kind_is_judged_as_that_kinds(tiny_file, student):
    layers = "student.layers: {choice: [1, 3], when: {student.kind: transformer}}"
    settings = [student, f"parameters={{student.kind: {{choice: [transformer, static]}}, {layers}}}"]
    sweep = read_sweep(tiny_file, assignments=settings)
    assert {student.kind for student in preparations(sweep)} == {"transformer", "static"}
    with pytest.raises(SpecError, match=r"student\.layers\.choice: 0"):
        read_sweep(tiny_file, assignments=[settings[0], settings[1].replace("[1, 3]", "[0, 3]")])


def test_the_kind_is_a_choice_and_each_kind_is_tokenized(begun):
    for kind in ("transformer", "static"):
        setting = "parameters={student.kind: {choice: [transformer, static]}}"
        sweep, _, _, train_step, reader = begun(setting, **{"student.kind": kind})
        assert {student.kind for student in preparations(sweep)} == {"transformer", "static"}
        assert isinstance(train_step.encoder, StaticEncoder) == (kind == "static")
        assert train_step.step(reader.batch(np.arange(8), 8), 200)["loss"] > 0


def test_a_start_brings_its_own_table():
    student = Static(start="somewhere/static", ngrams=500)
    assert [key for key, problem in student_problems(student) if "brings its own table" in problem] == [("ngrams",)]


def saved(folder, tokenizer_folder):
    student = Static(width=16, projection=8)
    tokenizer = load_tokenizer(student, tokenizer_folder)
    model = build_student(student, Vocabulary(len(tokenizer), 0), teacher_dim=None, seed=0)
    export(model, tokenizer, student, folder)
    return len(tokenizer)


def test_a_static_folder_is_no_transformer_and_the_other_way_round(tiny_file, tokenizer_folder, tmp_path, tiny):
    saved(tmp_path / "static", tokenizer_folder)
    with pytest.raises(SpecError, match=r"is a static model; set student\.kind to static"):
        read_sweep(tiny_file, assignments=[f"student={{model: {tmp_path / 'static'}}}"])
    with pytest.raises(TeacherError, match=r"set student\.kind to static"):
        build_student(Transformer(model=str(tmp_path / "static")), Vocabulary(9, 0), teacher_dim=None, seed=0)
    teacher = tiny[0].teacher.model
    with pytest.raises(TeacherError, match="is no static model: its modules are Transformer"):
        build_student(Static(model=teacher), Vocabulary(9, 0), teacher_dim=None, seed=0)


DAMAGES = {
    "no table": (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
    "too few rows": (None, "token vectors, its tokenizer"),
    "another module": (
        lambda folder: append(
            folder, {"idx": 3, "name": "3", "path": "3_LSTM", "type": "sentence_transformers.models.LSTM"}
        ),
        "is no static model: its modules are StaticEmbedding, Dense, Normalize, LSTM",
    ),
    "another width": (None, "comes with a projection to 8"),
}


def append(folder: Path, module):
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    (folder / "modules.json").write_text(json.dumps([*modules, module]), encoding="utf-8")


@pytest.mark.parametrize("case", DAMAGES)
def test_a_static_start_that_does_not_fit_is_refused_in_words(tokenizer_folder, tmp_path, case):
    rows = saved(tmp_path / "model", tokenizer_folder)
    damage, words = DAMAGES[case]
    if damage:
        damage(tmp_path / "model")
    student = Static(model=str(tmp_path / "model"), projection=9 if case == "another width" else None)
    more = 1 if case == "too few rows" else 0
    with pytest.raises(TeacherError, match=words):
        build_student(student, Vocabulary(rows + more, 0), teacher_dim=None, seed=0)
    shutil.rmtree(tmp_path / "model")


def test_row_adam_is_torchs_sparse_adam(monkeypatch):
    monkeypatch.setattr(row_adam, "CACHED", 30)  # some blocks
    tables = [nn.Parameter(torch.arange(60, dtype=torch.float32).reshape(12, 5) / 10) for _ in range(2)]
    settings = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6}
    ours, torchs = RowAdam([tables[0]], **settings), torch.optim.SparseAdam([tables[1]], **settings)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        rows = torch.randperm(12, generator=generator)[: 7 if step else 12].sort().values
        values = torch.randn(len(rows), 5, generator=generator)
        for table in tables:
            table.grad = torch.sparse_coo_tensor(
                rows[None], values.clone(), table.shape, check_invariants=True
            ).coalesce()
        ours.step()
        torchs.step()
    torch.testing.assert_close(tables[0], tables[1], rtol=1e-5, atol=1e-7)
    tables[0].grad = torch.zeros(12, 5)
    with pytest.raises(RuntimeError, match="dense gradient"):
        ours.step()
