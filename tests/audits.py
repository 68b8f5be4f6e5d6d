"""Reads what a storage's `audit.jsonl` says."""

import json
from contextlib import suppress

from babeltune.sweep.sync.audit import AUDIT, AuditLine


def read_audit(storage):
    """The lines of a storage, the first first. A line that was cut off is passed over."""
    path = storage / AUDIT
    lines = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError):
            lines.append(AuditLine(**json.loads(line)))
    return lines
