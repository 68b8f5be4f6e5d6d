"""What a sweep may leave behind, and must not: actors, placement groups, processes."""

import contextlib

import psutil
import ray
from ray._private.state import actors

from marked import MARK

RAYS_OWN_PROCESSES = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def leftovers(marked: str | None = None) -> list[str]:
    """What there is now of this process's Ray, or of the driver whose processes are so marked."""
    found: list[str] = []
    if marked is not None:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == marked:
                    found.append(f"process {process.pid}: {' '.join(process.cmdline())[:100]}")
    elif ray.is_initialized():
        found += [f"group {name}" for name in held()]
        found += [f"actor {a['ActorClassName']}" for a in actors().values() if a["State"] != "DEAD"]
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline()[:1])
                if title.startswith("ray::") and not title.startswith(RAYS_OWN_PROCESSES):
                    found.append(f"process {process.pid}: {title}")
    return found


def held() -> list[str]:
    """The placement groups that hold something."""
    return [name for name, group in ray.util.placement_group_table().items() if group["state"] != "REMOVED"]
