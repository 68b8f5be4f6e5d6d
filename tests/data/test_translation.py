"""Translated text: what the model says, once; what is left out; and that a second sweep translates nothing."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    NllbTokenizer,
    PreTrainedTokenizerFast,
)

import babeltune.data.translation
from babeltune.data.corpus import build_corpus
from babeltune.data.sources import read_source
from babeltune.data.store import facts_of
from babeltune.data.translation import StandIn, TranslationModel, Translator, batches, draw_texts, has_end
from babeltune.errors import DataError, SpecError, TeacherError
from babeltune.planning.plan import make_plan
from babeltune.planning.preparation import read_corpus
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Bitext, Data, PivotSource, Split, TranslateSource, TsvSource
from babeltune.schema.text import Translation

WORDS = ["hello", "world", "good", "morning", "thank", "you", "friend", "night", "day", "water", "__two__"]
NUMBERS = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
TEXTS = [f"{a} {b}" for a in WORDS[:6] for b in WORDS[:9]] + ["hello " * 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random one-layer Marian that ends some translations at once, some later and some never."""
    place = tmp_path_factory.mktemp("marian")
    tokenizer = Tokenizer(models.WordLevel(NUMBERS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(place)
    config = MarianConfig(
        vocab_size=len(NUMBERS), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=1, init_std=1.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MarianMTModel(config)
    model.final_logits_bias[0, 0] = -1e4
    model.save_pretrained(place)
    return place


@pytest.fixture
def how(folder):
    return Translation(text="mono", original="xxx", into="eng", model=str(folder), beams=1, max_tokens=8)


def source(how, **changes):
    return TranslateSource(name="back", format="translate", translation=how, **changes)


def translator(place, seed=0):
    return Translator(place, seed, lambda stage, done, of: None)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_says_what_the_model_says_of_each_text_alone(how, folder, beams):
    model = TranslationModel(replace(how, beams=beams), folder, "back")
    translations, dropped = model.translate(TEXTS, lambda done: None)
    alone = MarianMTModel.from_pretrained(folder).eval()
    expected = []
    for text in TEXTS[:-1]:
        ids = torch.tensor([[NUMBERS[word] for word in text.split()] + [1]])
        (row,) = alone.generate(ids, do_sample=False, num_beams=beams, max_new_tokens=8, forced_eos_token_id=None)
        words = [list(NUMBERS)[i] for i in row[1:].tolist() if i > 1]
        expected.append(" ".join(words) if 1 in row[1:].tolist() and words else None)
    assert translations == [*expected, None]
    assert set(dropped) == {"too long to translate", "unfinished translation", "empty translation"}
    assert dropped["too long to translate"] == 1
    assert sum(dropped.values()) == translations.count(None) < len(TEXTS)


def test_prefix_and_first_token_are_the_models(how, folder):
    def translations(**changes):
        return TranslationModel(replace(how, **changes), folder, "back").translate(TEXTS[:9], lambda done: None)[0]

    plain, prefixed, begun = translations(), translations(prefix="water "), translations(target_token="__two__")
    assert (
        prefixed
        == TranslationModel(how, folder, "b").translate(["water " + t for t in TEXTS[:9]], lambda done: None)[0]
    )
    assert plain != prefixed
    assert all(text.startswith("__two__") for text in begun if text)
    assert any(begun)


def test_without_a_target_token_a_model_begins_as_it_was_saved(how, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "own")
    settings = GenerationConfig.from_pretrained(folder)
    settings.forced_bos_token_id = NUMBERS["__two__"]
    settings.save_pretrained(tmp_path / "own")
    translations = TranslationModel(how, tmp_path / "own", "back").translate(TEXTS[:9], lambda done: None)
    assert translations == TranslationModel(replace(how, target_token="__two__"), folder, "back").translate(
        TEXTS[:9], lambda done: None
    )
    assert any(translations[0])


def test_a_language_that_the_tokenizer_does_not_have_is_refused(how, folder):
    with pytest.raises(DataError, match="no target_token 'eng_Latn'"):
        TranslationModel(replace(how, target_token="eng_Latn"), folder, "back")
    with pytest.raises(DataError, match=r"has no source languages; remove translation\.source_code"):
        TranslationModel(replace(how, source_code="eng_Latn"), folder, "back")


def test_a_source_code_that_would_be_the_unknown_token_is_refused(how, folder, tmp_path):
    """NLLB's tokenizer takes every code and writes <unk> for one that it does not have."""
    shutil.copytree(folder, tmp_path / "nllb")
    (tmp_path / "nllb" / "tokenizer.json").unlink()
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "<s>": 3, "▁": 4}
    NllbTokenizer(words, extra_special_tokens=["eng_Latn", "khm_Khmr"]).save_pretrained(tmp_path / "nllb")
    model = TranslationModel(replace(how, source_code="khm_Khmr"), tmp_path / "nllb", "back")
    assert model.tokenizer.convert_ids_to_tokens(model.tokenizer("")["input_ids"]) == ["khm_Khmr", "</s>"]
    with pytest.raises(DataError, match="no source_code 'khm_Kmhr'; did you mean 'khm_Khmr'"):
        TranslationModel(replace(how, source_code="khm_Kmhr"), tmp_path / "nllb", "back")


def test_a_model_that_cannot_translate_is_refused(how, folder, tmp_path, offline):
    encoder = tmp_path / "bert"
    BertModel(BertConfig(vocab_size=14, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(
        encoder
    )
    PreTrainedTokenizerFast.from_pretrained(folder).save_pretrained(encoder)
    with pytest.raises(DataError, match="name a sequence-to-sequence model"):
        translator(tmp_path)(source(replace(how, model=str(encoder))), TEXTS)
    with pytest.raises(DataError, match=r"has 32 positions; lower translation\.max_tokens, 40"):
        translator(tmp_path)(source(replace(how, max_tokens=40)), TEXTS)
    with pytest.raises(TeacherError, match=r"source 'back': translation\.model '.*nowhere'"):
        translator(tmp_path)(source(replace(how, model=str(tmp_path / "nowhere"))), TEXTS)


def test_batches_hold_what_their_padding_allows():
    lengths = {0: 3, 1: 9, 2: 3, 3: 20, 4: 8}
    assert list(batches(lengths, 18)) == [[3], [1, 4], [0, 2]]
    assert list(batches({}, 18)) == []


def test_an_end_after_the_first_token_ends_a_translation():
    assert has_end(torch.tensor([1, 5, 1]), 1)
    assert not has_end(torch.tensor([1, 5, 6]), 1), "the decoder may start with the end token"
    assert has_end(torch.tensor([0, 5, 7]), [1, 7])


def test_the_cap_is_a_seeded_draw_of_distinct_texts_and_a_larger_one_goes_on(how):
    texts = [*TEXTS, *TEXTS]
    small, large = draw_texts(source(how, cap=5), texts, 0), draw_texts(source(how, cap=20), texts, 0)
    assert small == large[:5]
    assert len(set(large)) == 20
    assert draw_texts(source(how, cap=5), texts, 1) != small
    assert sorted(draw_texts(source(how), texts, 0)) == sorted(set(TEXTS))


def test_each_text_is_translated_once_and_a_second_sweep_translates_nothing(how, tmp_path, monkeypatch):
    monkeypatch.setattr(babeltune.data.translation, "SHARD", 8)
    first = translator(tmp_path)(source(how, cap=16), TEXTS)

    def refuse(*arguments):
        raise AssertionError("the model is not loaded again")

    with monkeypatch.context() as patch:
        patch.setattr(babeltune.data.translation, "TranslationModel", refuse)
        assert translator(tmp_path)(source(how, cap=16), TEXTS) == first
        fewer = translator(tmp_path)(source(replace(how, text="other"), cap=8), TEXTS)
        assert fewer.originals == first.originals[: len(fewer.originals)]
    more = translator(tmp_path)(source(how, cap=24), TEXTS)
    assert more.originals[: len(first.originals)] == first.originals
    stores = [path for path in tmp_path.iterdir() if path.name.startswith("translations-")]
    assert [facts_of(path)["translated"] for path in stores] == [8, 8, 8]
    translator(tmp_path)(source(replace(how, beams=2), cap=8), TEXTS)
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("translations-")]) == 4


# --- In a corpus -----------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    """Monolingual text, some bitext, and a dev set that holds one of the translations and one of the originals."""
    (tmp_path / "mono.tsv").write_text("id\tsaid\n" + "".join(f"{i}\t{t}\n" for i, t in enumerate(TEXTS)), "utf-8")
    pairs = "".join(f"pair {i} here\tpaire {i}\n" for i in range(30))
    (tmp_path / "pairs.tsv").write_text("eng\tfra\n" + pairs, "utf-8")
    return tmp_path


def data_of(how, **changes):
    return {
        "train": (
            source(how),  # before what it is made of
            TsvSource(name="mono", path="mono.tsv", columns={"xxx": "said"}, train=False),
            TsvSource(name="pairs", path="pairs.tsv", columns={"eng": "eng", "fra": "fra"}),
        ),
        **changes,
    }


def test_translations_are_training_pairs_marked_synthetic_and_counted(how, root):
    corpus = build_corpus(Data(**data_of(how)), root, 0, translator(root / "stores"))
    pairs = corpus.pairs[corpus.pair_groups != corpus.groups.index("eng-fra")]
    result = translator(root / "stores")(source(how), TEXTS)
    expected = {(translation, text) for text, translation in zip(result.originals, result.translations, strict=True)}
    assert {(corpus.texts[a], corpus.texts[b]) for a, b in pairs} == {(a, b) for a, b in expected if a != b}
    assert corpus.digests["back"].startswith("synthetic:")
    assert not corpus.digests["mono"].startswith("synthetic:")
    counts = corpus.counts["back"]
    assert counts["rows"] == len(expected)
    assert counts["dropped: too long to translate"] == 1
    assert counts["rows"] + sum(n for key, n in counts.items() if key.startswith("dropped")) == len(set(TEXTS))
    other = build_corpus(Data(**data_of(replace(how, beams=2))), root, 0, translator(root / "stores"))
    assert other.digests["back"] != corpus.digests["back"]
    split = build_corpus(Data(**data_of(how, split=Split(pairs=4))), root, 0, translator(root / "stores"))
    assert split.counts["back"]["heldout"] == 0 < split.counts["pairs"]["heldout"]


@pytest.mark.trap(35)
def test_a_pair_with_a_side_in_a_dev_set_is_removed(how, root):
    result = translator(root / "stores")(source(how), TEXTS)
    rows = [(result.originals[0], "unseen"), ("nowhere", result.translations[1])]
    (root / "dev.tsv").write_text("xxx\teng\n" + "".join(f"{a}\t{b}\n" for a, b in rows), "utf-8")
    dev = (Bitext(name="news", source=TsvSource(name="rows", path="dev.tsv", columns={"xxx": "xxx", "eng": "eng"})),)
    corpus = build_corpus(Data(**data_of(how, dev=dev)), root, 0, translator(root / "stores"))
    pairs = {tuple(corpus.texts[i] for i in pair) for pair in corpus.pairs}
    assert corpus.overlap["back"]["dev/news"] >= 2
    assert not any(result.originals[0] in pair or result.translations[1] in pair for pair in pairs)


def test_a_pivot_may_join_a_translation(how, root):
    rows = "".join(f"{t}\tmot {i}\n" for i, t in enumerate(TEXTS))
    (root / "more.tsv").write_text("xxx\tfra\n" + rows, "utf-8")
    more = TsvSource(name="more", path="more.tsv", columns={"xxx": "xxx", "fra": "fra"}, train=False)
    joined = PivotSource(name="joined", format="pivot", left="back", right="more", join="xxx", pairs=("eng-fra",))
    train = (joined, *data_of(how)["train"][:2], more)
    corpus = build_corpus(Data(train=train), root, 0, translator(root / "stores"))
    assert corpus.counts["joined"]["rows"] == corpus.counts["back"]["rows"]
    assert "eng-fra" in corpus.groups


def test_broken_monolingual_text_is_an_error_with_its_place(how, root):
    (root / "mono.tsv").write_text("id\tsaid\n0\thello\n1\t\n", "utf-8")
    with pytest.raises(DataError, match=r"mono\.tsv:3: "):
        build_corpus(Data(**data_of(how)), root, 0, translator(root / "stores"))
    with pytest.raises(DataError, match="training text alone"):
        read_source(source(how), root, others={})


# --- In a sweep ------------------------------------------------------------------------------------------------------


def file_of(tmp_path, how, **changes):
    """A sweep of the bundled corpus in which a model writes English beside Korean."""
    translation = {"text": "natural", "original": "kor", "into": "eng", "model": how.model, "beams": 1}
    translation |= {"max_tokens": 24, **changes}
    train = [
        {"name": "natural", "path": "natural_train.tsv", "columns": {"kor": "kor", "fra": "fra"}, "train": False},
        {"name": "back", "format": "translate", "translation": translation, "cap": 30},
    ]
    return [f"data.train={json.dumps(train)}", "data.sampling={}"]


@pytest.mark.slow
def test_plan_counts_what_is_to_be_translated_and_translates_nothing(how, tiny_file, monkeypatch, tmp_path):
    monkeypatch.setattr(babeltune.data.translation, "TranslationModel", None)
    plan = make_plan(read_sweep(tiny_file, assignments=file_of(tmp_path, how), reachable=True))
    assert plan.counts["back"]["to translate"] == plan.counts["back"]["rows"] == 30
    assert plan.pairs == {"eng-kor": plan.counts["back"]["train"]}
    result = StandIn(0)(source(how), TEXTS)
    assert len(set(result.translations)) == len(set(TEXTS))


def test_a_sweep_reads_translations_from_its_storage(how, tiny_file, tmp_path):
    sweep = read_sweep(tiny_file, assignments=file_of(tmp_path, how, prefix="friend "))
    assert sweep.data.train[1].synthetic
    noted = []
    corpus = read_corpus(sweep, tmp_path, lambda *step: noted.append(step))
    assert corpus.digests["back"].startswith("synthetic:")
    assert ("translating back", 30, 30) in noted
    assert any(path.name.startswith("translations-") for path in (tmp_path / "stores").iterdir())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"text": "naturl"}, "data.train.1.translation.text: 'naturl' is no training source that is read from files"),
        ({"original": "rus"}, "data.train.1.translation.original: 'rus' is not in source 'natural'; allowed: kor, fra"),
        ({"into": "kor"}, "data.train.1.translation.into: 'kor' is the original's language too"),
        ({"beams": 0}, "data.train.1.translation.beams: 0 must be at least 1"),
        ({"beam": 2}, "data.train.1.translation.beam"),
        ({"model": "no-such-team/no-model"}, "data.train.1.translation.model: 'no-such-team/no-model' is not a folder"),
    ],
)
def test_a_translation_that_cannot_be_is_refused_with_its_key(how, tiny_file, tmp_path, monkeypatch, changes, expected):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SpecError) as caught:
        read_sweep(tiny_file, assignments=file_of(tmp_path, how, **changes), reachable=True)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("data.train.1.path=x.tsv", "is for format .* and this one is 'translate'; remove it"),
        ("data.train.0.pairs=[kor-fra]", None),
        ("data.train.0.columns={kor: kor}", None),
        (
            "data.dev.0.source={name: t, format: translate, translation: {text: a, original: b, into: eng, model: m}}",
            "'translate' is for training",
        ),
        ("data.split={pairs: 5}", "needs a training source that is not synthetic"),
    ],
)
def test_a_translation_has_its_place_among_the_sources(how, tiny_file, tmp_path, assignment, expected):
    arguments = [*file_of(tmp_path, how), assignment]
    if expected is None:
        assert read_sweep(tiny_file, assignments=arguments)
    else:
        with pytest.raises(SpecError, match=expected):
            read_sweep(tiny_file, assignments=arguments)


@pytest.mark.slow
def test_the_record_brings_no_library():
    program = "import babeltune.schema.records, sys; assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
