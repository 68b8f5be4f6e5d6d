"""A new model in the space of an old one: the map, what it keeps, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2]))

from babeltune.cli import app
from babeltune.data.prepared import read_prepared
from babeltune.errors import SpecError
from babeltune.promotion.adapter import fit_map, make_adapter
from babeltune.promotion.canary import CANARY, SPACE, read_canary
from babeltune.promotion.candidate import dev_texts
from benchmarks import adapter as benchmark
from small_models import bundled_tokenizer, static_model

TEXTS = ["A boat lies on the beach.", "Un bateau est sur la plage.", "some more words"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of static models: `old`, `turned` with the same vectors in other axes and noise, and `other`
    of three numbers."""
    random = np.random.default_rng(0)
    table = random.standard_normal((bundled_tokenizer().get_vocab_size(), 24)).astype(np.float32)
    axes = np.linalg.qr(random.standard_normal((32, 24)))[0].T
    turned = table @ axes + 0.05 * random.standard_normal((len(table), 32))
    place = tmp_path_factory.mktemp("models")
    for name, rows in (("old", table), ("turned", turned), ("other", random.standard_normal((len(table), 3)))):
        static_model(place / name, rows)
        (place / name / "README.md").write_text("---\nlanguage: [en]\n---\n# m\n", encoding="utf-8")
    return place


@pytest.mark.parametrize(("stretched", "name"), [(False, "rotation"), (True, "least squares")])
def test_the_map_is_the_one_that_is_nearer_on_texts_that_it_has_not_seen(stretched, name):
    random = np.random.default_rng(1)
    new = random.standard_normal((400, 8)).astype(np.float32)
    new /= np.linalg.norm(new, axis=1, keepdims=True)
    turn = np.linalg.qr(random.standard_normal((8, 8)))[0].astype(np.float32)
    turn = turn * np.linspace(0.1, 3, 8, dtype=np.float32) if stretched else turn
    old = new @ turn
    old = old / np.linalg.norm(old, axis=1, keepdims=True) + (0 if stretched else 0.02) * random.standard_normal(
        (400, 8)
    )
    layer = fit_map(new, old.astype(np.float32))
    assert layer.kind == name
    assert (layer.weight.shape, layer.bias.shape) == ((8, 8), (8,))
    mapped = layer.of(new)
    cosines = (mapped / np.linalg.norm(mapped, axis=1, keepdims=True) * old).sum(1) / np.linalg.norm(old, axis=1)
    assert cosines.min() > (0.8 if stretched else 0.98)


def test_the_folder_is_a_model_with_vectors_near_the_old_ones(models, copied_home, tmp_path):
    _, folder, cluster = copied_home
    out = tmp_path / "adapted"
    arguments = ["adapter", models / "old", models / "turned", "--sweep", folder.id, "--out", out, "--json"]
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert done["share"] > 0.95
    assert done["folder"] == str(out)
    assert "language:\n- en" in (out / "README.md").read_text(encoding="utf-8"), "the header of the new model"
    old, adapted = SentenceTransformer(str(models / "old")), SentenceTransformer(str(out))
    assert (old.encode(TEXTS) * adapted.encode(TEXTS)).sum(1).min() > 0.95
    canary = read_canary(out / SPACE)
    assert np.abs(old.encode(list(canary.sentences)) - canary.vectors).max() < 1e-4
    assert (adapted.encode(list(canary.sentences)) * read_canary(out / CANARY).vectors).sum(1).min() > 0.9999
    for name, (before, after) in done["recalls"].items():
        assert f"| {name} | {before:.4f} | {after:.4f} |" in (out / "README.md").read_text(encoding="utf-8")
    with pytest.raises(SpecError, match="exists already"):
        make_adapter(str(models / "old"), str(models / "turned"), out, cluster, sweep=folder.id)


