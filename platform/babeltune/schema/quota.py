"""How much one user may have trials compute in a calendar month: the key `quota` of a cluster file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from babeltune.schema.bounds import Problem
from babeltune.schema.records import Strict


@dataclass(frozen=True, kw_only=True)
class Quota(Strict):
    """Hours of a user in a calendar month (UTC), in which worker groups of the cluster have trials."""

    gpu_hours: float | None = None
    """Hours times GPUs: an hour of a trial with two workers on half a GPU each is one. Absent: no limit."""
    cpu_hours: float | None = None
    """Hours times CPU cores. Absent: no limit."""
    over_quota: bool = False
    """Whether `submit --over-quota` runs a sweep all the same."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that there are, by the names of their keys."""
        limits = {"gpu_hours": self.gpu_hours, "cpu_hours": self.cpu_hours}
        return {key: limit for key, limit in limits.items() if limit is not None}

    def problems(self) -> Iterator[Problem]:
        """Its problems."""
        for key, limit in self.limits.items():
            if limit < 0:
                yield (key,), f"{limit:g} must be at least 0 hours"
        if self.over_quota and not self.limits:
            yield ("over_quota",), "there is no limit to go over; give `gpu_hours` or `cpu_hours`"
