"""Maps of token and word vectors, before and after training."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import vector_maps
from benchmarks.vector_maps import nearness
from small_models import exported_student

WORDS = Path(__file__).parents[1] / "benchmarks/data/common_words.tsv"


def test_nearness_compares_translations_with_all_others():
    left = np.array([[1, 0], [1, 0], [0, 1]], np.float32), np.array([0, 0, 1])
    right = np.array([[1, 0], [0, 1]], np.float32), np.array([0, 1])
    assert nearness(left, right) == (1, 0, 1)
    assert nearness(left, (right[0][::-1], right[1])) == (0, 1, 0), "each is nearest to the other row's"


@pytest.fixture
def model(tmp_path):
    return exported_student(tmp_path, WORDS.read_text(encoding="utf-8").split("\n") * 3, 400, pooling="mean")


@pytest.mark.usefixtures("one_thread", "offline")
@pytest.mark.parametrize("kind", ["tokens", "words"])
def test_a_map_has_a_panel_and_a_row_for_each_model(kind, model, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "map.svg"
    options = ["--columns", "eng,zho", "--out", str(picture)]
    vector_maps.main([kind, str(WORDS), f"before={model}", f"after={model}", *options])
    before, after = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| before", "| after"))]
    assert before.replace("before", "after") == after
    drawn = picture.read_text(encoding="utf-8")
    assert ">before</text>" in drawn
    assert ">after</text>" in drawn
    assert (">Cat</text>" in drawn) == (kind == "words")


def test_a_model_that_is_not_there_is_an_error_of_one_line(tmp_path):
    with pytest.raises(SystemExit, match=r"^error: .*nosuch"):
        vector_maps.main(["words", str(WORDS), f"before={tmp_path / 'nosuch'}", "--columns", "eng,zho"])


@pytest.mark.usefixtures("one_thread", "offline")
def test_special_tokens_have_no_vector_on_the_map(model):
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(model), device="cpu")
    vectors, places = vector_maps.token_vectors(encoder, ["Cat", "Dog Hello"])
    plain = [encoder.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("Cat", "Dog Hello")]
    assert np.bincount(places).tolist() == [len(ids) for ids in plain]
    assert len(vectors) == len(places)
