"""The fault matrix as a table: what each fault cost, at the end of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

TABLE = "BABELTUNE_FAULT_TABLE"
"""Names the file that the table is also written to, as JSON."""
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
        run = f"One run: {len(rows)} faults in {terminalreporter._session_start.elapsed().seconds:.0f} s."
        text = json.dumps({"run": run, "rows": sorted(rows)}, ensure_ascii=False, indent=0)
        Path(os.environ[TABLE]).write_text(text + "\n", encoding="utf-8")
