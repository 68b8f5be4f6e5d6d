"""The teacher gives what sentence-transformers gives, only where it is asked to, and each sentence once."""

import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

from babeltune.data import teacher as module
from babeltune.data.store import facts_of
from babeltune.data.store_shards import DONE
from babeltune.data.stored_arrays import open_matrix
from babeltune.data.teacher import build_teacher_store, encode_shard, load_teacher, model_digest, teacher_folder
from babeltune.data.tokens import load_tokenizer, train_tokenizer
from babeltune.errors import StoreError, TeacherError
from babeltune.files import plain
from babeltune.models.hub import BUNDLED_SHA256, verify_weights
from babeltune.promotion.fresh_scorer import target_encoder
from babeltune.schema.base import from_plain
from babeltune.schema.records import FrozenModel, Teacher, Transformer

TEXTS = [
    "A man is riding a horse on the beach.",
    "Yes.",
    "The committee will publish its final report on the second of May, after both chambers have agreed to it.",
    "Rain again",
    "",
    "It is raining again.",
    "Somebody rides a horse near the sea.",
    *(f"There are {i} boats in the harbour" + " today" * (i % 5) for i in range(60)),
]


@pytest.fixture(scope="module")
def bundled():
    return SentenceTransformer(str(teacher_folder(Teacher())), device="cpu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A plain transformers folder: one random BERT layer, no pooling."""
    folder = tmp_path_factory.mktemp("tiny")
    train_tokenizer(TEXTS, 200, folder=folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=200, max_position_embeddings=32, initializer_range=0.5, **shape)
    BertModel(config).save_pretrained(folder)
    return folder


def tiny_teacher(folder, **settings):
    return Teacher(**{"model": str(folder), "pooling": "mean", "max_tokens": 16, **settings})


@pytest.mark.slow
@pytest.mark.trap(9, 23)
def test_the_bundled_teacher_equals_sentence_transformers_in_order(bundled):
    vectors = load_teacher(Teacher()).encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), 384)
    assert np.abs(vectors - bundled.encode(TEXTS)).max() < 1e-5


@pytest.mark.slow
def test_half_precision_changes_the_third_digit_at_most(bundled):
    vectors = load_teacher(Teacher(precision="bf16")).encode(TEXTS)
    cosines = (vectors * bundled.encode(TEXTS)).sum(1)
    assert vectors.dtype == np.float32
    assert cosines.min() > 0.999


@pytest.mark.slow
@pytest.mark.trap(21)
def test_an_explicit_prompt_is_put_before_every_sentence(bundled):
    vectors = load_teacher(Teacher(prompt="query: ")).encode(TEXTS[:9])
    assert np.abs(vectors - bundled.encode([f"query: {t}" for t in TEXTS[:9]])).max() < 1e-5


@pytest.mark.trap(21)
def test_e5_in_a_path_does_nothing(tiny, tmp_path):
    e5_folder = tmp_path / "intfloat" / "multilingual-e5-base"
    shutil.copytree(tiny, e5_folder)
    plain_name, e5_name = (load_teacher(tiny_teacher(folder)).encode(TEXTS) for folder in (tiny, e5_folder))
    assert np.array_equal(plain_name, e5_name)


@pytest.mark.trap(21)
def test_the_models_own_default_prompt_does_nothing(tiny, tmp_path):
    model = load_teacher(tiny_teacher(tiny))._model
    model.prompts, model.default_prompt_name = {"query": "query: "}, "query"
    model.save(str(tmp_path / "prompted"))
    vectors = load_teacher(tiny_teacher(tmp_path / "prompted", pooling="model")).encode(TEXTS)
    assert np.array_equal(vectors, load_teacher(tiny_teacher(tiny)).encode(TEXTS))


