"""The whole filtering once, from noisy pairs to BLEU, with tiny models; and what the translation's loss counts."""

import json
import math

import pytest
import sacrebleu
import torch

from babeltune.apps.filtering import translate
from babeltune.apps.filtering.translate import SMOOTHING, Recipe
from babeltune.errors import SpecError
from babeltune.method.masked_lm import IGNORED
from corpora import bundled
from small_models import exported_student

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
TINY = Recipe(
    model="scratch", steps=12, batch=8, max_tokens=24, beams=2, layers=1, width=16, vocabulary=120, learning_rate=5e-3
)


@pytest.fixture(scope="module")
def sentences():
    """(French, English) of the bundled corpus."""
    return list(zip(*bundled(60, "fra", "eng").values(), strict=True))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, sentences):
    return exported_student(tmp_path_factory.mktemp("model"), [text for pair in sentences for text in pair], 200)


def test_the_loss_is_smoothed_cross_entropy_without_padding():
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = [[1, 4, IGNORED], [2, IGNORED, IGNORED]]
    terms = []
    for row, numbers in zip(logits.tolist(), labels, strict=True):
        for values, label in zip(row, numbers, strict=True):
            if label != IGNORED:
                total = math.log(sum(map(math.exp, values)))
                each = [total - value for value in values]
                terms.append((1 - SMOOTHING) * each[label] + SMOOTHING * sum(each) / 5)
    assert float(translate.loss_of(logits, torch.tensor(labels))) == pytest.approx(sum(terms) / len(terms))


def test_training_repeats_learns_and_ends_with_the_end_token(sentences, tmp_path):
    source, target = map(list, zip(*sentences[:8], strict=True))
    start = translate.starting_model(TINY, source + target, tmp_path / "start")
    seen = []
    losses = [
        translate.train(TINY, start, source, target, tmp_path / name, lambda *row: seen.append(row)) for name in "ab"
    ]
    assert losses[0] == losses[1]
    files = [path for name in ("start", "a") for path in (tmp_path / name).iterdir()]
    (tmp_path / "new").touch()
    assert {path.stat().st_mode for path in files} == {(tmp_path / "new").stat().st_mode}
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert seen[: TINY.steps] == seen[TINY.steps :]
    assert losses[0] < seen[0][2]
    again = Recipe(**{**vars(TINY), "model": str(tmp_path / "a"), "steps": 1})
    assert translate.starting_model(again, [], tmp_path / "none") == tmp_path / "a"
    assert translate.train(again, tmp_path / "a", source, target, tmp_path / "c") < seen[0][2]


def test_codes_of_a_model_from_scratch_are_refused(tmp_path):
    with pytest.raises(SpecError, match="no language codes"):
        translate.starting_model(Recipe(model="scratch", target_token="eng_Latn"), ["a"], tmp_path / "x")
    with pytest.raises(SpecError, match="--width 18 is not divisible by 4"):
        translate.starting_model(Recipe(model="scratch", width=18), ["a"], tmp_path / "x")


@pytest.mark.slow
def test_filter_runs_from_noisy_pairs_to_bleu(encoder, sentences, tmp_path, monkeypatch, command):
    noisy = [*sentences[:40], *sentences[:2], *[(eng, eng) for _, eng in sentences[40:44]]]
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in noisy) + "broken\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in sentences[36:46]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    options = "--tokens 100,40,100000 --languages fr --on-error drop --max-tokens 24"
    tiny = "--steps 6 --batch 8 --beams 1 --layers 1 --width 16 --vocabulary 120"

    def run(*arguments):
        return command("filter", "pairs.tsv", encoder, *" ".join(arguments).split())

    code, printed, err = run(options, tiny, "--train scratch --test test.tsv --out made --json")
    assert code == 0, err
    assert "100000 target tokens were asked for" in err
    report = json.loads(printed)
    assert report == json.loads((tmp_path / "made" / "report.json").read_text(encoding="utf-8"))
    dropped = report["dropped"]
    assert dropped["repeated pair"] == 2
    assert dropped["column count"] == 1
    assert dropped["a side is in the test file"] >= 8  # four pairs, and the English ones of the test's sentences
    assert sum(dropped.values()) + report["ranked"] == report["pairs"]["read"] == 47
    assert [row["limit"] for row in report["subsets"]] == [40, 100, 100_000]
    texts = [(tmp_path / "made" / row["file"]).read_text(encoding="utf-8") for row in report["subsets"]]
    assert texts[1].startswith(texts[0])
    assert texts[2].startswith(texts[1])
    assert texts[2].count("\n") == report["ranked"]
    scores = [float(line.split("\t")[0]) for line in texts[2].splitlines()]
    assert scores == sorted(scores, reverse=True)
    results = report["translation"]["results"]
    assert [row["limit"] for row in results] == [40, 100, 100_000]
    hypotheses = (tmp_path / "made" / "top-100" / "hypotheses.txt").read_text(encoding="utf-8").split("\n")[:-1]
    references = [[eng for _, eng in sentences[36:46]]]
    assert results[1]["bleu"] == sacrebleu.corpus_bleu(hypotheses, references).score
    assert results[1]["chrf"] == sacrebleu.corpus_chrf(hypotheses, references).score
    assert "chrF" in results[1]["chrf_signature"] or results[1]["chrf_signature"].startswith("nrefs:1")

    assert "exists already" in run(options, "--out made")[2]
    assert "--train and --test go together" in run(options, "--out new --train scratch")[2]
    for odd in ("1M", "²", "1,0", "9" * 5000):
        assert "sizes are whole numbers" in run(f"--tokens {odd} --out new")[2]
    assert "is not SOURCE,TARGET" in run("--tokens 9 --out new --columns fra")[2]
    code, printed, _ = run(options, "--out plain")
    assert code == 0
    assert "pairs are ranked" in printed
    assert not (tmp_path / "plain" / "start").exists()
