"""The papers' sweep files train as long as printed, stop by the printed set, and search what is left open."""

import re
import shlex
from pathlib import Path

import pytest

from babeltune.planning.sweep_file import dev_metrics, read_sweep

ROOT = Path(__file__).parents[2]
PARK = ("soft_contrastive", "soft_contrastive_grid", "mse_distillation", "translation_ranking")


def read(name, settings=()):
    return read_sweep(f"search_spaces/papers/{name}.yaml", assignments=list(settings), check=False)


@pytest.mark.parametrize("name", PARK)
def test_parks_trainings_have_30_passes_and_stop_by_tatoebas_validation_set(name):
    """Section 4.1, footnote 2, and table 11's row of English."""
    sweep = read(name)
    assert [source.cap for source in sweep.data.train] == [133_800, 78_500, 153_900, 66_800]
    assert sweep.training.pairs == 30 * sum(source.cap for source in sweep.data.train)
    assert sweep.training.reports == 30
    assert sweep.training.patience == 3
    assert sweep.objectives[0].metric == "dev/opus_tatoeba/accuracy" in dev_metrics(sweep)
    assert {source.dataset for task in sweep.data.dev for _, source in task.sources()} == {"wecover/OPUS_Tatoeba"}


@pytest.mark.parametrize(
    ("left_out", "language", "pairs"),
    [((), "", 26_904_000), ((7, 8, 9), "fr", 21_117_000), ((4, 5, 7), "ru", 21_036_000)],
)
def test_parks_pairs_without_english_are_table_11s_and_have_30_passes_too(left_out, language, pairs):
    """All ten pairs, and those of French or of Russian alone, as the page has them."""
    settings = [f"data.train.{place}.train=false" for place in left_out] + [f"training.pairs={pairs}"] * bool(left_out)
    sweep = read_sweep(
        "search_spaces/papers/soft_contrastive_grid.yaml",
        overlays=["search_spaces/pairs/opus_all.yaml"],
        assignments=settings,
        check=False,
    )
    caps = {source.name: source.cap for source in sweep.data.train}
    printed = {"fr_ja": 76_800, "fr_ko": 61_200, "fr_ru": 132_900, "ja_ko": 57_600, "ja_ru": 76_600, "ko_ru": 58_700}
    assert caps == {"ru": 133_800, "ja": 78_500, "fr": 153_900, "ko": 66_800} | printed
    trained = [source for source in sweep.data.train if source.train]
    assert sweep.training.pairs == pairs == 30 * sum(source.cap for source in trained)
    assert all(language in source.name for source in trained[4:])
    for source in sweep.data.train:
        assert [source.columns[code] for code in sorted(source.columns)] == ["sentence1", "sentence2"]
        assert source.subset == f"*/{'-'.join(sorted(source.columns))}/train.parquet"


@pytest.mark.parametrize(("name", "passes"), [("laser3_co", 10), ("soft_contrastive", 30)])
def test_a_model_of_one_pair_sees_its_text_as_often_as_that_of_all_pairs(name, passes):
    head = (ROOT / f"search_spaces/papers/{name}.yaml").read_text(encoding="utf-8")
    lines = [shlex.split(line)[4::2] for line in re.findall(r"^#   (.*train=false.*)$", head, re.MULTILINE)]
    sweeps = [read(name, settings) for settings in lines]
    trained = [[source for source in sweep.data.train if source.train] for sweep in sweeps]
    assert [source.name for (source,) in trained] == [source.name for source in read(name).data.train]
    assert [sweep.training.pairs for sweep in sweeps] == [passes * source.cap for (source,) in trained]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lealla", {"temperature": 100, "margin": 0.3, "beta": 1e3, "gamma": 1e-2}),
        ("bilingual_aligner", {"temperature": 0.05, "hidden": 1024, "output": 768, "depth": -1}),
    ],
)
def test_a_papers_own_value_of_what_is_searched_lies_in_the_range(name, parameters):
    searched = read(name).parameters
    for key, value in parameters.items():
        values = vars(searched[key])
        if values.get("choice"):
            assert value in values["choice"]
        else:
            low, high = next(bounds for kind in ("float", "log_float") if (bounds := values.get(kind)))
            assert low < value < high
