"""What a message proposes in place of a value that a key does not take, and which files of others it knows."""

import json

import pytest

from babeltune.errors import SpecError, nearest_file, plural
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.document import read_document
from babeltune.schema.mending import mends
from babeltune.schema.paths import find_file
from babeltune.schema.search import Parameter


@pytest.mark.parametrize("value", ["seven", {"float": [1, 2], "step": 0.1}, [], None])
def test_nothing_is_proposed_where_nobody_knows_what_was_meant(value):
    assert [each for each in mends(value, Parameter) if each != {"const": value}] == []
    with pytest.raises(SpecError) as caught:
        read_sweep("search_spaces/static.yaml", assignments=["training.pairs=many"])
    assert "write" not in str(caught.value)


def test_a_number_with_an_exponent_is_a_whole_number_where_it_is_one():
    sweep = read_sweep(
        "search_spaces/static.yaml",
        assignments=["training.pairs=4e5", "training.reports=5e0", "parameters.seed={int: [0, 1e1]}"],
    )
    assert (sweep.training.pairs, sweep.training.reports, sweep.parameters["seed"].int) == (400_000, 5, (0, 10))


def test_an_objective_may_be_named_as_tables_print_it():
    short, long = (
        read_sweep("search_spaces/static.yaml", assignments=[f"objectives=[{{metric: {name}}}]"])
        for name in ("everyday/fra-eng/accuracy", "dev/everyday/fra-eng/accuracy")
    )
    assert short == long


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.yaml", "method: bayes\nmetric: {name: loss}\nparameters: {lr: {min: 0, max: 1}}", "a W&B sweep"),
        ("b.yaml", "program: train.py\nmethod: grid\nparameters: {lr: {values: [1, 2]}}", "a W&B sweep"),
        ("c.json", json.dumps({"study_name": "x", "trials": []}), "an Optuna study"),
        ("d.py", "import optuna\n", "an Optuna program"),
        ("e.db", "SQLite format 3\0", "a database, such as an Optuna study"),
        ("f.py", "from ray import tune\n", "a Ray Tune program"),
        ("g.yml", "base_model: x\nmicro_batch_size: 2\ndatasets: []", "an Axolotl configuration"),
        ("h.json", json.dumps({"output_dir": "x", "learning_rate": 1e-5}), "a file of Hugging Face TrainingArguments"),
        ("i.json", json.dumps({"model_type": "bert"}), "a Transformer's configuration"),
        ("j.json", json.dumps([{"idx": 0, "name": "0", "path": "", "type": "T"}]), "a sentence-transformers"),
        ("k.yaml", "apiVersion: v1\nkind: Pod\n", "a Kubernetes manifest"),
    ],
)
def test_a_file_of_another_program_is_known_by_name(tmp_path, name, content, what):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_document(tmp_path / name)
    assert f"{name}: this is {what}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_nearest_file_is_one_beside_it_or_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.yaml").touch()
    for name, near in (("al.yaml", "all.yaml"), ("quickstart", "search_spaces/quickstart.yaml")):
        with pytest.raises(SpecError, match=f"no file '{name}'; did you mean '{near}'"):
            find_file(name)


def test_an_overlay_is_offered_for_an_overlay_and_no_sweep_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("name: mine\nmethod: lealla\n", encoding="utf-8")
    (tmp_path / "mine_too.yaml").write_text("training.pairs: 7\n", encoding="utf-8")
    sweeps = (("quickstrat.yaml", "search_spaces/quickstart.yaml"), ("mime.yaml", "mine.yaml"))
    overlays = (("tatoeba_113.yaml", "search_spaces/evaluation/tatoeba_112.yaml"), ("mine_to.yaml", "mine_too.yaml"))
    for name, near in (*sweeps, *overlays):
        for kind in ("sweep", "overlay"):
            with pytest.raises(SpecError, match=f"no file '{name}'") as caught:
                find_file(name, kind)
            assert (f"did you mean '{near}'" in str(caught.value)) == (kind == "sweep" or (name, near) in overlays)
    for kind, first in (("overlay", "shipped: search_spaces/baselines/chen.yaml"), ("cluster", "shipped: clusters/")):
        with pytest.raises(SpecError, match=f"no file 'nofile.yaml'; {first}"):
            find_file("nofile.yaml", kind)


def test_equal_endings_make_no_two_files_near():
    assert nearest_file("nosuch.csv", ["notes.csv", "customers.csv"]) == ""
    assert nearest_file("trian.csv", ["notes.csv", "train.tsv"]) == "; did you mean 'train.tsv'?"


def test_one_thing_is_counted_in_the_singular():
    assert [plural(n, "row") for n in (0, 1, 2, 1.0, 1000, 0.5)] == [
        "0 rows", "1 row", "2 rows", "1 row", "1,000 rows", "0.5 rows",
    ]  # fmt: skip
