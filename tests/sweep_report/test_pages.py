"""A sweep's report as people meet it: in a browser, light and dark, by keyboard, by screen reader, as a picture."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from babeltune.errors import SpecError
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.gather import gather
from babeltune.sweep_report.picture import picture
from babeltune.sweep_report.write import LARGEST, page, write_report
from screens import AXE, chromium, kept, page_of


@pytest.fixture(scope="module")
def report(searched):
    return gather(searched[1])


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    """Where a browser finds the report."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(report, "html"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with chromium() as window:
        yield window


@pytest.mark.needs_axe
@pytest.mark.needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_in_light_and_dark(browser, address, scheme):
    with page_of(browser, color_scheme=scheme, bypass_csp=True) as shown:
        shown.goto(address)
        for folded in shown.locator("details").all():
            folded.evaluate("each => each.open = true")
        shown.evaluate(Path(os.environ[AXE]).read_text(encoding="utf-8"))
        found = shown.evaluate("async () => await axe.run()")
        assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found["violations"]] == []
        assert len(found["passes"]) > 15, "it has looked at the page"


@pytest.mark.needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_screen_and_asks_nobody(browser, address, scheme):
    asked = []
    with page_of(browser, color_scheme=scheme) as shown:
        shown.on("request", lambda request: asked.append(request.url))
        shown.goto(address)
        color = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(json.loads(f"[{color[4:-1]}]")) > 600) == (scheme == "light")
        width = shown.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], "nothing has to be scrolled sideways"
        kept(shown, f"report-{scheme}", full_page=True)
    assert [each for each in asked if not each.startswith(("file:", "data:"))] == []


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


@pytest.mark.needs_chromium
def test_a_report_is_a_picture_that_ends_where_the_page_ends(searched, tmp_path):
    out = tmp_path / "report.png"
    written = write_report(searched[1], StorageView(cluster_of(searched)), "png", out)
    assert written.bytes == out.stat().st_size < LARGEST
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
