"""Eight processes write metrics through trackers: how many a second arrive, and how long does a step wait for them?

Each process has a tracker of its own, as eight drivers have, and writes what a training step does, ten values at a
time. The clock runs from the first value until the store has acknowledged the last. Once the store is a real MLflow
server with one worker, once the sqlite database itself. Then a step's waits for a line in the log are timed while the
server that takes them is stopped in mid-request (it answers nobody) and while it is killed. Goals: 2,000 metrics a
second, and no wait of more than 50 ms. `ratio` is the rate of the slower store by those 2,000."""

import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

from babeltune.schema.records import Point
from babeltune.tracking.mlflow_client import open_client, serve_command
from benchmarks.event_log import EventLog
from benchmarks.race import Row, options, verdict

PROCESSES, STEPS, VALUES = 8, 250, 10
PER_SECOND = 2000.0
LONGEST = 0.05  # seconds that a step may wait
STEP = 0.01  # seconds of a training step, in which it does not touch the tracker
DEAD = 3.0  # seconds for which the server is stopped, and for which it is dead
START_TIMEOUT_S = 600.0


def point(step: int) -> Point:
    values = {f"train/value_{number}": step + number / VALUES for number in range(VALUES)}
    return Point(step=step, time_ms=1_700_000_000_000 + step, values=values)


def opened(uri: str, log: Path, name: str) -> EventLog:
    """A tracker whose runs are there."""
    log.parent.mkdir()
    tracker = EventLog(uri, log, "benchmark")
    tracker.start_sweep(name, {}, {})
    tracker.start_trial(0, {}, {})
    if not tracker.flush(START_TIMEOUT_S):
        raise SystemExit(f"{uri} does not take a run: {tracker.trouble}")
    return tracker


def write(uri: str, log: Path, round_: int, begin: Barrier, end: Barrier) -> None:
    """One of the processes."""
    tracker = opened(uri, log, f"{log.parent.name}-{round_}")
    begin.wait()
    for step in range(1, STEPS + 1):
        tracker.metrics(0, [point(step)])
    if not tracker.flush(START_TIMEOUT_S) or tracker.refused:
        raise SystemExit(f"{uri} did not take everything: {tracker.trouble}, {tracker.refused} requests refused")
    end.wait()
    tracker.close()


def throughput(uri: str, place: Path, round_: int) -> float:
    """Metrics a second from all processes together."""
    context = multiprocessing.get_context("forkserver")  # what each of them imports is imported once
    context.set_forkserver_preload(
        ["babeltune.tracking.tracker", "mlflow.entities", "mlflow.store.tracking.sqlalchemy_store"]
    )
    begin, end = context.Barrier(PROCESSES + 1), context.Barrier(PROCESSES + 1)
    logs = [place / f"log-{round_}-{number}" / "events.jsonl" for number in range(PROCESSES)]
    processes = [context.Process(target=write, args=(uri, log, round_, begin, end)) for log in logs]
    for process in processes:
        process.start()
    begin.wait(START_TIMEOUT_S)
    started = time.perf_counter()
    end.wait(START_TIMEOUT_S)
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    return PROCESSES * STEPS * VALUES / seconds


@contextmanager
def server(place: Path) -> Iterator[tuple[str, int]]:
    """A real MLflow server on a new database: its address, and its process group."""
    place.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command, environment = serve_command(f"sqlite:///{place}/mlflow.db", place / "artifacts", port)
    uri = f"http://127.0.0.1:{port}"
    with (place / "server.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=place, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"no server: {(place / 'server.log').read_text()[-1000:]}") from None
                time.sleep(0.2)
        yield uri, process.pid
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def waits(tracker: EventLog, seconds: float, first: int) -> list[float]:
    """Seconds that each step waited in `metrics`, for so long."""
    durations: list[float] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        started = time.perf_counter()
        tracker.metrics(0, [point(first + len(durations))])
        durations.append(time.perf_counter() - started)
        time.sleep(STEP)
    return durations


def dead_server(place: Path) -> list[float]:
    """The waits of the steps while a server is stopped in mid-request, and then dead."""
    with server(place) as (uri, group):
        tracker = opened(uri, place / "dead" / "events.jsonl", "dead")
        tracker.metrics(0, [point(step) for step in range(1, 2000)])
        os.killpg(group, signal.SIGSTOP)
        while_stopped = waits(tracker, DEAD, 2000)
        os.killpg(group, signal.SIGKILL)
        while_dead = waits(tracker, DEAD, 2000 + len(while_stopped))
        if tracker.waiting() == 0:
            raise SystemExit("the dead server took everything, so nothing was measured")
        tracker.close(0)
    return while_stopped + while_dead


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    broken = []
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        rates_by_kind: dict[str, list[float]] = {"server": [], "direct": []}
        direct = f"sqlite:///{place}/direct.db"
        open_client(direct).search_experiments()
        with server(place / "server") as (uri, _):
            for round_ in range(args.rounds):
                for kind, target in (("server", uri), ("direct", direct)):
                    rates_by_kind[kind].append(throughput(target, place, 2 * round_ + (kind == "direct")))
                    print(f"round {round_ + 1}: {kind} {rates_by_kind[kind][-1]:,.0f} metrics/s", flush=True)
        longest = []
        for round_ in range(args.rounds):
            steps = dead_server(place / f"dead-{round_}")
            longest.append(max(steps))
            middle, most = 1000 * statistics.median(steps), 1000 * longest[-1]
            print(
                f"round {round_ + 1}: {len(steps)} steps waited {middle:.2f} ms at the median, {most:.1f} at most",
                flush=True,
            )
    for kind, rates in rates_by_kind.items():
        print(f"{kind} {statistics.median(rates):,.0f} metrics/s min {min(rates):,.0f} max {max(rates):,.0f}")
    print(f"longest wait {1000 * max(longest):.1f} ms goal {1000 * LONGEST:.0f} ms")
    if max(longest) > LONGEST:
        broken.append(f"a step waited {1000 * max(longest):.0f} ms, allowed {1000 * LONGEST:.0f}")
    slower = min(rates_by_kind.values(), key=statistics.median)
    rows = [Row(ours=1 / rate, peer=1 / PER_SECOND) for rate in slower]
    verdict("tracker", rows, 1.0, args, broken=broken, metrics_per_second=rates_by_kind, longest_wait=longest)


if __name__ == "__main__":
    main()
