"""Sweeps from Python and notebooks: plan and submit one, read its runs as tables, compare, promote and load models.

```python
import babeltune as bt

bt.plan("search_spaces/quickstart.yaml").warnings  # before anything is trained
done = bt.submit("search_spaces/quickstart.yaml")
bt.runs(done.id)  # a pandas DataFrame, the best trial first
bt.trial(f"{done.id}/t0003").curve  # its scores over the pairs that it saw
bt.load(f"{done.id}/t0003").encode(["Good morning.", "Bonjour."])
decision = bt.promote(done.id, progress=print)  # opens the sealed tests
```

The commands of the same names call these functions. `babeltune` imports this module at the first use of a name, so that
`import babeltune` stays quick. Errors are `babeltune.errors.BabeltuneError`, with the words that the command line
prints. A refusal by a figure is a result and no error. `progress(stage, done, of)` is called during long steps; `of` is
0 if nobody knows it. `cluster` is a cluster file, and this machine if it is left out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from babeltune.errors import BabeltuneWarning, SpecError
from babeltune.schema.cluster import Cluster, read_cluster
from babeltune.schema.records import Scalar, Sweep
from babeltune.stages import Progress, listening

if TYPE_CHECKING:
    import pandas as pd
    from sentence_transformers import SentenceTransformer

    from babeltune.planning.plan import PlanReport
    from babeltune.promotion.evaluate import Evaluated
    from babeltune.promotion.gates import Decision
    from babeltune.promotion.ladder import Rung
    from babeltune.promotion.small_table import Exported
    from babeltune.promotion.sweep_scores import Comparison


__all__ = [
    "SubmittedSweep",
    "TrialView",
    "compare",
    "evaluate",
    "export",
    "load",
    "plan",
    "promote",
    "promote_front",
    "report",
    "runs",
    "submit",
    "trial",
]

MOST_SAMPLES = 1_000
"""Trials that a plan shows as examples, at most."""
SETTING = "setting."
"""Begins the columns of searched settings in the table of a sweep's trials."""


@dataclass(frozen=True, kw_only=True)
class SubmittedSweep:
    """A sweep that `submit` ran."""

    id: str
    state: str
    """`finished`, or `stopped` and `interrupted`, which `submit` goes on with."""
    best: str | None
    """The best trial, `SWEEP/t0003`; None before one has reported."""
    folder: Path
    """The folder of the sweep's records."""


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """One trial of a sweep."""

    name: str
    """`SWEEP/t0003`."""
    state: str
    reason: str
    """Why it failed or was pruned."""
    method: str
    settings: dict[str, Scalar]
    """The searched settings."""
    config: dict[str, object]
    """All settings of the method."""
    metrics: dict[str, float]
    """Dev scores of its best report by the sweep's first objective."""
    curve: pd.DataFrame = field(repr=False)
    """A row for each report: `step`, `pairs`, `seconds` and its metrics."""


def plan(
    spec: str | Path | Sweep,
    *,
    overlays: Sequence[str | Path] = (),
    assignments: Sequence[str] = (),
    samples: int = 3,
    calibrate: bool = True,
    cluster: str | Path | None = None,
    progress: Progress | None = None,
) -> PlanReport:
    """The plan of a sweep: its data, its search, its time and memory, and what its dev set can tell apart.

    `spec`, `overlays` and `assignments` are as in `submit`. `samples` is the number of trials that are shown as
    examples. `calibrate` times some steps of the default trial on this machine. Raises `SpecError` for a file that
    cannot be run, `DataError` for text that cannot be read."""
    from babeltune.apps.sweep_plan import plan_sweep
    from babeltune.planning.warnings import about_assignments

    if not 0 <= samples <= MOST_SAMPLES:
        raise SpecError(f"samples {samples} must be from 0 to {MOST_SAMPLES:,}")
    place = read_cluster(None if cluster is None else str(cluster))
    with _listening(progress):
        sweep = _sweep(spec, place, overlays, assignments)
        planned = plan_sweep(sweep, place, samples=samples, calibrate=calibrate)
    return replace(planned, warnings=(*about_assignments(sweep, assignments), *planned.warnings))


