"""An S3 server on 127.0.0.1, behind a door that a test can shut: moto in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

BUCKET = "babeltune"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Door:
    """Passes connections on to a server; shut, it refuses them and breaks those that are open."""

    def __init__(self, port: int, server: int) -> None:
        self.port, self.server = port, server
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                one, _ = listener.accept()
                other = socket.create_connection(("127.0.0.1", self.server))
            except OSError:
                return
            self._open |= {one, other}
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            self._open.discard(each)


class S3:
    """The server, its door, and the bucket as its own client sees it."""

    def __init__(self, port: int) -> None:
        """`port` is the door's, which `AWS_ENDPOINT_URL` names."""
        inner = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(inner)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", inner), 1):
                break
            time.sleep(0.1)
        self.door = Door(port, inner)
        self.door.open()
        import boto3

        self.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{inner}")
        self.client.create_bucket(Bucket=BUCKET)

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def end(self) -> None:
        self.door.shut()
        self.process.terminate()
        self.process.wait(30)


def environment(port: int) -> dict[str, str]:
    """What a process needs to use the server whose door is at this port, and no credentials but these."""
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_CONFIG_FILE": os.devnull}
