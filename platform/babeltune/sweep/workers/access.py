"""Who may use a running Ray: whether it refuses those who have no token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from babeltune.errors import ClusterError

ASK = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", timeout=20)
except AuthenticationError:
    sys.exit(3)
"""
ANSWERS = {0: True, 3: False}
ANSWER_TIMEOUT_S = 60.0
"""Seconds, with a Python that has to start."""
STRANGER = {"RAY_AUTH_MODE": "disabled"}
OPEN = "wants no token: whoever reaches it can run programs there; start it with RAY_AUTH_MODE=token"


def listens(address: str) -> bool:
    """Whether something takes connections at this `host:port`; True for an address without a port."""
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError):
        return False
    return True


def authenticate(token: str) -> None:
    """Shows this token to every Ray that this process will connect to.

    Ray reads its mode when it is imported, and a token when it first needs one, from `~/.ray/auth_token` if there is
    no other. So both are read again.
    """
    os.environ |= shown(token)
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def shown(token: str) -> dict[str, str]:
    """The variables by which Ray shows this token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def takes(address: str, variables: Mapping[str, str]) -> bool | None:
    """Whether the Ray at this `host:port` answers a process with these variables; None if it does not answer in time.

    It takes half a second, where `ray.init` tries a refused token for twenty.
    """
    environment = {name: value for name, value in os.environ.items() if not variables or "RAY_AUTH" not in name}
    environment |= variables
    command = [sys.executable, "-c", ASK, address]
    try:
        asked = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    return ANSWERS.get(asked.returncode)


def open_to_all(named: str, address: str) -> str:
    """The warning that a cluster, named `named`, is open to all; empty if it is not."""
    return f"{named} {OPEN}" if takes(address, STRANGER) else ""


def refuse_open(named: str, address: str, *, insecure: bool | None) -> None:
    """Raises `ClusterError` for a cluster, `named` in the error, that is open to all, unless `insecure`. None: whoever
    asks cannot say that it is."""
    if insecure:
        return
    anyway = "" if insecure is None else ", or pass --insecure to use it all the same"
    match takes(address, STRANGER):
        case True:
            raise ClusterError(f"{named} {OPEN}{anyway}")
        case None:
            raise ClusterError(f"{named} does not say whether it wants a token; try again{anyway}")
