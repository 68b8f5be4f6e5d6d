"""An index of texts and the search in it: what is found, which models are refused, and what a damaged folder costs."""

import gzip
import importlib
import json
import shutil

import faiss
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from babeltune.apps.mining import text_index
from babeltune.apps.mining.mine import Encoding
from babeltune.apps.mining.text_index import build_index, check_fit, nearest_texts, open_index
from babeltune.apps.mining.vectors import model_at
from babeltune.errors import DataError, MisfitError, SpecError
from babeltune.promotion.canary import SPACE
from small_models import bundled_tokenizer, static_model

COUNT = 400


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of static models: `old`; `turned`, the same in other axes with some noise; `short` of three numbers."""
    tokenizer = bundled_tokenizer()
    random = np.random.default_rng(0)
    old = random.standard_normal((tokenizer.get_vocab_size(), 24)).astype(np.float32)
    old[tokenizer.token_to_id("zzz") or tokenizer.token_to_id("z")] = 0
    turned = old @ np.linalg.qr(random.standard_normal((24, 24)))[0] + 0.2 * random.standard_normal(old.shape)
    place = tmp_path_factory.mktemp("models")
    for name, rows in (("old", old), ("turned", turned), ("short", old[:, :3].copy())):
        static_model(place / name, rows)
    return place


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files: 400 lines of words, and 50 of them again in a packed table with one text of its own."""
    place, random = tmp_path_factory.mktemp("files"), np.random.default_rng(1)
    words = ["boat", "beach", "train", "river", "bread", "stone", "moon", "water", "night", "garden", "paper", "glass"]
    lines = [f"{' '.join(random.choice(words, 6))} {number}" for number in range(COUNT)]
    (place / "a.txt").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    rows = [f"{number}\t{line}" for number, line in enumerate([*lines[:50], "an extra text"])]
    (place / "b.tsv.gz").write_bytes(gzip.compress("\n".join(["id\ttext", *rows]).encode()))
    return place, lines


@pytest.fixture
def built(models, files, tmp_path):
    """Makes an index of the first file by the old model."""

    def build(name="index", model="old"):
        encoding = Encoding(models=(None, None), storage=tmp_path / "storage", progress=lambda *_: None)
        place = models / model
        build_index(model_at(str(place)), str(place), [files[0] / "a.txt"], tmp_path / name, encoding)
        return tmp_path / name

    return build


def test_a_search_finds_what_a_plain_loop_finds(built, models, files, monkeypatch):
    monkeypatch.setattr(text_index, "BLOCK", 37)  # several blocks, and the last one shorter
    index = open_index(built())
    model, (_, lines) = SentenceTransformer(str(models / "old")), files
    rows = model.encode(lines)
    for query in ("a boat on the river", "bread in the garden", lines[390]):
        cosines = rows @ model.encode(query)
        hits = nearest_texts(index, model_at(str(models / "old")), query, 5)
        assert [hit.line - 1 for hit in hits] == np.argsort(-cosines, kind="stable")[:5].tolist()
        assert [hit.text for hit in hits] == [lines[hit.line - 1] for hit in hits]
        assert [hit.score for hit in hits] == pytest.approx(np.sort(cosines)[::-1][:5].tolist(), abs=1e-5)
        assert hits[0].file == str(files[0] / "a.txt")


def test_faiss_reads_the_vectors_that_a_search_maps(built):
    index = open_index(built())
    read = faiss.read_index(str(index.folder / "index.faiss"))
    assert np.array_equal(read.reconstruct_n(0, read.ntotal), index.vectors)


