"""Folders of `export` are taken by every command that takes a model's folder."""

import io
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from babeltune.apps.serving.models import encoder_of
from babeltune.data.teacher import folder_digest, teacher_folder
from babeltune.promotion.onnx_encoder import OnnxEncoder
from babeltune.promotion.onnx_graph import write_graph
from babeltune.promotion.readers import reader_of
from babeltune.promotion.small_table import write_table
from babeltune.schema.records import Teacher

pytestmark = pytest.mark.slow
TEXTS = ["A boat lies on the beach.", "Un bateau est sur la plage.", "The storm came at night.", "word " * 60]
COUNTED = [f"a text with the number {number} and some words" for number in range(120)]


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A graph and a table, with the prompt `boat: `."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("exports")
    prompts = {"prompts": {"x": "boat: "}, "default_prompt_name": "x"}
    tokenizer = PreTrainedTokenizerFast.from_pretrained(teacher_folder(Teacher()))
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(**shape, vocab_size=len(tokenizer))).save_pretrained(place / "bert")
    tokenizer.save_pretrained(place / "bert")
    modules = [Transformer(str(place / "bert"), max_seq_length=24), Pooling(16, "mean"), Normalize()]
    write_graph(SentenceTransformer(modules=modules, **prompts), "graph", place / "graph", int8=False, dim=None)
    words = Tokenizer.from_file(str(teacher_folder(Teacher()) / "tokenizer.json"))
    words.no_truncation()
    table = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=16), Normalize()], **prompts)
    write_table(table, "table", place / "table", bits=8, dim=None)
    return place


@pytest.mark.parametrize("form", ["graph", "table"])
def test_a_server_encodes_with_an_export_and_counts_its_tokens(exports, form):
    encoder = encoder_of(str(exports / form), form)
    encoded = encoder.encode(TEXTS)
    expected = reader_of(exports / form).encode(TEXTS)
    assert np.abs(encoded.vectors - expected).max() < 1e-6
    assert encoder.dim == 16
    assert encoded.cut == [False, False, False, form == "graph"]
    assert encoded.tokens[3] == (24 if form == "graph" else 62)


@pytest.mark.parametrize("form", ["graph", "table"])
def test_commands_take_an_export_as_they_take_a_model(exports, form, command, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, *COUNTED]), encoding="utf-8")
    code, _, words = command("index", exports / form, tmp_path / "texts.txt", "--out", tmp_path / "index")
    assert code == 0, words
    code, output, words = command("search", tmp_path / "index", TEXTS[1], "--top", 1, "--json")
    assert code == 0, words
    (hit,) = json.loads(output)["texts"]
    assert (hit["text"], round(hit["score"], 4)) == (TEXTS[1], 1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
    code, _, words = command("encode", exports / form, "--out", tmp_path / "vectors.npy")
    assert code == 0, words
    assert np.abs(np.load(tmp_path / "vectors.npy") - reader_of(exports / form).encode(TEXTS)).max() < 1e-6
    same = ("--queries", tmp_path / "texts.txt", "--against", tmp_path / "texts.txt")
    code, output, words = command("check", exports / form, *same)
    assert (code, "no drift" in output) == (0, True), words
    code, _, words = command("export", exports / form, "--out", tmp_path / "again", "--sweep", "nosuch")
    assert code != 0
    assert "was made by `export`, and only encodes; name the model that it was made from" in words


@pytest.mark.parametrize("form", ["graph", "table"])
def test_a_damaged_export_is_one_line(exports, form, command, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    names = [path.name for path in (exports / form).iterdir() if path.is_file()]
    assert {"encoder.json", "tokenizer.json"} < set(names)
    for name in names:
        whole = (exports / form / name).read_bytes()
        for number, damaged in enumerate((whole[: len(whole) // 2], b"", None)):
            if damaged is None and name in ("encoder.json", "model.onnx"):
                continue  # then it is no export, or no graph
            place = tmp_path / f"{name}{number}"
            shutil.copytree(exports / form, place)
            (place / name).unlink() if damaged is None else (place / name).write_bytes(damaged)
            words = command.refuses("index", place, tmp_path / "texts.txt", "--out", tmp_path / "index")
            assert f"{place} is damaged (" in words
            assert "export the model again" in words


def test_plan_says_that_an_export_trains_nothing(exports, command, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    table = str(exports / "table")
    for setting in (f"student.model={table}", f"teacher.model={table}", f"baselines=[{table}]"):
        words = command.refuses("plan", "search_spaces/quickstart.yaml", "--set", setting, "--no-calibrate")
        assert words.count("was made by `export`, and only encodes; name the model that it was made from") == 1


def test_two_graphs_of_one_tokenizer_are_two_models(exports, tmp_path):
    for name, weights in (("one", b"1"), ("other", b"2")):
        (tmp_path / name).mkdir()
        for file in ("tokenizer.json", "encoder.json"):
            (tmp_path / name / file).write_bytes((exports / "graph" / file).read_bytes())
        (tmp_path / name / "model.onnx").write_bytes(weights)
    assert folder_digest(tmp_path / "one") != folder_digest(tmp_path / "other")


def test_a_graph_has_the_threads_that_were_asked_for_and_none_of_them_spins(exports):
    options = OnnxEncoder(str(exports / "graph"), 1).session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_texts_of_like_numbers_of_tokens_share_a_batch(exports, monkeypatch):
    encoder = OnnxEncoder(str(exports / "graph"), 1)
    texts = ["a b c d e f g h", "incomprehensibilities", "a b", "unquestionable"]
    expected = encoder.encode(texts)
    shapes, session = [], encoder.session

    class Watched:
        def run(self, names, inputs):
            shapes.append(inputs["attention_mask"].sum(axis=1).tolist())
            return session.run(names, inputs)

    encoder.session = Watched()
    vectors = encoder.encode(texts, batch=2)
    counts = [count for shape in shapes for count in shape]
    assert counts == sorted(counts)
    assert np.abs(vectors - expected).max() < 1e-6
