"""A static model as a table of whole numbers: the vectors, the loss that is allowed, and what is refused."""

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer
from typer.testing import CliRunner

from babeltune.cli import app
from babeltune.data.prepared import TextTask, read_prepared
from babeltune.data.teacher import teacher_folder
from babeltune.errors import SpecError, TeacherError
from babeltune.files import plain, write_json
from babeltune.promotion import small_table as module
from babeltune.promotion.drift import FILE, Slice, read_profile, write_profile
from babeltune.promotion.onnx_graph import whole_numbers
from babeltune.promotion.small_encoder import SmallEncoder
from babeltune.promotion.small_table import SmallForm, export_small, packed, table_of, write_table
from babeltune.promotion.sweep_scores import compare_models
from babeltune.schema.records import Teacher
from small_models import card_header

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


CARD = (
    card_header("tags: [sentence-transformers, babeltune]", "base_model: me/base")
    + """# m

## Settings

nothing

## Training text

| source | from | licence |
|---|---|---|
| mine | a.tsv | not stated |

## Limits

* It was trained for eng, fra.

## More
"""
)


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    """A static model with a linear layer after its table, and a prompt; its folder."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(teacher_folder(Teacher()) / "tokenizer.json"))
    modules = [StaticEmbedding(tokenizer, embedding_dim=32), Dense(32, 24, activation_function=torch.nn.Identity())]
    folder = tmp_path_factory.mktemp("static") / "model"
    model = SentenceTransformer(modules=[*modules, Normalize()], prompts={"x": "boat "}, default_prompt_name="x")
    model.save(str(folder))
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    return folder


def test_a_table_alone_is_the_table_whether_its_weights_are_trained_or_not(static):
    model = SentenceTransformer(modules=list(SentenceTransformer(str(static)))[::2])
    model[0].embedding.weight.requires_grad_(True)
    assert np.array_equal(table_of(model, "m"), model[0].embedding.weight.detach().numpy())


@pytest.mark.parametrize(("bits", "most"), [(8, 127), (4, 7)])
def test_a_row_is_whole_numbers_times_a_scale(bits, most):
    table = np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32)
    table[3] = 0
    numbers, scales = (part.numpy() for part in whole_numbers(torch.from_numpy(table), bits))
    assert np.abs(numbers).max(axis=1).tolist() == [most if row != 3 else 0 for row in range(50)]
    assert np.all(np.abs(numbers * scales[:, None] - table) <= scales[:, None] / 2 + 1e-6)
    encoder = SmallEncoder.__new__(SmallEncoder)
    encoder.stored = {"table": packed(numbers, bits)}
    assert encoder.stored["table"].nbytes == 50 * 16 * bits // 8
    assert np.array_equal(encoder.rows([4, 3, 4]), numbers[[4, 3, 4]])


def test_the_code_of_the_card_gives_the_vectors_of_the_model(static, copied, tmp_path):
    _, folder, cluster = copied
    out = tmp_path / "small"
    done = export_small(str(static), out, cluster, sweep=folder.id)
    assert done.folder == str(out)
    names = ["README.md", "canary.json", "encoder.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    card = (out / "README.md").read_text(encoding="utf-8")
    code = re.search("```python\n(.*?)```", card, re.DOTALL)[1].split("\n")
    assert sum(bool(line.strip()) for line in code) == 15 + 1, "fifteen lines that read, and a call"
    run = [sys.executable, "-I", "-c", RUN, json.dumps(TEXTS)]
    vectors = np.array(json.loads(subprocess.run(run, cwd=out, capture_output=True, check=True).stdout))
    whole = SentenceTransformer(str(static))
    expected = whole.encode(TEXTS)
    assert vectors.shape == expected.shape == (4, 24)
    assert (vectors * expected).sum(1).min() > 0.9999
    table = table_of(whole, "static")
    numbers, scales = (part.numpy() for part in whole_numbers(torch.from_numpy(table), 8))
    ids = whole.tokenizer.encode("boat " + TEXTS[0], add_special_tokens=False).ids
    mean = (numbers * scales[:, None])[ids].mean(0)
    assert np.abs(vectors[0] - mean / np.linalg.norm(mean)).max() < 1e-6
    assert done.sizes[1] < 0.35 * done.sizes[0] + (out / "tokenizer.json").stat().st_size
    encodes = ("model.safetensors", "tokenizer.json", "encoder.json")
    assert done.sizes[1] == sum((out / name).stat().st_size for name in encodes)
    assert min(done.speeds) > 0
    assert SmallEncoder(str(out)).encode([]).shape == (0, 24)
    assert done.comparison.sweep == folder.id
    cells = {cell.name: cell for cell in done.comparison.overall}
    assert done.losses == {name: cell.champion - cell.challenger for name, cell in cells.items()}
    assert f"| {next(iter(cells))} |" in (out / "README.md").read_text(encoding="utf-8")


def test_a_pushed_table_has_the_header_of_its_model_and_no_library(static, copied, command, tmp_path, monkeypatch):
    _, folder, cluster = copied
    monkeypatch.setenv("BABELTUNE_HOME", cluster.storage)
    code, _, words = command("export", static, "--sweep", folder.id, "--out", tmp_path / "small", "--most-lost", 1)
    assert code == 0, words
    code, _, words = command("push", tmp_path / "small", tmp_path / "pushed", "--license", "mit")
    assert code == 0, words
    assert "no licence is stated for the training text mine; give each source its key `license`" in words
    card = ModelCard((tmp_path / "pushed" / "README.md").read_text(encoding="utf-8"))
    assert (card.data.library_name, card.data.tags) == (None, ["babeltune"])
    assert (card.data.license, card.data.language, card.data.base_model) == ("mit", ["en", "fr"], "me/base")
    assert card.data.eval_results[0].metric_value == 0.9292
    assert "* It was trained for eng, fra." in card.text
    assert "## Settings" not in card.text
    assert "SmallEncoder" in card.text


def test_a_table_has_a_profile_of_its_own_training_text_alone(static, copied, tmp_path):
    _, folder, cluster = copied
    whole = tmp_path / "whole"
    shutil.copytree(static, whole)
    write_profile(whole, read_prepared(folder.prepared))
    before = read_profile(whole)
    export_small(str(whole), tmp_path / "small", cluster, sweep=folder.id, most_lost=1)
    after = read_profile(tmp_path / "small")
    assert (after.texts, len(after.mean)) == (before.texts, 24)
    of_other_text = replace(before, languages={"xx": Slice(texts=before.texts, distance=0.0)})
    write_json(whole / FILE, plain(of_other_text))
    export_small(str(whole), tmp_path / "other", cluster, sweep=folder.id, most_lost=1)
    assert read_profile(tmp_path / "other") is None


def test_retrieval_sets_count_among_the_losses(static, copied, tmp_path, monkeypatch):
    _, folder, cluster = copied
    texts = TEXTS[0], TEXTS[2], TEXTS[3]
    task = TextTask(name="faq", kind="retrieval", subset="eng", left=texts, right=texts, gold=((0, 0), (1, 1), (2, 2)))
    monkeypatch.setattr("babeltune.promotion.sweep_scores.dev_texts", lambda prepared: [task])
    broken = tmp_path / "broken"
    table = torch.from_numpy(table_of(SentenceTransformer(str(static)), "static"))
    numbers, scales = (part.numpy() for part in whole_numbers(table, 8))
    write_table(SentenceTransformer(str(static)), "static", broken, bits=8, dim=None)
    save_file(
        {"table": numbers[::-1].copy(), "scales": np.ones_like(scales), "prompt": np.zeros(0, np.uint8)},
        broken / "model.safetensors",
    )
    compared = compare_models(str(static), str(broken), cluster, sweep=folder.id)
    first, second = compared.means["mean retrieval ndcg_at_10"]
    assert first == 1
    assert compared.losses() == {"mean retrieval ndcg_at_10": first - second}


@pytest.mark.parametrize("bits", [4, 8])
def test_a_text_without_tokens_has_a_vector_of_zeros(static, tmp_path, bits):
    model = SentenceTransformer(str(static))
    model.default_prompt_name = None
    write_table(model, "static", tmp_path / "table", bits=bits, dim=None)
    vectors = SmallEncoder(str(tmp_path / "table")).encode(["", TEXTS[0]])
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
        form = {name: options.pop(name) for name in ("format", "bits", "dim") if name in options}
        with pytest.raises((SpecError, TeacherError), match=match):
            export_small(model, out, cluster, form=SmallForm(**form), **{"sweep": folder.id, **options})

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
