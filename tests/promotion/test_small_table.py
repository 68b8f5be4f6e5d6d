"""A static model as a table of whole numbers: the vectors, the loss that is allowed, and what is refused."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer
from typer.testing import CliRunner

from babeltune.cli import app
from babeltune.data.teacher import teacher_folder
from babeltune.errors import SpecError, TeacherError
from babeltune.promotion import small_table as module
from babeltune.promotion.small_encoder import SmallEncoder
from babeltune.promotion.small_table import Form, export_small, packed, table_of, whole_numbers
from babeltune.schema.records import Teacher

pytestmark = pytest.mark.usefixtures("one_scoring_process")
TEXTS = ["A boat lies on the beach.", "", "Un bateau est sur la plage.", "a longer text, of some more words than that"]
RUN = """
import json, pathlib, re, sys
source = re.search("```python\\n(.*?)```", pathlib.Path("README.md").read_text(), re.DOTALL)[1]
source = source.replace('["a text", "another"]', sys.argv[1])
exec(source)
assert not {"torch", "transformers", "sentence_transformers", "babeltune"} & sys.modules.keys()
print(json.dumps(vectors.tolist()))
"""


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    """A static model with a linear layer after its table, and a prompt; its folder."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(teacher_folder(Teacher()) / "tokenizer.json"))
    modules = [StaticEmbedding(tokenizer, embedding_dim=32), Dense(32, 24, activation_function=torch.nn.Identity())]
    folder = tmp_path_factory.mktemp("static") / "model"
    model = SentenceTransformer(modules=[*modules, Normalize()], prompts={"x": "boat "}, default_prompt_name="x")
    model.save(str(folder))
    return folder


def test_a_table_alone_is_the_table_whether_its_weights_are_trained_or_not(static):
    model = SentenceTransformer(modules=list(SentenceTransformer(str(static)))[::2])
    model[0].embedding.weight.requires_grad_(True)
    assert np.array_equal(table_of(model, "m"), model[0].embedding.weight.detach().numpy())


@pytest.mark.parametrize(("bits", "most"), [(8, 127), (4, 7)])
def test_a_row_is_whole_numbers_times_a_scale(bits, most):
    table = np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32)
    table[3] = 0
    numbers, scales = whole_numbers(table, bits)
    assert np.abs(numbers).max(axis=1).tolist() == [most if row != 3 else 0 for row in range(50)]
    assert np.all(np.abs(numbers * scales[:, None] - table) <= scales[:, None] / 2 + 1e-6)
    encoder = SmallEncoder.__new__(SmallEncoder)
    encoder.table = packed(numbers, bits)
    assert encoder.table.nbytes == 50 * 16 * bits // 8
    assert np.array_equal(encoder.rows([4, 3, 4]), numbers[[4, 3, 4]])


