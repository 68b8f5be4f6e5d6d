"""A trial's checkpoints and their ledger: safetensors and JSON, written atomically, checked by digest.

    trials/t0007/checkpoints/000003/   student, method and optimizer tensors, state.json, manifest.json
    trials/t0007/reports.jsonl         one line per report, written after its checkpoint
    trials/t0007/checkpoints/stopped/  the same between two reports: at a stop, or every few minutes; until the next one
    trials/t0007/checkpoints/stopped.old/  the one before, while that takes its place
    trials/t0007/progress.json         step, loss and stage of this moment

The number of a checkpoint is the report's. The best one (`best_report`) and the last one are kept."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from safetensors import SafetensorError

from babeltune.errors import CheckpointError, StorageError
from babeltune.files import append_line, as_new_files, draft_of, make_folders, plain, sha256_of, sync, write_whole
from babeltune.schema.base import from_plain
from babeltune.schema.records import Objective, Report
from babeltune.stages import Stage

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from babeltune.files import JsonObject

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
REPORTS = "reports.jsonl"
TIE = 0.002
"""The share of the best value below which two reports of one trial are equally good in the first objective. It is a
fraction of what a dev set of a thousand rows can tell apart."""
Guard = Callable[[], AbstractContextManager[None]]
"""Within it a trial's folder may be changed. It raises if the trial is another driver's by now."""


class CheckpointState(TypedDict, total=False):
    """The content of `state.json`: the identity of the checkpoint, and where the training was."""

    trial: JsonObject
    prepared: str  # digest of the prepared data
    step: int
    pairs: int
    metrics: dict[str, float]
    reports: int
    """Reports before this checkpoint, if it lies between two: at a stop, or every `training.checkpoint_minutes`."""
    interval: JsonObject


def stage_of(progress: Mapping[str, Any]) -> Stage | None:
    """The work of a trial between two steps, as its `progress.json` says."""
    with suppress(TypeError):  # of another version
        return Stage(**progress["stage"]) if progress.get("stage") else None
    return None


def save_checkpoint(
    folder: Path, tensors: dict[str, dict[str, Tensor]], state: Mapping[str, object], guard: Guard = nullcontext
) -> None:
    """Writes `<name>.safetensors` per entry of `tensors`, `state.json` and the manifest, all or nothing. They get their
    name within `guard()`. An earlier checkpoint of this name is put aside until then: to remove it takes a while.

    Raises `StorageError` if the disk is full or refuses."""
    from safetensors.torch import save_file  # and with it torch, which who only reads reports does without

    temporary = draft_of(folder)
    try:
        make_folders(temporary)
        for name, values in tensors.items():
            save_file(
                {k: v.detach().cpu().contiguous().clone() for k, v in values.items()}, temporary / f"{name}.safetensors"
            )
        (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
        as_new_files(temporary)
        files = {path.name: sha256_of(path) for path in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        with guard():
            if folder.exists():
                shutil.rmtree(_aside(folder), ignore_errors=True)
                folder.rename(_aside(folder))
            temporary.rename(folder)
            sync(folder.parent)
            for draft in (_aside(folder), *folder.parent.glob(f".{folder.name}.*")):  # also of killed writers
                shutil.rmtree(draft, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise StorageError.at(folder, getattr(error, "strerror", None) or error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _aside(folder: Path) -> Path:
    """Where a checkpoint is while its successor takes its place."""
    return folder.with_name(f"{folder.name}.old")


def verify_checkpoint(folder: Path) -> None:
    """`CheckpointError` unless every file is there and has the digest that the manifest recorded."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, expected in files.items():
            digest = sha256_of(folder / name)
            if digest != expected:
                raise CheckpointError(
                    f"checkpoint file {folder / name} is damaged: it has SHA-256 {digest}, recorded was {expected}; "
                    "restore it from a copy, or name another trial"
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {folder} is incomplete: {error}") from error


def is_good(folder: Path) -> bool:
    """Whether the checkpoint is there, whole and unaltered."""
    try:
        verify_checkpoint(folder)
    except CheckpointError:
        return False
    return True


def load_checkpoint(folder: Path) -> tuple[dict[str, dict[str, Tensor]], CheckpointState]:
    """The verified tensors and state of a checkpoint."""
    from safetensors.torch import load_file

    verify_checkpoint(folder)
    try:
        tensors = {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
        return tensors, cast(CheckpointState, read_state(folder))
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"checkpoint {folder} holds what no checkpoint has: {error}") from error


def read_state(folder: Path) -> JsonObject:
    """The contents of a checkpoint besides tensors: a `CheckpointState`, if the file is sound."""
    state: JsonObject = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return state


def checkpoint_folder(trial_folder: Path, index: int) -> Path:
    """Where the checkpoint of report `index` lives."""
    return trial_folder / "checkpoints" / f"{index:06d}"


def stopped_folder(trial_folder: Path) -> Path:
    """Where the checkpoint between two reports lives, if there is one. A stop writes it, and so does time."""
    return trial_folder / "checkpoints" / "stopped"


def last_stopped(trial_folder: Path) -> Path:
    """`stopped_folder`, or where its checkpoint is if the writer of its successor was killed between the renames."""
    stopped = stopped_folder(trial_folder)
    return stopped if stopped.exists() else _aside(stopped)


def read_reports(trial_folder: Path) -> list[Report]:
    """The trial's reports in order. A line that a crash cut off is passed over, and so is a report that stands there
    already: a worker of an earlier driver may add it late."""
    path = trial_folder / REPORTS
    reports: list[Report] = []
    if not path.exists():
        return reports
    for line in path.read_bytes().splitlines():
        try:
            report = from_plain(Report, json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue
        if report.index == len(reports) + 1:
            reports.append(report)
    return reports


def read_report(trial_folder: Path, index: int) -> Report | None:
    """One of the trial's reports; None if the folder does not have it."""
    with suppress(OSError, ValueError, TypeError, KeyError, IndexError):
        report = from_plain(Report, json.loads((trial_folder / REPORTS).read_bytes().splitlines()[index - 1]))
        if report.index == index:
            return report
    return next((each for each in read_reports(trial_folder) if each.index == index), None)


def add_report(trial_folder: Path, report: Report) -> None:
    """Appends the trial's next report. So a late worker undoes nothing, even if no lock keeps it out."""
    make_folders(trial_folder)
    append_line(trial_folder / REPORTS, json.dumps(plain(report), ensure_ascii=False).encode())


def write_reports(trial_folder: Path, reports: list[Report]) -> None:
    """Rewrites the trial's reports, all or nothing."""
    make_folders(trial_folder)
    lines = (json.dumps(plain(report), ensure_ascii=False) + "\n" for report in reports)
    write_whole(trial_folder / REPORTS, "".join(lines).encode(), durable=True)


def last_good(trial_folder: Path) -> list[Report]:
    """The reports up to the newest one whose checkpoint verifies; an altered or missing checkpoint is passed over."""
    reports = read_reports(trial_folder)
    while reports and not is_good(checkpoint_folder(trial_folder, reports[-1].index)):
        reports.pop()
    return reports


def state_of(trial_folder: Path) -> int:
    """Equal for two nodes that go on alike with the trial: from the same report, or the same step after it. 56 bits."""
    reports, digest = last_good(trial_folder), hashlib.sha256()
    last = [checkpoint_folder(trial_folder, reports[-1].index)] if reports else []
    for place in (*last, last_stopped(trial_folder)):
        if (manifest := place / MANIFEST).exists():
            digest.update(manifest.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")


def best_report(reports: list[Report], *objectives: Objective) -> Report | None:
    """The report that is best in the first objective; the earliest of equals.

    A later report takes its place if it is worse by no more than `TIE` and at least as good in every other objective.
    With one objective there are no others, so none takes its place."""
    first, *others = objectives
    scored = [report for report in reports if first.metric in report.metrics]
    best = max(scored, key=lambda report: (_signed(report, first), -report.index), default=None)
    if best is None or not others:
        return best
    least = _signed(best, first) - TIE * abs(best.metrics[first.metric])
    later = [
        report
        for report in scored
        if report.index > best.index
        and _signed(report, first) >= least
        and all(_signed(report, other) >= _signed(best, other) for other in others)
    ]
    # The schedule of the latest is nearest to its end.
    return later[-1] if later else best


def _signed(report: Report, objective: Objective) -> float:
    """The report's value of the objective, larger is better; -inf if it has none."""
    value = report.metrics.get(objective.metric, math.nan)
    return -math.inf if math.isnan(value) else value if objective.goal == "maximize" else -value


def prune_checkpoints(trial_folder: Path, keep: set[int]) -> None:
    """Leaves the checkpoints of these reports: the one that a stop left goes, and what crashed writers left. Those of
    later reports stay: they may be of another driver's worker, which took the trial over."""
    parent, folders = trial_folder / "checkpoints", {checkpoint_folder(trial_folder, index) for index in keep}
    for path in parent.iterdir() if parent.exists() else ():
        if path not in folders and not (path.name.isdigit() and int(path.name) > max(keep)):
            shutil.rmtree(path, ignore_errors=True)


def optimizer_tensors(optimizers: Iterable[torch.optim.Optimizer], names: dict[int, str]) -> dict[str, Tensor]:
    """The optimizers' state as named tensors: `<parameter>/<state>`; `names` maps a parameter's id to its name."""
    import torch

    return {
        f"{names[id(parameter)]}/{key}": torch.as_tensor(value)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Puts back the state that `optimizer_tensors` saved. A whole number, such as a count of steps, becomes an int."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in module.named_parameters():
        prefix = f"{name}/"
        state = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
        if state and id(parameter) in trained:
            optimizer.state[parameter] = {
                key: value.to(parameter.device) if value.is_floating_point() else int(value)
                for key, value in state.items()
            }
