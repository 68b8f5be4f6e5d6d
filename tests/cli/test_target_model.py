"""`--target-model` of every command that compares two sides, with small real models."""

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.promotion.export import export_trial
from babeltune.promotion.sealed_test_log import read_openings
from babeltune.training.build import make_method, make_student

pytestmark = pytest.mark.usefixtures("one_thread", "offline", "one_scoring_process")
K = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_file, tiny_storage):
    """A folder with text in two languages, two untrained models of one dimension, and a narrow one."""
    place = tmp_path_factory.mktemp("targets")
    for name, more in (("model", ()), ("teacher", ("seed=9",)), ("narrow", ("student.projection=null",))):
        sweep = read_sweep(tiny_file, assignments=more)
        prepared, trial = prepare(sweep, tiny_storage), make_trial(sweep, 0, {})
        encoder = make_student(trial, prepared)
        export_trial(sweep, trial, prepared, encoder, make_method(trial, prepared, encoder), place / name)
    lines = (data_root(sweep) / "natural_dev.tsv").read_text(encoding="utf-8").splitlines()[1:25]
    rows = [(fields[2], fields[1]) for fields in (line.split("\t") for line in lines)]
    (place / "fra").write_text("".join(f"{fra}\n" for fra, _ in rows), encoding="utf-8")
    (place / "eng").write_text("".join(f"{eng}\n" for _, eng in rows), encoding="utf-8")
    (place / "pairs.tsv").write_text("".join(f"{fra}\t{eng}\n" for fra, eng in rows), encoding="utf-8")
    return place


@pytest.fixture
def here(place, monkeypatch, tmp_path):
    """The test stands in that folder, with a storage of its own."""
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def run(command, here, tmp_path):
    """A command in that folder: the JSON that it prints, and its lines of `out`."""

    def call(*arguments):
        out = command.prints(*arguments, "--out", tmp_path / "out", "--json")
        lines = (tmp_path / "out").read_text(encoding="utf-8").splitlines() if (tmp_path / "out").is_file() else []
        return json.loads(out), [line.split("\t") for line in lines]

    return call


def sides(place, target="teacher"):
    """The sentences, and both sides' unit vectors by the two models."""
    fra, eng = ((place / name).read_text(encoding="utf-8").splitlines() for name in ("fra", "eng"))
    x, y = (
        SentenceTransformer(str(place / name), device="cpu").encode(texts, normalize_embeddings=True)
        for name, texts in (("model", fra), (target, eng))
    )
    return fra, eng, x.astype(np.float64), y.astype(np.float64)


def margin(x, y, i, j):
    """The ratio margin of a pair, by the printed formula."""
    around = sum(sorted(x[i] @ row for row in y)[-K:]) + sum(sorted(row @ y[j] for row in x)[-K:])
    return (x[i] @ y[j]) / (around / (2 * K))


def test_score_gives_margins_between_two_models(run, place):
    _, rows = run("score", "pairs.tsv", "model", "--target-model", "teacher", "--k", K)
    _, _, x, y = sides(place)
    assert [float(row[0]) for row in rows] == pytest.approx([margin(x, y, i, i) for i in range(len(x))], abs=2e-4)
    _, alone = run("score", "pairs.tsv", "model", "--k", K)
    assert [row[0] for row in alone] != [row[0] for row in rows], "vectors of another model are no vectors of this one"
    _, again = run("score", "pairs.tsv", "model", "--target-model", "teacher", "--k", K)
    assert again == rows


def test_mine_finds_the_pairs_of_the_highest_margin_between_two_models(run, place):
    _, rows = run("mine", "fra", "eng", "model", "--target-model", "teacher", "--k", K, "--retrieval", "forward")
    fra, eng, x, y = sides(place)
    nearest = np.argsort(-(x @ y.T), axis=1)[:, :K]
    best = [max(found, key=lambda j, i=i: margin(x, y, i, j)) for i, found in enumerate(nearest)]
    assert {row[1]: row[2] for row in rows} == {fra[i]: eng[j] for i, j in enumerate(best)}


def test_retrieve_searches_the_target_models_vectors(run, place):
    arguments = ("--target-model", "teacher", "--gold", "eng")
    done, rows = run("retrieve", "fra", "eng", "model", *arguments)
    fra, eng, x, y = sides(place)
    best = np.argmax(x @ y.T, axis=1)
    assert [(row[1], row[2]) for row in rows] == [(fra[i], eng[j]) for i, j in enumerate(best)]
    assert done["precision_at_1"] == np.mean(best == np.arange(len(x)))


def test_filter_ranks_by_margins_between_two_models_and_names_both(run, place, tmp_path):
    options = ("--tokens", "60", "--languages", "fr", "--k", K)
    report, _ = run("filter", "pairs.tsv", "model", "--target-model", "teacher", *options)
    assert [model["folder"].rpartition("/")[2] for model in report["models"]] == ["model", "teacher"]
    fra, eng, x, y = sides(place)
    ranked = sorted(range(len(x)), key=lambda i: -margin(x, y, i, i))
    (kept,) = (tmp_path / "out").glob("top-60*")
    first = kept.read_text(encoding="utf-8").splitlines()[0]
    assert fra[ranked[0]] in first
    assert eng[ranked[0]] in first


