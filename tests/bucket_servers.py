"""Servers of buckets on 127.0.0.1, in processes of their own: S3 (moto), behind a door that a test can shut, and Google
Cloud Storage (gcp-storage-emulator)."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import requests

from ports import free_port, listens
from waiting import PATIENCE_S, wait_until

BUCKET = "babeltune"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Door:
    """Passes connections on to a server, and counts what passes. Shut, it refuses and breaks connections."""

    def __init__(self, port: int, server: int) -> None:
        self.port, self.server = port, server
        self.requests: list[str] = []
        """The first line of each."""
        self.answers: list[int] = []
        """Bytes."""
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._passes = threading.Event()
        self._passes.set()

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

    def hang(self, seconds: float) -> None:
        """Takes connections for so long, and passes on what they send only then."""
        self._passes.clear()
        time.sleep(seconds)
        self._passes.set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                one, _ = listener.accept()
                other = socket.create_connection(("127.0.0.1", self.server))
            except OSError:
                return
            self._open |= {one, other}
            for source, sink, note in ((one, other, self._asked), (other, one, self._answered)):
                threading.Thread(target=self._pass_on, args=(source, sink, note), daemon=True).start()

    def _asked(self, data: bytes) -> None:
        if data.startswith((b"GET ", b"HEAD ", b"PUT ", b"POST ", b"DELETE ")):
            self.requests.append(data.partition(b"\r\n")[0].decode())

    def _answered(self, data: bytes) -> None:
        self.answers.append(len(data))

    def _pass_on(self, source: socket.socket, sink: socket.socket, note: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                note(data)
                self._passes.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            self._open.discard(each)


def started(port: int, *command: str) -> subprocess.Popen[bytes]:
    """A Python module (`-m NAME`) or file that serves, once it listens at this port."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: listens(port) or process.poll() is not None)
    assert process.poll() is None, f"{command[0]} ended with {process.poll()}"
    return process


SERVER = str(Path(__file__).with_name("moto_at_once.py"))


class S3:
    """The server, its door, and the bucket as its own client sees it."""

    uri = f"s3://{BUCKET}"

    def __init__(self, port: int) -> None:
        """`port` is the door's, which `AWS_ENDPOINT_URL` names."""
        inner = free_port()
        self.process = started(inner, SERVER, "-H", "127.0.0.1", "-p", str(inner))
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

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def end(self) -> None:
        self.door.shut()
        self.process.terminate()
        self.process.wait(PATIENCE_S)


class GS:
    """The server, and the bucket as its web interface shows it."""

    uri = f"gs://{BUCKET}"

    def __init__(self) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.process = started(
            port, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"
        )
        requests.post(f"{self.address}/storage/v1/b?project=tests", json={"name": BUCKET}, timeout=PATIENCE_S)

    def _object(self, key: str) -> str:
        return f"{self.address}/storage/v1/b/{BUCKET}/o/{quote(key, safe='')}"

    def keys(self, prefix: str = "") -> list[str]:
        listed = requests.get(f"{self.address}/storage/v1/b/{BUCKET}/o", {"prefix": prefix}, timeout=PATIENCE_S)
        return [each["name"] for each in listed.json().get("items", ())]

    def get(self, key: str) -> bytes:
        return requests.get(f"{self._object(key)}?alt=media", timeout=PATIENCE_S).content

    def put(self, key: str, data: bytes) -> None:
        name = f"uploadType=media&name={quote(key, safe='')}"
        address = f"{self.address}/upload/storage/v1/b/{BUCKET}/o?{name}"
        requests.post(address, data=data, timeout=PATIENCE_S).raise_for_status()

    def remove(self, key: str) -> None:
        requests.delete(self._object(key), timeout=PATIENCE_S).raise_for_status()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)


class Preconditions:
    """Stands before the emulator of Google Cloud Storage, which ignores `ifGenerationMatch`. It answers as Google does:
    412 if the object has another generation."""

    def __init__(self, server: GS) -> None:
        self.uri = server.uri
        one_at_a_time = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __getattr__(self, name: str) -> Callable[[], None]:
                """One answer to GET, POST and all others."""
                if not name.startswith("do_"):
                    raise AttributeError(name)
                return self.answer

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                with one_at_a_time:
                    wanted, of_object = query.get("ifGenerationMatch"), unquote(path.rpartition("/o/")[2])
                    if wanted and wanted != [self.generation(query.get("name", [of_object])[0])]:
                        self.reply(412, b'{"error": {"code": 412, "message": "conditionNotMet"}}', "application/json")
                        return
                    headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
                    address = f"{server.address}{self.path}"
                    answer = requests.request(self.command, address, data=body, headers=headers, timeout=PATIENCE_S)
                self.reply(answer.status_code, answer.content, answer.headers.get("Content-Type", ""))

            def generation(self, key: str) -> str:
                answer = requests.get(server._object(key), timeout=PATIENCE_S)
                return answer.json()["generation"] if answer.ok else "0"

            def reply(self, code: int, content: bytes, kind: str) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def environment(port: int) -> dict[str, str]:
    """What a process needs to use the server whose door is at this port, and no credentials but these."""
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_CONFIG_FILE": os.devnull}
