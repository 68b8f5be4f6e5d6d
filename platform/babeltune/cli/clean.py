"""The command that frees space in a storage: clean."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.table import Table

from babeltune.cli.common import ClusterFile, Json, app, cluster_of, out, say

DAY_S = 86_400.0


@app.command()
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    older: Annotated[float, typer.Option(help="Days that an unread store and a draft stay.", min=0)] = 7.0,
    top: Annotated[
        int | None, typer.Option(help="Trials of each sweep whose checkpoints stay; all when left out.", min=1)
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Free space: stores that no sweep reads, optimizers of ended trials, Ray's own state, drafts.

    Results, models and everything of a running sweep stay. With `--top 3`, checkpoints of other ended trials go, too:
    these trials keep their scores and cannot be promoted any more.
    """
    from babeltune.errors import SpecError
    from babeltune.sweep.state.housekeeping import removals

    chosen = cluster_of(cluster)
    if chosen.mirrored is not None:
        raise SpecError(
            f"the storage {chosen.storage} is behind a URI; give its bucket a rule that deletes old objects, or clean "
            "a folder"
        )
    found = list(removals(chosen.folder, older_s=older * DAY_S, top=top))
    started = time.monotonic()
    for removal in () if dry_run else found:
        removal.carry_out()
    seconds = time.monotonic() - started

    def show() -> None:
        table = Table(box=None, pad_edge=False)
        for title in ("MB", "why", "path"):
            table.add_column(title, justify="right" if title == "MB" else "left", overflow="fold")
        for removal in found:
            table.add_row(f"{removal.size / 1e6:,.1f}", removal.reason, str(removal.path.relative_to(chosen.folder)))
        if found:
            out.print(table, soft_wrap=True)
        total = sum(removal.size for removal in found) / 1e6
        done = "can be removed" if dry_run else f"removed in {seconds:.1f} s"
        out.print(f"{len(found)} files and folders, {total:,.1f} MB, {done} in {chosen.folder}", highlight=False)

    say([{"path": str(r.path), "bytes": r.size, "reason": r.reason} for r in found], as_json, show)
