"""The fault matrix as a table: what each fault cost, at the end of a run."""

import json
import os
from pathlib import Path

TABLE = "BABELTUNE_FAULT_TABLE"  # names the file that the table is also written to, as JSON
COLUMNS = ("fault", "seconds to recover", "steps repeated", "lost")


def show(terminalreporter):
    """Prints the rows that tests have noted."""
    rows = [
        value
        for report in terminalreporter.stats.get("passed", ())
        for name, value in report.user_properties
        if name == "fault"
    ]
    if not rows:
        return
    lines = [f"| {' | '.join(row)} |" for row in (COLUMNS, ["---"] * len(COLUMNS), *sorted(rows))]
    terminalreporter.write_line("\n".join(["", *lines]))
    if TABLE in os.environ:
        from benchmarks.__main__ import commit  # which is not there where tests are planted in another folder
        from benchmarks.readme import write_after

        path = Path(os.environ[TABLE])
        write(path, rows, commit(), whole=is_whole(terminalreporter))
        write_after(path)


def is_whole(terminalreporter):
    """Whether all of `make chaos` ran and passed."""
    config, stats = terminalreporter.config, terminalreporter.stats
    return not (config.option.keyword or config.option.file_or_dir or stats.get("failed") or stats.get("error"))


def write(path, rows, now, *, whole):
    """Writes the table. Rows of a part of the faults take the place of earlier ones; each says its commit."""
    kept = [] if whole or not path.exists() else json.loads(path.read_text(encoding="utf-8"))["rows"]
    found = {row[0]: row for row in kept} | {row[0]: [*row, now] for row in rows}
    text = json.dumps({"rows": sorted(found.values())}, ensure_ascii=False, indent=0)
    path.write_text(text + "\n", encoding="utf-8")
