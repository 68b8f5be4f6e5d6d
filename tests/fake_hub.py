"""A small server that speaks what `huggingface_hub` needs to make a repository and commit files to it."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the server has been sent."""

    url: str = ""
    token: str = "hf_right"
    repositories: dict[str, bool] = field(default_factory=dict)  # repository -> whether it is private
    files: dict[str, bytes] = field(default_factory=dict)  # `REPO/PATH` -> content, of all commits
    large: dict[str, bytes] = field(default_factory=dict)
    """SHA-256 -> content of files that went to the store of large ones."""
    commits: int = 0


def handler(hub):
    """The routes of the hub: make a repository, say how files go, take large ones, take a commit."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.body()
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.answer({"error": "Invalid user token"}, 401)
            elif self.path == "/api/repos/create":
                request_body = json.loads(body)
                name = f"{request_body.get('organization') or 'me'}/{request_body['name']}"
                new = name not in hub.repositories
                hub.repositories.setdefault(
                    name, request_body.get("visibility") == "private" or request_body.get("private", False)
                )
                self.answer({"url": f"{hub.url}/{name}"}, 200 if new else 409)
            elif self.path == "/api/validate-yaml":
                self.answer({"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                request_body = json.loads(body)["files"]
                modes = [(each["path"], each["path"].endswith(".safetensors")) for each in request_body]
                large = [
                    {"path": p, "uploadMode": "lfs" if big else "regular", "shouldIgnore": False} for p, big in modes
                ]
                self.answer({"files": large})
            elif self.path.endswith("/objects/batch"):
                objects = [
                    {**each, "actions": {"upload": {"href": f"{hub.url}/large/{each['oid']}"}}}
                    for each in json.loads(body)["objects"]
                ]
                self.answer({"transfer": "basic", "objects": objects})
            elif "/commit/" in self.path:
                self.commit([json.loads(line) for line in body.decode().splitlines()])
            else:
                self.answer({"error": f"no route {self.path}"}, 404)

        def do_PUT(self):
            content = self.body()
            hub.large[hashlib.sha256(content).hexdigest()] = content
            self.answer({})

        def commit(self, lines):
            repo = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    hub.files[f"{repo}/{value['path']}"] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[f"{repo}/{value['path']}"] = hub.large[value["oid"]]
            hub.commits += 1
            self.answer({"success": True, "commitUrl": f"{hub.url}/{repo}/commit/abc", "commitOid": "abc"})

        def body(self):
            """The bytes of a request, whose length is said or which comes in chunks."""
            if "Content-Length" in self.headers:
                return self.rfile.read(int(self.headers["Content-Length"]))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def answer(self, value, code=200):
            text = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            """Nothing goes to the test's output."""

    return Handler


@contextmanager
def fake_hub(monkeypatch):
    """A hub on this machine, to which this process's `huggingface_hub` speaks, with the token that it takes."""
    hub = Hub()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(hub)) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # this hub has the older store alone
        monkeypatch.setenv("HF_TOKEN", hub.token)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
