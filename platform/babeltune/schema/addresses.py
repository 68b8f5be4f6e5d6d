"""Names of files, folders, models, data sets and their parts, which are no addresses.

Libraries that read such names would take `http://…`, `zip://…::http://…` or `file:///…` for an address, and go there.
Pure, and imported by whatever reads."""

import re
from pathlib import PurePath

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
LONGEST_PART = 255
LONGEST = 4_095
"""Bytes of a path, and of one of its parts: what Linux allows."""

PLACE = "a path or name without `://`, `::` and control characters, and no longer than the system allows"
INSIDE = f"{PLACE}, that stays inside: no scheme such as `file:`, no whole path, no `~` and no `..`"
UNPRINTED = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and halves of a pair of UTF-16


def is_place(text: str) -> bool:
    """Whether the text can name a file, a folder or a hub id, and nothing else."""
    if "://" in text or "::" in text or UNPRINTED.search(text):
        return False
    raw = text.encode()
    return len(raw) <= LONGEST and all(len(part) <= LONGEST_PART for part in raw.split(b"/"))


def is_inside(text: str) -> bool:
    """Whether the text can name a part of a data set or model, such as a split, a revision or a pattern of files."""
    path = PurePath(text)
    leads_out = path.is_absolute() or ".." in path.parts or text.startswith("~") or SCHEME.match(text)
    return is_place(text) and not leads_out
