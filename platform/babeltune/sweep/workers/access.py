"""Who may use a running Ray: whether it refuses those who have no token."""

import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from babeltune.errors import ClusterError
from babeltune.sweep.ray_internals import ASK, read_token_again

log = logging.getLogger(__name__)
ANSWERS = {0: True, 3: False}
ANSWER_TIMEOUT_S = 60.0  # seconds, with a Python that has to start
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


@contextmanager
def authenticated(token: str) -> Iterator[None]:
    """Shows this token to every Ray that the body starts or connects to: in the environment, which is this user's."""
    before = {name: os.environ.get(name) for name in token_variables(token)}
    os.environ |= token_variables(token)
    read_token_again()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        read_token_again()


def close_token_file() -> None:
    """Takes Ray's token file from other users. Ray 2.60 writes it by the umask, so often readable by all.

    Raises `ClusterError` for a file of another user."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # Ray cannot read it either
    if not mode & 0o077:
        return
    try:
        path.chmod(0o600)
    except OSError as error:
        raise ClusterError(
            f"{path}, where Ray reads its token, has the permissions {mode:04o} and is not yours; name a file of your "
            "own in RAY_AUTH_TOKEN_PATH"
        ) from error
    log.warning("other users could read %s, with its permissions %04o; they are 0600 now: renew the token", path, mode)


def token_variables(token: str) -> dict[str, str]:
    """The variables by which Ray shows this token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def takes(address: str, variables: Mapping[str, str]) -> bool | None:
    """Whether the Ray at this `host:port` answers a process with these variables; None if it does not answer in time.

    It takes half a second, where `ray.init` tries a refused token for twenty."""
    environment = {name: value for name, value in os.environ.items() if not variables or "RAY_AUTH" not in name}
    environment |= variables
    command = [sys.executable, "-P", "-c", ASK, address]
    try:
        answer = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    return ANSWERS.get(answer.returncode)


def open_to_all(cluster: str, address: str) -> str:
    """The warning that a cluster of this name is open to all; empty if it is not."""
    return f"{cluster} {OPEN}" if takes(address, STRANGER) else ""


def refuse_open(cluster: str, address: str, *, insecure: bool | None) -> None:
    """Raises `ClusterError` for a cluster that is open to all, unless `insecure`. None: the caller cannot say so."""
    if insecure:
        return
    anyway = "" if insecure is None else ", or pass --insecure to use it all the same"
    match takes(address, STRANGER):
        case True:
            raise ClusterError(f"{cluster} {OPEN}{anyway}")
        case None:
            raise ClusterError(f"{cluster} does not say whether it wants a token; try again{anyway}")
