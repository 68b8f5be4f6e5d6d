"""Debian's Chromium for tests of pages, and where they keep screenshots."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from waiting import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SHOTS = "BABELTUNE_SCREENSHOTS"  # the environment variable that names a folder for screenshots


@contextmanager
def chromium():
    """Chromium, driven by Playwright: for tests with the marker `needs_chromium`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        window = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield window
        window.close()


@contextmanager
def page_of(browser, **settings):
    """A page in a window of its own."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 850}, **settings})
    context.set_default_timeout(1000 * PATIENCE_S)
    yield context.new_page()
    context.close()


def barriers(page):
    """What axe-core finds that keeps people from reading the page, with all of its parts unfolded."""
    from axe_playwright_python.sync_playwright import Axe

    for folded in page.locator("details").all():
        folded.evaluate("each => each.open = true")
    response = Axe().run(page).response
    assert len(response["passes"]) > 15, "it has looked at the page"
    return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in response["violations"]]


def kept(page, name, **settings):
    """Keeps a screenshot where the environment asks for them."""
    if folder := os.environ.get(SHOTS):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png", **settings)
