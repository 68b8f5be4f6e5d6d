"""Runs all benchmarks one after the other, or those that are named, and ends with one table.

Neither a missed goal nor a crash stops it; the exit code is 1 in the end if there was one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ALL = (
    *("soft_loss", "queue_loss", "gradcache", "train", "static_train", "teacher_store", "trial_start"),
    *("sweep_overhead", "thousand_trials", "tracker", "mining", "evaluation"),
)
TABLE = "{:<16} {:>8} {:>8} {:>8} {:>8}  {}"
"""The columns: name, median, least and largest ratio, goal, and what came of it."""


def run(name: str, package: str, place: Path) -> tuple[str, bool]:
    """One line of the table, and whether the goal was met."""
    print(f"== {name}", flush=True)
    kept = place / f"{name}.json"
    code = subprocess.run([sys.executable, "-m", f"{package}.{name}", "--json", str(kept)], check=False).returncode
    if not kept.exists():
        return TABLE.format(name, "-", "-", "-", "-", f"crashed with exit code {code}"), False
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    middle, least, most = (figure(found["ratios"]) for figure in (statistics.median, min, max))
    floor = found["floor"]
    uneven = [f"the worst round is below {floor:.3g}"] if middle >= found["goal"] and least < floor else []
    word = "; ".join(["missed" if code else "met", *uneven, *found["broken"]])
    return TABLE.format(
        name, *(f"{ratio:.3g}" for ratio in (middle, least, most)), f"{found['goal']:.3g}", word
    ), not code


def main(names: Sequence[str], package: str = "benchmarks") -> int:
    """Runs the benchmarks of these names, or all; returns the exit code."""
    known = ALL if package == "benchmarks" else names
    if unknown := [name for name in names if name not in known]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as place:
        rows = [run(name, package, Path(place)) for name in names or ALL]
    print("\n" + TABLE.format("benchmark", "ratio", "min", "max", "goal", "").rstrip())
    for line, _ in rows:
        print(line)
    return 0 if all(met for _, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
