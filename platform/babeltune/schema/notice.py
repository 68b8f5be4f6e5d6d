"""Whom a cluster file tells of ends and promotions, and how a secret is read from a file of its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from babeltune.errors import SpecError
from babeltune.schema.base import Strict
from babeltune.schema.bounds import Problem

Event = Literal["end", "failure", "promotion", "refusal"]


@dataclass(frozen=True, kw_only=True)
class Notice(Strict):
    """A webhook or a program that is notified. The address of a webhook is a secret: whoever has it may write there."""

    url_env: str | None = None
    """The environment variable of the driver that holds the webhook's address."""
    url_file: str | None = None
    """The file that holds it instead: of the user or root, and readable by its owner only."""
    command: tuple[str, ...] | None = None
    """A program and its arguments in place of a webhook. It reads the JSON from its standard input."""
    form: Literal["json", "slack", "teams"] = "json"
    """What is sent: an object with `event`, `subject`, `text`, `cluster` and `time`, or a message as Slack or Teams
    takes it."""
    on: tuple[Event, ...] = ("end", "failure", "promotion", "refusal")
    """The events that it is notified of: a sweep's end, its failure, a promotion, a promotion that is refused."""

    @property
    def place(self) -> str:
        """Who is notified, without the secret."""
        if self.command is not None:
            return f"the command {self.command[0]}"
        return f"the webhook of {self.url_env or self.url_file}"

    def address(self) -> str:
        """The webhook's address, read now. Raises `SpecError` if it is not there or is none."""
        if self.url_file is not None:
            url = secret_of_file(Path(self.url_file).expanduser(), "notify: url_file", "the webhook's address")
        else:
            url = os.environ.get(self.url_env or "", "").strip()
        parts = urlsplit(url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
            raise SpecError(f"{self.place} must be an address https://…; put it there")
        return url

    def problems(self) -> Iterator[Problem]:
        """What is wrong with it."""
        ways = [self.url_env, self.url_file, self.command]
        if sum(way is not None for way in ways) != 1:
            yield (), "must have one of url_env, url_file and command"
        if self.command is not None and not (self.command and self.command[0]):
            yield ("command",), "must name a program, such as [notify-send, babeltune]"
        if not self.on:
            yield ("on",), "names no event; leave `on` out for all of them"


def secret_of_file(path: Path, key: str, what: str) -> str:
    """The text of a file that its owner alone may read, without blanks around it. Raises `SpecError`, which names the
    `key` that names the file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            text = file.read().strip()
    except OSError as error:
        raise SpecError(
            f"{key} {path} cannot be read ({error.strerror}); put {what} there, for you alone (`chmod 600`), or name "
            "another file"
        ) from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SpecError(
            f"{key} {path} has the permissions {mode:04o}, so that others may read it; `chmod 600 {path}` keeps it to "
            "its owner"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise SpecError(
            f"{key} {path} belongs to another user (uid {status.st_uid}), who may change it; name a file of your own"
        )
    if not text:
        raise SpecError(f"{key} {path} is empty; put {what} in it")
    return text
