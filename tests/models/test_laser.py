"""A released LASER checkpoint becomes a folder whose vectors are those of the printed encoder."""

import importlib.util
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.convert_slow_tokenizer import import_protobuf

from babeltune.data.teacher import load_teacher
from babeltune.errors import TeacherError
from babeltune.models.hub import open_model
from babeltune.planning.availability import model_width
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.schema.records import Teacher
from babeltune.training.speed import bought_sentences_per_second

SPEC = importlib.util.spec_from_file_location(
    "convert_laser", Path(__file__).parents[2] / "examples" / "convert_laser.py"
)
convert_laser = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(convert_laser)
PIECES = {"▁": -4.0, "▁the": -1.0, "▁rain": -2.0, "▁ra": -3.0, "in": -2.5, "s": -2.0, ".": -1.5, '"': -3.0, "'": -3.0}
PIECES |= {"rain": -3.0, "▁t": -3.5, "h": -4.0, "e": -4.0, "ing": -2.0, "▁not": -2.0, ",": -2.0}
UNLISTED = "ing"  # a piece that the checkpoint's dictionary lacks
WIDTH, HIDDEN, LAYERS = 5, 4, 2


def write_pieces(path, kind=1):
    proto = import_protobuf().ModelProto()
    proto.trainer_spec.model_type = kind
    for piece, score, type_ in [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        *((p, s, 1) for p, s in PIECES.items()),
    ]:
        proto.pieces.add(piece=piece, score=score, type=type_)
    path.write_bytes(proto.SerializeToString())
    return str(path)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A small checkpoint and its pieces, as they are released; the parts of the checkpoint."""
    place = tmp_path_factory.mktemp("laser")
    torch.manual_seed(0)
    listed = [piece for piece in reversed(PIECES) if piece != UNLISTED]
    dictionary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {piece: 4 + i for i, piece in enumerate(listed)}
    lstm = torch.nn.LSTM(WIDTH, HIDDEN, num_layers=LAYERS, bidirectional=True)
    weights = {"embed_tokens.weight": torch.randn(len(dictionary), WIDTH)}
    weights |= {f"lstm.{name}": each for name, each in lstm.state_dict().items()}
    shape = {"embed_dim": WIDTH, "hidden_size": HIDDEN, "num_layers": LAYERS, "bidirectional": True}
    params = shape | {"num_embeddings": len(dictionary), "padding_idx": 1, "left_pad": True, "padding_value": 0.0}
    parts = {"params": params, "model": weights, "dictionary": dictionary}
    torch.save(parts, place / "laser2.pt")
    return str(place / "laser2.pt"), write_pieces(place / "laser2.spm"), parts


@pytest.fixture(scope="module")
def folder(released, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("written") / "laser2")
    convert_laser.main(*released[:2], folder)
    return folder


def segmented(text):
    """The pieces of the largest sum of scores, by trying all."""
    best = (-math.inf, [])
    if not text:
        return 0.0, []
    for piece, score in PIECES.items():
        if text.startswith(piece):
            tail, pieces = segmented(text[len(piece) :])
            best = max(best, (score + tail, [piece, *pieces]))
    return best


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def states(inputs, weights, suffix):
    """The states of one direction, from the first input to the last: the gates i, f, g and o of an LSTM."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, u, b, c = (weights[f"lstm.{name}_{suffix}"].double().numpy() for name in names)
    hidden, cell, rows = np.zeros(HIDDEN), np.zeros(HIDDEN), []
    for x in inputs:
        i, f, g, o = np.split(w @ x + b + u @ hidden + c, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        rows.append(hidden)
    return rows


def encoded(pieces, parts):
    """Artetxe and Schwenk 2019, section 3: a BiLSTM over the pieces and the end, and the largest of each number."""
    table = parts["model"]["embed_tokens.weight"].double().numpy()
    layer = [table[parts["dictionary"].get(piece, 3)] for piece in [*pieces, "</s>"]]
    for number in range(LAYERS):
        forward = states(layer, parts["model"], f"l{number}")
        backward = states(layer[::-1], parts["model"], f"l{number}_reverse")[::-1]
        layer = [np.concatenate(both) for both in zip(forward, backward, strict=True)]
    return np.max(layer, axis=0)


TEXTS = {"The rains.": "▁the▁rains.", "  raining,\tnot the “rain”": '▁raining,▁not▁the▁"rain"', "": ""}
"""A text -> how its pieces are written: lower case, plain quotes."""


def test_vectors_of_a_converted_checkpoint_are_the_printed_encoders(folder, released):
    vectors = encoder_of(folder)(list(TEXTS), ["eng"] * len(TEXTS))
    for vector, text in zip(vectors, TEXTS.values(), strict=True):
        assert np.abs(vector - encoded(segmented(text)[1], released[2])).max() < 1e-6


def test_laser_is_a_teacher_whose_vectors_have_length_one(folder):
    plain = open_model(folder).encode(list(TEXTS))
    teacher = load_teacher(Teacher(model=folder))
    assert np.abs(teacher.encode(list(TEXTS)) - plain / np.linalg.norm(plain, axis=1, keepdims=True)).max() < 1e-6
    assert teacher.truncated == 0
    assert model_width(folder) == teacher.dim == 2 * HIDDEN
    cutting = load_teacher(Teacher(model=folder, max_tokens=3))
    assert np.isfinite(cutting.encode(list(TEXTS))).all()
    assert cutting.truncated == 2
    centered = load_teacher(Teacher(model=folder, center=True))
    assert not np.allclose(centered.encode(["the rain"]), teacher.encode(["the rain"]))


def test_lasers_speed_is_measured_as_a_baselines_is(folder):
    speed, _ = bought_sentences_per_second(open_model(folder), list(TEXTS))
    assert speed > 0


def test_a_checkpoint_that_runs_code_is_not_opened(released, tmp_path):
    class Burglar:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "the-burglar-was-here",))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Burglar(), protocol=2))
    torch.save({**released[2], "params": Burglar()}, tmp_path / "zipped.pt")
    for name in ("evil.pt", "zipped.pt"):
        with pytest.raises(SystemExit, match="is no checkpoint of a LASER BiLSTM"):
            convert_laser.main(str(tmp_path / name), released[1], str(tmp_path / "out"))
    assert not (tmp_path / "the-burglar-was-here").exists()
    assert not (tmp_path / "out").exists()


