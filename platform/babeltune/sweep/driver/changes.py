"""Adds an event to a sweep's ledger for a command: through the sweep's driver, or as a short driver without one.

The ledger has one writer at a time. So what is asked of a driver is a file in `requests/` with a line of the ledger.
The driver adds it about once a second, under its lease. It is there until the ledger has it, so a driver that dies in
between leaves it to the next one: no event does harm twice."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from babeltune.errors import storage_refusals
from babeltune.schema.cluster import Cluster
from babeltune.sweep.driver.mlflow_reader import track
from babeltune.sweep.driver.recorder import INTERRUPTED_WAIT_S, close_tracker
from babeltune.sweep.state.fencing import DrivenError
from babeltune.sweep.state.folder import LABELS, REQUESTS, SweepFolder, add_to_ledger
from babeltune.sweep.state.lease import folder_lease, only_driver
from babeltune.sweep.state.log import SweepLog, log_of
from babeltune.sweep.state.stored import may_be_driven
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.view import StorageView

POLL_S = 0.3  # seconds between two looks whether the driver has added it
ASKED = ("label", "pause", "continue")  # events that another process may ask for


def take_requests(folder: SweepFolder) -> None:
    """Adds what was asked for to the ledger. The caller is the sweep's driver. What is no request is removed."""
    for path in sorted((folder.path / REQUESTS).glob("*.json")):
        try:
            event = json.loads(path.read_bytes())
            if (kind := event.pop("event")) in ASKED:
                add_event(folder, kind, **event)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            folder.note(f"{path.name} is no request ({type(error).__name__}), and is removed")
        except OSError:  # such as a full disk: it is done later
            return
        path.unlink(missing_ok=True)


def add_event(folder: SweepFolder, event: str, **facts: object) -> None:
    """Adds an event of the sweep to the ledger. A label is in `labels.json`, too."""
    add_to_ledger(folder, event, **facts)
    if event == "label":
        folder.write(LABELS, log_of(folder.path).labels)


def change(
    view: StorageView,
    folder: SweepFolder,
    event: str,
    facts: dict[str, object],
    done: Callable[[SweepLog], bool],
    wait_s: float,
) -> bool:
    """Whether the ledger has the event within `wait_s` seconds; a driver that is busy adds it later.

    `done` says of the log whether it has it. Raises what keeps a driver from the sweep."""
    deadline, is_requested = time.monotonic() + wait_s, False
    while True:
        if not may_be_driven(view.storage, folder.id):
            try:
                _as_driver(view.cluster, folder, event, facts)
                return True
            except DrivenError:  # one began at this moment
                if time.monotonic() > deadline:
                    raise
        elif not is_requested:
            view.ask(folder, {"event": event, **facts})
            is_requested = True
        folder.refresh()
        if is_requested and done(log_of(folder.path)):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)


def _as_driver(cluster: Cluster, folder: SweepFolder, event: str, facts: dict[str, object]) -> None:
    """Takes the sweep's lease, adds the event, and sends it to MLflow, if that has the sweep and answers soon."""
    with storage_refusals(folder.path), DriverSync(cluster, folder) as sync, only_driver(folder), ExitStack() as stack:
        if sync.where is None:
            folder = replace(folder, guard=stack.enter_context(folder_lease(folder)).guard)
        take_requests(folder)
        add_event(folder, event, **facts)
        if log_of(folder.path).submissions:
            tracker = track(cluster.mlflow, folder, folder.sweep().name, sync.key_of)
            close_tracker(tracker, folder, INTERRUPTED_WAIT_S)
