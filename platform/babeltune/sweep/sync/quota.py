"""The hours that users computed in a calendar month, by the ledgers of a storage, and the rest of a cluster's quota.

A trial counts from its start to its end, with the share of the machines that its driver gave it. After a crash it
counts up to the last line of that driver. A deleted sweep leaves its hours in `deleted/`. The user is whom the system
names, or the sender of a Ray job names: that one's word is all there is."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from babeltune.errors import QuotaError
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import SweepFolder, sweep_folders
from babeltune.sweep.state.log import EVENT, LEDGER, is_late
from babeltune.sweep.state.messages import Holder
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.sync.audit import accountable
from babeltune.sweep.sync.view import DELETED, StorageView

Hours = Mapping[tuple[str, str, str], float]  # hours by user, month (`2026-11`) and key of the quota (`gpu_hours`)
LATER = ("label", "accept", "pause", "continue")  # lines that a command may write long after the driver has died
TITLES = {"gpu_hours": "GPU hours", "cpu_hours": "CPU hours"}


@dataclass(frozen=True, kw_only=True)
class Left:
    """The user's part of one limit this month."""

    key: str  # `gpu_hours` or `cpu_hours`
    limit: float
    used: float
    user: str
    by_system: bool  # whether the system says who the user is
    month: str  # the month and the year, as in `November 2026`

    def __str__(self) -> str:
        doubt = "" if self.by_system else ", who is the user by the word of the job's sender alone"
        used, limit = f"{self.used:,.2f}", f"{self.limit:,g}"
        return f"{self.user}{doubt}, has used {used} of {limit} {TITLES[self.key]} in {self.month} (UTC)"


def hours_of(folder: SweepFolder, now: float) -> Hours:
    """The hours in a sweep's ledger. What still runs counts up to `now`, in seconds since 1970."""
    hours = defaultdict[tuple[str, str, str], float](float)
    for share, begun, ended in _spans(folder, now):
        while begun < ended:
            month = datetime.fromtimestamp(begun, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            upto = min(ended, (month + timedelta(days=32)).replace(day=1).timestamp())
            hours[share["user"], f"{month:%Y-%m}", "gpu_hours"] += (upto - begun) / 3600 * share["gpus"]
            hours[share["user"], f"{month:%Y-%m}", "cpu_hours"] += (upto - begun) / 3600 * share["cpus"]
            begun = upto
    return hours


def _spans(folder: SweepFolder, now: float) -> Iterator[tuple[Holder, float, float]]:
    """The holder's share, begin and end of each time in which a worker group had a trial."""
    holder: Holder | None = None
    begun, last, token = dict[int, float](), 0.0, 0
    path = folder.path / LEDGER
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError, KeyError):
            event = EVENT.validate_json(line)
            kind, when, number = event["event"], event["time_ms"] / 1000, event.get("number")
            if is_late(event, token):
                continue
            token = event.get("token", token)
            if kind == "submit":
                if holder is not None:
                    yield from ((holder, since, last) for since in begun.values())
                holder, begun = event.get("holder"), {}
            elif kind in ("start", "stop", "end") and number in begun and holder:
                yield holder, begun.pop(number), when
            if kind == "start":
                begun[number] = when
            if kind not in LATER:
                last = max(last, when)
    until = now if begun and is_driven(folder) else last
    if holder is not None:
        yield from ((holder, since, until) for since in begun.values())


def left_of(view: StorageView) -> list[Left]:
    """The rest of each limit of the cluster's quota for this user; nothing without limits. Brings all ledgers here."""
    limits = view.cluster.quota.limits
    if not limits:
        return []
    view.update(every=True)
    now = time.time()
    month = datetime.fromtimestamp(now, UTC)
    user, by_system = accountable()
    folders = list(sweep_folders(view.folder))
    # the deletion of these was cut short
    existing_sweeps = {(f"{DELETED}/{folder.id}.json", _began(folder)) for folder in folders}
    deleted = [(key, *entry) for key in view.storage.entries(DELETED) for entry in _read(view, key).items()]
    every = [hours for key, began, hours in deleted if (key, began) not in existing_sweeps]
    every += [hours_of(folder, now) for folder in folders]
    return [
        Left(
            key=key,
            limit=limit,
            used=sum(hours.get((user, f"{month:%Y-%m}", key), 0.0) for hours in every),
            user=user,
            by_system=by_system,
            month=f"{month:%B %Y}",
        )
        for key, limit in limits.items()
    ]


def refuse_over_quota(cluster: Cluster, *, over_quota: bool) -> str:
    """Words for the log about a spent limit. Raises `QuotaError` unless `over_quota` and the cluster file permit it."""
    spent = [rest for rest in left_of(StorageView(cluster)) if rest.used >= rest.limit]
    if not spent:
        return ""
    if not (over_quota and cluster.quota.over_quota):
        more = "; --over-quota goes on all the same" if cluster.quota.over_quota else ""
        raise QuotaError(f"{spent[0]}; next month it begins anew, and `quota` of the cluster file is the limit{more}")
    return f"over the quota: {spent[0]}"


def keep_hours(view: StorageView, folder: SweepFolder) -> None:
    """Writes the hours of a sweep that is about to be deleted into `deleted/`, once, beside earlier ones of its id."""
    key = f"{DELETED}/{folder.id}.json"
    every = {**_read(view, key), _began(folder): hours_of(folder, time.time())}
    lines = {began: [[*name, value] for name, value in sorted(hours.items())] for began, hours in every.items()}
    view.put(key, json.dumps({"time": time.time(), "hours": lines}).encode())


def _began(folder: SweepFolder) -> str:
    """The time of the first line of the sweep's ledger, which tells apart sweeps of one id."""
    with suppress(OSError, ValueError), (folder.path / LEDGER).open("rb") as ledger:
        return str(EVENT.validate_json(ledger.readline()).get("time_ms", ""))
    return ""


def _read(view: StorageView, key: str) -> dict[str, Hours]:
    """The hours of deleted sweeps of one id, by `_began`."""
    entry = view.storage.look(key)
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # a damaged one is nobody's
        if entry is not None:
            lines = json.loads(entry[0])["hours"]
            by_time = lines if isinstance(lines, dict) else {"": lines}  # as earlier versions wrote them
            return {at: {(str(u), str(m), str(k)): float(v) for u, m, k, v in each} for at, each in by_time.items()}
    return {}
