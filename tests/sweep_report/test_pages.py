"""A sweep's report as people meet it: in a browser, light and dark, by keyboard, by screen reader, as a picture."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from babeltune.errors import SpecError
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Objective
from babeltune.schema.search import Parameter
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.gather import gather
from babeltune.sweep_report.page import document
from babeltune.sweep_report.picture import picture
from babeltune.sweep_report.render import MOST_COLUMNS, breakable, code, folded
from babeltune.sweep_report.write import LARGEST, page, write_report
from made_sweeps import METRIC, add_trial, make_sweep, rewrite_ledger
from screens import barriers, kept, page_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(searched):
    """The finished sweep's, as if it had trained for minutes: no number is longer."""
    summary = gather(searched[1])
    return replace(summary, cost=replace(summary.cost, training_s=12 * 60 + 38.0))


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    """Where a browser finds the report."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(report, "html"), encoding="utf-8")
    return path.as_uri()


@pytest.mark.needs_chromium
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_axe_finds_no_violation_in_light_and_dark(browser, address, scheme):
    with page_of(browser, color_scheme=scheme, bypass_csp=True) as shown:
        shown.goto(address)
        assert barriers(shown) == []


@pytest.mark.needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_screen_and_asks_nobody(browser, address, scheme):
    urls = []
    with page_of(browser, color_scheme=scheme) as shown:
        shown.on("request", lambda request: urls.append(request.url))
        shown.goto(address)
        color = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(json.loads(f"[{color[4:-1]}]")) > 600) == (scheme == "light")
        width = shown.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], "nothing has to be scrolled sideways"
        kept(shown, f"report-{scheme}", full_page=True)
    assert [each for each in urls if not each.startswith(("file:", "data:"))] == []


@pytest.mark.needs_chromium
@pytest.mark.parametrize(("width", "media"), [(1200, "screen"), (1200, "print"), (720, "print"), (390, "screen")])
def test_no_number_and_no_command_is_broken_in_two(browser, address, width, media):
    lines = (
        "each => each.getClientRects().length ? each.clientHeight / parseFloat(getComputedStyle(each).lineHeight) : 0"
    )
    with page_of(browser, viewport={"width": width, "height": 900}) as shown:
        shown.emulate_media(media=media)
        shown.goto(address)
        kept(shown, f"report-{media}-{width}", full_page=True)
        values = shown.locator(".facts .value").all()
        assert "12 min 38 s" in [each.inner_text() for each in values]
        assert [each.inner_text() for each in values if each.evaluate(lines) > 1.9] == []
        assert [each.inner_text() for each in values if each.evaluate("e => e.scrollWidth > e.clientWidth + 1")] == []
        size = shown.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert size[0] <= size[1], "nothing is cut at the edge"


@pytest.mark.needs_chromium
def test_the_keyboard_reaches_the_report_its_sections_and_the_numbers_of_a_chart(browser, address):
    with page_of(browser) as shown:
        shown.goto(address)
        shown.keyboard.press("Tab")
        focused = "document.activeElement.textContent.trim()"
        assert shown.evaluate(focused) == "Skip to the report"
        shown.keyboard.press("Tab")
        assert shown.evaluate(focused) == "Leaderboard"
        shown.locator("summary").first.focus()
        shown.keyboard.press("Enter")
        assert shown.locator("details").first.evaluate("each => each.open")


@pytest.mark.needs_chromium
def test_on_paper_the_page_has_no_navigation_and_no_folded_part(browser, address):
    with page_of(browser) as shown:
        shown.goto(address)
        shown.emulate_media(media="print", color_scheme="dark")
        assert not shown.locator("nav").is_visible()
        assert not shown.locator("summary").first.is_visible()
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The report of a sweep with nine searched settings, three objectives and a baseline with a long name."""
    sweep = read_sweep(ROOT / "search_spaces" / "static.yaml")
    values = {f"training.setting_{place}_of_nine": 0.1234567 * place for place in range(1, 9)} | {"method": "lealla"}
    parameters = {name: Parameter(choice=(value,)) for name, value in values.items()}
    others = [Objective(metric=f"dev/everyday/{pair}/accuracy") for pair in ("fra-eng", "kor-eng")]
    folder = make_sweep(
        tmp_path_factory.mktemp("wide"), replace(sweep, parameters=parameters, objectives=(*sweep.objectives, *others))
    )
    folder.write("baselines.json", {"scores": {"paraphrase-multilingual-MiniLM-L12-v2": {METRIC: 0.7}}})
    for number in range(3):
        add_trial(folder, number, [0.2, 0.5 + number / 100], "finished")
    rewrite_ledger(folder, lambda line: {**line, "params": values} if line["event"] == "propose" else line)
    return gather(folder)


