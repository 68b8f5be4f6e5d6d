"""The command that frees space in a storage: clean."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from babeltune.cli.common import ClusterFile, Json, Yes, agreed, app, cluster_of, out, say, steps_shown, warn
from babeltune.errors import counted

if TYPE_CHECKING:
    from babeltune.sweep.state.housekeeping import Removal


@app.command()
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    older: Annotated[float, typer.Option(help="Days that an unread store and a draft stay.", min=0)] = 7.0,
    top: Annotated[
        int | None, typer.Option(help="Trials of each sweep whose checkpoints stay; all when left out.", min=1)
    ] = None,
    yes: Yes = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Free space: stores that no sweep reads, optimizers of ended trials, sent metrics, Ray's own state, drafts.

    It shows what goes, and asks. Where nobody can answer, such as in a script, it needs `--yes`.

    Results, models and everything of a running sweep stay. With `--top 3`, checkpoints of other ended trials go, too:
    these trials keep their scores and cannot be promoted any more. Of a storage behind a URI, the bucket is cleaned,
    and this machine's mirror of it.
    """
    from babeltune.schema.storage_location import DAY_S
    from babeltune.sweep.sync.housekeeping import everything, why_kept
    from babeltune.sweep.sync.view import StorageView

    chosen = cluster_of(cluster)
    view = StorageView(chosen)
    with steps_shown():
        found = everything(view, older_s=older * DAY_S, top=top)
    where = chosen.folder if view.mirror is None else f"{chosen.storage} and {chosen.folder}"

    def place_of(removal: Removal) -> str:
        """Relative to the storage; what is in a mirror, as it is on this machine."""
        if not removal.path.is_relative_to(chosen.folder):
            return str(removal.path)
        inside = removal.path.relative_to(chosen.folder).as_posix()
        return inside if view.mirror is None or hasattr(removal, "key") else f"{chosen.folder}/{inside}"

    def show(done: str) -> None:
        table = Table(box=None, pad_edge=False)
        for title in ("MB", "why", "path"):
            table.add_column(title, justify="right" if title == "MB" else "left", overflow="fold")
        for removal in found:
            table.add_row(f"{removal.size / 1e6:,.1f}", removal.reason, place_of(removal))
        if found:
            out.print(table, soft_wrap=True)
        total(done)

    def total(done: str) -> None:
        size = sum(removal.size for removal in found) / 1e6
        things = counted(len(found), "file or folder", "files and folders")
        out.print(f"{things}, {size:,.1f} MB, {done} in {where}", highlight=False)

    def document() -> list[dict[str, object]]:
        return [
            {"path": str(r.path) if view.mirror is None else place_of(r), "bytes": r.size, "reason": r.reason}
            for r in found
        ]

    asks = bool(found) and not (dry_run or yes)
    if asks:
        say(document(), as_json, lambda: show("would be removed"))
        agreed("remove this?", "clean removes nothing unasked; add --yes, or run it on a terminal", ask=not as_json)
    started, left = time.monotonic(), Counter[str]()
    if not dry_run:
        with steps_shown():
            reasons = [(removal, why_kept(removal)) for removal in found]
        found, left = [removal for removal, why in reasons if not why], Counter(why for _, why in reasons if why)
    warn([f"{count} not removed: {why}" for why, count in left.items()])
    done = "can be removed" if dry_run else f"removed in {time.monotonic() - started:.1f} s"
    say(document(), as_json, lambda: (total if asks else show)(done))
