"""Requests to a bucket and bytes sent to it, of real sweeps of three sizes: do they grow with the number of trials?

Each sweep trains a small static student, two reports a trial, and saves to an S3 server (moto) of this process, which
counts. The driver's and the workers' requests are counted alike. The lease is left out, as it costs a request each few
seconds and not by trial. The ratio is the smallest sweep's requests a trial by the largest's."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.fencing import OWNER
from babeltune.sweep.workers.connection import local_ray
from benchmarks.__main__ import commit
from benchmarks.race import Row, options, verdict
from benchmarks.sweep_overhead import ROOT

SIZES = (16, 32, 64)  # trials
BUCKET = "counted"
GOAL = 0.8  # requests a trial of the smallest sweep by those of the largest, at least
SMALL = """
method: mse_distillation
parameters: {training.learning_rate: {log_float: [1.0e-3, 5.0e-3]}}
student: {kind: static, width: 32, vocabulary: 1000, max_tokens: 32, projection: teacher}
training: {pairs: 256, reports: 2, global_batch: 128}
scheduler: {kind: none}
sampler: {kind: random}
"""


@dataclass
class RequestCounts:
    """The requests that a server got."""

    requests: Counter[str] = field(default_factory=Counter)  # requests by verb and record
    sent: int = 0  # bytes

    def note(self, environ: dict[str, Any]) -> None:
        """Counts one request."""
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        key = (query.get("prefix") or [environ["PATH_INFO"]])[0]
        if key.endswith(OWNER):
            return
        verb = "LIST" if "list-type" in query else environ["REQUEST_METHOD"]
        self.requests[f"{verb} {kind_of(key)}"] += 1
        self.sent += int(environ.get("CONTENT_LENGTH") or 0)

    def __sub__(self, before: RequestCounts) -> RequestCounts:
        return RequestCounts(self.requests - before.requests, self.sent - before.sent)

    def copy(self) -> RequestCounts:
        """As it is now."""
        return RequestCounts(self.requests.copy(), self.sent)


def kind_of(key: str) -> str:
    """The kind of an object: a checkpoint, a store, or the name of a record."""
    for kind in ("checkpoints", "stores"):
        if f"/{kind}" in key:
            return kind
    return key.rstrip("/").rpartition("/")[2] if "." in key else "a sweep"


@contextmanager
def server(requests: RequestCounts) -> Iterator[None]:
    """An S3 server on loopback with one bucket, and the environment that names it."""
    moto, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def counting(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with one_at_a_time:
            requests.note(environ)
        return moto(environ, start)  # type: ignore[no-any-return]

    listening = make_server("127.0.0.1", 0, counting, threaded=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listening.server_port}",
        **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "counted"),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
    }
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    try:
        yield
    finally:
        listening.shutdown()


def sweep_of(trials: int, requests: RequestCounts, place: Path) -> RequestCounts:
    """The requests of a sweep beyond those of its preparation, which the first of all makes alone."""
    overlay = place / f"{trials}.yaml"
    overlay.write_text(f"{SMALL}name: requests_{trials}\nbudget: {{trials: {trials}, workers: 1}}\n", encoding="utf-8")
    sweep = read_sweep(ROOT / "search_spaces" / "quickstart.yaml", overlays=[overlay])
    cluster = Cluster(
        storage=f"s3://{BUCKET}/all", cache=str(place), mlflow=f"sqlite:///{place}/mlflow.db", worker_groups=1
    )
    before = requests.copy()
    submit(sweep, cluster)
    return requests - before


def main() -> None:
    """Runs the benchmark."""
    args, requests = options(__doc__), RequestCounts()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with TemporaryDirectory() as temporary, server(requests), local_ray(num_cpus=3, env=dict(os.environ)):
        place = Path(temporary)
        sweep_of(2, requests, place)  # makes the stores
        by_size = {trials: sweep_of(trials, requests, place) for trials in SIZES}
    per_trial = {trials: sum(part.requests.values()) / trials for trials, part in by_size.items()}
    for trials, part in by_size.items():
        often = ", ".join(f"{name} {count / trials:.2f}" for name, count in part.requests.most_common(12))
        print(
            f"{trials} trials: {per_trial[trials]:.1f} requests and {part.sent / trials / 1000:.0f} kB a trial: {often}"
        )
    facts: dict[str, Any] = {
        "commit": commit(),
        "sizes": [
            {
                "trials": trials,
                "requests": sum(part.requests.values()),
                "bytes": part.sent,
                "by_kind": dict(part.requests.most_common()),
            }
            for trials, part in by_size.items()
        ],
    }
    verdict("bucket_requests", [Row(ours=per_trial[SIZES[-1]], peer=per_trial[SIZES[0]])], GOAL, args, **facts)


if __name__ == "__main__":
    main()
