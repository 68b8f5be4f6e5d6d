"""Who may use a running Ray: whether it refuses those who have no token."""

from __future__ import annotations

import os
import subprocess
import sys

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from babeltune.errors import ClusterError

ASK = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]).internal_kv_keys(b'', timeout=20)"
OPEN = "wants no token: whoever reaches it can run programs there; start it with RAY_AUTH_MODE=token"


def authenticate(token: str) -> None:
    """Shows this token to every Ray that this process will connect to.

    Ray reads its mode when it is imported and a token when it first looks for one, from `~/.ray/auth_token` if there
    is no other; so it is told to read both again.
    """
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def wants_token(address: str) -> bool:
    """Whether the Ray at this `host:port` refuses a question without a token.

    Another process asks it: Ray reads once in a process how it shows who it is.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"RAY_AUTH_MODE": "disabled"}
    asked = subprocess.run([sys.executable, "-c", ASK, address], env=environment, capture_output=True, check=False)
    return asked.returncode != 0


def refuses_strangers(address: str) -> bool:
    """Whether it is there and wants a token, as far as can be told."""
    try:
        return wants_token(address)
    except ClusterError:
        return False


def refuse_open(named: str, address: str, *, insecure: bool | None) -> None:
    """Raises `ClusterError` for a cluster, `named` in the error, that is open to all, unless `insecure`. None: whoever
    asks cannot say that it is."""
    if not insecure and not wants_token(address):
        raise ClusterError(f"{named} {OPEN}{'' if insecure is None else ', or pass --insecure to use it all the same'}")
