"""Webhooks, programs and people that are notified: what they get, and that nothing fails by them."""

import asyncio.sslproto
import datetime
import email
import email.policy
import ipaddress
import json
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import babeltune as bt
from babeltune.errors import SpecError, SweepError, UnknownNameError
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import within_grid
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster, read_cluster
from babeltune.schema.notice import Mail, Notice
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.fencing import DrivenError, OvertakenError
from babeltune.sweep.sync import notify as module
from babeltune.sweep.sync.notify import failures_notified, notify
from notified import events_in, teller
from ports import free_port

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


def test_a_webhook_without_its_address_is_said_before_the_work_begins(monkeypatch, caplog):
    monkeypatch.delenv("HOOK", raising=False)
    mail = Mail(server="smtp.x:25", sender="a@x.org", to=("b@x.org",), user="a", password_env="ABSENT")
    cluster = Cluster(notify=(Notice(url_env="HOOK"), Notice(email=mail), Notice(command=("true",))))
    with failures_notified(cluster, "sweep", "x-1"):
        assert [message.partition(" cannot be notified: ")[0] for message in caplog.messages] == [
            "the webhook of HOOK",
            cluster.notify[1].place,
        ]
        assert "HOOK" in caplog.messages[0].partition(": ")[2]


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
    assert card["content"]["body"] == [{"type": "TextBlock", "text": TEXT, "wrap": True}]
    notify(Cluster(notify=(Notice(url_env="HOOK", form="slack"),)), "refusal", "x-1", "p <0.05 & more")
    assert bodies[-1] == {"text": "p &lt;0.05 &amp; more"}  # Slack's own escapes


def test_a_server_that_is_ill_is_tried_again_and_one_that_refuses_is_not(webhook, caplog):
    codes, bodies = webhook
    codes += [503, 500]
    send(Notice(url_env="HOOK"))
    codes += [429]
    send(Notice(url_env="HOOK"))
    assert len(bodies) == 5
    assert caplog.messages == []
    codes += [503, 503, 503, 404]
    send(Notice(url_env="HOOK"), Notice(url_env="HOOK"))
    assert len(bodies) == 9
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["Service Unavailable", "Not Found"]
    assert all("the webhook of HOOK was not notified" in message for message in caplog.messages)
    assert "secret" not in caplog.text


def test_a_webhook_where_nothing_answers_is_one_warning(webhook, monkeypatch, caplog):
    for host in (f"127.0.0.1:{free_port()}", "localhost:1"):
        monkeypatch.setenv("HOOK", f"http://{host}/secret")
        send(Notice(url_env="HOOK"))
        assert "the webhook of HOOK was not notified" in caplog.messages[-1]
        assert "refused" in caplog.messages[-1]
    assert len(caplog.messages) == 2
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


def mail(**changes):
    """A notice by e-mail, with these keys changed, as YAML."""
    keys = {"to": "[you@example.org]", "sender": "a@example.org", "server": "smtp.example.org:587", **changes}
    return f"{{email: {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}}}"


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        ("{}", "c.yaml:1: notify.0: must have one of url_env, url_file, command and email"),
        ("{url_env: A, command: [b]}", "c.yaml:1: notify.0: must have one of"),
        ("{command: []}", "c.yaml:1: notify.0.command: must name a program"),
        ("{url_env: A, on: []}", "c.yaml:1: notify.0.on: names no event"),
        ("{url_env: A, on: [ending]}", "c.yaml:1: notify.0.on.0: 'ending' is not possible; allowed: 'end', 'failure'"),
        ("{url: 'https://x/hunter2'}", "c.yaml:1: notify.0.url: unknown key 'url'; allowed: url_env, "),
        (mail(to="[]"), "c.yaml:1: notify.0.email.to: names no address"),
        (mail(to="[you]"), "c.yaml:1: notify.0.email.to: 'you' must be an address such as you@example.org"),
        (mail(sender='"a@b.c\\nBcc: d@e.f"'), r"notify.0.email.sender: 'a@b.c\nBcc: d@e.f' must be an address"),
        (mail(server="smtp.example.org"), "c.yaml:1: notify.0.email.server: 'smtp.example.org' must be HOST:PORT"),
        (mail(server="smtp.example.org:70000"), "c.yaml:1: notify.0.email.server: "),
        (mail(tls='"off"'), "c.yaml:1: notify.0.email.tls: off: smtp.example.org:587 is another machine; write"),
        (mail(user="me"), "c.yaml:1: notify.0.email.user: goes with one of password_env and password_file"),
        (mail(password_env="P"), "c.yaml:1: notify.0.email.user: goes with one of"),
        (mail(password="hunter2"), "c.yaml:1: notify.0.email.password: "),
        (mail()[:-1] + ", form: slack}", "c.yaml:1: notify.0.form: slack is for a webhook; leave it out"),
    ],
)
def test_a_notice_that_cannot_be_is_refused_with_its_line(tmp_path, notice, words):
    file = tmp_path / "c.yaml"
    file.write_text(f"notify: [{notice}]\n")
    with pytest.raises(SpecError) as refused:
        read_cluster(file)
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


