"""The settings of a pool of worker groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from babeltune.sweep.workers.nodes import resources_of, worker_groups_that_fit

if TYPE_CHECKING:  # a controller, which imports this, would read YAML's and pydantic's modules for a name
    from babeltune.schema.cluster import Isolation


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How many worker groups, what each holds, and what it runs."""

    count: int | Literal["auto"]  # the most worker groups; `auto`: as many as the nodes hold
    workers: int  # ranks of each worker group
    cpus_per_worker: float
    gpus_per_worker: float
    run_trial: str  # the import path of the function that trains a trial
    storage: str | Path  # the folder of Ray Train's runs
    least_workers: int | None = None  # ranks that are enough where nodes are gone; None: all of them
    isolation: Isolation = "worker_group"
    progress_timeout: float = 1800.0  # seconds without progress after which a worker group is replaced

    @property
    def least(self) -> int:
        """Ranks that a worker group has at least."""
        return min(self.workers, self.least_workers or self.workers)

    @property
    def resources(self) -> dict[str, float]:
        """Those of each rank, as Ray names them."""
        return resources_of(self.cpus_per_worker, self.gpus_per_worker)

    @property
    def threads(self) -> int:
        """Those of torch in each rank."""
        return worker_threads(self.cpus_per_worker)

    def fitting_groups(self) -> int:
        """How many worker groups the nodes hold now. Raises `ClusterError` for none."""
        return worker_groups_that_fit(self.workers, self.cpus_per_worker, self.gpus_per_worker, least=self.least)


def worker_threads(cpus_per_worker: float) -> int:
    """Threads of torch in a worker."""
    return max(1, int(cpus_per_worker))