def test_the_code_of_the_card_gives_the_vectors_of_the_model(static, copied, tmp_path):
    _, folder, cluster = copied
    out = tmp_path / "small"
    done = export_small(str(static), out, cluster, sweep=folder.id)
    assert done.folder == str(out)
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "model.safetensors", "tokenizer.json"]
    run = [sys.executable, "-I", "-c", RUN, json.dumps(TEXTS)]
    vectors = np.array(json.loads(subprocess.run(run, cwd=out, capture_output=True, check=True).stdout))
    whole = SentenceTransformer(str(static))
    expected = whole.encode(TEXTS)
    assert vectors.shape == expected.shape == (4, 24)
    assert (vectors * expected).sum(1).min() > 0.9999
    table = table_of(whole, "static")
    numbers, scales = whole_numbers(table, 8)
    ids = whole.tokenizer.encode("boat " + TEXTS[0], add_special_tokens=False).ids
    mean = (numbers * scales[:, None])[ids].mean(0)
    assert np.abs(vectors[0] - mean / np.linalg.norm(mean)).max() < 1e-6
    assert done.sizes[1] < 0.35 * done.sizes[0] + (out / "tokenizer.json").stat().st_size
    assert min(done.speeds) > 0
    assert SmallEncoder(str(out)).encode([]).shape == (0, 24)
    assert not SmallEncoder(str(out)).encode([""]).any(), "without a prompt there is no token"
    assert done.comparison.sweep == folder.id
    cells = {cell.name: cell for cell in done.comparison.overall}
    assert done.losses == {name: cell.champion - cell.challenger for name, cell in cells.items()}
    assert f"| {next(iter(cells))} |" in (out / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("bits", [4, 8])
def test_a_text_without_tokens_has_a_vector_of_zeros(static, tmp_path, bits):
    numbers, scales = whole_numbers(table_of(SentenceTransformer(str(static)), "static"), bits)
    save_file({"table": packed(numbers, bits), "scales": scales}, tmp_path / "model.safetensors")
    SentenceTransformer(str(static)).tokenizer.save(str(tmp_path / "tokenizer.json"))
    vectors = SmallEncoder(str(tmp_path)).encode(["", TEXTS[0]])
    assert not vectors[0].any()
    assert np.linalg.norm(vectors[1]) == pytest.approx(1, abs=1e-6)


def test_a_loss_above_what_is_allowed_writes_nothing(static, copied_home, tmp_path):
    folder = copied_home[1]
    words = ("export", str(static), "--sweep", folder.id, "--out", str(tmp_path / "small"))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--int4", "--dim=2", "--most-lost=-1"])
    assert result.exit_code == 3, result.output
    assert "refused: mean " in result.output
    assert "more than --most-lost -1.0; nothing is written" in result.output
    assert not (tmp_path / "small").exists()
    result = CliRunner().invoke(app, [*words, "--int4", "--most-lost=1", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["bits"], document["dim"], document["folder"]) == (4, 24, str(tmp_path / "small"))


def test_a_score_that_is_no_number_writes_nothing(static, copied, tmp_path, monkeypatch):
    _, folder, cluster = copied
    compared = module.compare_models

    def undefined(*arguments, **settings):
        comparison = compared(*arguments, **settings)
        return replace(comparison, overall=tuple(replace(c, challenger=math.nan) for c in comparison.overall))

    monkeypatch.setattr(module, "compare_models", undefined)
    done = export_small(str(static), tmp_path / "small", cluster, sweep=folder.id)
    assert done.folder is None
    assert not (tmp_path / "small").exists()
    refused = CliRunner().invoke(app, ["export", str(static), "--out", str(tmp_path / "small"), "--most-lost", "nan"])
    assert refused.exit_code != 0


def test_what_is_no_table_and_what_has_no_sweep_is_refused(static, copied, tmp_path):
    _, folder, cluster = copied
    out = tmp_path / "small"

    def refused(match, model=str(static), **options):
        asked = {name: options.pop(name) for name in ("format", "bits", "dim") if name in options}
        with pytest.raises((SpecError, TeacherError), match=match):
            export_small(model, out, cluster, form=Form(**asked), **{"sweep": folder.id, **options})

    refused(
        "has the layers Transformer, Pooling, Normalize; only a static model",
        str(teacher_folder(Teacher())),
        format="static",
    )
    refused("has the layers StaticEmbedding, Dense, Normalize; a graph is made of a Transformer", format="onnx")
    refused("--int4 is for tables of static models, and .* becomes a graph", str(teacher_folder(Teacher())), bits=4)
    refused("--dim 385: the vectors of .* have 384 numbers", str(teacher_folder(Teacher())), dim=385)
    refused("--dim 25: the vectors of .* have 24 numbers", dim=25)
    refused("--int4 puts two numbers into a byte, and a vector has 3; give an even --dim", bits=4, dim=3)
    refused("is no trial and no registered model; name the sweep", sweep=None)
    refused("'nosuch' is neither a folder nor reachable", "nosuch", sweep=None)
    out.mkdir()
    refused("exists already; name a new folder")
