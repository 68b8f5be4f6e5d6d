"""Tokenizers trained on a corpus, and the stores of token ids that packed batches read."""

import numpy as np
import pytest
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from babeltune.data import stored_arrays, tokens
from babeltune.data.store import facts_of
from babeltune.data.stored_arrays import open_ragged
from babeltune.data.tokens import (
    TokenCut,
    build_token_store,
    build_tokenizer,
    load_tokenizer,
    tokenizer_key,
    train_tokenizer,
)
from babeltune.errors import DataError, TeacherError
from babeltune.schema.records import Transformer

TEXTS = [
    "The train leaves at seven, so we should hurry.",
    "Le train part à sept heures, dépêchons-nous.",
    "電車は七時に出るので、急ぎましょう。",
    "기차가 일곱 시에 떠나니까 서두르자.",
    "Поезд отходит в семь, так что нам надо спешить.",
    "I don't know where the train station is.",
    "L'homme ne sait pas où est la gare.",
] * 3


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(train_tokenizer(TEXTS, 300, folder=tmp_path_factory.mktemp("tokenizer")))


def test_a_trained_tokenizer_loads_with_plain_transformers(tmp_path):
    folder = train_tokenizer(TEXTS, 300, folder=tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)):
        assert loaded.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) == [0, 1, 2, 3, 4]
        assert (loaded.pad_token_id, loaded.unk_token_id, loaded.cls_token_id, loaded.sep_token_id) == (0, 1, 2, 3)
        ids = loaded(TEXTS[0])["input_ids"]
        assert ids[0] == 2
        assert ids[-1] == 3
        assert loaded.decode(ids, skip_special_tokens=True) == TEXTS[0]
        assert 30 < len(loaded) <= 300


def test_the_same_corpus_gives_the_same_bytes(tmp_path):
    first, second = (train_tokenizer(TEXTS, 300, folder=tmp_path / name, seed=3) for name in "ab")
    names = sorted(p.name for p in first.iterdir())
    assert "tokenizer.json" in names
    assert [(first / name).read_bytes() for name in names] == [(second / name).read_bytes() for name in names]


def test_of_characters_that_are_as_rare_the_same_are_kept_every_time(tmp_path):
    rare = "".join(map(chr, range(0xAC00, 0xAC00 + 200)))
    texts = [*TEXTS, *rare]
    folders = [train_tokenizer(texts, 60, folder=tmp_path / str(number)) for number in range(5)]
    assert len({(folder / "tokenizer.json").read_bytes() for folder in folders}) == 1
    loaded = AutoTokenizer.from_pretrained(folders[0])
    assert loaded.tokenize("e") == ["▁", "e"]  # common ones are kept
    few = train_tokenizer(["a"] * 3 + list(rare), 21, folder=tmp_path / "few")
    vocabulary = set(AutoTokenizer.from_pretrained(few).get_vocab())
    assert {"▁", "a", *rare[:6]} <= vocabulary
    assert rare[6] not in vocabulary


def test_above_the_limit_a_seeded_sample_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "TRAINING_TEXTS", 4)
    folders = [train_tokenizer(TEXTS[:7], 300, folder=tmp_path / str(i), seed=seed) for i, seed in enumerate((0, 0, 1))]
    first, again, other = [(folder / "tokenizer.json").read_bytes() for folder in folders]
    assert first == again != other


def test_text_is_compared_in_nfkc_and_keeps_its_case_and_a_new_character_is_unknown(tokenizer):
    def ids(text):
        return tokenizer(text)["input_ids"]

    assert ids("Ｔｈｅ  train ") == ids("The train")
    assert ids("the") != ids("The")
    assert ids("♞").count(tokenizer.unk_token_id) == 1


