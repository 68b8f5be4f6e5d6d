"""The benchmarks of quality: rows that outlive an interruption, their tables, and a training of given CPU seconds."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

sys.path.insert(0, str(Path(__file__).parents[1]))

from babeltune.models.hub import model_folder
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import read_sweep
from benchmarks import encoder, ladder, quality_curve, sealed, trimming, what_pays
from benchmarks.matryoshka import cut
from benchmarks.quality import SHOWN, Row, Work, read_fixed, read_rows, train_within, write_row

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("one_thread", "offline")


def row(name, seconds=60.0, seed=0, score=0.5):
    return Row(name, seconds, seed, 1000, 1.5, dict.fromkeys(SHOWN, score))


def test_sealed_scores_stand_beside_those_of_a_model_to_buy():
    scores = {"test/tatoeba/accuracy": 0.9, "test/tatoeba/fra-eng/accuracy": 0.9, "test/sts/spearman": 0.8}
    lower = dict.fromkeys(scores, 0.5)
    reason = "better than the baseline mE5: mean bitext accuracy 0.5000 -> 0.9000"
    decision = {
        "test": scores,
        "untrained": lower,
        "baselines": {"mE5": lower},
        "reasons": ["warning: few rows", reason],
    }
    lines = sealed.table(sealed.record_of({**decision, "sweep": "small-1", "verdict": "promote"})).splitlines()
    assert lines[0] == "|  | tatoeba, accuracy | sts, spearman |"
    assert lines[2:] == [
        "| the start, untrained | 0.500 | 0.500 |",
        "| mE5 | 0.500 | 0.500 |",
        "| the student | 0.900 | 0.800 |",
        "",
        f"* {reason}",
    ]


@pytest.mark.parametrize("figures", [ladder.FIGURES, sealed.FIGURES])
def test_the_page_shows_the_record(figures):
    assert figures.is_shown()


def test_rows_are_read_as_they_were_written_and_each_is_one_file(tmp_path):
    rows = [row("mse"), row("static 0.1"), row("static 0.1", seed=1), row("mse", 300.0)]
    for one in reversed(rows):
        write_row(tmp_path, one)
    assert read_rows(tmp_path) == rows
    write_row(tmp_path, row("mse", score=0.7))
    assert [one.scores["NTREX"] for one in read_rows(tmp_path)] == [0.7, 0.5, 0.5, 0.5]


@pytest.mark.slow
def test_a_row_that_is_there_is_not_trained_again(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise AssertionError("trained again")

    write_row(tmp_path, row("mse"))
    monkeypatch.setattr(encoder, "contestants", lambda _: {"mse": refuse})
    assert encoder.main(["--only", "mse", "--seconds", "60", "--seeds", "0", "--rows", str(tmp_path)]) == 0
    with pytest.raises(AssertionError, match="trained again"):
        encoder.main(["--only", "mse", "--seconds", "60", "--seeds", "1", "--rows", str(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "code"), [(0.7, 0), (0.51, 1)])
def test_the_table_has_the_rows_that_are_there_and_fails_where_a_goal_is_missed(tmp_path, capsys, ours, code):
    for one in (row("ours", score=ours), row("static 0.1", score=0.4), row("static 0.1", seed=1, score=0.6)):
        write_row(tmp_path, one)
    assert encoder.main(["--rows", str(tmp_path), "--table"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["60", "CPU", "s", *SHOWN]
    assert lines[3].startswith("static 0.1        0.500 ± 0.100")
    assert lines[3].endswith("(2)")
    assert f"Tatoeba: ours is {ours - 0.5:+.3f} from the best of the others; goal +0.02" in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"), [(["--only", "nobody"], "nobody is named nobody"), (["--table"], "--rows FOLDER")]
)
def test_what_a_benchmark_of_quality_cannot_do_is_one_line(given, expected):
    with pytest.raises(SystemExit, match=expected) as ended:
        encoder.main(given)
    assert "\n" not in str(ended.value)


@pytest.mark.slow
def test_the_curves_page_and_picture_hold_every_row(tmp_path, capsys):
    for one in (row("static", 10, score=0.4), row("static", 100, score=0.61), row("transformer", 10, score=0.2)):
        write_row(tmp_path / "rows", one)
    arguments = ["--rows", str(tmp_path / "rows"), "--table", "--docs", str(tmp_path)]
    quality_curve.main(arguments)
    page, picture = ((tmp_path / name).read_bytes() for name in ("quality.md", "quality.svg"))
    lines = page.decode().splitlines()
    assert "| static | 0 | 100 | 2 | 1,000 | 0.610 | 0.610 | 0.610 | 0.610 |" in lines
    assert [line.split(" | ")[0] for line in lines[-3:]] == ["| static", "| static", "| transformer"]
    assert all(f">{title}<".encode() in picture for title in (*SHOWN, "static", "transformer"))
    quality_curve.main(arguments)
    assert (tmp_path / "quality.svg").read_bytes() == picture


def test_a_training_of_some_cpu_seconds_ends_its_schedule_and_exports(tmp_path, tiny_file, tiny_storage):
    student = "student={kind: static, width: 16, projection: teacher, vocabulary: 500, max_tokens: 32}"
    work = Work(read_sweep(tiny_file, assignments=[student, "training.pairs=4096"]), tiny_storage)
    trial = work.trial(3)
    assert trial.seed == 3
    pairs = train_within(work, trial, 0.2, tmp_path / "model")
    assert pairs >= trial.training.global_batch
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert model.encode(["one sentence"]).shape == (1, work.prepared.teacher_dim)
    transformer = "student={layers: 1, width: 16, heads: 2, feed_forward: 32, max_tokens: 32, projection: teacher}"
    start = f"student.embeddings_from={tmp_path / 'model'}"
    work = Work(read_sweep(tiny_file, assignments=[transformer, start, "training.pairs=4096"]), tiny_storage)
    train_within(work, work.trial(3), 0.2, tmp_path / "second")
    assert (tmp_path / "second" / "modules.json").is_file()


def test_every_student_of_the_curve_is_a_trial_of_the_sweep():
    for settings, kind in ((encoder.SETTINGS, "static"), (quality_curve.TRANSFORMER, "transformer")):
        sweep = read_fixed(encoder.SWEEP, settings)
        student = make_trial(sweep, 0, default_params(sweep)).student
        assert (student.kind, student.vocabulary) == (kind, settings["student.vocabulary"])


def test_vectors_are_cut_as_sentence_transformers_cuts_them():
    model = SentenceTransformer(str(model_folder("bundled:all-MiniLM-L6-v2", None, setting="model")), device="cpu")
    texts = ["Where does the night bus stop?", "Вода холодная."]
    theirs = model.encode(texts, truncate_dim=128, normalize_embeddings=True)
    assert np.allclose(cut(model.encode(texts), 128), theirs, atol=1e-6)


@pytest.mark.long
def test_trimming_leaves_vectors_as_they_are(capsys):
    assert trimming.main() == 0
    output = capsys.readouterr().out
    assert "parameters 22,565,376 to 12," in output
    assert "the vectors of 2,000 texts differ by at most 0\n" in output


@pytest.mark.parametrize("file", ["what_pays", "what_pays_longer"])
def test_the_kept_records_of_what_pays_are_those_that_the_docs_show(file):
    record = json.loads((ROOT / f"docs/measured/{file}.json").read_text(encoding="utf-8"))
    shown = (ROOT / "docs/how-to/choose-a-method.md").read_text(encoding="utf-8")
    page = what_pays.page(record)
    for order in record["orders"]:
        figures = f"{order['difference']:+.4f} ({order['low']:+.4f} to {order['high']:+.4f}): {order['verdict']}"
        assert figures in shown
        assert f"{order['difference']:+.4f}" in page
        assert order["verdict"] != "holds" or "No term pays" not in shown


def test_every_row_of_what_pays_is_a_trial_beside_another_row():
    assert {row.other for row in what_pays.ROWS.values()} <= set(what_pays.ROWS)
    for row in what_pays.ROWS.values():
        assert set(row.settings) <= set(what_pays.SETTINGS)
