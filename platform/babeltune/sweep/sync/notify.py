"""Notifies webhooks, programs and people whom a cluster file names: of a sweep's end, a promotion, a refusal, drift.

Nobody waits long for them, and no sweep fails by them: a message that cannot be delivered is a warning."""

import html
import http.client
import json
import logging
import smtplib
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from babeltune.errors import SpecError, bounded
from babeltune.redaction import without_password
from babeltune.schema.cluster import Cluster
from babeltune.schema.notice import Event, Mail, Notice
from babeltune.sweep.state.fencing import DrivenError, OvertakenError

TRIES = 3
TIMEOUT_S = 10.0  # seconds for one try
PAUSE_S = 1.0  # seconds before the second try, and twice as many before each further one
log = logging.getLogger(__name__)


def notify(cluster: Cluster, event: Event, subject: str, text: str) -> None:
    """Tells all who want to know of this event of a `subject` (a sweep's id, a trial or a model) in a sentence."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    facts = {"event": event, "subject": subject, "text": text, "cluster": cluster.name, "time": now}
    for notice in cluster.notify:
        if event in notice.on:
            try:
                _deliver(notice, facts)
            except Exception as error:  # a server may answer anything, and no sweep ends by it
                log.warning("%s was not notified that %s: %s", notice.place, text, _reason(error))


@contextmanager
def failures_notified(cluster: Cluster, what: str, subject: str) -> Iterator[None]:
    """Tells of an error or Ctrl-C that ends the block, unless another driver runs the sweep. `what` begins the text.

    Warns at once of those who could not be notified, for want of an address or a password."""
    for notice in cluster.notify:
        try:
            notice.check()
        except SpecError as error:
            log.warning("%s cannot be notified: %s", notice.place, error)
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        how = "was interrupted" if stopped else f"failed: {without_password(str(error))[:300]}"
        if not isinstance(error, DrivenError | OvertakenError):
            notify(cluster, "failure", subject, f"{what} {subject} {how}")
        raise


def _body(notice: Notice, facts: Mapping[str, str]) -> Mapping[str, object]:
    if notice.form == "slack":
        return {"text": html.escape(facts["text"], quote=False)}  # Slack reads <…> as a link
    if notice.form == "teams":
        block = {"type": "TextBlock", "text": facts["text"], "wrap": True}
        content = {"type": "AdaptiveCard", "version": "1.4", "body": [block]}
        card = {"contentType": "application/vnd.microsoft.card.adaptive", "content": content}
        return {"type": "message", "attachments": [card]}
    return facts


def _deliver(notice: Notice, facts: Mapping[str, str]) -> None:
    """Delivers the message. A program is not tried again: it may have done half of its work."""
    if notice.email is not None:
        mail, message = notice.email, _message(notice.email, facts)
        password = None if mail.user is None else mail.password()
        _tried(lambda: _send(mail, message, password))
        return
    body = json.dumps(_body(notice, facts)).encode()
    if notice.command is not None:
        subprocess.run(notice.command, input=body, check=True, capture_output=True, timeout=TRIES * TIMEOUT_S)
        return
    request = urllib.request.Request(notice.address(), body, {"Content-Type": "application/json"})
    _tried(lambda: urllib.request.urlopen(request, timeout=TIMEOUT_S).close())


def _tried(deliver: Callable[[], None]) -> None:
    """Calls it, and calls it again after an error that may pass."""
    for tries_left in reversed(range(TRIES)):
        try:
            deliver()
            return
        except (OSError, http.client.HTTPException) as error:
            if tries_left == 0 or _final(error):
                raise
            time.sleep(PAUSE_S * 2 ** (TRIES - 1 - tries_left))


def _final(error: Exception) -> bool:
    """Whether another try is of no use.

    A server refuses for good by a 4xx of HTTP other than 429, or by a 5xx of SMTP. If it refuses some recipients, the
    others have the message. A certificate that does not hold will not hold later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code != http.client.TOO_MANY_REQUESTS
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    lasting = (smtplib.SMTPRecipientsRefused, smtplib.SMTPNotSupportedError, ssl.SSLCertVerificationError)
    return isinstance(error, lasting)


def _message(mail: Mail, facts: Mapping[str, str]) -> EmailMessage:
    """The e-mail: its subject says what happened to what, its text is the sentence and the facts as JSON."""
    message = EmailMessage()
    message["From"], message["To"] = mail.sender, ", ".join(mail.to)
    message["Subject"] = f"babeltune: {facts['event']} of {facts['subject']}"
    message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain=mail.sender.rpartition("@")[2])
    message.set_content(f"{facts['text']}\n\n{json.dumps(facts, ensure_ascii=False, indent=2)}\n")
    return message


def _send(mail: Mail, message: EmailMessage, password: str | None) -> None:
    """Sends the e-mail. Raises `smtplib.SMTPException` or `OSError`."""
    host, port = mail.host
    context = ssl.create_default_context()
    if mail.tls == "from_start":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=context)
    else:
        server = smtplib.SMTP(host, port, timeout=TIMEOUT_S)
    with server:
        if mail.tls == "starttls":
            server.starttls(context=context)
        if mail.user is not None and password is not None:
            server.login(mail.user, password)
        if refused := server.send_message(message):
            raise smtplib.SMTPRecipientsRefused(refused)


def _reason(error: Exception) -> str:
    """The error, without the address: urllib's errors do not have it, and those of a bad one may."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took more than {error.timeout:g} s"
    if isinstance(error, smtplib.SMTPResponseException):
        words = error.smtp_error
        return bounded(f"{error.smtp_code} {words if isinstance(words, str) else words.decode(errors='replace')}")
    return bounded(str(error)) if isinstance(error, OSError | SpecError) else type(error).__name__
