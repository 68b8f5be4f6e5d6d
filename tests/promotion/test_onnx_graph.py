"""A Transformer as an ONNX graph: its vectors, the code of its card, and what is printed and refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from babeltune.data.teacher import teacher_folder
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.promotion.onnx_graph import TokenTable, uneven_layers, write_graph
from babeltune.schema.records import Teacher

pytestmark = [pytest.mark.usefixtures("one_scoring_process"), pytest.mark.slow]
TEXTS = ["A boat lies on the beach.", "", "Un bateau est sur la plage.", "a longer text, of some more words " * 9]
RUN = """
import json, pathlib, re, sys
source = re.search("```python\\n(.*?)```", pathlib.Path("README.md").read_text(), re.DOTALL)[1]
exec(source.replace('["a text", "another"]', sys.argv[1]))
assert not {"torch", "transformers", "sentence_transformers", "babeltune"} & sys.modules.keys()
print(json.dumps(vectors.tolist()))
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A Transformer with a dense layer and a prompt; its folder."""
    place = tmp_path_factory.mktemp("transformer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(teacher_folder(Teacher()))
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    BertModel(BertConfig(**shape, vocab_size=len(tokenizer))).save_pretrained(place / "bert")
    tokenizer.save_pretrained(place / "bert")
    modules = [Transformer(str(place / "bert"), max_seq_length=24), Pooling(32, "mean"), Dense(32, 16), Normalize()]
    model = SentenceTransformer(modules=modules, prompts={"x": "boat: "}, default_prompt_name="x", device="cpu")
    model.save(str(place / "model"), create_model_card=False)
    header = "---\nlanguage: [en, fr]\nlibrary_name: sentence-transformers\n---\n"
    (place / "model" / "README.md").write_text(f"{header}# m\n\n## Limits\n\n* eng only\n", encoding="utf-8")
    return place / "model"


@pytest.mark.parametrize(
    ("int8", "dim", "least"),
    [(True, None, 0.99), pytest.param(False, None, 0.999999, marks=pytest.mark.long), (False, 5, 0.999999)],
)
def test_a_graph_gives_the_vectors_of_the_model(small, tmp_path, int8, dim, least):
    model = SentenceTransformer(str(small), device="cpu")
    expected = model.encode(TEXTS)[:, :dim]
    write_graph(model, "small", tmp_path / "graph", int8=int8, dim=dim)
    vectors = encoder_of(str(tmp_path / "graph"))(TEXTS, [""] * 4)
    assert vectors.shape == (4, dim or 16)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert (vectors * expected).sum(1).min() > least
    assert (tmp_path / "graph" / "model.onnx").stat().st_size > 0


def test_a_row_of_a_table_has_a_scale_of_its_own():
    table = torch.nn.Embedding(40, 8)
    with torch.no_grad():
        table.weight.mul_(torch.logspace(-3, 3, 40)[:, None])
        table.weight[7] = 0
    rows, ids = TokenTable(table), torch.tensor([[0, 7], [39, 3]])
    assert rows.numbers.dtype == torch.int8
    most = table.weight.abs().amax(dim=1, keepdim=True)
    assert ((rows(ids) - table(ids)).abs() <= most[ids] / 254 * 1.001).all()
    assert not rows(ids)[0, 1].any()


def test_a_layer_whose_inputs_are_uneven_keeps_its_32_bits(small, tmp_path):
    """One input is a thousand times the others, and no output needs it."""
    model = SentenceTransformer(str(small), device="cpu")
    assert uneven_layers(model) == set()
    (first,) = (layer for name, layer in model.named_modules() if name.endswith("layer.1.intermediate.dense"))
    (second,) = (layer for name, layer in model.named_modules() if name.endswith("layer.1.output.dense"))
    with torch.no_grad():
        first.bias[5] += 300
        second.weight[:, 5] = 0
    (name,) = uneven_layers(model)
    assert name.endswith("layer.1.output.dense")
    write_graph(model, "small", tmp_path / "graph", int8=True, dim=None)
    vectors = encoder_of(str(tmp_path / "graph"))(TEXTS, [""] * 4)
    assert (vectors * model.encode(TEXTS)).sum(1).min() > 0.99
    kinds = [
        tuple(each.dims)
        for each in onnx.load(tmp_path / "graph" / "model.onnx").graph.initializer
        if each.data_type == onnx.TensorProto.FLOAT
    ]
    assert kinds.count((64, 32)) == 1, "the other layer's weight has eight bits"


def test_the_command_writes_a_folder_whose_card_encodes_without_torch(small, copied_home, command, tmp_path):
    folder = copied_home[1]
    out = tmp_path / "graph"
    done = command.document("export", small, "--int8", "--sweep", folder.id, "--out", out, "--most-lost", 1)
    assert (done["format"], done["bits"], done["dim"]) == ("onnx", 8, 16)
    assert done["sizes"][1] < 0.6 * done["sizes"][0]
    assert max(map(abs, done["losses"].values())) < 0.1
    names = ["README.md", "canary.json", "encoder.json", "model.onnx", "tokenizer.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    run = [sys.executable, "-I", "-c", RUN, json.dumps(TEXTS)]
    vectors = np.array(json.loads(subprocess.run(run, cwd=out, capture_output=True, check=True).stdout))
    expected = SentenceTransformer(str(small), device="cpu").encode(TEXTS)
    assert (vectors * expected).sum(1).min() > 0.99
    code, _, words = command("push", out, tmp_path / "pushed", "--license", "mit")
    assert code == 0, words
    card = ModelCard((tmp_path / "pushed" / "README.md").read_text(encoding="utf-8"))
    assert (card.data.library_name, card.data.language, card.data.license) == (None, ["en", "fr"], "mit")
    assert "* eng only" in card.text
    code, output, _ = command("export", small, "--sweep", folder.id, "--out", tmp_path / "no", "--most-lost", -1)
    assert code == 3
    assert "more than --most-lost -1.0; nothing is written" in output
    assert not (tmp_path / "no").exists()


def test_without_the_extra_and_with_wrong_options_it_is_one_line(small, command, copied_home, tmp_path, monkeypatch):
    folder = copied_home[1]
    arguments = ["export", small, "--sweep", folder.id, "--out", tmp_path / "graph"]
    for options, words in (
        (("--int8", "--int4"), "give one of them"),
        (("--format", "onnx", "--int4"), "is for tables of static models"),
        (("--int4",), "becomes a graph; give --int8, or neither"),
        (("--format", "static"), "only a static model"),
    ):
        code, output, error = command(*arguments, *options)
        assert (code, output) == (2, "")
        assert words in error
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert "--format onnx: packages are missing; pip install 'babeltune[onnx]'" in command.refuses(*arguments)
    assert not Path(tmp_path / "graph").exists()


def test_onnxruntime_reports_nothing(tmp_path):
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.FLOAT, [1, 2])
    vectors = onnx.helper.make_tensor_value_info("vectors", onnx.TensorProto.FLOAT, [1, 2])
    node = onnx.helper.make_node("Identity", ["input_ids"], ["vectors"])
    graph = onnx.helper.make_graph([node], "same", [ids], [vectors])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "model.onnx")
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "encoder.json").write_text('{"prompt": ""}', encoding="utf-8")
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    code = f"from babeltune.promotion.onnx_encoder import OnnxEncoder; OnnxEncoder({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], env={**environment, "HOME": str(home)}, check=True)
    assert not list(home.rglob("*onnxruntime*")), "it keeps what it sends there"
