"""The live page of a sweep: served on this machine, refreshed by events, frozen at the end."""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager

import pytest

from babeltune.cli.watch import server_of
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster
from babeltune.storage.mirror import Mirror
from babeltune.sweep.driver.run import only_driver
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.progress import SweepProgress
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.live import LivePage
from bucket_servers import BUCKET
from made_sweeps import METRIC, add_trial, make_sweep, rewrite_ledger, whole_sweep
from ports import free_port, listens
from screens import barriers, page_of
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def saved(tmp_path, tiny_file, tiny_stores):
    """A finished sweep of two trials."""
    return whole_sweep(tmp_path / "storage", tiny_file, tiny_stores)


@pytest.fixture
def running(tiny_file, tmp_path):
    """A sweep that has begun."""
    folder = make_sweep(tmp_path, read_sweep(tiny_file), state="running")
    folder.write("baselines.json", {"scores": {"teacher": {METRIC: 0.5}}})
    return folder


@contextmanager
def served(folder):
    """The address of a live page, which a thread of this process serves."""
    server = server_of(folder, port := free_port())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.headers, answer.read().decode()


def events_of(url):
    """Kind and data of each event, until the server closes the stream."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        kind = ""
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)


def test_a_running_sweeps_page_follows_it_and_freezes_at_its_end(running):
    with served(running) as url:
        with only_driver(running):
            SweepProgress(running.sweep(), running).progress("tokenizing", 3, 9)
            _, page = get(url)
            assert "No trial has finished yet" in page
            assert "Live: tokenizing 3/9" in page
            assert 'src="/live.js"' in page
            version = page.partition('data-version="')[2].partition('"')[0]
            stream = events_of(f"{url}/events?seen={version}")
            assert next(stream) == ("stage", "Live: tokenizing 3/9. The page follows the sweep.")
            assert next(stream) == ("news", "tokenizing; trials that have ended: 0")
            add_trial(running, 0, [0.2, 0.6], "finished", temperature=0.1)
            kind, changed = next(stream)
            assert kind == "changed"
            assert changed != version
            assert "t0000 is the only trial with a score" in get(url)[1], "the report is made of what there is"
            running.set_state("finished")
        rest = list(stream)
        assert rest[-1] == ("frozen", f"Sweep {running.id} is finished: this page no longer changes.")
        assert "changed" in {kind for kind, _ in rest}
        _, page = get(url)
    assert "this page no longer changes" in page
    assert "live.js" not in page


def test_before_a_trial_finishes_the_page_has_its_curves_its_data_and_its_cost(saved):
    rewrite_ledger(saved, lambda line: None if line["event"] == "end" else line)
    saved.set_state("running")
    with only_driver(saved):
        page = LivePage(saved).html()
        assert "No trial has finished yet." in page
        assert "is the best of 2 trials" in page
        assert {"leaderboard", "curves", "languages", "data", "cost"} <= set(re.findall(r'<section id="(\w+)"', page))
        rewrite_ledger(saved, lambda line: None if line["event"] == "report" else line)
        page = LivePage(saved).html()
        assert "No trial has finished yet." in page
        assert re.findall(r'<section id="(\w+)"', page) == ["trials", "data"], "before the first report"


def test_a_screen_reader_says_only_stages_and_how_many_trials_have_ended(running):
    page = LivePage(running)
    progress = SweepProgress(running.sweep(), running)
    with only_driver(running):
        progress.progress("tokenizing", 3, 9)
        first = page.snapshot()
        progress.written = -math.inf
        progress.progress("tokenizing", 5, 9)
        assert page.snapshot().note != first.note
        assert page.snapshot().news == first.news == "tokenizing; trials that have ended: 0"
        assert re.search(r'<p id="news"[^>]* role="status">tokenizing; trials', page.html())
        assert '<p id="live">Live: tokenizing' in page.html(), "what changes each second is not announced"
        add_trial(running, 0, [0.2, 0.6], "finished", temperature=0.1)
        add_trial(running, 1, [0.2], temperature=0.2)
        assert page.snapshot().news == "tokenizing; trials that have ended: 1"
        progress.progress("searching", 1, 2)
        assert page.snapshot().news == "searching; trials that have ended: 1"


def test_whatever_may_have_the_focus_has_an_id_of_its_own(running):
    for number in range(3):
        add_trial(running, number, [0.2, 0.6], "finished", temperature=0.1)
    page = LivePage(running).html()
    focusable = re.findall(r'<(?:summary|a href="#[^"]+"|\w+ [^>]*tabindex="0")[^>]*>|<a id="to-[^>]*>', page)
    assert len(focusable) > 20
    assert [each for each in focusable if ' id="' not in each and 'class="skip"' not in each] == []
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert [name for name, count in Counter(ids).items() if count > 1] == []


@pytest.mark.needs_chromium
def test_focus_place_and_unfolded_parts_stay_when_the_page_changes(browser, running):
    add_trial(running, 0, [0.2, 0.6], "finished", temperature=0.1)
    with served(running) as url, page_of(browser) as shown, only_driver(running):
        shown.goto(url, wait_until="domcontentloaded")
        summary = shown.locator("#curves summary")
        name = summary.get_attribute("id")
        summary.focus()
        shown.keyboard.press("Enter")
        shown.evaluate("scrollTo({top: 300, behavior: 'instant'})")
        for number, link in enumerate((name, "to-cost"), 1):
            shown.evaluate("id => document.getElementById(id).focus({preventScroll: true})", link)
            add_trial(running, number, [0.1], "finished", temperature=0.1 + number)
            shown.locator("#leaderboard").get_by_text(f"t000{number}").first.wait_for(state="attached")
            shown.wait_for_function("id => document.activeElement.id === id", arg=link)
            assert 300 <= shown.evaluate("scrollY") < 400, "a row that comes in above moves what is read"
            assert summary.evaluate("each => each.parentElement.open")
        shown.locator("#news").get_by_text("trials that have ended: 3").wait_for(state="attached")


@pytest.mark.needs_chromium
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_axe_finds_no_violation_in_the_live_page(browser, running, scheme):
    with served(running) as url, page_of(browser, color_scheme=scheme, bypass_csp=True) as shown:
        with only_driver(running):
            SweepProgress(running.sweep(), running).progress("tokenizing", 3, 9)
            shown.goto(url, wait_until="domcontentloaded")
            assert "tokenizing 3/9" in shown.locator("#live").text_content()
            assert barriers(shown) == [], "no trial has finished"
            add_trial(running, 0, [0.2, 0.6], "finished", temperature=0.1)
            shown.get_by_role("heading", name="Leaderboard").wait_for()
            assert barriers(shown) == [], "the report that grows"
        shown.locator("#live").get_by_text("this page no longer changes").wait_for()
        assert barriers(shown) == [], "frozen"


def test_the_page_asks_nothing_of_the_network_and_is_for_this_machine(saved):
    with served(saved) as url:
        headers, page = get(url)
        assert page.startswith("<!doctype html>")
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "server" not in headers
        assert "EventSource" in get(f"{url}/live.js")[1]
        with pytest.raises(urllib.error.HTTPError, match="400"):
            get(url, Host="attacker.example")
        for absent in ("/docs", "/openapi.json", "/state.json", "/../state.json"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(url + absent)


def test_a_page_is_drawn_again_only_if_the_records_have_changed(saved):
    page = LivePage(saved)
    first = page.html()
    assert page.html() is first
    assert page.snapshot() == page.snapshot()
    add_trial(saved, 2, [0.9], "finished", temperature=0.1)
    assert page.html() is not first
    assert "t0002" in page.html()


def test_a_busy_port_is_one_line_and_an_unknown_sweep_is_another(command, saved, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(saved.path.parents[1]))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = command("watch", "--port", port)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: --port {port}: 127.0.0.1:{port} cannot be used")
    assert err.count("\n") == 1
    code, _, err = command("watch", "savd", "--port", free_port())
    assert code == 2
    assert "did you mean 'saved'" in err


@pytest.mark.parametrize("hasty", [False, True])
def test_the_command_serves_until_it_is_interrupted(saved, hasty):
    """`hasty`: again, before it has ended."""
    port = free_port()
    command = [sys.executable, "-m", "babeltune.cli", "watch", "saved", "--port", str(port), "--json", "--no-open"]
    environment = {**os.environ, "BABELTUNE_HOME": str(saved.path.parents[1])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:

        def answers():
            assert process.poll() is None, process.communicate()[1]
            return listens(port)

        wait_until(answers, every=0.1)
        assert saved.id in get(f"http://127.0.0.1:{port}/")[1]
        kinds = [kind for kind, _ in events_of(f"http://127.0.0.1:{port}/events")]
        assert kinds == ["changed", "frozen"], "who has seen nothing gets the page, and learns that it is the last"
        process.send_signal(signal.SIGINT)
        if hasty:
            wait_until(lambda: not listens(port), every=0.01)
            process.send_signal(signal.SIGINT)
        said, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert json.loads(said) == {"sweep": saved.id, "url": f"http://127.0.0.1:{port}/"}
    assert "Traceback" not in err


def test_a_sweep_behind_a_uri_is_followed_too(saved, s3, tmp_path, monkeypatch):
    for seconds in ("POLL_INTERVAL_S", "LISTING_INTERVAL_S"):
        monkeypatch.setattr(f"babeltune.sweep.sync.view.{seconds}", 0.0)
    writer, reader = (
        Cluster(storage=f"s3://{BUCKET}/watched", cache=str(tmp_path / name), mlflow="sqlite://")
        for name in ("writer", "reader")
    )
    there = SweepFolder(writer.folder / "sweeps" / saved.id)
    shutil.copytree(saved.path, there.path)
    mirror = Mirror(writer.mirrored)
    for path in sorted(there.path.rglob("*.json*")):
        if "checkpoints" not in path.parts:
            mirror.push(path)
    page = LivePage(StorageView(reader).sweep("saved"))
    first = page.snapshot()
    assert "t0001" in page.html()
    add_trial(there, 2, [0.9], "finished", temperature=0.1)
    mirror.push(there.path / "results.jsonl")
    wait_until(lambda: page.snapshot().version != first.version)
    wait_until(lambda: "t0002" in page.html())
