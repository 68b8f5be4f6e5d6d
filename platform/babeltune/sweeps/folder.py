"""A sweep's folder: where everything of a sweep is, and the leaderboard that is read from it.

    <storage>/sweeps/<id>/
        sweep.json  prepared.json  facts.json  baselines.json  state.json  driver.log
        conditions/1/                                     sweep.json and prepared.json before an accepted change
        study.db    results.jsonl  spool.jsonl            proposals, their order, what MLflow is sent
        trials/t0007/trial.json  reports.jsonl  progress.json  outcome.json  checkpoints/000003/

Any process that sees the storage can read it while the sweep runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from babeltune.data.files import version, write_json
from babeltune.errors import SpecError, SweepError, UnknownNameError, nearest
from babeltune.evaluation.evaluate import PARAMETERS, SPEED
from babeltune.records import Goal, Objective, Report, Scalar, Sweep, plain
from babeltune.spec.sweep_file import sweep_from
from babeltune.training.checkpoint import PROGRESS, REPORTS, best_report, read_reports

LOST = "its reports are lost"
"""The warning of a trial that finished and has no reports any more."""
SPEED_NOISE = 0.15
"""Two speeds that differ by no more of themselves are the same: one model, measured twice, does."""
State = Literal["waiting", "running", "finished", "pruned", "failed", "stopped"]
NEEDED = ("prepared.json", "baselines.json")
"""What a finished sweep has made, besides its trials."""
MADE_AGAIN = (*NEEDED, "state.json", "owner.json", "driver.json", "tracking.json", "outcome.json", PROGRESS)
"""Files that `babeltune resume` writes, or does without, where they are gone."""
ENDED = ("finished", "pruned", "failed")
"""States that a trial keeps."""


@dataclass(frozen=True)
class SweepFolder:
    """The paths of one sweep."""

    path: Path
    refresh: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Brings here what another machine has changed (`places.py`)."""

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def prepared(self) -> Path:
        return self.path / "prepared.json"

    @property
    def study(self) -> Path:
        return self.path / "study.db"

    @property
    def stop_request(self) -> Path:
        """`babeltune stop` makes this file; the driver sees it."""
        return self.path / "stop"

    @property
    def log(self) -> Path:
        """What its drivers did, a line each; `babeltune logs` shows it."""
        return self.path / "driver.log"

    def note(self, text: str) -> None:
        """Adds a line to the log."""
        with self.log.open("a", encoding="utf-8") as lines:
            lines.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(text.split())}\n")

    def trial(self, number: int) -> Path:
        return self.path / "trials" / f"t{number:04d}"

    def trials(self) -> list[Path]:
        parent = self.path / "trials"
        return sorted(parent.glob("t[0-9]*")) if parent.exists() else []

    def is_whole(self) -> bool:
        """Whether what a finished sweep has made is there."""
        return all((self.path / name).exists() for name in NEEDED)

    def read(self, name: str) -> Any:
        """The JSON file of that name; None where it is not there yet."""
        path = self.path / name
        return _json(path) if path.exists() else None

    def write(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def baselines(self) -> dict[str, dict[str, float]]:
        """The dev scores of the untrained student and the raw teacher; empty before they are made."""
        scores: dict[str, dict[str, float]] = (self.read("baselines.json") or {}).get("scores", {})
        return scores

    def sweep(self) -> Sweep:
        return self._sweep_at("sweep.json")

    def sweep_of(self, number: int) -> Sweep:
        """The spec with which the trial began."""
        return self._sweep_at(str(self.began_with(number, "sweep.json").relative_to(self.path)))

    def _sweep_at(self, name: str) -> Sweep:
        values = self.read(name)
        if values is None:
            raise SweepError(f"{self.path} has no {name}; it is not a sweep's folder")
        return sweep_from(values)

    def set_state(self, state: str, **more: Scalar) -> None:
        self.write("state.json", {"state": state, "time": time.time(), **more})
        self.note(": ".join([state, *map(str, more.values())]))

    def state(self) -> str:
        values = self.read("state.json")
        return str(values["state"]) if values else "new"

    def accepted(self) -> list[dict[str, Any]]:
        """The changes that were accepted while the sweep went on (`changes.py`), the first first."""
        entries: list[dict[str, Any]] = (self.read("facts.json") or {}).get("accepted", [])
        return entries

    def began_with(self, number: int, name: str) -> Path:
        """The file of that name, `sweep.json` or `prepared.json`, as it was when the trial began."""
        history = self.accepted()
        for condition in range(condition_of(number, history), len(history) + 1):
            if (kept := self.path / "conditions" / str(condition) / name).exists():
                return kept
        return self.path / name


def condition_of(number: int, history: Sequence[Mapping[str, Any]]) -> int:
    """Under which of a sweep's conditions the trial began: 1, and one more for each change accepted before."""
    return 1 + sum(number not in entry["begun"] for entry in history)


def sweep_folders(storage: Path) -> list[SweepFolder]:
    """All sweeps of a storage, the latest first."""
    if storage.exists() and not storage.is_dir():
        raise SpecError(f"the storage {storage} is not a folder; set BABELTUNE_HOME, or `storage` in the cluster file")
    parent = storage / "sweeps"
    found = [SweepFolder(p) for p in parent.iterdir() if (p / "sweep.json").exists()] if parent.exists() else []
    return sorted(found, key=lambda f: (f.path / "sweep.json").stat().st_mtime, reverse=True)


def find_sweep(storage: Path, name: str | None) -> SweepFolder:
    """The sweep with this id, the beginning of one, or this name (its latest), or the latest of all.

    Raises `UnknownNameError` that names the nearest.
    """
    folders = sweep_folders(storage)
    if not folders:
        raise UnknownNameError(f"no sweep in {storage}; `babeltune submit search_spaces/quickstart.yaml` starts one")
    if name is None:
        return folders[0]
    for folder in folders:
        if name in (folder.id, folder.id.rpartition("-")[0]):
            return folder
    ids = [folder.id for folder in folders]
    begun = [folder for folder in folders if name and folder.id.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    names = dict.fromkeys(id_.rpartition("-")[0] for id_ in ids)
    raise UnknownNameError(f"no sweep {name!r} in {storage}; sweeps: {', '.join(ids)}{nearest(name, [*names, *ids])}")


def find_run(storage: Path, name: str) -> tuple[SweepFolder, int | None]:
    """A sweep, or one trial of it named `<sweep>/t0007` or `<sweep>/7`."""
    sweep, _, trial = name.partition("/")
    folder = find_sweep(storage, sweep)
    if not trial:
        return folder, None
    number = trial.removeprefix("t")
    if not number.isdigit() or not folder.trial(int(number)).exists():
        have = ", ".join(p.name for p in folder.trials()) or "none yet"
        raise UnknownNameError(f"sweep {folder.id} has no trial {trial!r}; trials: {have}")
    return folder, int(number)


def read_log(folder: SweepFolder) -> str:
    """What the sweep's drivers have noted so far."""
    return folder.log.read_text(encoding="utf-8") if folder.log.exists() else ""


@dataclass(frozen=True)
class Row:
    """One line of the leaderboard: a trial or a baseline."""

    name: str
    state: State
    params: dict[str, Scalar] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the best report by the first objective."""
    reports: int = 0
    step: int = 0
    steps: int | None = None
    """Of the whole training, where it has begun."""
    loss: float | None = None
    """At the latest step of a trial that runs."""
    pairs: int = 0
    seconds: float = 0.0
    best: int | None = None
    """The best report's number: its checkpoint is what promotion takes."""
    reason: str = ""
    warning: str = ""
    """What the method found amiss with the training, such as labels that are nearly flat."""
    front: bool = False
    """With several objectives: no other trial is better in one and as good in all (the Pareto front)."""
    condition: int = 1
    """Which of the sweep's conditions it began under; more than one where changes were accepted."""


def trial_row(path: Path, objective: Objective) -> Row:
    """The leaderboard's line of the trial in this folder. That of one that has ended is remembered while its files
    stay as they are: a live view of a thousand trials looks twice a second."""
    key = path, objective
    versions = tuple(_version(path / name) for name in ("trial.json", "outcome.json", REPORTS))
    known = _ended_rows.get(key)
    if known is not None and known[0] == versions:
        return known[1]
    row = _read_row(path, objective)
    if row.state in ENDED:
        _ended_rows[key] = versions, row
    return row


_ended_rows: dict[tuple[Path, Objective], tuple[tuple[Any, ...], Row]] = {}


def _version(path: Path) -> list[int] | None:
    """Of a file that may not be there yet."""
    with suppress(FileNotFoundError):
        return version(path)
    return None


def _read_row(path: Path, objective: Objective) -> Row:
    trial = _json(path / "trial.json")
    outcome, now = _read(path / "outcome.json"), {}
    with suppress(SweepError):  # no more than how far the trial is; its worker writes it again
        now = _read(path / PROGRESS)
    reports = read_reports(path)
    best: Report | None = best_report(reports, objective.metric, objective.goal)
    last = reports[-1] if reports else None
    return Row(
        name=path.name,
        state=outcome.get("state", "running"),
        params=trial["params"],
        metrics=scores_of(best) if best else {},
        reports=len(reports),
        step=max(last.step if last else 0, now.get("step", 0)),
        steps=now.get("steps"),
        loss=now.get("loss") if outcome.get("state", "running") == "running" else None,
        pairs=last.pairs if last else 0,
        seconds=last.seconds if last else 0.0,
        best=best.index if best else None,
        reason=outcome.get("reason", ""),
        warning=str(last.facts.get("warning", "")) if last else LOST if outcome.get("state") == "finished" else "",
    )


def has_begun(path: Path) -> bool:
    """Whether the trial in this folder has trained up to a checkpoint, or ended without one."""
    checkpoints = path / "checkpoints"
    kept = checkpoints.exists() and any(not each.name.startswith(".") for each in checkpoints.iterdir())
    return kept or _read(path / "outcome.json").get("state", "running") not in ("running", "stopped")


def scores_of(report: Report) -> dict[str, float]:
    """A report's metrics, and the mean loss, terms and diagnostics (`train/…`) of its points: the least of what is
    named `…_least`, and the latest learning rate."""
    found: dict[str, list[float]] = {}
    for point in report.points:
        for name, value in point.values.items():
            found.setdefault(name, []).append(value)
    means = {name: min(those) if name.endswith("_least") else sum(those) / len(those) for name, those in found.items()}
    latest = {name: those[-1] for name, those in found.items() if name.endswith("learning_rate")}
    return {**means, **latest, **report.metrics}


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in the file; empty where there is none."""
    values: dict[str, Any] = _json(path) if path.exists() else {}
    return values


def _json(path: Path) -> Any:
    """What the file holds. Raises `SweepError` that names a file that was altered or cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        todo = "remove it: `babeltune resume` makes it again" if path.name in MADE_AGAIN else "restore it from a copy"
        raise SweepError(f"{path} is damaged ({error}); {todo}") from error


def pareto_front(rows: list[Row], objectives: tuple[Objective, ...]) -> set[str]:
    """The names of the trials that no other one dominates: as good in every objective, and better in one. Speeds, which
    clocks measure, differ only beyond `SPEED_NOISE`."""
    names = [o.metric for o in objectives]
    noise = [SPEED_NOISE if name == SPEED else 0.0 for name in names]
    scored = {
        row.name: [row.metrics[o.metric] * (1 if o.goal == "maximize" else -1) for o in objectives]
        for row in rows
        if row.best is not None and all(name in row.metrics for name in names)
    }

    def dominated(mine: list[float]) -> bool:
        return any(
            all(o >= m - share * abs(m) for o, m, share in zip(other, mine, noise, strict=True))
            and any(o > m + share * abs(m) for o, m, share in zip(other, mine, noise, strict=True))
            for other in scored.values()
        )

    return {name for name, values in scored.items() if not dominated(values)}


def leaderboard(folder: SweepFolder, metric: str | None = None) -> list[Row]:
    """Trials and baselines, best first by the metric (the first objective when absent); unscored ones last."""
    sweep = folder.sweep()
    objective = sweep.objectives[0]
    rows = [trial_row(path, objective) for path in folder.trials() if (path / "trial.json").exists()]
    history = folder.accepted()
    rows = [replace(row, condition=condition_of(int(row.name[1:]), history)) for row in rows]
    if len(sweep.objectives) > 1:
        unbeaten = pareto_front(rows, sweep.objectives)
        rows = [replace(row, front=row.name in unbeaten) for row in rows]
    for name, scores in folder.baselines().items():
        rows.append(Row(name=name, state="finished", metrics=scores))
    if metric is not None:
        check_known(folder, rows, metric)
    order = best_first(sweep, metric or objective.metric)
    return sorted(rows, key=lambda row: (order(row.metrics), row.name))


def front(folder: SweepFolder, metrics: Sequence[str] = ()) -> tuple[tuple[str, ...], list[Row]]:
    """The Pareto front of the finished trials by these metrics, which are returned too, best first by the first of
    them: by the sweep's objectives, the model's size and its speed where none are named.

    Raises `UnknownNameError` for a metric that no trial has, and `SpecError` for one of the training."""
    sweep = folder.sweep()
    rows = [row for row in leaderboard(folder) if row.best is not None and row.state == "finished"]
    names = tuple(dict.fromkeys(metrics or (*(o.metric for o in sweep.objectives), PARAMETERS, SPEED)))
    for name in names:
        check_known(folder, rows, name)
        if name.startswith("train/"):
            raise SpecError(f"{name!r} is of the training: trials with other settings do not compare by it; name dev/…")
    on_it = pareto_front(rows, tuple(Objective(metric=name, goal=goal_of(sweep, name)) for name in names))
    order = best_first(sweep, names[0])
    return names, sorted((row for row in rows if row.name in on_it), key=lambda row: (order(row.metrics), row.name))


def check_known(folder: SweepFolder, rows: Sequence[Row], metric: str) -> None:
    """Raises `UnknownNameError` for a metric that no row has."""
    known = {key for row in rows for key in row.metrics}
    if metric not in known and known:
        raise UnknownNameError(
            f"no metric {metric!r} in sweep {folder.id}; known: {', '.join(sorted(known))}{nearest(metric, known)}"
        )


def goal_of(sweep: Sweep, metric: str) -> Goal:
    """Which way a metric is better."""
    given = next((o.goal for o in sweep.objectives if o.metric == metric), None)
    low = metric.endswith(("error", "error_pooled", "loss")) or metric == PARAMETERS
    return given or ("minimize" if low else "maximize")


def best_first(sweep: Sweep, metric: str) -> Callable[[Mapping[str, float]], tuple[bool, float]]:
    """Sorts scores by this metric, the best first and those without it last."""
    sign = 1 if goal_of(sweep, metric) == "minimize" else -1
    return lambda scores: (metric not in scores, sign * scores.get(metric, 0.0))


def winner(folder: SweepFolder) -> Row:
    """The best finished trial by the first objective, which is on the front of all of them.

    Raises `SweepError` when none has finished.
    """
    for row in leaderboard(folder):
        if row.state == "finished" and row.best is not None:
            return row
    objective = folder.sweep().objectives[0]
    shown = ", ".join(f"{path.name} {trial_row(path, objective).state}" for path in folder.trials())
    raise SweepError(
        f"sweep {folder.id} has no finished trial to promote; states: {shown or 'no trials'}; "
        f"`babeltune resume {folder.id}` goes on"
    )


def read_outcome(folder: Path) -> State:
    """How the trial ended, as far as its folder says."""
    state: State = _read(folder / "outcome.json").get("state", "running")
    return state


def outcome(folder: Path, state: State, reason: str = "", **more: Scalar) -> None:
    """Records how a trial ended."""
    write_json(folder / "outcome.json", plain({"state": state, "reason": reason, "time": time.time(), **more}))