class Mailbox:
    """What a mail server got, and the answers with which it begins."""

    def __init__(self, answers):
        self.answers, self.mails, self.logins = list(answers), [], []

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802
        if address.startswith("nobody@"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        if self.answers:
            return self.answers.pop(0)
        encrypted = isinstance(server.transport, asyncio.sslproto._SSLProtocolTransport)
        self.mails.append((encrypted, email.message_from_bytes(envelope.content, policy=email.policy.default)))
        return "250 OK"

    def login(self, server, session, envelope, mechanism, data):
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"correct horse", handled=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1, which is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(1)
    )
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    text = builder.add_extension(address, critical=False).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    file.write_bytes(text + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


@pytest.fixture
def mailed(certificate, monkeypatch, tmp_path):
    """Sends a notice to a real mail server that encrypts in this way and asks for a password; gives its mailbox."""
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    password.chmod(0o600)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    ways = {"starttls": {"tls_context": context, "require_starttls": True}, "from_start": {"ssl_context": context}}

    def mail_with(way, *answers, trusted=True, text=TEXT, **changes):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate) if trusted else "/dev/null")
        box = Mailbox(answers)
        asks = {"authenticator": box.login, "auth_required": way != "off", "auth_require_tls": way != "from_start"}
        server = Controller(box, hostname="127.0.0.1", port=free_port(), **asks, **ways.get(way, {}))
        login = {} if way == "off" else {"user": "me", "password_file": str(password)}
        settings = {"to": ("a@example.org", "b@example.org"), "sender": "babeltune@example.org", "tls": way, **login}
        server.start()
        try:
            mail = Mail(server=f"127.0.0.1:{server.port}", **{**settings, **changes})
            notify(Cluster(name="here", notify=(Notice(email=mail),)), "drift", "models:/x@champion", text)
        finally:
            server.stop()
        return box

    return mail_with


@pytest.fixture
def warnings(caplog):
    """What was not delivered, without what the mail server itself logs."""
    return lambda: [each.getMessage() for each in caplog.records if each.name == module.__name__]


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")  # by STARTTLS: it is there from the start
@pytest.mark.parametrize("way", ["starttls", "from_start", "off"])
def test_people_get_an_e_mail(mailed, warnings, way):
    box = mailed(way, text=TEXT + "\n.\nprêt")
    ((encrypted, message),) = box.mails
    assert warnings() == []
    assert encrypted == (way != "off")
    assert box.logins == ([] if way == "off" else [("me", "correct horse")])
    assert message["To"] == "a@example.org, b@example.org"
    assert message["From"] == "babeltune@example.org"
    assert message["Subject"] == "babeltune: drift of models:/x@champion"
    sentence, _, facts = message.get_content().replace("\r\n", "\n").partition("\n\n")
    assert sentence == TEXT + "\n.\nprêt"
    assert json.loads(facts)["event"] == "drift"


def test_a_mail_server_that_is_busy_is_tried_again_and_one_that_refuses_is_not(mailed, warnings):
    assert len(mailed("starttls", "451 later", "452 later").mails) == 1
    assert warnings() == []
    box = mailed("starttls", "554 spam")
    assert (len(box.mails), len(box.logins)) == (0, 1)
    assert warnings()[0].endswith(f"was not notified that {TEXT}: 554 spam")
    assert "a@example.org, b@example.org by 127.0.0.1:" in warnings()[0]