@pytest.mark.trap(20)
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooling_is_as_the_record_says(tiny, pooling):
    teacher = tiny_teacher(tiny, pooling=pooling, normalize=False)
    tokenizer = load_tokenizer(Transformer(model=str(tiny)), None)
    bert = BertModel.from_pretrained(tiny).eval()
    for text, vector in zip(TEXTS[:12], load_teacher(teacher).encode(TEXTS[:12]), strict=True):
        with torch.no_grad():
            states = bert(**tokenizer(text, truncation=True, max_length=16, return_tensors="pt")).last_hidden_state[0]
        expected = {"mean": states.mean(0), "cls": states[0], "max": states.max(0).values}[pooling]
        assert np.abs(vector - expected.numpy()).max() < 1e-5


def test_a_teacher_pools_by_its_own_pooler(tiny, tmp_path):
    teacher = tiny_teacher(tiny, pooling="pooler", normalize=False)
    tokenizer = load_tokenizer(Transformer(model=str(tiny)), None)
    bert = BertModel.from_pretrained(tiny).eval()
    loaded = load_teacher(teacher)
    vectors = loaded.encode(TEXTS[:6])
    for text, vector in zip(TEXTS[:6], vectors, strict=True):
        with torch.no_grad():
            expected = bert(**tokenizer(text, truncation=True, max_length=16, return_tensors="pt")).pooler_output[0]
        assert np.abs(vector - expected.numpy()).max() < 1e-5
    loaded.save(tmp_path / "whole")
    assert np.abs(SentenceTransformer(str(tmp_path / "whole"), device="cpu").encode(TEXTS[:6]) - vectors).max() < 1e-5
    BertModel.from_pretrained(tiny, add_pooling_layer=False).save_pretrained(bare := tmp_path / "bare")
    shutil.copy(tiny / "tokenizer.json", bare)
    with pytest.raises(TeacherError, match=r"teacher\.model .* has no weights of a pooler"):
        load_teacher(tiny_teacher(bare, pooling="pooler"))


@pytest.fixture
def static(tiny, tmp_path):
    """A static table with a layer after it, as this project promotes one."""
    torch.manual_seed(0)
    table = StaticEmbedding(Tokenizer.from_file(str(tiny / "tokenizer.json")), embedding_dim=24)
    SentenceTransformer(modules=[table, Dense(24, 16), Normalize()]).save(str(tmp_path / "static"))
    return tmp_path / "static"


def test_a_static_model_is_a_teacher_that_cuts_its_texts(static, tmp_path):
    loaded = load_teacher(Teacher(model=str(static)))
    whole = loaded.encode(TEXTS)
    assert np.abs(whole - SentenceTransformer(str(static), device="cpu").encode(TEXTS)).max() < 1e-5
    assert loaded.truncated == 0
    cutting = load_teacher(Teacher(model=str(static), max_tokens=4))
    cut = cutting.encode(TEXTS)
    assert 0 < cutting.truncated < len(TEXTS)
    assert np.array_equal(np.abs(cut - whole).max(axis=1) > 1e-5, cutting.lengths(TEXTS) > 4)
    cutting.save(tmp_path / "cut")
    assert np.abs(SentenceTransformer(str(tmp_path / "cut"), device="cpu").encode(TEXTS) - cut).max() < 1e-5
    with pytest.raises(TeacherError, match="with pooling 'mean' its first module is StaticEmbedding"):
        load_teacher(Teacher(model=str(static), pooling="mean"))


def test_normalisation_is_as_the_record_says(bundled):
    lengths = np.linalg.norm(load_teacher(Teacher(normalize=False)).encode(TEXTS[:4]), axis=1)
    assert np.abs(lengths - 1).min() > 0.1
    assert np.allclose(np.linalg.norm(load_teacher(Teacher()).encode(TEXTS[:4]), axis=1), 1, atol=1e-6)


@pytest.mark.trap(22)
def test_max_tokens_cuts_a_sentence_and_must_fit_the_model(tiny):
    long = "boats " * 50
    cut = load_teacher(tiny_teacher(tiny, max_tokens=8)).encode([long, long + "today", TEXTS[0]])
    assert np.array_equal(cut[0], cut[1])
    assert not np.array_equal(cut[0], cut[2])
    with pytest.raises(TeacherError, match=r"teacher\.max_tokens is 33, but .* has 32 positions"):
        load_teacher(tiny_teacher(tiny, max_tokens=33))


