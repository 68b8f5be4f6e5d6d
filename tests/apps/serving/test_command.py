"""`babeltune serve` as a process: what it refuses at the start, and that it ends after the requests in flight."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import requests
import yaml

from babeltune.apps.serving.deployment import build
from babeltune.errors import SpecError
from babeltune.models.hub import BUNDLED
from babeltune.schema.cluster import read_cluster
from ports import free_port
from waiting import PATIENCE_S, wait_until


@pytest.mark.slow
def test_sigterm_ends_it_with_0_after_the_requests_in_flight(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "babeltune.cli", "serve", BUNDLED, "--port", str(port), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        try:
            wait_until(lambda: healthy(port) or process.poll() is not None, "it serves")
            body = json.dumps({"inputs": ["a", "b"]}).encode()
            head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as one:
                one.sendall(head + body[:5])
                wait_until(lambda: healthy(port), "it has read the beginning")
                process.send_signal(signal.SIGTERM)
                wait_until(lambda: not healthy(port), "it takes no new connection")
                one.sendall(body[5:])
                answer = b""
                while part := one.recv(65536):
                    answer += part
            assert answer.startswith(b"HTTP/1.1 200")
            assert len(json.loads(answer.partition(b"\r\n\r\n")[2])) == 2
            output, words = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, words
    assert json.loads(output) == {"url": f"http://127.0.0.1:{port}", "models": [BUNDLED]}
    assert "Traceback" not in words


def healthy(port):
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE_S).ok
    except requests.ConnectionError:
        return False


def test_a_busy_port_and_a_wrong_model_are_one_line(command, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, words = command("serve", BUNDLED, "--port", port)
    assert code == 1
    assert f"--port {port}: 127.0.0.1:{port} cannot be used" in words
    words = command.refuses("serve", "absent@champion", "--port", free_port())
    assert "has no models:/absent@champion; there: none" in words
    assert f"{BUNDLED!r} is named twice; name each model once" in command.refuses("serve", BUNDLED, BUNDLED)
    (tmp_path / "texts.txt").write_text("a\n")
    words = command.refuses("serve", tmp_path / "texts.txt", "--port", free_port())
    assert "texts.txt' is a file; give the folder of a model" in words


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        ("{host: here, token_env: T}", "serve.host: 'here' must be an IP address"),
        ("{host: 0.0.0.0}", "serve.host: 0.0.0.0 is reached from other machines; name a token"),
        ("{token_env: T, token_file: t}", "serve.token_file: token_env is given too; keep one"),
        ("{token: abc}", "serve.token"),
    ],
)
def test_a_cluster_file_that_opens_the_server_names_a_token(tmp_path, serve, words):
    file = tmp_path / "c.yaml"
    file.write_text(f"version: 1\nserve: {serve}\n")
    with pytest.raises(SpecError) as error:
        read_cluster(file)
    assert words in str(error.value)


def test_a_token_that_others_can_read_or_that_is_no_word_is_refused(tmp_path, monkeypatch):
    file, token = tmp_path / "c.yaml", tmp_path / "token"
    file.write_text(f"version: 1\nserve: {{token_file: {token}}}\n")
    serving = read_cluster(file).serve
    with pytest.raises(SpecError, match="cannot be read"):
        serving.token()
    token.write_text("secret\n")
    token.chmod(0o644)
    with pytest.raises(SpecError, match="0644, so that others may read it"):
        serving.token()
    token.chmod(0o600)
    assert serving.token() == "secret"
    token.write_text("two words")
    with pytest.raises(SpecError, match="is one word of one line"):
        serving.token()
    file.write_text("version: 1\nserve: {token_env: SERVE_TOKEN}\n")
    with pytest.raises(SpecError, match="SERVE_TOKEN holds no token"):
        read_cluster(file).serve.token()
    monkeypatch.setenv("SERVE_TOKEN", "word")
    assert read_cluster(file).serve.token() == "word"


def test_ray_serve_gets_no_app_without_a_token(tmp_path):
    with pytest.raises(SpecError, match="other machines reach Ray Serve; name a token"):
        build({"models": ["a"]})
    for args in ({}, {"models": "a"}, {"models": ["a"], "port": 1}):
        with pytest.raises(SpecError, match="must be `models`, a list of names"):
            build(args)


EXPORTED = re.compile(r'^ray_babeltune_serve_texts_total\{.*replica="[^"]+".*\} 2\.0$', re.MULTILINE)


def figures(port):
    """What Ray exports for Prometheus; nothing before it does."""
    try:
        return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).text
    except requests.ConnectionError:
        return ""


@pytest.mark.long
def test_ray_serve_runs_the_same_app(tmp_path):
    """In a process of its own: Ray Serve has one controller for each Ray. Ray exports the metrics of each replica."""
    (tmp_path / "c.yaml").write_text("version: 1\nserve: {host: 0.0.0.0, token_env: SERVE_TOKEN}\n")
    port, metrics = free_port(), free_port()
    application = {
        "name": "vectors",
        "route_prefix": "/",
        "import_path": "babeltune.apps.serving.deployment:build",
        "args": {"models": [BUNDLED], "cluster": str(tmp_path / "c.yaml")},
        "runtime_env": {"env_vars": {"SERVE_TOKEN": "secret"}},
    }
    config = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    program = (
        "import sys, yaml, ray; from ray import serve; from ray.serve.schema import ServeDeploySchema\n"
        "ray.init(address='local', num_cpus=4, include_dashboard=False, logging_level='ERROR',"
        f" _metrics_export_port={metrics})\n"
        "config = ServeDeploySchema.model_validate(yaml.safe_load(sys.argv[1]))\n"
        "serve.start(http_options=config.http_options.model_dump(include={'host', 'port'}))\n"
        "from babeltune.apps.serving.deployment import build\n"
        "serve.run(build(config.applications[0].args), name='vectors')\n"
        "print('ready', flush=True); sys.stdin.read(); serve.shutdown(); ray.shutdown()\n"
    )
    command = [sys.executable, "-c", program, yaml.safe_dump(config)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "SERVE_TOKEN": "secret", "RAY_metrics_report_interval_ms": "1000"}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert any(line.startswith("ready") for line in process.stdout)
            url, body = f"http://127.0.0.1:{port}/embed", {"inputs": ["a", "b"]}
            assert requests.post(url, json=body, timeout=PATIENCE_S).status_code == 401
            sent = {"authorization": "Bearer secret"}
            rows = requests.post(url, json=body, headers=sent, timeout=PATIENCE_S).json()
            assert [len(row) for row in rows] == [384, 384]
            page = requests.get(url.replace("/embed", "/metrics"), headers=sent, timeout=PATIENCE_S)
            assert page.status_code == 404, "that of one replica by chance"
            wait_until(lambda: EXPORTED.search(figures(metrics)), "Ray exports the texts that the replica has encoded")
            process.communicate("", timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0
