"""XLM, a baseline of Chen et al. 2023, is scored as the mean of its tokens' states."""

import json
import sys

import numpy as np
import pytest
import torch
from transformers import XLMConfig, XLMModel, XLMTokenizer

from babeltune.errors import TeacherError
from babeltune.models.hub import open_model
from babeltune.promotion.fresh_scorer import encoder_of

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
TOKENS = ["<s>", "</s>", "<pad>", "<unk>", "the</w>", "t", "h", "e</w>", "th", "r", "a", "i", "n</w>", "ra", "s</w>"]
TOKENS += [".</w>"]
TEXTS = ["The rain.", "the", "rats rain the rain"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small XLM for two languages, in the files of a released one."""
    folder = tmp_path_factory.mktemp("xlm")
    (folder / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(TOKENS)}))
    (folder / "merges.txt").write_text("t h 1\nth e</w> 1\nr a 1\n")
    names = {"lang2id": {"en": 0, "fr": 1}, "id2lang": {"0": "en", "1": "fr"}}
    torch.manual_seed(0)
    shape = {"vocab_size": len(TOKENS), "emb_dim": 16, "n_layers": 2, "n_heads": 2, "n_langs": 2}
    XLMModel(XLMConfig(**shape, **names, pad_index=2, unk_index=3, bos_index=0, eos_index=1)).save_pretrained(folder)
    XLMTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), **names).save_pretrained(folder)
    return str(folder)


def test_a_released_xlm_has_the_mean_of_its_states(checkpoint):
    vectors = encoder_of(checkpoint)(TEXTS, ["eng"] * len(TEXTS))
    model, tokenizer = XLMModel.from_pretrained(checkpoint).eval(), XLMTokenizer.from_pretrained(checkpoint)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert np.allclose(vector, states.mean(0).numpy(), atol=1e-6)


def test_a_tokenizer_whose_package_is_missing_is_one_line(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(TeacherError, match=r"cannot be loaded as .* sacremoses") as raised:
        open_model(checkpoint)
    assert "\n" not in str(raised.value)