def test_a_lowercase_tokenizer_reads_no_case_with_plain_transformers(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(train_tokenizer(TEXTS, 300, folder=tmp_path, lowercase=True))
    assert tokenizer("THE Train")["input_ids"] == tokenizer("the train")["input_ids"]
    assert not [token for token in tokenizer.get_vocab() if token != token.lower() and not token.startswith("[")]


def test_punctuation_never_joins_a_word(tokenizer):
    assert not [t for t in tokenizer.get_vocab() if any(c in t for c in ".。、,") and any(c.isalpha() for c in t)
                and not t.startswith("[")]  # fmt: skip


@pytest.mark.parametrize(("texts", "vocabulary"), [([], 300), ([""], 300), (TEXTS, 5)])
def test_a_tokenizer_that_cannot_be_trained_is_refused(tmp_path, texts, vocabulary):
    with pytest.raises(DataError, match=r"data\.train|student\.vocabulary"):
        train_tokenizer(texts, vocabulary, folder=tmp_path)


def test_a_tokenizer_store_is_trained_once(tmp_path, monkeypatch):
    folder = build_tokenizer(tmp_path, TEXTS, 200)
    assert facts_of(folder) == {"vocabulary": len(load_tokenizer(Transformer(), folder))}
    monkeypatch.delattr(tokens, "train_tokenizer")
    assert build_tokenizer(tmp_path, TEXTS, 200) == folder
    assert folder.is_dir()


@pytest.mark.trap(21)
def test_tokenizer_keys_differ_where_tokens_would():
    base = tokenizer_key(Transformer(), "corpus")
    assert base == tokenizer_key(Transformer(layers=6, width=64), "corpus")
    changes = [{"vocabulary": 99}, {"prompt": "query: "}, {"max_tokens": 9}, {"lowercase": True}, {"model": "a/b"}]
    others = {tokenizer_key(Transformer(**each), "corpus") for each in (*changes, {"model": "a/b", "revision": "1"})}
    assert len(others | {base, tokenizer_key(Transformer(), "other corpus")}) == 8
    assert tokenizer_key(Transformer(model="a/b"), "x") == tokenizer_key(Transformer(model="a/b"), "y")


def test_a_tokenizer_that_cannot_be_found_is_a_clear_error(tmp_path):
    with pytest.raises(TeacherError, match=r"student\.model"):
        load_tokenizer(Transformer(model=str(tmp_path / "nowhere")), None)
    with pytest.raises(TeacherError, match="tokenizer trained on the corpus"):
        load_tokenizer(Transformer(), None)


@pytest.mark.trap(22)
@pytest.mark.parametrize("prompt", ["", "query: "])
def test_a_token_store_equals_the_tokenizer(tmp_path, tokenizer, prompt, monkeypatch):
    monkeypatch.setattr(tokens, "SHARD_ROWS", (4, 4))
    texts = [*TEXTS[:7], "", "train"]
    folder = build_token_store(tmp_path, texts, tokenizer, TokenCut(prompt, 12))
    expected = [tokenizer(prompt + t, truncation=True, max_length=12)["input_ids"] for t in texts]
    whole = [len(tokenizer(prompt + t)["input_ids"]) for t in texts]
    values, lengths = open_ragged(folder).take(np.arange(len(texts)))
    assert values.dtype == np.uint16
    assert np.split(values, np.cumsum(lengths)[:-1])[2].tolist() == expected[2]
    assert values.tolist() == [i for row in expected for i in row]
    assert lengths.tolist() == [len(row) for row in expected]
    facts = facts_of(folder)
    assert facts == {"sentences": 9, "tokens": len(values), "truncated": sum(n > 12 for n in whole)}
    assert 0 < facts["truncated"] < 9
    if not prompt:
        assert expected[7] == [2, 3]


def test_a_small_corpus_is_tokenized_in_eight_shards_with_the_same_tokens(tmp_path, tokenizer, monkeypatch):
    texts, counts = [f"{TEXTS[i % len(TEXTS)]} {i}" for i in range(9_000)], []
    folder = build_token_store(
        tmp_path / "shards", texts, tokenizer, TokenCut("", 12), progress=lambda done, of: counts.append(done)
    )
    assert counts == [0, *range(1_125, 9_001, 1_125)]
    monkeypatch.setattr(tokens, "SHARD_ROWS", (16_384, 16_384))
    whole = build_token_store(tmp_path / "whole", texts, tokenizer, TokenCut("", 12))
    assert folder.name == whole.name
    joined, ids = open_ragged(folder), np.random.default_rng(0).integers(0, len(texts), 3 * len(texts))
    monkeypatch.setattr(stored_arrays, "SMALL", 0)
    in_shards, in_one = open_ragged(folder), open_ragged(whole)
    for store in (joined, in_shards):
        assert len(store) == len(in_one)
        assert np.array_equal(store.lengths(), in_one.lengths())
        assert np.array_equal(store.lengths(ids), in_one.lengths(ids))
        for one, other in zip(store.take(ids), in_one.take(ids), strict=True):
            assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())
    assert facts_of(folder) == facts_of(whole)


def test_texts_prompt_length_and_tokenizer_decide_the_store(tmp_path, tokenizer):
    other = load_tokenizer(Transformer(), train_tokenizer(TEXTS, 150, folder=tmp_path / "other"))
    before = tokenizer.backend_tokenizer.to_str()
    cuts = [(TEXTS, tokenizer, cut) for cut in (TokenCut("", 8), TokenCut("a", 8), TokenCut("", 9))]
    variants = [*cuts, (TEXTS[1:], tokenizer, TokenCut("", 8)), (TEXTS, other, TokenCut("", 8))]
    assert len({build_token_store(tmp_path, *arguments) for arguments in variants}) == 5
    assert tokenizer.backend_tokenizer.to_str() == before, "building leaves the tokenizer as it was"


@pytest.mark.slow
def test_a_large_vocabulary_is_kept_in_32_bits(tmp_path, tokenizer):
    tokenizer = AutoTokenizer.from_pretrained(train_tokenizer(TEXTS, 100, folder=tmp_path / "t"))
    tokenizer.add_tokens([f"<{i}>" for i in range(66_000)])
    values, _ = open_ragged(build_token_store(tmp_path, ["<65999>"], tokenizer, TokenCut("", 8))).take(np.array([0]))
    assert values.dtype == np.int32
    assert values.max() == len(tokenizer) - 1 > 65_535


def test_a_japanese_token_ends_where_the_script_changes(tmp_path):
    sentence = "私はコーヒーを毎朝飲みます。"
    folder = train_tokenizer([sentence] * 50, 400, folder=tmp_path)
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True).tokenize(sentence)
    assert tokens == ["▁私", "は", "コーヒー", "を", "毎朝飲", "みます", "。"]


def test_a_model_with_a_slow_tokenizer_alone_is_refused(tmp_path):
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=50, **shape)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(TeacherError, match=r"it has a slow one only, without a tokenizer\.json; name a model"):
        load_tokenizer(Transformer(model=str(tmp_path)), None)