def test_the_recall_is_that_of_a_plain_loop(models, copied, tmp_path):
    _, folder, cluster = copied
    done = make_adapter(str(models / "old"), str(models / "turned"), tmp_path / "m", cluster, sweep=folder.id, least=0)
    tasks = [task for task in dev_texts(read_prepared(folder.prepared)) if task.kind == "bitext"]
    texts = {(text, language) for task in tasks for text, language in texts_of(task)}
    index, adapted = SentenceTransformer(str(models / "old")), SentenceTransformer(str(tmp_path / "m"))
    names = sorted(texts)
    rows, queries = index.encode([text for text, _ in names]), adapted.encode([text for text, _ in names])
    assert done.index == len(names)
    for task in tasks:
        hits = []
        (left,), (right,) = task.left_languages, task.right_languages
        for one, other in zip(task.left, task.right, strict=True):
            for query, answer in (((one, left), (other, right)), ((other, right), (one, left))):
                cosines = rows @ queries[names.index(query)]
                cosines[names.index(query)] = -2
                hits.append(names.index(answer) in np.argsort(-cosines)[:10])
        assert done.recalls[f"{task.name}/{task.subset}"][1] == pytest.approx(np.mean(hits), abs=0.02)


def texts_of(task):
    (left,), (right,) = task.left_languages, task.right_languages
    return [*((text, left) for text in task.left), *((text, right) for text in task.right)]


def test_a_model_that_finds_too_little_is_refused(models, copied_home, command, tmp_path):
    folder = copied_home[1]
    out = tmp_path / "adapted"
    arguments = ["adapter", models / "old", models / "other", "--out", out]
    code, stdout, _ = command(*arguments, "--sweep", folder.id)
    assert code == 3
    assert "refused: --least 0.95; nothing is written" in stdout
    assert not out.exists()
    assert "--sweep SWEEP" in command.refuses(*arguments)


def test_a_zero_vector_and_rounding_do_no_harm():
    new, old = torch.randn(50, 4).numpy(), torch.randn(50, 6).numpy()
    new[3] = 0
    assert np.isfinite(fit_map(new, old).of(new)).all()
    same = np.ones((50, 4), np.float32)
    assert np.isfinite(fit_map(same, old).of(same)).all()


def test_a_space_that_lies_to_one_side_is_moved_too():
    """Vectors of many pretrained encoders share most of their direction."""
    random = np.random.default_rng(2)
    shared = random.standard_normal((600, 8)).astype(np.float32)
    old = shared / np.linalg.norm(shared, axis=1, keepdims=True)
    aside = 5 + shared @ random.standard_normal((8, 12)).astype(np.float32)
    new = aside / np.linalg.norm(aside, axis=1, keepdims=True)
    mapped = fit_map(new[:500], old[:500]).of(new[500:])
    assert np.mean((mapped @ old[500:].T).argmax(axis=1) == np.arange(100)) > 0.9


def test_the_benchmark_asks_an_old_index_for_texts_that_the_map_has_not_seen(models, tmp_path, monkeypatch):
    rows = {"fra": ["un", "deux", "trois"], "spa": ["uno", "dos"]}
    monkeypatch.setattr(benchmark, "LANGUAGES", ("fra",))
    monkeypatch.setattr(benchmark, "OTHERS", ("spa",))
    monkeypatch.setattr(
        benchmark, "texts", lambda data, code, most: [(text, f"the {text} text") for text in rows[code]]
    )
    indexed, queries = benchmark.unseen(Path(), {"deux"}, 1)
    assert indexed == ["the un text", "the trois text", "the uno text", "the dos text"]
    assert queries == [("trois", "the trois text")]
    old = str(models / "old")
    texts = [f"A boat lies on the beach number {number}." for number in range(100, 160)]
    assert benchmark.old_index(tmp_path, old, texts) == 60
    pairs = [*zip(texts, texts, strict=True), ("quite other words", texts[7])]
    hits = benchmark.nearest_hits(tmp_path / "index", pairs, benchmark.unit_by(old)([query for query, _ in pairs]))
    assert hits[:60].all()
    value, low, high = benchmark.limits(hits)
    assert low < value == hits.mean() <= high <= 1
    assert benchmark.limits(hits, hits) == [1, 1, 1]


def test_the_figures_of_an_old_index_are_the_records():
    record = benchmark.FIGURES.read()
    assert benchmark.FIGURES.is_shown()
    assert record["index"] >= 50_000
    assert record["rows"][-1]["kept"][0] >= 0.95