def test_files_that_are_not_lasers_are_named_in_one_line(released, tmp_path):
    (tmp_path / "no.spm").write_bytes(b"\xff\xff")
    words = write_pieces(tmp_path / "words.spm", kind=3)
    torch.save({**released[2], "dictionary": {"<s>": 0}}, tmp_path / "other.pt")
    torch.save({**released[2], "params": {"embed_dim": 7}}, tmp_path / "shape.pt")
    torch.save({"model": {}}, tmp_path / "laser3.pt")
    for checkpoint, pieces, message in [
        (released[0], str(tmp_path / "no.spm"), "is no sentencepiece model"),
        (released[0], words, "no sentencepiece model of unigrams or BPE"),
        (str(tmp_path / "other.pt"), released[1], "name the one that was released with it"),
        (str(tmp_path / "shape.pt"), released[1], "not of the shape that it says"),
        (str(tmp_path / "laser3.pt"), released[1], r"no checkpoint of a LASER BiLSTM \('params'\)"),
        (str(tmp_path / "none.pt"), released[1], "No such file"),
    ]:
        with pytest.raises(SystemExit, match=message) as ended:
            convert_laser.main(checkpoint, pieces, str(tmp_path / "out"))
        assert "\n" not in str(ended.value)


def test_a_tokenizer_that_names_code_is_refused_before_it_is_loaded(folder, tmp_path):
    from shutil import copytree

    copy = Path(copytree(folder, tmp_path / "copy"))
    (settings,) = copy.rglob("tokenizer_config.json")
    values = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps({**values, "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}), encoding="utf-8")
    for use in (open_model, lambda name: load_teacher(Teacher(model=name))):
        with pytest.raises(TeacherError, match="code of its own"):
            use(str(copy))
