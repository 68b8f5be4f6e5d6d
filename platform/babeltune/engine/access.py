"""Who may use a running Ray: whether it refuses those who have no token."""

from __future__ import annotations

import os
import subprocess
import sys

from babeltune.errors import ClusterError

REFUSED = 77
"""The exit code of a process that was refused for want of a token."""
ASK = f"""
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", timeout=20)
except AuthenticationError:
    sys.exit({REFUSED})
"""
ANSWERS_WITHIN = 60.0
"""Seconds that such a process has."""
OPEN = "wants no token: whoever reaches it can run programs there; start it with RAY_AUTH_MODE=token"


def wants_token(address: str) -> bool:
    """Whether the Ray at this `host:port` refuses a question without a token. `ClusterError` where it says neither.

    Another process asks it: Ray reads once in a process how it shows who it is.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", ASK, address]
    try:
        asked = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=ANSWERS_WITHIN)
    except subprocess.TimeoutExpired:
        asked = None
    if asked is None or asked.returncode not in (0, REFUSED):
        raise ClusterError(f"cannot tell whether the Ray at {address} wants a token: it does not answer; try again")
    return asked.returncode == REFUSED


def refuse_open(named: str, address: str, *, insecure: bool | None) -> None:
    """Raises `ClusterError` for a cluster, `named` in the error, that is open to all, unless `insecure`. None: whoever
    asks cannot say that it is."""
    if not insecure and not wants_token(address):
        raise ClusterError(f"{named} {OPEN}{'' if insecure is None else ', or pass --insecure to use it all the same'}")