def submit(
    spec: str | Path | Sweep,
    *,
    overlays: Sequence[str | Path] = (),
    assignments: Sequence[str] = (),
    cluster: str | Path | None = None,
) -> SubmittedSweep:
    """Runs a sweep until its budget is spent, and goes on with it if it was begun.

    `spec` is a sweep file or a `Sweep`. `overlays` are the files of `--with`, `assignments` the words of `--set`, such
    as `["budget.trials=4"]`. Raises `SpecError` for a file that cannot be run, and for a cluster that takes jobs only:
    those are the command line's. Registered models and trials that the file names come from that cluster."""
    from babeltune.sweep.driver.run import submit as run
    from babeltune.sweep.state.leaderboard import leaderboard, leading
    from babeltune.sweep_report.write import report_at_the_end

    place = _cluster(cluster)
    folder = run(_sweep(spec, place, overlays, assignments), place)
    if folder.state() == "finished":
        report_at_the_end(folder, place, _warn)
    lead = leading(leaderboard(folder))
    best = f"{folder.id}/{lead.name}" if lead else None
    return SubmittedSweep(id=folder.id, state=folder.state(), best=best, folder=folder.path)


def promote(
    name: str | None = None,
    *,
    alias: str = "champion",
    out: str | Path | None = None,
    prefer: str | None = None,
    soup: int | None = None,
    dry_run: bool = False,
    cluster: str | Path | None = None,
    progress: Progress | None = None,
) -> Decision:
    """Exports a checkpoint, scores it afresh on sealed tests, and registers it if its numbers hold.

    `name` is a sweep, the latest if left out, or a trial such as `SWEEP/t0003`. Of a sweep it is the best trial's
    checkpoint, that of the trial that the rule `prefer` chooses, or the average of the best `soup` trials'. `out` is a
    new folder for the model. `dry_run` decides and registers nothing; it opens the sealed tests, too. A refusal is a
    `Decision`. Raises `SpecError` for an alias or rule that cannot be, `SweepError` without a finished trial,
    `CheckpointError` for an altered checkpoint and `PromotionError` if MLflow does not answer."""
    from babeltune.promotion.promote import promote as decide
    from babeltune.sweep.sync.notify import failures_notified
    from babeltune.sweep_report.write import report_again

    place = _cluster(cluster)
    folder = None if out is None else Path(out)
    with _listening(progress), failures_notified(place, "promotion of", name or "the latest sweep"):
        decision = decide(name, place, alias=alias, out=folder, dry_run=dry_run, prefer=prefer, soup=soup)
        report_again(decision.sweep, place, _warn)
    return decision


def promote_front(
    name: str | None = None,
    *,
    dry_run: bool = False,
    cluster: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Rung]:
    """Promotes each model of a sweep that no other beats in objectives, size and speed.

    They get the aliases `@small`, `@fast` and `@best`. The best first objective comes first. A refusal is a rung with
    that `Decision`. Raises as `promote` does."""
    from babeltune.promotion.ladder import promote_front as decide
    from babeltune.sweep.sync.notify import failures_notified
    from babeltune.sweep_report.write import report_again

    place = _cluster(cluster)
    with _listening(progress), failures_notified(place, "promotion of", name or "the latest sweep"):
        rungs = decide(name, place, dry_run=dry_run)
        report_again(rungs[0].decisions[0].sweep, place, _warn)
    return rungs