def test_a_recipient_that_the_server_refuses_is_a_warning_and_others_get_one_mail(mailed, warnings):
    box = mailed("off", to=("a@example.org", "nobody@example.org"))
    assert len(box.mails) == 1
    assert "nobody@example.org" in warnings()[0]
    assert "550" in warnings()[0]


def test_a_password_goes_to_no_server_but_the_one_that_is_named(mailed, warnings, monkeypatch, caplog):
    assert mailed("starttls", trusted=False).logins == []
    assert mailed("off", tls="starttls", user="me", password_env="PASSWORD").logins == []
    monkeypatch.setenv("PASSWORD", "not this one")
    assert mailed("off", tls="starttls", user="me", password_env="PASSWORD").logins == []
    box = mailed("starttls", user="me", password_file=None, password_env="PASSWORD")
    assert ({*box.logins}, box.mails) == ({("me", "not this one")}, [])  # it tries each way to log in
    unknown, unset, plain, wrong = warnings()
    assert "certificate verify failed" in unknown
    assert "the environment variable PASSWORD holds no password of one line of ASCII; put the mail server's" in unset
    assert "STARTTLS" in plain
    assert ": 535 " in wrong
    assert "not this one" not in caplog.text


def test_no_answer_of_a_server_ends_a_sweep(monkeypatch, caplog):
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer():
            for _ in range(2 * module.TRIES):
                with listener.accept()[0] as client:
                    client.sendall(b"\xff\x00 no protocol\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{port}/")
        mail = Mail(to=("a@b.c",), sender="a@b.c", server=f"127.0.0.1:{port}", tls="off")
        send(Notice(url_env="HOOK"), Notice(email=mail))
        thread.join()
    assert len(caplog.messages) == 2


def test_a_sweep_that_ends_before_its_first_trial_is_notified(tiny_file, tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    sweep, no_folder = read_sweep(tiny_file), tmp_path / "file"
    no_folder.touch()
    name, hearers = sweep_id(within_grid(sweep)), (teller(tmp_path / "events"),)
    with pytest.raises(SpecError, match="is not a folder"):
        submit(sweep, Cluster(storage=str(no_folder), notify=hearers))
    with pytest.raises(KeyboardInterrupt):
        submit(sweep, Cluster(storage=str(tmp_path / "storage"), notify=hearers), watch=interrupt)
    (first, refused), second = events_in(tmp_path / "events")
    assert (first, second) == ("failure", ("failure", f"sweep {name} was interrupted"))
    assert refused.startswith(f"sweep {name} failed: the storage {no_folder} is not a folder")


def test_a_promotion_that_cannot_be_is_notified(tmp_path):
    here = tmp_path / "here.yaml"
    here.write_text(f"storage: {tmp_path}\nnotify: [{{command: {json.dumps(teller(tmp_path / 'events').command)}}}]\n")
    with pytest.raises(UnknownNameError):
        bt.promote("absent", cluster=here)
    with pytest.raises(SweepError):
        bt.promote_front(cluster=here)
    (one, text), (two, latest) = events_in(tmp_path / "events")
    assert (one, two) == ("failure", "failure")
    assert text.startswith("promotion of absent failed: no sweep in ")
    assert latest.startswith("promotion of the latest sweep failed: ")


def test_a_head_that_is_away_is_notified_by_the_command_that_needs_it(command, tiny_file, tmp_path):
    cluster_file = tmp_path / "there.yaml"
    program = json.dumps(teller(tmp_path / "events").command)
    address = f"address: http://127.0.0.1:{free_port()}\nstorage: {tmp_path}\nmlflow: http://127.0.0.1:9\n"
    cluster_file.write_text(f"{address}notify: [{{command: {program}}}]\n")
    for words in (("submit", tiny_file), ("status", "absent"), ("promote", "absent")):
        assert command(*words, "--cluster", cluster_file)[0] == 1
    submitted, promoted = events_in(tmp_path / "events")
    assert all(event == "failure" and "does not answer" in text for event, text in (submitted, promoted))
    assert promoted[1].startswith("babeltune promote failed: ")


@pytest.mark.parametrize("error", [DrivenError, OvertakenError])
def test_a_sweep_that_another_driver_runs_has_not_failed(tmp_path, error):
    with pytest.raises(error), failures_notified(Cluster(notify=(teller(tmp_path / "events"),)), "sweep", "x-1"):
        raise error("x-1 is being run")
    assert not (tmp_path / "events").exists()
