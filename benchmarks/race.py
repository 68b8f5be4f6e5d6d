"""Races ours against a peer on the same work: rounds in turn, one thread, ratios round by round.

The last line is `NAME ratio <median> min <min> max <max> goal <goal> floor <floor>`. The exit code is 1 when the median
is below the goal, the worst round is below the floor, or a promise of the benchmark is broken. `--json FILE` keeps the
rows."""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from babeltune.files import write_whole

Value = TypeVar("Value")

SLACK = 0.85
"""Floor of the worst round, as a share of the goal. It suits CPU seconds, which other work on the machine hardly moves;
a benchmark of wall time gives its own."""


@dataclass(frozen=True)
class Options:
    """The options of every benchmark."""

    rounds: int = 5
    json: Path | None = None


def options(description: str | None, arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line, and confines this process to one thread, as what is raced should be."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=Options.rounds, help="rounds that count (at least and by default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    args = parser.parse_args(arguments)
    if args.rounds < Options.rounds:
        parser.error(f"--rounds is {args.rounds}; a verdict needs at least {Options.rounds}")
    one_thread()
    return Options(args.rounds, args.json)


def one_thread() -> None:
    """Confines this process and those that it starts to one thread each."""
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    torch.set_num_threads(1)


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of this process while the function runs."""
    started = time.process_time()
    function()
    return time.process_time() - started


@dataclass(frozen=True)
class Row:
    """One round's seconds."""

    ours: float
    peer: float

    @property
    def ratio(self) -> float:
        return self.peer / self.ours


def race(ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> list[Row]:
    """The seconds that either returns in each round, after one round that does not count.

    Who goes first alternates, so that a drifting machine favours neither."""
    ours()
    peer()
    rows = []
    for number in range(rounds):
        if number % 2:
            peer_s, ours_s = peer(), ours()
        else:
            ours_s, peer_s = ours(), peer()
        rows.append(Row(ours_s, peer_s))
        print(f"round {number + 1}: ours {ours_s:.4g} s, peer {peer_s:.4g} s, ratio {peer_s / ours_s:.3g}", flush=True)
    return rows


def in_own_process(function: Callable[..., Value], *arguments: Any) -> Value:
    """The result of a module-level function in a fresh process."""
    value: Value = _received(function.__name__, function, arguments)
    return value


def peak_memory(function: Callable[..., object], *arguments: Any) -> int:
    """Peak resident bytes of a fresh process of one thread that calls the (module-level) function."""
    peak: int = _received(function.__name__, _peak_of, (function, arguments))
    return peak


def _received(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        raise RuntimeError(f"{name} failed in its own process; its error is above") from error
    finally:
        process.join()


def _send(pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(function(*arguments))


def _peak_of(function: Callable[..., object], arguments: tuple[Any, ...]) -> int:
    one_thread()
    function(*arguments)
    return own_peak()


def own_peak() -> int:
    """Peak resident bytes of this process so far."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    # Not `ru_maxrss`: on Linux a new process inherits its parent's.
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def verdict(
    name: str,
    rows: Sequence[Row],
    goal: float,
    args: Options,
    *,
    broken: Sequence[str] = (),
    slack: float = SLACK,
    **facts: Any,
) -> NoReturn:
    """Prints what is `broken` and the last line, keeps the rows, and ends the process: with 0 if nothing is amiss.

    The floor of the worst round is `slack` of the goal."""
    ratios = [row.ratio for row in rows]
    middle, least, most, floor = statistics.median(ratios), min(ratios), max(ratios), slack * goal
    if args.json:
        values = {"name": name, "goal": goal, "floor": floor, "ratios": ratios, "rows": [vars(row) for row in rows]}
        values |= {"broken": list(broken), "load": os.getloadavg(), **facts}
        write_whole(args.json, (json.dumps(values, indent=1) + "\n").encode())
    for fault in broken:
        print(f"{name}: {fault}", file=sys.stderr, flush=True)
    print(f"{name} ratio {middle:.3g} min {least:.3g} max {most:.3g} goal {goal:g} floor {floor:.3g}")
    sys.exit(1 if broken or middle < goal or least < floor else 0)
