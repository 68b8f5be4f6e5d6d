"""Events that other processes ask of a sweep's driver: its ledger has one writer at a time.

Each is a file in `requests/` with a line of the ledger. The driver adds it about once a second, under its lease. It is
there until the ledger has it, so a driver that dies in between leaves it to the next one: no event does harm twice."""

import json

from babeltune.files import write_json
from babeltune.sweep.state.folder import LABELS, REQUESTS, SweepFolder
from babeltune.sweep.state.ledger import append_event
from babeltune.sweep.state.log import LEDGER, log_of

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
    with folder.guard():
        append_event(folder.path / LEDGER, event, **facts)
        if event == "label":
            write_json(folder.path / LABELS, log_of(folder.path).labels)
