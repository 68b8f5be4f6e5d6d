"""Where `babeltune serve` listens, and the token that it asks for."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from babeltune.errors import SpecError
from babeltune.schema.base import Strict
from babeltune.schema.bounds import Problem
from babeltune.schema.notice import secret_of_file


@dataclass(frozen=True, kw_only=True)
class Serving(Strict):
    """The limits of the server of vectors."""

    host: str = "127.0.0.1"
    """The IP address that it listens on. One that other machines reach needs a token."""
    token_env: str | None = None
    """The environment variable that holds the token. Each request has to bring it: `Authorization: Bearer TOKEN`."""
    token_file: str | None = None
    """The file that holds it instead: of the user or root, and readable by its owner only."""

    @property
    def on_loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def token(self) -> str | None:
        """The token, read now; None if none is asked for. Raises `SpecError` if it is not there or is no word."""
        if self.token_env is None and self.token_file is None:
            return None
        if self.token_file is not None:
            place = f"serve: token_file {self.token_file}"
            token = secret_of_file(Path(self.token_file).expanduser(), "serve: token_file", "the server's token")
        else:
            place = f"serve: the environment variable {self.token_env}"
            token = os.environ.get(self.token_env or "", "").strip()
        if not (token and token.isascii() and token.isprintable() and " " not in token):
            raise SpecError(f"{place} holds no token, which is one word of one line; put it there alone")
        return token

    def problems(self) -> Iterator[Problem]:
        """Its problems."""
        try:
            local = self.on_loopback
        except ValueError:
            yield ("host",), f"{self.host!r} must be an IP address, such as 127.0.0.1, or 0.0.0.0 for every network"
            return
        if self.token_env is not None and self.token_file is not None:
            yield ("token_file",), "token_env is given too; keep one"
        if not local and self.token_env is None and self.token_file is None:
            yield ("host",), f"{self.host} is reached from other machines; name a token: `token_file: PATH`"
