"""Webhooks and programs that are notified of ends and promotions: what they get, and that nothing fails by them."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from babeltune.errors import SpecError
from babeltune.schema.cluster import Cluster, read_cluster
from babeltune.schema.notice import Notice
from babeltune.sweep.sync import notify as module
from babeltune.sweep.sync.notify import notify

TEXT = "sweep x-1 is finished after 2 trials"


@pytest.fixture
def webhook(monkeypatch):
    """A server that answers with the codes of a list, then with 200, and the bodies that it got."""
    codes, bodies = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            assert self.headers["Content-Type"] == "application/json"
            self.send_response(codes.pop(0) if codes else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/services/secret")
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    yield codes, bodies
    server.shutdown()
    thread.join()
    server.server_close()


def send(*notices, event="end"):
    notify(Cluster(name="here", notify=notices), event, "x-1", TEXT)


@pytest.mark.usefixtures("caplog")
def test_each_form_is_what_its_reader_takes(webhook):
    _, bodies = webhook
    send(*(Notice(url_env="HOOK", form=form) for form in ("json", "slack", "teams")))
    plain, slack, teams = bodies
    assert plain.pop("time").endswith("Z")
    assert plain == {"event": "end", "subject": "x-1", "text": TEXT, "cluster": "here"}
    assert slack == {"text": TEXT}
    (card,) = teams["attachments"]
    assert (teams["type"], card["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    assert card["content"]["body"] == [{"type": "TextBlock", "text": TEXT}]


def test_a_server_that_is_ill_is_tried_again_and_one_that_refuses_is_not(webhook, caplog):
    codes, bodies = webhook
    codes += [503, 500]
    send(Notice(url_env="HOOK"))
    assert len(bodies) == 3
    assert caplog.messages == []
    codes += [503, 503, 503, 404]
    send(Notice(url_env="HOOK"), Notice(url_env="HOOK"))
    assert len(bodies) == 7
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["Service Unavailable", "Not Found"]
    assert all("the webhook of HOOK was not notified" in message for message in caplog.messages)
    assert "secret" not in caplog.text


def test_only_the_events_that_are_asked_for_are_sent(webhook):
    _, bodies = webhook
    send(Notice(url_env="HOOK", on=("failure", "refusal")))
    assert bodies == []
    send(Notice(url_env="HOOK", on=("failure", "refusal")), event="refusal")
    assert [body["event"] for body in bodies] == ["refusal"]


def test_a_program_gets_the_object(tmp_path, caplog):
    copy = [sys.executable, "-c", "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"]
    send(Notice(command=(*copy, str(tmp_path / "message"))))
    assert json.loads((tmp_path / "message").read_text())["text"] == TEXT
    send(Notice(command=(sys.executable, "-c", "raise SystemExit(5)")), Notice(command=("no-such-program",)))
    ended, missing = caplog.messages
    assert ended.endswith("it ended with 5")
    assert "the command no-such-program was not notified" in missing


def test_an_address_that_is_missing_or_in_the_open_is_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HOOK", "http://example.org/secret")
    monkeypatch.delenv("NONE", raising=False)
    file = tmp_path / "hook"
    file.write_text("https://example.org/secret")
    file.chmod(0o644)
    send(Notice(url_env="HOOK"), Notice(url_env="NONE"), Notice(url_file=str(file)))
    first, second, third = caplog.messages
    assert first.endswith("the webhook of HOOK must be an address https://…; put it there")
    assert second.endswith("the webhook of NONE must be an address https://…; put it there")
    assert "has the permissions 0644, so that others may read it" in third
    assert "secret" not in caplog.text
    file.chmod(0o600)
    assert Notice(url_file=str(file)).address() == "https://example.org/secret"


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        ("{}", "c.yaml:1: notify.0: must have one of url_env, url_file and command"),
        ("{url_env: A, command: [b]}", "c.yaml:1: notify.0: must have one of"),
        ("{command: []}", "c.yaml:1: notify.0.command: must name a program"),
        ("{url_env: A, on: []}", "c.yaml:1: notify.0.on: names no event"),
        ("{url_env: A, on: [ending]}", "c.yaml:1: notify.0.on.0: 'ending' is not possible; allowed: 'end', 'failure'"),
        ("{url: 'https://x'}", "c.yaml:1: notify.0.url: "),
    ],
)
def test_a_notice_that_cannot_be_is_refused_with_its_line(tmp_path, notice, words):
    file = tmp_path / "c.yaml"
    file.write_text(f"notify: [{notice}]\n")
    with pytest.raises(SpecError) as refused:
        read_cluster(file)
    assert words in str(refused.value)
