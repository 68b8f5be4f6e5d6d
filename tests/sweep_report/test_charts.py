"""Charts of a report: their axes, the numbers beside them, and whether a phone and paper show them well."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.state.examples import Similarities
from babeltune.sweep_report.charts import Caption
from babeltune.sweep_report.gather import gather
from babeltune.sweep_report.record import Curve
from babeltune.sweep_report.sections.leaderboard import leaderboard_chart
from babeltune.sweep_report.sections.sealed_tests import Paired, sealed_chart
from babeltune.sweep_report.sections.settings import parallel_chart, slices_chart
from babeltune.sweep_report.sections.size_and_speed import Priced, front_chart
from babeltune.sweep_report.sections.training import curves_chart
from babeltune.sweep_report.sections.translations import heat_maps
from babeltune.sweep_report.write import page
from made_sweeps import METRIC, add_trial, make_sweep
from screens import kept, page_of

ROOT = Path(__file__).parents[2]
CAPTION = Caption(name="chart", title="A chart", description="What it shows.")


def words(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def numbers(svg):
    return [float(word.replace(",", "").replace("−", "-")) for word in words(svg) if re.fullmatch(r"[−\d.,]+", word)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A sweep of twenty trials near 0.9, a teacher at 0.15 and an untrained student at 0.05."""
    sweep = read_sweep(ROOT / "search_spaces" / "static.yaml")
    folder = make_sweep(tmp_path_factory.mktemp("charts"), sweep)
    folder.write("baselines.json", {"scores": {"teacher": {METRIC: 0.15}, "untrained": {METRIC: 0.05}}})
    for number in range(20):
        add_trial(folder, number, [0.88, 0.9 + number / 1000], "finished")
    return gather(folder)


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(report, "html"), encoding="utf-8")
    return path.as_uri()


def test_baselines_stand_at_the_leaderboards_edge_with_their_scores(report):
    svg = leaderboard_chart(CAPTION, report.standings, METRIC)
    assert {"0.1500", "0.0500"} <= set(words(svg))
    ticks = [each for each in numbers(svg) if each not in (0.15, 0.05)]
    assert min(ticks) > 0.85
    assert max(ticks) < 0.95


def test_curves_fill_their_chart_and_name_baselines_below_it(report):
    curves = [Curve(trial=f"t{n:04d}", x=(100, 200), y=(0.9, 0.91 + n / 100)) for n in range(3)]
    svg = curves_chart(CAPTION, curves, [("untrained", 0.05), ("teacher", 0.15)], "pairs", "accuracy")
    assert "▼ untrained 0.0500, teacher 0.1500" in words(svg)
    assert min(numbers(svg)) > 0.85


def test_a_far_baseline_does_not_press_together_models_and_sealed_scores():
    model = Priced(name="t0", quality=0.9, parameters=5, speed=10, on_front=True, is_baseline=False)
    models = [model, replace(model, quality=0.91), replace(model, name="far", quality=0.1, is_baseline=True)]
    svg = front_chart(CAPTION, models, METRIC)
    assert "far 0.1000" in words(svg)
    assert [each for each in numbers(svg) if 0.1 < each < 0.85] == []
    pair = Paired(name="a", dev_set="a", dev=0.9, sealed=0.88, untrained=0.1, teacher=0.5, chance=0.01)
    assert min(numbers(sealed_chart(CAPTION, [pair]))) > 0.85


@pytest.mark.parametrize("values", [(1e-5, 3e-5, 2e-4), (20_000, 150_000, 1_200_000), (1e-7, 0.1, 10.0)])
@pytest.mark.parametrize("logarithmic", [frozenset(), frozenset({"x"})])
def test_no_number_beside_a_chart_has_an_exponent_or_an_offset(report, values, logarithmic):
    near = zip(report.standings, values, strict=False)
    trials = [
        replace(each, value=0.9 + value / 1e9, row=replace(each.row, params={"x": value})) for each, value in near
    ]
    for chart in (slices_chart, parallel_chart):
        svg = chart(CAPTION, trials, ("x",), logarithmic, METRIC)
        assert [word for word in words(svg) if re.search(r"\de[-+−]?\d|×|\$|\^|\+\d", word)] == []
        assert len(numbers(svg)) > 3


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_heat_maps_of_any_number_of_pairs_are_no_taller_than_wide(pairs):
    maps = [
        Similarities(left="eng", right=f"l{n}", before=((1.0, 0.0),) * 2, after=((0.0, 1.0),) * 2) for n in range(pairs)
    ]
    for width, height in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', heat_maps(CAPTION, maps)):
        assert float(height) <= float(width)


@pytest.mark.needs_chromium
def test_a_phone_shows_each_chart_with_letters_that_can_be_read(browser, address):
    scale = "each.getBoundingClientRect().width / each.viewBox.baseVal.width"
    size = f"text => parseFloat(getComputedStyle(text).fontSize) * {scale}"
    sizes = f"each => [...each.querySelectorAll('text')].map({size})"
    with page_of(browser, viewport={"width": 390, "height": 844}) as shown:
        shown.goto(address)
        kept(shown, "report-charts-390", full_page=True)
        charts = [each for each in shown.locator("figure svg").all() if each.is_visible()]
        assert len(charts) > 4
        for chart in charts:
            assert min(chart.evaluate(sizes)) >= 8.5, chart.get_attribute("aria-labelledby")


@pytest.mark.needs_chromium
def test_no_drawing_is_so_tall_that_it_leaves_half_a_page_empty(browser, address):
    with page_of(browser, viewport={"width": 680, "height": 1000}) as shown:
        shown.goto(address)
        shown.emulate_media(media="print")
        heights = [each.bounding_box()["height"] for each in shown.locator("figure svg").all() if each.is_visible()]
    assert len(heights) > 4
    assert max(heights) < 0.32 * 1000  # a page of A4 has some 1000 pixels between its margins
