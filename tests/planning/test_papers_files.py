"""The papers' sweep files train as long as printed, stop by the printed set, and search what is left open."""

import pytest

from babeltune.planning.sweep_file import dev_metrics, read_sweep

PARK = ("soft_contrastive", "soft_contrastive_grid", "mse_distillation", "translation_ranking")


def read(name):
    return read_sweep(f"search_spaces/papers/{name}.yaml", check=False)


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