def test_filter_warns_of_exchanged_columns(command, here, tmp_path):
    rows = [row.split("\t") for row in (here / "pairs.tsv").read_text(encoding="utf-8").splitlines()]
    turned = [*(f"{eng}\t{fra}\n" for fra, eng in rows[:16]), *(f"{fra}\t{eng}\n" for fra, eng in rows[16:])]
    (tmp_path / "turned.tsv").write_text("".join(turned), encoding="utf-8")
    options = ("--tokens", "60", "--k", K, "--out", tmp_path / "out")
    code, _, err = command("filter", tmp_path / "turned.tsv", "model", *options)
    assert code == 0, err
    assert "most sources are English and are left out; if the columns are exchanged, give --columns" in " ".join(
        err.split()
    )


def evaluated(command, *arguments):
    out = command.prints("evaluate", *arguments, "--json")
    return json.loads(out)


DATA = """
data:
  root: .
  anchor_priority: [eng]
  dev:
    - {name: theirs, right_model: MODEL, source: {name: dev, path: dev.tsv, columns: {eng: eng, fra: fra}}}
"""


@pytest.fixture
def data(here, tmp_path):
    """Writes a file for `evaluate`, whose dev set's right side this model encodes."""
    rows = (here / "pairs.tsv").read_text(encoding="utf-8")
    (tmp_path / "dev.tsv").write_text(f"fra\teng\n{rows}", encoding="utf-8")

    def write(model, more=""):
        text = DATA.replace("MODEL", model).replace("root: .", f"root: {tmp_path}")
        (tmp_path / "data.yaml").write_text(text + more, encoding="utf-8")
        return tmp_path / "data.yaml"

    return write


def test_evaluate_scores_right_sides_of_the_named_model_or_the_files_teacher(command, place, data):
    named = evaluated(command, "model", "--with", data("student"), "--target-model", "teacher")
    _, _, x, y = sides(place)
    forward = np.mean(np.argmax(x @ y.T, axis=1) == np.arange(len(x)))
    assert named["dev/theirs/fra-eng/accuracy_forward"] == forward
    teacher = f"teacher: {{model: {place / 'teacher'}, languages: [eng], max_tokens: 32}}\n"
    assert evaluated(command, "model", "--with", data("teacher", teacher)) == pytest.approx(named)
    assert evaluated(command, "model", "--with", data("student")) != pytest.approx(named)


@pytest.mark.parametrize(
    ("model", "languages", "expected"),
    [
        ("teacher", None, "task 'theirs' has `right_model: teacher`, and the file has no section `teacher`; add"),
        ("teacher", "fra", "the right side of task 'theirs' is in eng, and the teacher"),
        ("unknown", "eng", "data.dev.0.right_model: 'unknown' is not possible; allowed: 'student' or 'teacher'"),
    ],
    ids=["no teacher", "another language", "unknown"],
)
def test_evaluate_refuses_a_right_side_that_nobody_encodes(command, place, data, model, languages, expected):
    teacher = f"teacher: {{model: {place / 'teacher'}, languages: [{languages}]}}\n" if languages else ""
    code, _, err = command("evaluate", "model", "--with", data(model, teacher))
    assert (code, len(err.splitlines())) == (2, 1), err
    assert expected in err


@pytest.mark.usefixtures("here")
def test_a_target_model_of_another_dimension_opens_no_sealed_test(command, tiny_file, tmp_path):
    code, _, err = command("evaluate", "model", "--with", tiny_file, "--test", "--target-model", "narrow")
    assert (code, len(err.splitlines())) == (2, 1), err
    expected = "'model' has vectors of 384 dimensions, and 'narrow', which encodes the right side, of 32: they do not"
    assert expected in err
    assert read_openings(tmp_path / "home") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("mine", "fra", "eng", "model"),
        ("score", "pairs.tsv", "model"),
        ("retrieve", "fra", "eng", "model"),
        ("filter", "pairs.tsv", "model", "--tokens", "60"),
        ("evaluate", "model"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_target_model_that_is_missing_or_too_narrow_is_refused(command, place, data, tmp_path, arguments):
    more = ("--with", data("student")) if arguments[0] == "evaluate" else ("--out", tmp_path / "made")
    for target, expected in (("./absent", "no such folder"), ("narrow", "they do not compare; name two models of one")):
        err = command.refuses(*arguments, *more, "--target-model", target)
        (line,) = [line for line in err.splitlines() if not line.startswith(("reading", "encoding"))]
        assert expected in line
        assert target in line
    assert not (tmp_path / "made").exists()


@pytest.mark.usefixtures("here")
def test_one_file_on_both_sides_is_refused_for_two_models_too(command, tmp_path):
    err = command.refuses("mine", "fra", "fra", "model", "--target-model", "teacher", "--out", tmp_path / "out")
    assert "fra and fra hold the same sentences, so each would find itself" in err


@pytest.mark.parametrize("name", ["mine", "evaluate"])
def test_a_target_model_that_is_not_there_is_named_as_the_target_model(command, place, tmp_path, tiny_file, name):
    texts = [place / "fra", place / "eng"] if name == "mine" else []
    more = ["--out", tmp_path / "out"] if name == "mine" else ["--with", tiny_file]
    err = command.refuses(name, *texts, place / "model", *more, "--target-model", place / "nothing")
    assert "error: --target-model '" in err
