"""Where a mirror is: plain values that every node of a cluster understands."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

STORAGE_TIMEOUT_S = 30.0
"""Seconds in which a request is repeated, by default."""
DAY_S = 86_400.0
"""Seconds of a day. Files and command lines give the age of what may go in days."""


@dataclass(frozen=True, kw_only=True)
class StorageLocation:
    """A storage behind a URI, and the folder that mirrors it on each node."""

    uri: str
    cache: str = ""
    """The folder for mirrors on each node; absent: `$BABELTUNE_CACHE`, or `~/.cache/babeltune`."""
    timeout: float = STORAGE_TIMEOUT_S
    """Seconds in which a request is repeated."""
    unused_days: float | None = None
    """Days after which a node removes copies of what it has not used and the bucket has; None: never."""
    compares: bool = True
    """Whether its server refuses a write that expects another version of an object, as S3 does."""

    @property
    def folder(self) -> Path:
        """The mirror on this node, named by the URI's digest."""
        cache = self.cache or os.environ.get("BABELTUNE_CACHE") or "~/.cache/babeltune"
        name = hashlib.sha256(self.uri.rstrip("/").encode()).hexdigest()[:16]
        return Path(cache).expanduser().absolute() / name