def evaluate(
    model: str | Path,
    *,
    data: str | Path | None = None,
    sweep: str | None = None,
    test: bool = False,
    prompt: str | None = None,
    target_model: str | Path | None = None,
    cluster: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluated:
    """The scores of a model on the dev sets of a file or of a sweep, or with `test` on its sealed tests.

    `model` is a folder, a hub id, `SWEEP/t0003` or `models:/NAME@ALIAS`. `data` is a sweep file or an overlay with a
    data section; `sweep` is an id or a name. An opening of sealed tests is recorded. `prompt` is put before each
    sentence that the model encodes. `target_model` encodes the right side of bitext and mining sets. Raises `SpecError`
    unless one of `data` and `sweep` is given, and for one without such sets; `TeacherError` for a model that cannot be
    loaded."""
    from babeltune.promotion.evaluate import evaluate_model
    from babeltune.promotion.sweep_scores import evaluate_in_sweep

    if (data is None) == (sweep is None):
        raise SpecError("say what is scored: data, a sweep file or an overlay, or sweep, an id or a name; give one")
    place, target = _cluster(cluster), None if target_model is None else str(target_model)
    with _listening(progress):
        if sweep is not None:
            return evaluate_in_sweep(sweep, str(model), place, test=test, prompt=prompt, target_model=target)
        return evaluate_model(str(model), str(data), place, test=test, prompt=prompt, target_model=target)


def compare(
    first: str | Path,
    second: str | Path,
    *,
    sweep: str | None = None,
    cluster: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Two models on a sweep's dev sets, sentence by sentence, with intervals.

    Each is a folder, a hub id, `SWEEP/t0003` or `models:/NAME@ALIAS`. `sweep` says whose dev sets count; it may be left
    out if one of them is a trial. Raises `SpecError` if no sweep is known, `TeacherError` for a model that cannot be
    loaded."""
    from babeltune.promotion.sweep_scores import compare_models

    place = _cluster(cluster)
    with _listening(progress):
        return compare_models(str(first), str(second), place, sweep=sweep)


class ExportForm(TypedDict, total=False):
    """The form of the model that `export` writes."""

    format: Literal["static", "onnx"] | None
    bits: Literal[4, 8] | None
    dim: int | None


def export(
    model: str | Path,
    out: str | Path,
    *,
    sweep: str | None = None,
    most_lost: float = 0.01,
    cluster: str | Path | None = None,
    progress: Progress | None = None,
    **form: Unpack[ExportForm],
) -> Exported:
    """Makes a static model a table of whole numbers, which numpy reads, or a Transformer a graph for onnxruntime.

    `format` is by default what the model can be. `bits` of a number: by default 8 of a table, 32 of a graph. `dim`
    keeps the first numbers of each vector. Both forms are scored on the dev sets of `sweep`, by default the model's
    own. If a mean loses more than `most_lost`, nothing is written and the result's `folder` is None. Raises `SpecError`
    for a model that cannot have this form, if no sweep is known, and if `out` exists."""
    from babeltune.promotion.small_table import SmallForm, export_small

    format, bits, dim = form.get("format"), form.get("bits"), form.get("dim")
    if format not in (None, "static", "onnx") or bits not in (None, 4, 8) or (dim is not None and dim < 1):
        words = f"format {format!r}, bits {bits!r}, dim {dim!r}"
        raise SpecError(f"{words}: write format 'static' or 'onnx', bits 4 or 8, and a dim of at least 1")
    place = _cluster(cluster)
    with _listening(progress):
        return export_small(str(model), Path(out), place, form=SmallForm(**form), sweep=sweep, most_lost=most_lost)


def runs(sweep: str | None = None, *, cluster: str | Path | None = None, archived: bool = False) -> pd.DataFrame:
    """The trials of a sweep as a table, the best first; or all sweeps, the latest first. `archived` lists archived
    ones, too.

    A trial's row has its `state`, `reports`, `pairs`, `seconds` and `reason`, a column for each metric of its best
    report, and one for each searched setting, such as `setting.temperature`. The baselines have rows too. `sweep` is an
    id or a name."""
    import pandas as pd

    from babeltune.sweep.state.folder import sweep_folders
    from babeltune.sweep.state.log import log_of
    from babeltune.sweep.state.overview import sweep_line
    from babeltune.sweep.state.progress import standing
    from babeltune.sweep.sync.view import StorageView

    view = StorageView(_cluster(cluster))
    if sweep is None:
        view.update(every=True)
        folders = [each for each in sweep_folders(view.folder) if archived or not each.labels().get("archived")]
        lines_and_logs = [(sweep_line(folder), log_of(folder.path)) for folder in folders]
        lines = [{**vars(line), "trials": len(log.trials)} for line, log in lines_and_logs]
        columns = ["sweep", "name", "state", "trials", "best", "objective", "score", "title", "note"]
        return pd.DataFrame(lines, columns=columns).set_index("sweep")
    rows = standing(view.sweep(sweep))
    table: list[dict[str, object]] = []
    for row in rows:
        facts = {name: getattr(row, name) for name in ("state", "reports", "pairs", "seconds", "reason")}
        settings = {SETTING + name: value for name, value in row.params.items()}
        table.append({**facts, **row.metrics, **settings})
    return pd.DataFrame(table, index=pd.Index([row.name for row in rows], name="trial"))


def trial(name: str, *, cluster: str | Path | None = None) -> TrialView:
    """One trial by its name, `SWEEP/t0003`, where SWEEP is a sweep's id or name. Raises `UnknownNameError`."""
    import pandas as pd

    from babeltune.sweep.state.folder import find_run, read_of_trial
    from babeltune.sweep.state.leaderboard import trial_row
    from babeltune.sweep.sync.view import StorageView
    from babeltune.training.checkpoint import read_reports

    view = StorageView(_cluster(cluster))
    view.update(name.partition("/")[0])
    folder, number = find_run(view.folder, name)
    if number is None:
        raise SpecError(f"{name!r} is a sweep; name one of its trials, such as {folder.id}/t0000")
    place = folder.trial(number)
    row, record = trial_row(place, *folder.sweep().objectives), read_of_trial(place, "trial.json") or {}
    points = [
        {"report": each.index, "step": each.step, "pairs": each.pairs, "seconds": each.seconds, **each.metrics}
        for each in read_reports(place)
    ]
    curve = pd.DataFrame(points).set_index("report") if points else pd.DataFrame(columns=["step", "pairs", "seconds"])
    return TrialView(
        name=f"{folder.id}/{row.name}",
        state=row.state,
        reason=row.reason,
        method=record["method"],
        settings=row.params,
        config=record["config"],
        metrics=row.metrics,
        curve=curve,
    )


def load(model: str, *, cluster: str | Path | None = None) -> SentenceTransformer:
    """A model that encodes sentences: `models:/NAME@champion`, `SWEEP/t0003`, a folder, or a hub id.

    `load(...).encode(["Good morning."])` gives the vectors. No code of the model's folder is run."""
    from babeltune.models.hub import open_model
    from babeltune.promotion.candidate import exported
    from babeltune.promotion.model_names import model_folder, trial_of
    from babeltune.sweep.sync.view import StorageView

    place = _cluster(cluster)
    view = StorageView(place)
    if not model.startswith("models:/") and not Path(model).is_dir():
        view.update(every=True)
    trial = trial_of(model, view.folder)
    if trial is None:
        return open_model(model_folder(model, place))
    with exported(trial, view) as folder:
        return open_model(str(folder))


def report(
    sweep: str | None = None,
    *,
    out: str | Path | None = None,
    format: Literal["html", "md", "png"] = "html",
    cluster: str | Path | None = None,
) -> Path:
    """Writes a sweep's report, and returns its file: `out`, or `report.html` in the sweep's folder.

    `sweep` is an id or a name; the latest sweep if it is left out."""
    from babeltune.sweep.sync.view import StorageView
    from babeltune.sweep_report.write import complete_examples, write_report

    view = StorageView(_cluster(cluster))
    folder = view.sweep(sweep)
    complete_examples(folder, view)
    return write_report(folder, view, format, None if out is None else Path(out)).path


def _cluster(file: str | Path | None) -> Cluster:
    """The cluster of a file; `SpecError` for one that takes jobs only."""
    cluster = read_cluster(None if file is None else str(file))
    if cluster.by_jobs:
        raise SpecError(
            f"{cluster.title} takes jobs only; use the command line, or a cluster file with `address: auto` on its head"
        )
    return cluster


def _sweep(
    spec: str | Path | Sweep, place: Cluster, overlays: Sequence[str | Path], assignments: Sequence[str]
) -> Sweep:
    """The sweep of a file, or the `Sweep` itself. Raises `SpecError`."""
    from babeltune.apps.sweep_plan import read_for

    if isinstance(spec, Sweep):
        if overlays or assignments:
            raise SpecError("overlays and assignments change a sweep file; change the Sweep with dataclasses.replace")
        return spec
    if not isinstance(spec, str | Path):
        raise SpecError(f"spec {spec!r} is a {type(spec).__name__}; give the path of a sweep file, or a Sweep")
    return read_for(place, spec, overlays, assignments)


@contextmanager
def _listening(progress: Progress | None) -> Iterator[None]:
    """Calls `progress` during the block's long steps; without one, whoever listens already goes on hearing of them."""
    if progress is None:
        yield
        return
    with listening(progress):
        yield


def _warn(words: str) -> None:
    warnings.warn(words, BabeltuneWarning, stacklevel=5)  # the caller of the public function
