"""Runs all benchmarks one after the other, or those that are named, and ends with one table.

Neither a missed goal nor a crash stops it; the exit code is 1 in the end if there was one."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from babeltune.files import write_whole
from benchmarks.readme import write_after

ALL = (
    *("soft_loss", "queue_loss", "gradcache", "train", "static_train", "teacher_store", "trial_start"),
    *("sweep_overhead", "thousand_trials", "scale", "opening", "corpus", "tracker", "mining", "evaluation"),
    *("bucket_requests", "reading", "serving"),
)
TABLE = "{:<16} {:>8} {:>8} {:>8} {:>8}  {}"
"""The columns: name, median, least and largest ratio, goal, and what came of it."""


TITLES = ("benchmark", "ratio", "min", "max", "goal", "")


def run(name: str, package: str, place: Path) -> tuple[tuple[str, ...], bool]:
    """One line of the table, and whether the goal was met."""
    print(f"== {name}", flush=True)
    record_file = place / f"{name}.json"
    code = subprocess.run(
        [sys.executable, "-m", f"{package}.{name}", "--json", str(record_file)], check=False
    ).returncode
    if not record_file.exists():
        return (name, "-", "-", "-", "-", f"crashed with exit code {code}"), False
    record: dict[str, Any] = json.loads(record_file.read_text(encoding="utf-8"))
    middle, least, most = (figure(record["ratios"]) for figure in (statistics.median, min, max))
    floor = record["floor"]
    uneven = [f"the worst round is below {floor:.3g}"] if middle >= record["goal"] and least < floor else []
    word = "; ".join(["missed" if code else "met", *uneven, *record["broken"]])
    return (name, *(f"{ratio:.3g}" for ratio in (middle, least, most)), f"{record['goal']:.3g}", word), not code


def commit() -> str:
    """The measured commit, with a plus if files were changed since. `BABELTUNE_COMMIT` names it on a machine
    without git."""
    if name := os.environ.get("BABELTUNE_COMMIT"):
        return name
    process = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return process.stdout.strip() or "unknown"


def main(names: Sequence[str], package: str = "benchmarks", record_file: Path | None = None) -> int:
    """Runs the benchmarks of these names, or all, and keeps the table as JSON; returns the exit code."""
    allowed = ALL if package == "benchmarks" else names
    if unknown := [name for name in names if name not in allowed]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as place:
        rows = [run(name, package, Path(place)) for name in names or ALL]
    print("\n" + TABLE.format(*TITLES).rstrip())
    for line, _ in rows:
        print(TABLE.format(*line))
    if record_file is not None:
        record = {"commit": commit(), "titles": TITLES, "rows": [line for line, _ in rows]}
        write_whole(record_file, (json.dumps(record, ensure_ascii=False, indent=0) + "\n").encode())
        write_after(record_file)
    return 0 if all(within_goal for _, within_goal in rows) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to this file")
    args = parser.parse_args()
    sys.exit(main(args.names, record_file=args.json))
