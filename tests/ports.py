"""Ports of 127.0.0.1 for servers that a test starts."""

import random
import socket


def free_port() -> int:
    """One that nobody has and that the system gives to nobody by itself, so that it is free until its server listens.

    It is below those that a connection gets (from 32768 on, or 49152) and above those that Ray's workers take."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def listens(port: int) -> bool:
    """Whether a server takes connections there."""
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0
