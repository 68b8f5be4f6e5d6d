"""What all records share."""

from __future__ import annotations

from typing import ClassVar

Number = int | float
Scalar = bool | int | float | str | None


class Strict:
    """A record that pydantic, where it is at the door, refuses unknown keys for."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