def test_weights_saved_in_half_precision_run_in_float32(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "half")
    BertModel.from_pretrained(tiny).half().save_pretrained(tmp_path / "half")
    weights = next(iter(load_teacher(tiny_teacher(tmp_path / "half"))._model.parameters()))
    assert weights.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./no/such/folder", "no such folder"),
        ("bundled:other", "there is one: 'bundled:all-MiniLM-L6-v2'"),
        ("nobody-here/no-such-model", "neither a folder nor reachable on the Hugging Face hub"),
    ],
)
def test_a_teacher_that_cannot_be_found_is_a_clear_error(name, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(TeacherError, match=message):
        load_teacher(Teacher(model=name))


def test_without_pooling_or_safetensors_a_model_is_not_read(tiny, tmp_path):
    with pytest.raises(TeacherError, match=r"set teacher\.pooling to mean, cls, max or pooler"):
        load_teacher(tiny_teacher(tiny, pooling="model"))
    shutil.copytree(tiny, tmp_path / "old", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({}, tmp_path / "old" / "pytorch_model.bin")
    with pytest.raises(TeacherError, match=r"has no \*\.safetensors file"):
        load_teacher(tiny_teacher(tmp_path / "old"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "head.pkl"])
def test_a_folder_with_pickled_weights_alone_is_refused_whatever_others_hold(tiny, tmp_path, name):
    shutil.copytree(tiny, tmp_path / "mixed")
    (tmp_path / "mixed" / "training_args.bin").touch()
    (tmp_path / "mixed" / "openvino").mkdir()
    (tmp_path / "mixed" / "openvino" / "openvino_model.bin").touch()
    load_teacher(tiny_teacher(tmp_path / "mixed"))
    (tmp_path / "mixed" / "2_Dense").mkdir()
    torch.save({}, tmp_path / "mixed" / "2_Dense" / name)
    with pytest.raises(TeacherError, match=rf"teacher.model .* has pickled weights, 2_Dense/{name}, and no"):
        load_teacher(tiny_teacher(tmp_path / "mixed"))


def test_altered_weights_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"other weights")
    with pytest.raises(TeacherError, match=f"is not the published model.*expected {BUNDLED_SHA256}"):
        verify_weights(path, BUNDLED_SHA256)


def test_the_digest_of_a_model_follows_its_weights(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "other")
    assert model_digest(tiny_teacher(tmp_path / "other")) == model_digest(tiny_teacher(tiny))
    weights = tmp_path / "other" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert model_digest(tiny_teacher(tmp_path / "other")) != model_digest(tiny_teacher(tiny))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(module, "SHARD_ROWS", (16, 16))


@pytest.mark.trap(22)
def test_a_teacher_store_holds_each_sentence_once_in_order(tiny, tmp_path, small_shards, monkeypatch):
    steps, forwarded, encode = [], [], module.TeacherModel.encode

    def count(self, texts):
        forwarded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(module.TeacherModel, "encode", count)
    folder = build_teacher_store(tmp_path, TEXTS, tiny_teacher(tiny), progress=lambda *step: steps.append(step))
    matrix = open_matrix(folder, verify=True)
    vectors = matrix.rows(np.arange(len(TEXTS)))
    assert vectors.dtype == np.float16
    assert facts_of(folder) == {"forwarded": len(TEXTS), "truncated": 1, "dim": 16}
    shards = len(list(folder.glob("rows-*.bin")))
    assert shards >= 5
    assert [steps[0], steps[-1], len(steps)] == [(0, 67), (67, 67), shards + 1]
    assert steps == sorted(steps)
    assert not list(folder.glob("texts-*"))
    assert build_teacher_store(tmp_path, TEXTS, tiny_teacher(tiny)) == folder
    assert sorted(forwarded) == sorted(TEXTS), "each once, and none when it is there"
    assert np.abs(vectors - load_teacher(tiny_teacher(tiny)).encode(TEXTS)).max() < 1e-3


def test_the_count_moves_evenly_although_some_sentences_are_long(monkeypatch):
    monkeypatch.setattr(module, "SHARD_ROWS", (100, 400))
    lengths = np.sort(np.random.default_rng(0).lognormal(4, 1, 6400).astype(np.int64))[::-1]
    parts = module._of_equal_cost(np.arange(6400), lengths)
    assert np.array_equal(np.concatenate(parts), np.arange(6400))
    costs = [int((lengths[part] + module.SENTENCE_COST).sum()) for part in parts]
    assert max(costs) < 1.5 * sum(costs) / len(costs), "no shard holds up the count"
    assert max(map(len, parts)) <= 400
    assert module._of_equal_cost(np.empty(0, np.intp), np.empty(0, np.int64)) == []


def test_shards_may_finish_in_any_order_anywhere(tiny, tmp_path, small_shards):
    calls = []

    def backwards(function, arguments, *, gpu):
        assert gpu
        assert function is encode_shard
        for each in reversed(arguments):
            calls.append(each)
            yield function(*each)

    folder = build_teacher_store(tmp_path / "a", TEXTS, tiny_teacher(tiny), run_shards=backwards)
    inline = build_teacher_store(tmp_path / "b", TEXTS, tiny_teacher(tiny))
    ids = np.arange(len(TEXTS))
    assert np.array_equal(open_matrix(folder).rows(ids), open_matrix(inline).rows(ids))
    assert len(calls) >= 5


def test_no_sentences_are_an_empty_store_and_repeated_ones_are_refused(tiny, tmp_path):
    assert load_teacher(tiny_teacher(tiny)).encode([]).shape == (0, 16)
    matrix = open_matrix(build_teacher_store(tmp_path, [], tiny_teacher(tiny)))
    assert (len(matrix), matrix.width) == (0, 16)
    with pytest.raises(StoreError, match="2 texts for the teacher are only 1 different"):
        build_teacher_store(tmp_path, ["a", "a"], tiny_teacher(tiny))


def test_a_shard_that_never_came_is_not_published(tiny, tmp_path, small_shards):
    def lazy(function, arguments, *, gpu):
        for each in arguments[1:]:
            yield function(*each)

    with pytest.raises(StoreError, match=r"encoded \d\d of 67 sentences"):
        build_teacher_store(tmp_path, TEXTS, tiny_teacher(tiny), run_shards=lazy)
    assert not [p for p in tmp_path.iterdir() if p.is_dir() and not p.name.startswith(".")]


@pytest.mark.parametrize("damage", ["nothing", "vectors", "record", "size of shards"])
def test_an_encoding_that_was_cut_off_goes_on_with_the_shards_that_are_left(
    tiny, tmp_path, small_shards, monkeypatch, damage
):
    teacher, whole = tiny_teacher(tiny), build_teacher_store(tmp_path / "whole", TEXTS, tiny_teacher(tiny))

    def cut_off(function, arguments, *, gpu):
        for each in arguments[:3]:
            yield function(*each)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_teacher_store(tmp_path, TEXTS, teacher, run_shards=cut_off)
    (draft,) = tmp_path.glob(".teacher-*.unfinished")
    first, *_ = sorted(draft.glob("rows-*.bin"))
    if damage == "vectors":
        first.write_bytes(first.read_bytes()[:-2] + b"\0\0")
    elif damage == "record":
        first = draft / f"{first.name.split('-')[1]}{DONE}"
        first.write_text("{")
    elif damage == "size of shards":
        monkeypatch.setattr(module, "SHARD_ROWS", (20, 20))
    encoded, steps = [], []

    def counting_run(function, arguments, *, gpu):
        for each in arguments:
            encoded.append(function(*each))
            yield encoded[-1]

    folder = build_teacher_store(
        tmp_path, TEXTS, teacher, run_shards=counting_run, progress=lambda *step: steps.append(step)
    )
    ids = np.arange(len(TEXTS))
    assert np.array_equal(open_matrix(folder, verify=True).rows(ids), open_matrix(whole).rows(ids))
    assert facts_of(folder) == facts_of(whole)
    stored = len(TEXTS) - sum(encoded)
    assert (steps[0], steps[-1]) == ((stored, 67), (67, 67))
    assert stored > 0 or damage == "size of shards"
    assert not draft.exists()
    assert not [path for path in folder.iterdir() if path.name.endswith(DONE)]


CHANGES = [{"prompt": "a"}, {"pooling": "cls"}, {"normalize": False}, {"max_tokens": 9}, {"precision": "bf16"}]


@pytest.mark.parametrize("change", [*CHANGES, {"center": True}])
def test_all_that_decides_the_vectors_decides_the_store(tiny, tmp_path, change):
    same = build_teacher_store(tmp_path, TEXTS[:3], tiny_teacher(tiny))
    assert same == build_teacher_store(tmp_path, TEXTS[:3], tiny_teacher(tiny, languages=("eng", "fra")))
    assert same != build_teacher_store(tmp_path, TEXTS[:3], tiny_teacher(tiny, **change))
    assert same != build_teacher_store(tmp_path, TEXTS[1:4], tiny_teacher(tiny))


def test_a_cosine_of_encoders_side_by_side_is_the_weighted_mean_of_theirs(tiny, static, tmp_path):
    other = FrozenModel(model=str(static), prompt="boats ", weight=3)
    mixed = tiny_teacher(tiny, beside=(other,))
    one, two = (load_teacher(each).encode(TEXTS) for each in (tiny_teacher(tiny), from_plain(Teacher, plain(other))))
    vectors = load_teacher(mixed).encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 16 + 16)
    assert np.abs(vectors @ vectors.T - (one @ one.T + 3 * two @ two.T) / 4).max() < 1e-5
    again = target_encoder(from_plain(Teacher, plain(mixed)))
    assert np.array_equal(again(TEXTS, ["eng"] * len(TEXTS)), vectors), "what promotion encodes"
    build_teacher_store(tmp_path, TEXTS, tiny_teacher(tiny))
    forwarded, run = [], module.run_here

    def count(function, arguments, *, gpu):
        forwarded.extend(encoder.model for encoder, *_ in arguments)
        return run(function, arguments, gpu=gpu)

    folder = build_teacher_store(tmp_path, TEXTS, mixed, exact=False, run_shards=count)
    assert forwarded == [str(static)], "the first one's vectors are there"
    assert np.abs(open_matrix(folder, verify=True).rows(np.arange(len(TEXTS))) - vectors).max() < 2e-3
    assert facts_of(folder) == {"forwarded": 2 * len(TEXTS), "truncated": 1, "dim": 32}
    heavier = tiny_teacher(tiny, beside=(FrozenModel(model=str(static), prompt="boats ", weight=2),))
    assert build_teacher_store(tmp_path, TEXTS, heavier, run_shards=count) != folder
    assert forwarded == [str(static)], "another weight forwards nothing"


def test_a_centered_encoder_has_no_mean_over_its_own_tokens_and_is_saved_so(static, tmp_path):
    centered = load_teacher(Teacher(model=str(static), center=True))
    table = Tokenizer.from_file(str(static / "tokenizer.json"))
    tokens = [text for text in module.token_texts(table, range(table.get_vocab_size())) if text]
    before = load_teacher(Teacher(model=str(static)))
    mean = before.encode(list(dict.fromkeys(tokens))).mean(0)
    expected = before.encode(TEXTS) - mean
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(centered.encode(TEXTS) - expected).max() < 1e-5
    centered.save(tmp_path / "centered")
    saved = SentenceTransformer(str(tmp_path / "centered"), device="cpu")
    assert np.abs(saved.encode(TEXTS) - expected).max() < 1e-5
