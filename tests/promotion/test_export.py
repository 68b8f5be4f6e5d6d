"""An exported folder is plain sentence-transformers: same vectors, safe files, whole or absent."""

import json
import os
import re
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModel, BertConfig, BertModel, ModernBertConfig, PreTrainedTokenizerFast, XLMRobertaConfig

from babeltune.errors import CheckpointError, TeacherError
from babeltune.method import EVERY, tokens_from
from babeltune.models.build import build_student
from babeltune.models.encoder import Encoder
from babeltune.models.vocabulary import Vocabulary
from babeltune.promotion.export import export
from babeltune.promotion.model_files import SAFE
from babeltune.schema.records import Transformer
from exports import load_export
from processes import ended

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
TEXTS = [
    "A man rides a horse.",
    "",
    "Die Katze schläft auf dem Sofa, und der Hund bellt laut im Garten hinter dem alten Haus am See.",
    "猫がソファで寝ています。",
    "ok",
    "A man rides a horse.",
]
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def tokenizer():
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    unigram.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="[UNK]", show_progress=False)
    )
    ends = [(t, unigram.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    unigram.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=unigram, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def student(**changes):
    small = {"layers": 2, "width": 32, "heads": 4, "feed_forward": 64, "max_tokens": MAX_TOKENS}
    return Transformer(**small).changed(**changes)


def ours(encoder, tokenizer, settings):
    texts = [settings.prompt + text for text in TEXTS]
    ids = tokenizer(texts, truncation=True, max_length=settings.max_tokens)["input_ids"]
    assert max(map(len, ids)) == settings.max_tokens  # the long text is cut
    with torch.no_grad():
        return encoder.eval()(tokens_from(ids)).numpy()


def build(tokenizer, settings):
    return build_student(settings, Vocabulary(len(tokenizer), tokenizer.pad_token_id), teacher_dim=24, seed=1)


def test_the_snippet_of_the_tutorial_encodes_with_an_exported_model(tokenizer, tmp_path):
    settings = student()
    export(build(tokenizer, settings), tokenizer, settings, tmp_path / "model", card="# A model\n")
    tutorial = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)
    namespace = {}
    exec(snippet.replace("FOLDER", str(tmp_path / "model")), namespace)
    assert namespace["vectors"].shape == (2, 32)


@pytest.mark.trap(18, 21)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooling": "cls", "prompt": "query: "},
        {"pooling": "max", "normalize": False},
        {"projection": "teacher"},
        {"projection": 8, "normalize": False, "prompt": "query: "},
    ],
)
def test_plain_sentence_transformers_gives_our_vectors(changes, tokenizer, tmp_path):
    settings = student(**changes)
    encoder = build(tokenizer, settings)
    export(encoder, tokenizer, settings, tmp_path / "model", card="# A model\n")
    expected = ours(encoder, tokenizer, settings)
    plain = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert plain.max_seq_length == MAX_TOKENS
    assert np.abs(plain.encode(TEXTS) - expected).max() < 1e-5
    again, again_tokenizer, again_settings = load_export(tmp_path / "model")
    assert again_settings.prompt == settings.prompt
    assert again_settings.pooling == settings.pooling
    assert np.abs(ours(again, again_tokenizer, again_settings) - expected).max() < 1e-6
    assert (tmp_path / "model" / "README.md").read_text() == "# A model\n"


@pytest.mark.parametrize("kind", ["xlm-r", "modernbert"])
def test_a_hub_like_student_exports_to_the_same_vectors(kind, tokenizer, tmp_path):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    if kind == "xlm-r":
        config = XLMRobertaConfig(
            **shape, vocab_size=len(tokenizer), max_position_embeddings=40, pad_token_id=tokenizer.pad_token_id
        )
    else:
        config = ModernBertConfig(
            **shape, vocab_size=len(tokenizer), max_position_embeddings=40, local_attention=8,
            global_attn_every_n_layers=2, pad_token_id=0,
            bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
        )  # fmt: skip
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(tmp_path / "hub")
    tokenizer.save_pretrained(tmp_path / "hub")
    settings = student(model=str(tmp_path / "hub"), projection=16, prompt="passage: ")
    encoder = build(tokenizer, settings)
    assert encoder.packs
    export(encoder, tmp_path / "hub", settings, tmp_path / "model")
    plain = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert np.abs(plain.encode(TEXTS) - ours(encoder, tokenizer, settings)).max() < 1e-5


