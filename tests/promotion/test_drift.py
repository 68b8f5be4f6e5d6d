"""Drift of queries: each test beside a plain computation of it, its level, and what the command says."""

import json
import math
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import hypergeom
from sentence_transformers import SentenceTransformer

sys.path.insert(0, str(Path(__file__).parents[2]))

from babeltune.data.prepared import read_prepared
from babeltune.errors import SpecError
from babeltune.promotion import drift as module
from babeltune.promotion.drift import FILE, Sample, drifts, read_profile, sample_of, write_profile
from benchmarks import drift as benchmark
from corpora import DATA, needs_data
from notified import events_in, teller
from small_models import static_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a static model."""
    return static_model(tmp_path_factory.mktemp("models") / "static")


def drawn(texts, seed, *, dim=6, move=0.0, new=0, unknown=0.0):
    """Texts in two languages with normal vectors; the first `new` of them are in a third."""
    random = np.random.default_rng(seed)
    return Sample(
        languages=np.array(["de"] * new + ["en" if each < 0.7 else "fr" for each in random.random(texts - new)]),
        lengths=2 ** random.integers(2, 7, texts),
        unknown=random.random(texts) < unknown,
        vectors=(random.standard_normal((texts, dim)) * np.arange(1, dim + 1) + move).astype(np.float32),
    )


def test_a_profile_is_what_plain_loops_count(model):
    texts = ["A boat lies on the beach.", "Un bateau est sur la plage, et il fait beau.", "A boat \U00013000 here now."]
    sample = sample_of(str(model), texts, "encoding")
    profile = sample.profile()
    vectors = SentenceTransformer(str(model)).encode(texts)
    assert profile.mean == pytest.approx(vectors.mean(0), abs=1e-6)
    spread = math.sqrt(np.mean([np.sum((row - vectors.mean(0)) ** 2) for row in vectors]))
    assert profile.spread == pytest.approx(spread, abs=1e-6)
    assert profile.unknown == 1
    assert {name: each.texts for name, each in profile.lengths.items()} == {"16": 1, "23": 1, "32": 1}
    assert {name: each.texts for name, each in profile.languages.items()} == {"en": 2, "fr": 1}
    apart = np.linalg.norm(vectors[1] - vectors.mean(0)) / spread
    assert profile.languages["fr"].distance == pytest.approx(apart, abs=1e-3)


def test_the_p_of_a_share_is_that_of_all_exchanges():
    counts = np.array([[180, 20], [70, 20]])
    value, p = module._permuted(counts, module._apart)
    assert value == pytest.approx(20 / 90 - 20 / 200)
    exact = sum(hypergeom.pmf(k, 290, 40, 90) for k in range(41) if abs(k / 90 - (40 - k) / 200) >= value - 1e-12)
    assert p == pytest.approx(exact, abs=4 * math.sqrt(exact / module.DRAWN))


def test_lengths_are_compared_in_their_order():
    before, now = drawn(300, 0).profile(), drawn(200, 1)
    below = [
        np.mean(now.lengths <= 2**k)
        - sum(each.texts for name, each in before.lengths.items() if int(name) <= 2**k) / 300
        for k in range(2, 7)
    ]
    assert drifts(before, now).tests["lengths"].value == pytest.approx(np.abs(below).max())


def test_the_means_have_their_level_and_an_interval_that_holds_the_distance(monkeypatch):
    monkeypatch.setattr(module, "DRAWN", 999)
    quiet = [module._means_apart(drawn(400, seed).profile(), drawn(200, 1000 + seed).vectors)[3] for seed in range(300)]
    assert 3 <= sum(p <= 0.05 for p in quiet) <= 30  # 15 are expected
    true = math.sqrt(6) * 0.8 / math.sqrt(sum(k**2 for k in range(1, 7)))
    moved = [
        module._means_apart(drawn(400, seed).profile(), drawn(200, 1000 + seed, move=0.8).vectors)
        for seed in range(200)
    ]
    assert np.mean([low <= true <= high for _, low, high, _ in moved]) > 0.88
    assert np.mean([value for value, *_ in moved]) == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize(
    ("drift", "kinds", "pays"),
    [
        ({}, (), False),
        ({"new": 60}, ("languages",), True),
        ({"unknown": 0.2}, ("unknown tokens",), True),
        ({"move": 1.5}, ("vectors",), True),
    ],
)
def test_a_month_shows_its_kind_of_drift_alone(drift, kinds, pays):
    result = drifts(drawn(1000, 0).profile(), drawn(400, 1, **drift))
    assert (result.drifted, result.sweep_pays) == (kinds, pays)
    if "new" in drift:
        assert result.new_languages == ("de",)
        now = drawn(400, 1)
        now = replace(now, languages=np.where(np.arange(400) < 200, "fr", now.languages))
        more = drifts(drawn(1000, 0).profile(), now)  # of a trained language, which no sweep mends
        assert (more.drifted, more.new_languages, more.sweep_pays) == (("languages",), (), False)


def test_the_worst_slice_is_the_one_that_is_new_and_far():
    sample = drawn(400, 1, new=80)
    sample.vectors[:80] += 20
    worst = drifts(drawn(1000, 0).profile(), sample).slices[0]
    assert (worst.name, worst.shares) == ("language de", (0.0, 0.2))
    assert worst.distances[1] > 3


def test_the_command_ends_with_4_for_drift_and_with_0_without(model, copied_home, command, tmp_path):
    folder = copied_home[1]
    prepared = read_prepared(folder.prepared)
    texts = prepared.texts_of(prepared.some_trained(600))
    (tmp_path / "like").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "other").write_text("\n".join(f"Hallo Herr Nummer {n}, wie geht es dir?" for n in range(200)))
    arguments = ["check", model, "--queries"]
    code, _, words = command(*arguments, tmp_path / "like")
    assert code == 2
    assert "--sweep SWEEP" in words
    write_profile(model, prepared)
    try:
        assert command(*arguments, tmp_path / "like")[:1] == (0,)
        code, output, _ = command(*arguments, tmp_path / "other", "--json")
        assert code == 4
        assert {"languages", "vectors"} <= {*json.loads(output)["drifted"]}
        assert json.loads(output)["new_languages"] == ["de"]
        assert command(*arguments, tmp_path / "other", "--against", tmp_path / "other")[0] == 0
        (model / FILE).write_text((model / FILE).read_text().replace('"texts": ', '"texts": 1'))
        assert "is damaged (its numbers do not fit)" in command.refuses(*arguments, tmp_path / "like")
        assert command(*arguments, tmp_path / "like", "--sweep", folder.id)[0] == 0
        here = tmp_path / "here.yaml"
        program = json.dumps(teller(tmp_path / "events").command)
        here.write_text(f"storage: {folder.path.parents[1]}\nnotify: [{{command: {program}}}]\n")
        assert command(*arguments, tmp_path / "like", "--sweep", folder.id, "--cluster", here)[0] == 0
        assert command(*arguments, tmp_path / "other", "--sweep", folder.id, "--cluster", here)[0] == 4
        ((event, text),) = events_in(tmp_path / "events")
        assert event == "drift"
        assert f"{model}: drift of languages" in text
    finally:
        (model / FILE).unlink()


def test_wrong_input_is_one_line(model, command, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    few = tmp_path / "few"
    few.write_text("one\ntwo\n")
    for arguments, words in (
        ((few,), "has 2 different texts, and drift is looked for in 100 or more"),
        ((tmp_path / "gone",), "gone"),
        ((few, "--against", few, "--sweep", "x"), "leave out --sweep"),
    ):
        code, output, error = command("check", model, "--queries", *arguments)
        assert (code, output) == (2, ""), error
        assert words in error
        assert len([line for line in error.splitlines() if "gone" not in line or "error" in line]) == 1


def test_a_model_without_a_profile_has_none_and_a_damaged_one_is_refused_in_words(model, tmp_path):
    assert read_profile(model) is None
    whole = {"texts": 1, "languages": {"source": {}}, "lengths": {}, "unknown": {}, "mean": [0.1], "spread": 1.0}
    for damage in ("", "[]", "{}", json.dumps({**whole, "languages": []}), json.dumps({**whole, "mean": 1})):
        (tmp_path / FILE).write_text(damage, encoding="utf-8")
        with pytest.raises(SpecError, match=r"is damaged .*; promote the model again, or name its sweep: --sweep"):
            read_profile(tmp_path)


def test_the_table_of_drift_is_the_records():
    record = benchmark.FIGURES.read()
    assert benchmark.FIGURES.is_shown()
    assert record["rows"][0] == {"kind": "none", "share": 0.0, "alarms": 0, "tests": {}}
    assert len(record["rows"]) == 1 + 4 * len(benchmark.SHARES)


@needs_data
def test_five_small_months_of_real_text_find_a_new_language_and_no_drift_else(model, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "trial_at", lambda place, rank: nullcontext(str(model)))
    sizes = ["--months", "5", "--queries", "600", "--pairs", "250", "--data", str(DATA)]
    monkeypatch.setattr(sys, "argv", ["drift", "afternoon", *sizes, "--json", str(tmp_path / "drift.json")])
    benchmark.main()  # it ends with an error for a false alarm
    rows = json.loads((tmp_path / "drift.json").read_text(encoding="utf-8"))["rows"]
    assert rows[0]["alarms"] == 0
    most = {row["kind"]: row for row in rows if row["share"] == 0.2}
    assert [*most] == ["Spanish", "documentation", "long texts", "unknown script"]
    assert (most["Spanish"]["alarms"], most["unknown script"]["tests"]["unknown tokens"]) == (5, 5)


def test_a_share_is_found_if_95_of_100_months_have_an_alarm():
    rows = [{"kind": "none", "share": 0.0, "alarms": 1, "tests": {}}]
    alarms = {"far": (20, 94, 95, 100), "near": (0, 0, 1, 90)}
    for kind, counts in alarms.items():
        for share, count in zip(benchmark.SHARES, counts, strict=True):
            rows.append({"kind": kind, "share": share, "alarms": count, "tests": {"lengths": 1, "vectors": count}})
    text = benchmark.table({"months": 100, "queries": 2000, "rows": rows})
    assert "| far | 20 | 94 | 95 | 100 | 10% | vectors, lengths |" in text
    assert "| near | 0 | 0 | 1 | 90 | none |  |" in text
    assert "1 month of 100 had one" in text