@pytest.fixture(scope="module")
def wide_address(wide, tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "report.html"
    path.write_text(page(wide, "html"), encoding="utf-8")
    return path.as_uri()


@pytest.mark.needs_chromium
@pytest.mark.parametrize(("media", "width"), [("screen", 1200), ("print", 680)])
def test_no_column_is_cut_where_nine_settings_are_searched(browser, wide_address, media, width):
    with page_of(browser, viewport={"width": width, "height": 900}) as shown:
        shown.goto(wide_address)
        shown.emulate_media(media=media)
        for folded in shown.locator("details").all():
            folded.evaluate("each => each.open = true")
        cut = "[...document.querySelectorAll('table')].filter(each => each.getBoundingClientRect().right > %d)"
        assert shown.evaluate(f"{cut % width}.map(each => each.caption.textContent)") == []
        kept(shown, f"report-wide-{media}", full_page=True)


@pytest.mark.slow
def test_a_wide_table_is_folded_and_each_part_names_its_rows(wide):
    table = next(block for section in document(wide, 50).sections for block in section.blocks if is_leaderboard(block))
    parts = folded(table)
    assert len(parts) > 1
    assert max(len(part.columns) for part in parts) <= MOST_COLUMNS
    assert [name for part in parts for name in part.columns[1:]] == list(table.columns[1:])
    assert all([row[0] for row in part.rows] == [row[0] for row in table.rows] for part in parts)
    assert [part.caption for part in parts[1:]] == [f"{table.caption}, continued"] * (len(parts) - 1)
    narrow = replace(table, columns=table.columns[:3], rows=tuple(row[:3] for row in table.rows))
    assert folded(narrow) == [replace(narrow, left=frozenset({0, 1}))]


def is_leaderboard(block):
    return getattr(block, "caption", "").startswith("Trials and baselines by")


def test_a_name_may_break_between_its_parts_and_a_number_never():
    assert breakable("dev/fra-eng/f1") == "dev/<wbr>fra-eng/<wbr>f1"
    assert breakable("training.learning_rate=0.05") == "training.<wbr>learning_<wbr>rate=<wbr>0.05"
    assert breakable("<b>&'") == "&lt;b&gt;&amp;&#x27;"
    assert breakable("9 MB, 126,677 sentences/s") == '9 MB, 126,677 <span class="whole">sentences/s</span>'
    assert breakable("dev/sts/eng") == "dev/<wbr>sts/<wbr>eng"


def test_no_date_is_broken_in_two_and_code_is_code():
    assert code("promoted on 2026-11-26 as `a-b`.") == (
        'promoted on <span class="whole">2026-11-26</span> as <code>a-b</code>.'
    )
    assert (code("one ` mark <"), code("`a` and `")) == ("one ` mark &lt;", "<code>a</code> and `")


@pytest.mark.needs_chromium
def test_a_report_is_a_picture_that_ends_where_the_page_ends(searched, tmp_path):
    out = tmp_path / "report.png"
    file = write_report(searched[1], StorageView(cluster_of(searched)), "png", out)
    assert file.bytes == out.stat().st_size < LARGEST
    image = np.asarray(Image.open(out).convert("RGB"))
    assert image.shape[1] == 1200
    assert 2000 < image.shape[0] < 16_000
    assert (image[-10:] == image[-1, 0]).all(), "a margin"
    assert (image[-60:] != image[-1, 0]).any(), "and above it the last line"


@pytest.mark.needs_chromium
def test_a_picture_that_would_be_too_large_has_fewer_colours():
    data, whole = picture("<h1>A page</h1>", most=10)
    assert Image.open(io.BytesIO(data)).mode == "P"
    assert whole


def test_a_picture_without_chromium_is_an_error_that_says_what_to_do(searched, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match=r"--format png needs Chromium, .* apt-get install chromium\), or write"):
        write_report(searched[1], StorageView(cluster_of(searched)), "png", tmp_path / "report.png")
    assert not (tmp_path / "report.png").exists()


def cluster_of(searched):
    from conftest import cluster_at

    return cluster_at(searched[1].path.parents[1])
