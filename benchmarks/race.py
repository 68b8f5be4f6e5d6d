"""Races two functions on the same inputs: rounds in turn, one thread, process CPU seconds, ratios round by round.

The last line is `NAME ratio <median> min <min> max <max> goal <goal>`; the exit code is 1 when the worst round is below
0.85 of the goal. `--json FILE` keeps the rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLACK = 0.85
"""The worst round may fall this far below the goal."""


@dataclass(frozen=True)
class Options:
    """What every benchmark can be told."""

    rounds: int
    json: Path | None


def options(description: str | None, rounds: int = 5) -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    return Options(max(1, given.rounds), given.json)


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of this process while the function runs."""
    started = time.process_time()
    function()
    return time.process_time() - started


def race(ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> list[tuple[float, float]]:
    """Seconds of ours and the peer's in each round, after one round of each that does not count.

    Who goes first alternates, so that a drifting machine favours neither.
    """
    ours()
    peer()
    rows = []
    for number in range(rounds):
        if number % 2:
            theirs, own = cpu_seconds(peer), cpu_seconds(ours)
        else:
            own, theirs = cpu_seconds(ours), cpu_seconds(peer)
        rows.append((own, theirs))
    return rows


def _peak(function: Callable[..., object], arguments: tuple[Any, ...], pipe: Any) -> None:
    function(*arguments)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def peak_memory(function: Callable[..., object], *arguments: Any) -> int:
    """Peak resident bytes of a fresh process that calls the (module-level) function."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(function, arguments, sender))
    process.start()
    sender.close()
    try:
        peak: int = receiver.recv()
    except EOFError as error:
        raise RuntimeError(f"{function.__name__} failed in its own process") from error
    finally:
        process.join()
    return peak


def verdict(name: str, ratios: list[float], goal: float, given: Options, **facts: Any) -> None:
    """Prints the last line, keeps the rows, and exits with 1 when the worst round is too far below the goal."""
    line = f"{name} ratio {statistics.median(ratios):.3g} min {min(ratios):.3g} max {max(ratios):.3g} goal {goal:g}"
    if given.json:
        given.json.write_text(json.dumps({"name": name, "ratios": ratios, "goal": goal, **facts}, indent=1))
    print(line, flush=True)
    sys.exit(1 if min(ratios) < SLACK * goal else 0)
