"""Trimmed vocabularies: text whose tokens are kept has the same tokens and vectors, and other text still has some."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from babeltune.bundled.templates import __file__ as bundled
from babeltune.data import trimming
from babeltune.data.prepared import Prepared
from babeltune.data.trimming import check_equal, trimmed
from babeltune.errors import DataError, SpecError, TeacherError
from babeltune.method.distributed import ProcessGroup
from babeltune.models.encoder import Encoder
from babeltune.models.static import StaticEncoder
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.candidate import dev_texts
from babeltune.promotion.export import export, export_trial
from babeltune.schema.records import Static, Transformer
from babeltune.train import Printer
from babeltune.training.build import make_method, make_student, token_set
from babeltune.training.trainer import train

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
OTHERS = ["zebra quartz 🦓", "Приве́т, мир", "漢字かな交じり文", "x" * 40, ""]


@pytest.fixture(scope="module")
def texts():
    """A thousand sentences of several languages."""
    rows = (Path(bundled).parent / "natural_train.tsv").read_text("utf-8").splitlines()[1:]
    return [cell for row in rows for cell in row.split("\t")]


def unigram(texts):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = [*SPECIAL, "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=1500, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return tokenizer


def byte_level(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def character_level(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=2000, special_tokens=[*SPECIAL, "<mask>"], show_progress=False)
    )
    ends = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return tokenizer


def word_piece(texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=[*SPECIAL, "<mask>"], show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def word_ends(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [*SPECIAL, "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=special, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


KINDS = {"unigram": unigram, "byte level": byte_level, "characters": character_level, "WordPiece": word_piece}
KINDS |= {"word ends": word_ends}


def whole(kind, texts):
    names = dict(
        zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), [*SPECIAL, "<mask>"], strict=True)
    )
    ends = {"cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](texts), **names, **ends)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_text_whose_tokens_are_kept_has_the_same_tokens_and_other_text_loses_none(kind, texts):
    tokenizer = whole(kind, texts)
    ids = tokenizer(texts)["input_ids"]
    used = np.unique(np.concatenate([np.array(row) for row in ids[::4]]))
    cut, kept_ids = trimmed(tokenizer, used)
    assert used.size <= len(kept_ids) == len(cut) < 0.9 * len(tokenizer)
    assert set(used) <= set(kept_ids)
    same = [text for text, row in zip(texts, ids, strict=True) if set(row) <= set(kept_ids)]
    assert len(same) > len(texts) / 4
    for text in same:
        assert [int(kept_ids[new]) for new in cut(text)["input_ids"]] == tokenizer(text)["input_ids"], text
    for text in [*texts, *OTHERS]:
        unknown = tokenizer(text)["input_ids"].count(tokenizer.unk_token_id)
        assert cut(text)["input_ids"].count(cut.unk_token_id) <= unknown, text
    assert cut.all_special_tokens == tokenizer.all_special_tokens
    assert cut.pad_token_id == tokenizer.pad_token_id, "positions are counted from it"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_keeps_the_most_frequent_tokens_and_text_loses_no_character(kind, texts, monkeypatch):
    monkeypatch.setattr(trimming, "ALPHABET", 300)
    tokenizer = whole(kind, texts)
    counts = Counter(number for row in tokenizer(texts)["input_ids"] for number in row)
    used = np.array([number for number, _ in counts.most_common()])
    least = len(trimmed(tokenizer, used, limit=len(tokenizer))[1])
    limit = least * 9 // 10
    cut, ids = trimmed(tokenizer, used, limit)
    assert limit - 8 <= len(ids) == len(cut) <= limit < least, "byte-pair encoding adds some at a time"
    assert set(used[:100]) <= set(ids)
    for text in texts:
        assert cut(text)["input_ids"].count(cut.unk_token_id) <= tokenizer(text)["input_ids"].count(
            tokenizer.unk_token_id
        ), text
    common = [text for text in texts if set(tokenizer(text)["input_ids"]) <= set(ids)]
    assert len(common) > 10
    assert [[int(ids[new]) for new in cut(text)["input_ids"]] for text in common] == tokenizer(common)["input_ids"]
    with pytest.raises(TeacherError, match=r"student\.trim 30 is less than the \d+ tokens that single .* raise it"):
        trimmed(tokenizer, used, limit=30)


def test_a_tokenizer_of_another_kind_is_refused():
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(TeacherError, match=r"kind WordLevel cannot be trimmed .* remove student\.trim"):
        trimmed(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>"), np.array([0]))


def bert(rows):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertModel(BertConfig(vocab_size=rows, pad_token_id=1, **sizes), add_pooling_layer=False)


def xlm_r(rows):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = XLMRobertaConfig(vocab_size=rows, pad_token_id=1, max_position_embeddings=66, type_vocab_size=1, **sizes)
    return XLMRobertaModel(config, add_pooling_layer=False)


SHORT = ["method=translation_ranking", "parameters={}", "config={hard_negatives: 0}", "training.pairs=64"]
STUDENTS = {
    "BERT": ("WordPiece", bert),
    "XLM-R": ("unigram", xlm_r),
    "byte level": ("byte level", xlm_r),
    "static": ("characters", None),
}


def pretrained(name, texts, folder, max_tokens=32):
    """A folder with random weights of this shape, with 8 rows more than tokens, as pretrained tables have them."""
    kind, shape = STUDENTS[name]
    tokenizer = whole(kind, texts)
    torch.manual_seed(0)
    settings = (Static if shape is None else Transformer)(max_tokens=max_tokens, width=16)
    rows = len(tokenizer) + 8
    encoder = StaticEncoder(torch.randn(rows, 16)) if shape is None else Encoder(shape(rows), pad_token_id=1)
    export(encoder, tokenizer, settings, folder)
    return settings, rows


@pytest.mark.parametrize(("name", "max_tokens"), [*itertools.product(STUDENTS, [32]), ("XLM-R", 6), ("byte level", 5)])
def test_a_trimmed_student_and_its_export_give_the_vectors_of_the_whole_one(
    name, max_tokens, texts, tiny_file, tiny_storage, tmp_path
):
    """Also if most texts are cut within a word, whose other tokens decide how its beginning is split."""
    settings, rows = pretrained(name, texts, tmp_path / "whole", max_tokens)
    student = f"student={{kind: {settings.kind}, model: {tmp_path / 'whole'}, max_tokens: {max_tokens}, trim: true}}"
    sweep = read_sweep(tiny_file, assignments=[student, *SHORT])
    prepared = prepare(sweep, tiny_storage)
    trial = make_trial(sweep, 0, {})
    tokens = token_set(trial, prepared)
    encoder = make_student(trial, prepared)
    assert tokens.vocabulary == len(encoder.word_embeddings) < tokens.untrimmed == rows - 8
    export_trial(sweep, trial, prepared, encoder, make_method(trial, prepared, encoder), tmp_path / "cut")
    before, after = (SentenceTransformer(str(tmp_path / folder)) for folder in ("whole", "cut"))
    dev_sentences = sorted({text for task in dev_texts(prepared) for text in task.texts()})
    assert len(dev_sentences) > 50
    np.testing.assert_allclose(after.encode(dev_sentences), before.encode(dev_sentences), atol=1e-6)
    table = next(p for p in after.parameters() if p.ndim == 2)
    assert len(table) == tokens.vocabulary
    assert sum(p.numel() for p in after.parameters()) == sum(p.numel() for p in before.parameters()) - 16 * (
        rows - tokens.vocabulary
    )

    report = train(trial, prepared, tmp_path / "trial", Printer(()), ProcessGroup(), torch.device("cpu"))[-1]
    assert report.facts["vocabulary"] == tokens.vocabulary
    assert report.facts["vocabulary_untrimmed"] == tokens.untrimmed
    dropped = report.metrics["model/parameters_untrimmed"] - report.metrics["model/parameters"]
    assert dropped == 16 * (tokens.untrimmed - tokens.vocabulary)


def test_a_static_model_with_its_tokenizer_beside_its_table_is_trimmed(texts, tiny_file, tiny_storage, tmp_path):
    """sentence-transformers wrote the first module into a folder of its own, before release 5."""
    tokenizer = whole("WordPiece", texts).backend_tokenizer
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    model.save(str(tmp_path / "model"))
    inner = tmp_path / "model" / "0_StaticEmbedding"
    inner.mkdir()
    for name in ("tokenizer.json", "model.safetensors"):
        (inner.parent / name).rename(inner / name)
    modules = json.loads((inner.parent / "modules.json").read_text("utf-8"))
    modules[0]["path"] = inner.name
    (inner.parent / "modules.json").write_text(json.dumps(modules), "utf-8")
    student = f"student={{kind: static, model: {inner.parent}, trim: true, normalize: false}}"
    sweep = read_sweep(tiny_file, assignments=[student, *SHORT])
    prepared = prepare(sweep, tiny_storage)
    trial = make_trial(sweep, 0, {})
    encoder = make_student(trial, prepared)
    assert len(encoder.word_embeddings) < len(tokenizer.get_vocab())
    export_trial(sweep, trial, prepared, encoder, make_method(trial, prepared, encoder), tmp_path / "cut")
    dev_sentences = sorted({text for task in dev_texts(prepared) for text in task.texts()})
    after, before = (SentenceTransformer(str(tmp_path / name)).encode(dev_sentences) for name in ("cut", "model"))
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_a_model_without_a_fast_tokenizer_is_one_line_of_the_plan(tiny_file, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}', "utf-8")
    bert(6).save_pretrained(tmp_path)
    with pytest.raises(SpecError, match=r"student\.model: the tokenizer of .* has no tokenizer\.json") as raised:
        read_sweep(tiny_file, assignments=[f"student={{model: {tmp_path}}}"])
    assert len(str(raised.value).splitlines()) == 1
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    with pytest.raises(SpecError, match=r"has no tokens but .* lacks tokenizer\.json"):
        read_sweep(tiny_file, assignments=[f"student={{model: {tmp_path}}}"])


def test_a_real_encoder_loses_most_of_its_tokens_and_no_vector_changes(tiny_file, tiny_storage, tmp_path):
    assignments = ["student={model: 'bundled:all-MiniLM-L6-v2', max_tokens: 32, trim: true}"]
    sweep = read_sweep(tiny_file, assignments=assignments)
    prepared: Prepared = prepare(sweep, tiny_storage)
    trial = make_trial(sweep, 0, {})
    cut, full = (
        make_student(trial, prepared),
        make_student(
            replace(trial, student=replace(trial.student, trim=False)),
            prepare(read_sweep(tiny_file, assignments=[assignments[0].replace("true", "false")]), tiny_storage),
        ),
    )
    assert len(cut.word_embeddings) < len(full.word_embeddings) / 3
    rows = torch.from_numpy(np.load(token_set(trial, prepared).table_rows))
    assert torch.equal(cut.word_embeddings, full.word_embeddings[rows])


def test_a_tokenizer_that_splits_otherwise_is_not_used(tiny, tmp_path):
    _, prepared = tiny
    store = next(iter(prepared.tokens.values())).train
    check_equal(Path(store), Path(store), np.arange(2000))
    with pytest.raises(DataError, match=r"in another way than the whole one; remove student\.trim"):
        check_equal(Path(store), Path(store), np.arange(2000)[::-1])


def test_a_sweep_without_it_keeps_its_id(tiny_file):
    assert sweep_id(read_sweep(tiny_file)) == sweep_id(read_sweep(tiny_file, assignments=["student.trim=false"]))