def test_a_promoted_model_is_a_student_again_with_its_projection(tokenizer, tmp_path):
    settings = student(projection=8)
    encoder = build(tokenizer, settings)
    export(encoder, tokenizer, settings, tmp_path / "model")
    again = build(tokenizer, student(model=str(tmp_path / "model")))
    assert again.dim == 8
    for (name, p), (other, q) in zip(encoder.named_parameters(), again.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(p, q), name


@pytest.mark.trap(20)
def test_labse_like_tanh_after_the_projection_survives_export(tokenizer, tmp_path):
    settings = student(projection=8, pooling="cls")
    backbone = build(tokenizer, settings).backbone
    encoder = Encoder(backbone, pooling="cls", projection=torch.nn.Linear(32, 8), tanh=True, pad_token_id=0)
    export(encoder, tokenizer, settings, tmp_path / "model")
    expected = ours(encoder, tokenizer, settings)
    assert np.abs(SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS) - expected).max() < 1e-5
    assert np.abs(ours(load_export(tmp_path / "model")[0], tokenizer, settings) - expected).max() < 1e-6


@pytest.mark.parametrize("kind", ["scratch", "named"])
def test_a_pooler_is_exported_as_cls_and_a_dense_layer_with_tanh(kind, tokenizer, tmp_path):
    settings = student(pooling="pooler")
    if kind == "named":
        shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
        BertModel(BertConfig(**shape, vocab_size=len(tokenizer))).save_pretrained(tmp_path / "hub")
        settings = student(pooling="pooler", model=str(tmp_path / "hub"))
    encoder = build(tokenizer, settings)
    folder = tmp_path / "model"
    export(encoder, tokenizer, settings, folder)
    expected = ours(encoder, tokenizer, settings)
    plain = SentenceTransformer(str(folder), device="cpu")
    assert [type(module).__name__ for module in plain] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert np.abs(plain.encode(TEXTS) - expected).max() < 1e-5
    again, _, again_settings = load_export(folder)
    assert (again_settings.pooling, again_settings.projection, again.tanh) == ("cls", 32, True)
    assert np.abs(ours(again, tokenizer, settings) - expected).max() < 1e-6
    promoted = build(tokenizer, student(pooling="cls", model=str(folder)))
    assert np.abs(ours(promoted, tokenizer, settings) - expected).max() < 1e-6
    with pytest.raises(TeacherError, match=r"set student\.pooling to 'cls' \(a dense layer after it"):
        build(tokenizer, student(pooling="pooler", model=str(folder)))


def test_an_export_holds_only_safe_files_and_no_trace_of_packing(tokenizer, tmp_path):
    settings = student(projection=8, prompt="query: ")
    export(build(tokenizer, settings), tokenizer, settings, tmp_path / "model")
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= SAFE
    assert sum(path.suffix == ".safetensors" for path in files) == 2
    assert "babeltune" not in "".join(path.read_text() for path in files if path.suffix == ".json")


LOAD = """
import json, sys
from sentence_transformers import SentenceTransformer
print(json.dumps([len(SentenceTransformer(path, device="cpu").encode("ok")) for path in sys.argv[1:]]))
"""


def test_plain_sentence_transformers_loads_exports_without_a_warning(tokenizer, tmp_path):
    config = ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(tmp_path / "hub")  # has no pooler that could be left out

    def narrow():
        return torch.nn.Sequential(torch.nn.Linear(32, 8))

    exports = {
        "mean": (student(), {}),
        "pooler": (student(pooling="pooler"), {EVERY: narrow()}),
        "routes": (student(), {"eng": narrow(), "fra": narrow()}),
        "modernbert": (student(model=str(tmp_path / "hub")), {}),
    }
    for name, (settings, layers) in exports.items():
        export(build(tokenizer, settings), tokenizer, settings, tmp_path / name, layers=layers)
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    folders = [tmp_path / name for name in exports]
    done = ended(sys.executable, "-W", "default", "-c", LOAD, *folders, check=True, env=environment)
    assert done.stderr.strip() == ""
    assert json.loads(done.stdout) == [32, 8, 8, 32]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_the_umask_decides_who_may_read_an_export(umask, tokenizer, tmp_path):
    settings = student(projection=8)
    before = os.umask(umask)
    try:
        export(build(tokenizer, settings), tokenizer, settings, tmp_path / "model")
    finally:
        os.umask(before)
    for path in (tmp_path / "model", *(tmp_path / "model").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_an_export_that_fails_leaves_nothing_behind(tokenizer, tmp_path):
    settings = student()
    encoder = build(tokenizer, settings)
    with pytest.raises(OSError, match="nowhere"):
        export(encoder, tmp_path / "nowhere", settings, tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []
    export(encoder, tokenizer, settings, tmp_path / "out" / "model")
    with pytest.raises(CheckpointError, match="exists already"):
        export(encoder, tokenizer, settings, tmp_path / "out" / "model")