def test_the_commands_read_packed_tables_and_count_a_text_once(command, models, files, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    place, lines = files
    (tmp_path / "more.tsv").write_text(f"text\tx\nz\t1\nonly here\t2\n{lines[3]}\t3\n", encoding="utf-8")
    out = tmp_path / "index"
    code, output, words = command(
        "index", models / "old", place / "b.tsv.gz", tmp_path / "more.tsv", "--column", "text", "--out", out, "--json"
    )
    assert code == 0, words
    done = json.loads(output)
    assert (done["rows"], done["zero_vectors"], done["dim"]) == (52, 1, 24)
    assert [each["usable"] for each in done["lines"]] == [51, 2]
    assert "a zero vector, which has no cosine with any other: 1 text" in words
    first, second = command.document("search", out, "only here", "--top", "2")["texts"]
    assert (first["text"], first["file"]) == ("only here", str(tmp_path / "more.tsv"))
    assert first["score"] == pytest.approx(1, abs=1e-5)
    assert second["score"] < 0.99
    output = command.prints("search", out, "an extra text", "--top", "1")
    assert "an extra text" in output
    assert "b.tsv.gz" in output
    assert command("index", models / "old", place / "a.txt", "--out", out)[0] == 2, "the folder is there"
    assert "the model knows no word of it" in command.refuses("search", out, "z")


def test_another_model_is_refused_in_one_line_that_names_the_adapter(command, built, models, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    folder = built()
    words = command.refuses("search", folder, "a boat", "--model", models / "turned", code=3)
    (line,) = words.strip().splitlines()[-1:]
    assert f"babeltune adapter {models / 'old'} {models / 'turned'} --out NEW" in line
    assert "the least cosine of the canary sentences is" in line
    with pytest.raises(MisfitError, match="vectors of 3 dimensions, not 24"):
        check_fit(open_index(folder), str(models / "short"), "short")


def test_a_model_whose_space_is_that_of_the_index_is_taken(built, models, tmp_path):
    index = open_index(built())
    shutil.copytree(models / "turned", tmp_path / "adapted")
    shutil.copy(index.folder / "canary.json", tmp_path / "adapted" / SPACE)
    assert check_fit(index, str(tmp_path / "adapted"), "adapted").by_adapter
    assert not check_fit(index, str(models / "old"), "old").by_adapter
    other = open_index(built(name="other", model="turned"))
    shutil.copy(index.folder / "canary.json", tmp_path / "adapted" / SPACE)
    assert not check_fit(other, str(tmp_path / "adapted"), "adapted").by_adapter
    with pytest.raises(MisfitError):
        check_fit(other, str(models / "old"), "old")


def test_an_adapter_searches_the_index_of_the_old_model(command, built, models, files, copied_home, tmp_path):
    sweep = copied_home[1]
    folder = built()
    command.prints(
        "adapter", models / "old", models / "turned", "--sweep", sweep.id, "--least", 0, "--out", tmp_path / "adapted"
    )
    query = files[1][7]
    output = command.prints("search", folder, query, "--model", tmp_path / "adapted", "--json", "--top", 3)
    assert json.loads(output)["by_adapter"]
    first = json.loads(output)["texts"][0]
    assert first["text"] == query
    assert 0.9 < first["score"] < 0.9999


@pytest.mark.parametrize("name", ["index.faiss", "texts.arrow", "index.json", "canary.json"])
def test_a_file_that_is_cut_or_gone_is_a_line_for_the_user(name, built):
    folder = built()
    whole = (folder / name).read_bytes()
    for content in (whole[:-40], b"", b"\0" * len(whole)):
        (folder / name).write_bytes(content)
        with pytest.raises(DataError, match=r"damaged one|no file of canary vectors"):
            open_index(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=r"damaged one|no file of canary vectors"):
        open_index(folder)


def test_empty_files_and_unknown_columns_are_refused(command, files, models, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_text("\n \n")
    for name, model in (("empty.txt", "no/model"), ("blank.txt", models / "old")):
        words = command.refuses("index", model, tmp_path / name, "--out", tmp_path / "index")
        assert "holds nothing to encode" in words
    words = command.refuses("index", "no/model", files[0] / "b.tsv.gz", "--column", "nobody", "--out", tmp_path / "i")
    assert "nobody" in words
    assert command("search", tmp_path, " ")[0] == 2
    assert not (tmp_path / "index").exists()


def test_without_faiss_an_index_is_searched_and_none_is_made(built, command, monkeypatch):
    folder, whole = built(), importlib.import_module

    def absent(name, *rest):
        if name == "faiss":
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    assert command("search", folder, "a boat")[0] == 0
    with pytest.raises(DataError, match=r"pip install 'babeltune\[faiss\]'"):
        built(name="another")
    with pytest.raises(SpecError, match="exists already"):
        built()
