"""Sweeps from Python and notebooks: submit one, read its runs as tables, load what it made.

```python
import babeltune as bt

done = bt.submit("search_spaces/quickstart.yaml")
bt.runs(done.id)  # a pandas DataFrame, the best trial first
bt.trial(f"{done.id}/t0003").curve  # its scores over the pairs that it saw
bt.load(f"{done.id}/t0003").encode(["Good morning.", "Bonjour."])
```

`babeltune` imports this module at the first use of a name, so that `import babeltune` stays quick. Errors are
`babeltune.errors.BabeltuneError`, with the words that the command line prints."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from babeltune.errors import SpecError
from babeltune.schema.cluster import Cluster, read_cluster
from babeltune.schema.records import Scalar, Sweep

if TYPE_CHECKING:
    import pandas as pd
    from sentence_transformers import SentenceTransformer


__all__ = ["SubmittedSweep", "TrialView", "load", "report", "runs", "submit", "trial"]

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


def submit(
    spec: str | Path | Sweep,
    *,
    overlays: Sequence[str | Path] = (),
    assignments: Sequence[str] = (),
    cluster: str | Path | None = None,
) -> SubmittedSweep:
    """Runs a sweep until its budget is spent, and goes on with it if it was begun.

    `spec` is a sweep file or a `Sweep`. `overlays` are the files of `--with`, `assignments` the words of `--set`, such
    as `["budget.trials=4"]`. `cluster` is a cluster file; this machine if it is left out. Raises `SpecError` for a file
    that cannot be run, and for a cluster that takes jobs only: those are the command line's. Registered models and
    trials that the file names come from that cluster."""
    from babeltune.planning.sweep_file import read_sweep
    from babeltune.promotion.starts import fetched
    from babeltune.sweep.driver.run import submit as run
    from babeltune.sweep.state.leaderboard import leaderboard, leading
    from babeltune.sweep_report.stored_report import report_at_the_end

    place = _cluster(cluster)
    if isinstance(spec, Sweep):
        if overlays or assignments:
            raise SpecError("overlays and assignments change a sweep file; change the Sweep with dataclasses.replace")
        sweep = spec
    elif not isinstance(spec, str | Path):
        raise SpecError(f"spec {spec!r} is a {type(spec).__name__}; give the path of a sweep file, or a Sweep")
    else:
        fetch = functools.partial(fetched, cluster=place)
        sweep = read_sweep(spec, overlays=overlays, assignments=assignments, reachable=True, fetch=fetch)
    folder = run(sweep, place)
    if folder.state() == "finished":
        report_at_the_end(folder, place, lambda words: warnings.warn(words, stacklevel=2))
    lead = leading(leaderboard(folder))
    best = f"{folder.id}/{lead.name}" if lead else None
    return SubmittedSweep(id=folder.id, state=folder.state(), best=best, folder=folder.path)


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
    table = [
        {
            "trial": row.name,
            "state": row.state,
            "reports": row.reports,
            "pairs": row.pairs,
            "seconds": row.seconds,
            "reason": row.reason,
            **row.metrics,
            **{SETTING + name: value for name, value in row.params.items()},
        }
        for row in rows
    ]
    return pd.DataFrame(
        table, columns=list(dict.fromkeys(name for line in table for name in line)) or ["trial"]
    ).set_index("trial")


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
            f"{cluster.named} takes jobs only; use the command line, or a cluster file with `address: auto` on its head"
        )
    return cluster
