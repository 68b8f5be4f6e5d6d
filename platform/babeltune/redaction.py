"""Patterns of secrets: the password before a URI's host, one in its query, and names of keys and variables."""

import re

USER = re.compile(r"(?<=//)([^/\s]*)@")
"""Whatever stands before the last `@` of a URI's first part; a password may hold one itself."""
KEYS = "password|passwd|pwd|passfile|token|secret|api_?key"  # the names of keys whose value is a secret, as a pattern
QUERY = re.compile(rf"\b((?:{KEYS})=)([^&\s'\"]+)", re.IGNORECASE)
NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|(^|_)(KEY|PAT|PWD)(_|$)|APIKEY", re.IGNORECASE)
"""In the name of a variable: its value is a secret."""
VARIABLE = "${"  # begins a value that is somewhere else


def without_password(text: str) -> str:
    """The text with no user, password or token that a URI in it may hold."""
    return QUERY.sub(r"\1…", USER.sub("…@", text))


def holds_password(uri: str) -> bool:
    """Whether a password is written out in it; one from a variable is not."""
    user = USER.search(uri)
    password = user[1].partition(":")[2] if user else ""
    passwords = [password, *(match[2] for match in QUERY.finditer(uri))]
    return any(each and not each.startswith(VARIABLE) for each in passwords)
