"""Mean teacher vectors of tokens: the same as token by token, built once, and what a student makes of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from babeltune.data import token_vectors
from babeltune.data.stored_arrays import Matrix, Ragged, open_matrix, open_ragged
from babeltune.data.teacher import load_teacher, token_texts
from babeltune.data.token_vectors import PRIOR, mean_vectors
from babeltune.data.tokens import load_tokenizer, tokenizer_key
from babeltune.method import Tokens
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.training.build import make_student

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

STATIC = "student={kind: static, width: %d, projection: teacher, vocabulary: 500, token_vectors: teacher}"


def test_a_tokens_vector_is_the_mean_of_its_pairs_less_that_of_all(monkeypatch):
    monkeypatch.setattr(token_vectors, "PAIRS", 3)
    random = np.random.default_rng(0)
    texts, size, dim = 20, 12, 5
    lengths = random.integers(0, 6, texts)
    tokens = Ragged((random.integers(0, size - 1, lengths.sum()), np.cumsum([0, *lengths])))
    teacher = Matrix([random.normal(size=(9, dim)).astype(np.float16)], None)
    pairs = random.integers(0, texts, (8, 2)).astype(np.int32)
    rows = random.integers(0, 9, 8).astype(np.int32)

    vectors = teacher.rows(rows).astype(np.float64)
    expected = np.zeros((size, dim))
    for token in range(size):
        deviations = [
            vectors[i] - vectors.mean(0)
            for i, pair in enumerate(pairs)
            for text in pair
            for value in tokens.take(np.array([text]))[0]
            if value == token
        ]
        expected[token] = np.sum(deviations, axis=0) / (len(deviations) + PRIOR) if deviations else 0
    np.testing.assert_allclose(mean_vectors(tokens, teacher, pairs, rows, size=size), expected, atol=1e-5)
    assert not expected[size - 1].any(), "a token that occurs nowhere has zeros"


@pytest.fixture(scope="module")
def begun(tiny, tiny_file, tiny_storage):
    sweep = read_sweep(tiny_file, assignments=[STATIC % 384])
    return sweep, prepare(sweep, tiny_storage)


def test_a_student_that_begins_with_the_teachers_vectors_finds_translations(begun):
    sweep, prepared = begun
    trial = make_trial(sweep, 0, {})
    plain = replace(trial, student=replace(trial.student, token_vectors="random"))
    tokens = open_ragged(Path(prepared.tokens[tokenizer_key(trial.student, prepared.text_digest)].train))
    pairs = prepared.pairs()[:200]

    def accuracy(encoder):
        sides = [encoder(sentences(tokens, pairs[:, side])) for side in (0, 1)]
        return (sides[0] @ sides[1].T).argmax(1).eq(torch.arange(len(pairs))).float().mean()

    with torch.no_grad():
        assert accuracy(make_student(trial, prepared)) > 2 * accuracy(make_student(plain, prepared))


def sentences(tokens, ids):
    values, lengths = tokens.take(np.asarray(ids, np.int64))
    return Tokens(torch.from_numpy(values.astype(np.int64)), torch.from_numpy(lengths))


def test_tokens_can_be_encoded_alone_and_frequent_ones_are_shorter(tiny_file, tiny_storage):
    languages = "teacher.languages=[eng, fra, kor, jpn, rus]"
    student = (STATIC % 384).replace("token_vectors: teacher", "token_vectors: teacher_tokens")
    sweep = read_sweep(tiny_file, assignments=[student, languages])
    prepared, trial = prepare(sweep, tiny_storage), make_trial(sweep, 0, {})
    tokens = prepared.tokens[tokenizer_key(trial.student, prepared.text_digest)]
    vectors = np.load(tokens.vectors["teacher_tokens"])
    tokenizer, texts = load_tokenizer(trial.student, Path(tokens.tokenizer)), open_ragged(Path(tokens.train))
    alone = token_texts(tokenizer, range(tokens.vocabulary))
    distinct = list(dict.fromkeys(filter(None, alone)))
    encoded = load_teacher(sweep.teacher).encode(distinct)
    encoded -= encoded.mean(0)
    values = texts.take(np.arange(len(texts)))[0]
    for token in (0, 9, 100, int(np.bincount(values).argmax()), 499):
        share = (values == token).mean()
        expected = encoded[distinct.index(alone[token])] * 1e-3 / (1e-3 + share) if alone[token] else 0
        assert np.abs(vectors[token] - expected).max() < 1e-3
    assert make_student(trial, prepared) is not None
    assert str(Path(tokens.vectors["teacher_tokens"]).parent) in map(str, prepared.folders()), "clean leaves it"


def test_the_first_vectors_point_where_the_mean_of_the_tokens_does(begun):
    sweep, prepared = begun
    trial = make_trial(sweep, 0, {})
    prepared_tokens = prepared.tokens[tokenizer_key(trial.student, prepared.text_digest)]
    table = torch.from_numpy(np.load(prepared_tokens.vectors["teacher"]))
    tokens = open_ragged(Path(prepared_tokens.train))
    for width, least in ((384, 0.9), (512, 0.9), (96, 0.75)):  # a narrow table keeps the main directions
        narrow = replace(trial, student=replace(trial.student, width=width))
        some = sentences(tokens, prepared.pairs()[:100, 1])
        means = torch.stack([table[ids].mean(0) for ids in some.ids.split(some.lengths.tolist())])
        with torch.no_grad():
            cosines = torch.nn.functional.cosine_similarity(make_student(narrow, prepared)(some), means)
        assert cosines.mean() > least


def test_the_file_is_made_once_and_is_among_the_stores_that_trials_need(begun):
    sweep, prepared = begun
    again = prepare(sweep, Path(prepared.folder).parents[1])
    assert again == prepared
    (tokens,) = again.tokens.values()
    assert Path(tokens.vectors["teacher"]).parent in set(again.folders())
    vectors = np.load(tokens.vectors["teacher"])
    assert vectors.shape == (tokens.vocabulary, open_matrix(Path(again.teacher)).width)
    assert vectors.dtype == np.float32


def test_a_file_without_the_key_keeps_its_id_and_one_with_it_has_another(tiny_file):
    static = "student={kind: static, width: 32, projection: teacher, vocabulary: 500%s}"
    ids = [sweep_id(read_sweep(tiny_file, assignments=[static % end])) for end in ("", ", token_vectors: random")]
    other = sweep_id(read_sweep(tiny_file, assignments=[static % ", token_vectors: teacher"]))
    assert ids[0] == ids[1] != other
