"""Keys and values of version 1 files that were renamed. Files with the old names keep working, with a warning.

`read_cluster` applies the tables to a document before it checks it, so the records know new names only. No key of sweep
files was renamed so far. One that is must keep its old name in what `sweep_id` hashes, so that ids stay the same.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from babeltune.errors import SpecError
from babeltune.schema.document import Document

log = logging.getLogger(__name__)

CLUSTER_KEYS: Mapping[str, str] = {
    "lanes": "worker_groups",
    "silence": "progress_timeout",
    "patience": "storage_timeout",
}
"""Old keys of cluster files, with the new ones."""
CLUSTER_VALUES: Mapping[tuple[str, str], str] = {("isolation", "lane"): "worker_group"}
"""Old values of cluster files by key and value, with the new ones."""


def rename(
    document: Document, keys: Mapping[str, str], values: Mapping[tuple[str, str], str] | None = None
) -> Document:
    """The document with new names only. Logs a warning for each old one, once. Raises `SpecError` for a key given
    twice."""
    renamed = Document({}, dict(document.places))
    for key, value in document.values.items():
        new = keys.get(key, key)
        if new != key:
            if new in document.values:
                both = f"is the old name of {new!r}, which is given too at {document.place((new,))}; keep {new!r}"
                raise SpecError(document.error((key,), both))
            _warn(document.error((key,), f"an old name that still works; write {new!r} instead"))
            for place in [place for place in renamed.places if place[0] == key]:
                renamed.places[(new, *place[1:])] = renamed.places.pop(place)
        renamed.values[new] = value
        newer = (values or {}).get((new, value)) if isinstance(value, str) else None
        if newer is not None:
            _warn(document.error((key,), f"{value!r} is an old name that still works; write {newer!r} instead"))
            renamed.values[new] = newer
    return renamed


@functools.cache
def _warn(line: str) -> None:
    """Logs the line once in a process: a command may read its cluster file twice."""
    log.warning(line)
