"""Which runs MLflow has of a sweep, as the tracker has noted them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CURSOR = "mlflow.json"  # the file beside a log that says how much of it one MLflow store has, and the ids of its runs


@dataclass(frozen=True, kw_only=True)
class SentRun:
    """A run that MLflow has taken."""

    id: str
    experiment: str
    """MLflow's id of its experiment."""


def sent_runs(folder: Path) -> dict[str, SentRun]:
    """The runs by their keys, as the tracker of the log in this folder has noted them; empty if nobody knows.

    MLflow itself is not asked, so a server that is away costs nothing."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        memo = json.loads((folder / CURSOR).read_text(encoding="utf-8"))["memo"]
        return {key: SentRun(id=str(id_), experiment=str(memo["experiment"])) for key, id_ in memo["runs"].items()}
    return {}
