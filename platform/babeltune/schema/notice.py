"""Whom a cluster file tells of ends and promotions, and how a secret is read from a file of its own."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from babeltune.errors import SpecError
from babeltune.schema.base import Strict
from babeltune.schema.bounds import Problem

Event = Literal["end", "failure", "promotion", "refusal", "drift"]
LOCAL = ("localhost", "127.0.0.1", "::1")
"""Hosts to which nothing is encrypted, as nobody listens on the way."""
ADDRESS = re.compile(r"[^\s@<>,;]{1,64}@[^\s@<>,;]{1,255}")
SERVER = re.compile(r"(?:\[([\da-fA-F:]+)\]|([^\s/@:\[\]]+)):(\d{1,5})")


@dataclass(frozen=True, kw_only=True)
class Mail(Strict):
    """How e-mail is sent. The server proves by its certificate who it is."""

    to: tuple[str, ...]
    """The addresses that get it."""
    sender: str
    """The address that it comes from."""
    server: str
    """The HOST:PORT of the server that takes it (SMTP)."""
    tls: Literal["starttls", "from_start", "off"] = "starttls"
    """`starttls` encrypts a connection after its begin, as on port 587, and `from_start` at once, as on port 465.
    `off` is for a server on this machine."""
    user: str | None = None
    """The name at the server, if it asks for one."""
    password_env: str | None = None
    """The environment variable of the driver that holds the password."""
    password_file: str | None = None
    """The file that holds it instead: of the user or root, and readable by its owner only."""

    @property
    def host(self) -> tuple[str, int]:
        """The server's host and port."""
        parts = SERVER.fullmatch(self.server)
        return (parts[1] or parts[2], int(parts[3])) if parts else ("", 0)

    def password(self) -> str:
        """The password, read now. Raises `SpecError` if it is not there, or is not what SMTP can say."""
        place = f"the environment variable {self.password_env}"
        password = os.environ.get(self.password_env or "", "")
        if self.password_file is not None:
            place = "notify: email: password_file"
            password = secret_of_file(Path(self.password_file).expanduser(), place, "the password")
        if not (password and password.isascii() and password.isprintable()):
            raise SpecError(f"{place} holds no password of one line of ASCII; put the mail server's there alone")
        return password

    def problems(self) -> Iterator[Problem]:
        """Its problems."""
        for key, addresses in (("to", self.to), ("sender", (self.sender,))):
            if wrong := [each for each in addresses if not ADDRESS.fullmatch(each)]:
                yield (key,), f"{wrong[0][:80]!r} must be an address such as you@example.org"
        if not self.to:
            yield ("to",), "names no address; name one such as you@example.org"
        if not 0 < self.host[1] < 65536:
            yield ("server",), f"{self.server[:80]!r} must be HOST:PORT, such as smtp.example.org:587"
        elif self.tls == "off" and self.host[0] not in LOCAL:
            yield ("tls",), f"off: {self.server} is another machine; write starttls or from_start"
        passwords = [self.password_env, self.password_file]
        if sum(each is not None for each in passwords) != (self.user is not None):
            yield ("user",), "goes with one of password_env and password_file; give both or neither"


@dataclass(frozen=True, kw_only=True)
class Notice(Strict):
    """A webhook, a program or people that are notified. The address of a webhook is a secret: whoever has it may write
    there."""

    url_env: str | None = None
    """The environment variable of the driver that holds the webhook's address."""
    url_file: str | None = None
    """The file that holds it instead: of the user or root, and readable by its owner only."""
    command: tuple[str, ...] | None = None
    """A program and its arguments in place of a webhook. It reads the JSON from its standard input."""
    email: Mail | None = None
    """People who get an e-mail instead."""
    form: Literal["json", "slack", "teams"] = "json"
    """The body of the request: an object with `event`, `subject`, `text`, `cluster` and `time`, or a message as Slack
    or Teams takes it."""
    on: tuple[Event, ...] = get_args(Event)
    """The events that it is notified of: a sweep's end, its failure, a promotion, a promotion that is refused, and
    drift that `babeltune check` sees."""

    @property
    def place(self) -> str:
        """Who is notified, without the secret."""
        if self.command is not None:
            return f"the command {self.command[0]}"
        if self.email is not None:
            return f"{', '.join(self.email.to)} by {self.email.server}"
        return f"the webhook of {self.url_env or self.url_file}"

    def address(self) -> str:
        """The webhook's address, read now. Raises `SpecError` if it is not there, or not an address."""
        if self.url_file is not None:
            url = secret_of_file(Path(self.url_file).expanduser(), "notify: url_file", "the webhook's address")
        else:
            url = os.environ.get(self.url_env or "", "").strip()
        parts = urlsplit(url)
        local = parts.hostname in LOCAL
        if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
            raise SpecError(f"{self.place} must be an address https://…; put it there")
        return url

    def check(self) -> None:
        """Raises `SpecError` if the webhook's address or the mail server's password cannot be read now."""
        if self.email is not None and self.email.user is not None:
            self.email.password()
        elif self.email is None and self.command is None:
            self.address()

    def problems(self) -> Iterator[Problem]:
        """Its problems."""
        ways = [self.url_env, self.url_file, self.command, self.email]
        if sum(way is not None for way in ways) != 1:
            yield (), "must have one of url_env, url_file, command and email"
        if self.email is not None and self.form != "json":
            yield ("form",), f"{self.form} is for a webhook; leave it out"
        if self.email is not None:
            for key, problem in self.email.problems():
                yield ("email", *key), problem
        if self.command is not None and not (self.command and self.command[0]):
            yield ("command",), "must name a program, such as [notify-send, babeltune]"
        if not self.on:
            yield ("on",), "names no event; leave `on` out for all of them"


def secret_of_file(path: Path, key: str, secret: str) -> str:
    """The text of a file that its owner alone may read, without blanks around it. Raises `SpecError`, which names the
    `key` that names the file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            text = file.read().strip()
    except OSError as error:
        todo = f"put {secret} there, for you alone (`chmod 600`), or name another file"
        raise SpecError(f"{key} {path} cannot be read ({error.strerror}); {todo}") from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        words = f"has the permissions {mode:04o}, so that others may read it; `chmod 600 {path}` keeps it to its owner"
        raise SpecError(f"{key} {path} {words}")
    if status.st_uid not in (os.geteuid(), 0):
        words = f"belongs to another user (uid {status.st_uid}), who may change it; name a file of your own"
        raise SpecError(f"{key} {path} {words}")
    if not text:
        raise SpecError(f"{key} {path} is empty; put {secret} in it")
    return text


def check_token(token: str, place: str) -> str:
    """The token if it can be one: an HTTP header would print a broken one in its error. Raises `SpecError`."""
    if not (token and token.isascii() and token.isprintable() and " " not in token):
        raise SpecError(f"{place} holds no token, which is one word of one line; put it there alone")
    return token
