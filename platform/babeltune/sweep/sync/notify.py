"""Tells the webhooks and programs that a cluster file names how a sweep ended, and what was promoted or refused.

Nobody waits long for them, and no sweep fails by them: a message that cannot be delivered is a warning."""

from __future__ import annotations

import json
import logging
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from babeltune.errors import SpecError
from babeltune.schema.cluster import Cluster
from babeltune.schema.notice import Event, Notice

TRIES = 3
TIMEOUT_S = 10.0
"""Seconds for one try."""
PAUSE_S = 1.0
"""Seconds before the second try, and twice as many before each further one."""
log = logging.getLogger(__name__)


def notify(cluster: Cluster, event: Event, subject: str, text: str) -> None:
    """Tells all who want to know of this event. `subject` is a sweep's id or a trial, `text` a sentence for people."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    facts = {"event": event, "subject": subject, "text": text, "cluster": cluster.name, "time": now}
    for notice in cluster.notify:
        if event in notice.on:
            try:
                _deliver(notice, json.dumps(_body(notice, facts)).encode())
            except (OSError, SpecError, ValueError, subprocess.SubprocessError) as error:
                log.warning("%s was not notified that %s: %s", notice.place, text, _reason(error))


def _body(notice: Notice, facts: Mapping[str, str]) -> Mapping[str, object]:
    if notice.form == "slack":
        return {"text": facts["text"]}
    if notice.form == "teams":
        content = {"type": "AdaptiveCard", "version": "1.4", "body": [{"type": "TextBlock", "text": facts["text"]}]}
        card = {"contentType": "application/vnd.microsoft.card.adaptive", "content": content}
        return {"type": "message", "attachments": [card]}
    return facts


def _deliver(notice: Notice, body: bytes) -> None:
    """Delivers the message; a server that is away or says 5xx is tried again."""
    if notice.command is not None:
        subprocess.run(notice.command, input=body, check=True, capture_output=True, timeout=TRIES * TIMEOUT_S)
        return
    request = urllib.request.Request(notice.address(), body, {"Content-Type": "application/json"})
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return
        except OSError as error:
            if left == 0 or (isinstance(error, urllib.error.HTTPError) and error.code < 500):
                raise
            time.sleep(PAUSE_S * 2 ** (TRIES - 1 - left))


def _reason(error: Exception) -> str:
    """What went wrong, without the address: urllib's errors do not have it, and those of a bad one may."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took more than {error.timeout:g} s"
    return type(error).__name__ if isinstance(error, ValueError) and not isinstance(error, SpecError) else str(error)
