"""The commands that name sweeps, say something of them, hide them and delete them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from babeltune.cli.common import (
    ClusterFile,
    Json,
    Yes,
    agreed,
    cluster_of,
    err,
    out,
    say,
    say_out,
    steps_shown,
    sweep_folder,
    warn,
    with_cluster,
)
from babeltune.cli.program import app
from babeltune.errors import SpecError, plural

if TYPE_CHECKING:
    from babeltune.sweep.state.messages import Labels
    from babeltune.sweep.sync.audit import Action

LONGEST_NOTE = 2000  # characters of a note: MLflow's tags and one screen hold it
WAIT_S = 30.0  # seconds within which a driver should have noted what it was asked
Sweep = Annotated[str, typer.Argument(help="A sweep's id or name.", metavar="SWEEP")]


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The output of `rename`, `note` and `archive`."""

    sweep: str
    in_force: bool
    """Whether the sweep's ledger has it. A busy driver adds it later."""
    labels: dict[str, str | bool]


@app.command()
def rename(
    sweep: Sweep,
    name: Annotated[str, typer.Argument(help="Its new name; the old one gives that back.", metavar="NAME")],
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Give a sweep another name. Its id and its folder stay."""
    from babeltune.schema.bounds import NAME
    from babeltune.sweep.state.folder import is_bare_trial, name_of, sweep_folders

    if not NAME.fullmatch(name) or is_bare_trial(name):
        flaw = "names a trial; write another one" if is_bare_trial(name) else "must be letters, digits, `_`, `.` or `-`"
        raise SpecError(f"NAME {name!r} {flaw}")
    folder = sweep_folder(sweep, cluster)
    others = {each.id: each.labels().get("name") or name_of(each.id) for each in sweep_folders(folder.path.parents[1])}
    name_before = others.pop(folder.id)
    if namesake := next((id_ for id_, other in others.items() if name in (id_, other)), None):
        raise SpecError(f"NAME {name!r} is that of sweep {namesake}; write another one")
    label(folder.id, cluster, "rename", name, {"name": "" if name == name_of(folder.id) else name}, as_json=as_json)
    if not as_json:
        out.out(f"sweep {folder.id} is called {name}, and was {name_before}", highlight=False)


@app.command()
def note(
    sweep: Sweep,
    text: Annotated[str, typer.Argument(help="One line; an empty one removes the note.", metavar="TEXT")],
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Note something of a sweep: `status`, `runs`, reports and MLflow show it."""
    words = " ".join(text.split())
    if len(words) > LONGEST_NOTE or not words.isprintable():
        rule = f"have at most {LONGEST_NOTE:,} characters; shorten it"
        rule = rule if words.isprintable() else "be text without control codes; remove them"
        raise SpecError(f"TEXT of {plural(len(words), 'character')} must {rule}")
    folder = label(sweep, cluster, "note", words, {"note": words}, as_json=as_json)
    if not as_json:
        out.print(f"noted of sweep {folder}" if words else f"sweep {folder} has no note now", highlight=False)


@app.command()
def archive(
    sweep: Sweep,
    undo: Annotated[bool, typer.Option("--undo", help="Show it in lists again.")] = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Leave a sweep out of `runs`, and of commands that name no sweep. Nothing is removed."""
    folder = label(sweep, cluster, "archive", "undone" * undo, {"archived": not undo}, as_json=as_json)
    if not as_json:
        words = "is listed again" if undo else "is archived; `babeltune runs --archived` lists it"
        say_out(f"sweep {folder} {words}")


def label(sweep: str, cluster: str | None, action: Action, subject: str, labels: Labels, *, as_json: bool) -> str:
    """Adds labels to a sweep's ledger, and a line to the audit. Returns the sweep's id."""
    from babeltune.sweep.driver.changes import change
    from babeltune.sweep.sync.audit import audit
    from babeltune.sweep.sync.view import StorageView

    view, folder = StorageView(cluster_of(cluster)), sweep_folder(sweep, cluster)
    folder.sweep()  # a damaged sweep is an error before anything changes
    in_force = change(view, folder, "label", dict(labels), lambda log: labels.items() <= log.labels.items(), WAIT_S)
    audit(view, action, f"{folder.id}{f', {subject}' * bool(subject)}")
    if not in_force:
        warn([f"the driver of sweep {folder.id} is busy and notes it later; the lists show it then"])
    elif (rest := folder.read("tracking.json") or {}).get("unsent_bytes"):
        again = f"babeltune resume {folder.id}{with_cluster(cluster)}"
        warn([f"MLflow has not taken it yet ({rest['trouble'] or 'it is busy'}); `{again}` sends the rest"])
    say(Labelled(sweep=folder.id, in_force=in_force, labels=labels), as_json, lambda: None)
    return folder.id


@app.command()
def delete(sweep: Sweep, yes: Yes = False, cluster: ClusterFile = None, as_json: Json = False) -> None:
    """Delete a sweep with its trials and checkpoints, and mark its runs in MLflow as deleted.

    It shows what goes, and asks. A sweep stays if it runs, if a registered model was decided by it, or if another
    sweep is about to start from it."""
    from babeltune.promotion.deletion import delete as delete_sweep
    from babeltune.promotion.deletion import deletion_of
    from babeltune.sweep.sync.view import StorageView

    folder, view = sweep_folder(sweep, cluster), StorageView(cluster_of(cluster))
    view.update(every=True)  # another sweep may start from it
    going = deletion_of(view, folder)
    if not yes:
        sizes = (
            f"{plural(going.trials, 'trial')}, {plural(going.checkpoints, 'checkpoint')}, {going.bytes / 1e6:,.1f} MB"
        )
        for line in (f"sweep {going.sweep} goes: {sizes}", *(f"stays: {each}" for each in going.stays)):
            err.print(line, markup=False, highlight=False, soft_wrap=True)
        agreed(f"delete sweep {folder.id}?", "delete removes nothing unasked; add --yes, or run it on a terminal")
    with steps_shown(f"deleting sweep {folder.id}"):
        runs = delete_sweep(view, folder)
    done = replace(going, mlflow_runs=runs)
    words = f"deleted sweep {folder.id}, {going.bytes / 1e6:,.1f} MB"
    words += f"; {plural(runs, 'run')} in MLflow can be restored there until `mlflow gc`" if runs else ""
    say(done, as_json, lambda: say_out(words))
