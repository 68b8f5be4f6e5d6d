"""The recorded table: settings, their reports and what they cost."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass
from pathlib import Path

from babeltune.records import Scalar
from babeltune.training.compute import Work

TABLE = Path(__file__).with_name("table.json.gz")


@dataclass(frozen=True)
class Setting:
    """One setting as it was trained."""

    number: int
    params: dict[str, Scalar]
    objective: tuple[float, ...]
    """At each report that it made."""
    pairs: tuple[int, ...]
    """Seen at each report."""
    operations: float
    """Of training on one pair."""
    bytes: float
    """Moved by training on one pair."""
    cpu_seconds: float
    """Of its training, reports included."""
