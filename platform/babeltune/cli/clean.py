"""The command that frees space in a storage: clean."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column

from babeltune.cli.common import (
    ClusterFile,
    Json,
    Yes,
    agreed,
    cluster_of,
    out,
    plain_table,
    say,
    say_out,
    steps_shown,
    warn,
)
from babeltune.cli.program import app
from babeltune.errors import plural

if TYPE_CHECKING:
    from babeltune.sweep.state.housekeeping import Removal
    from babeltune.sweep.sync.view import StorageView


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
    """Free space: stores that no sweep reads, optimizers of ended trials, Ray's own state, drafts.

    It shows what goes, and asks. If nobody can answer, such as in a script, it needs `--yes`.

    Results, models and everything of a running sweep stay. With `--top 3`, checkpoints of other ended trials go, too:
    these trials keep their scores and cannot be promoted any more. Of a storage behind a URI, the bucket is cleaned,
    and this machine's mirror of it."""
    from babeltune.schema.storage_location import DAY_S
    from babeltune.sweep.sync.housekeeping import GONE, IN_USE, everything, remove_or_say_why
    from babeltune.sweep.sync.view import StorageView

    view = StorageView(cluster_of(cluster))
    with steps_shown("listing the storage"):
        listing = Listing(view, everything(view, older_s=older * DAY_S, top=top))
    asks = bool(listing.removals) and not (dry_run or yes)
    if asks:
        say(listing.document(), as_json, lambda: listing.show("would be removed"))
        agreed("remove this?", "clean removes nothing unasked; add --yes, or run it on a terminal", ask=not as_json)
    started, refused = time.monotonic(), Counter[str]()
    if not dry_run:
        with steps_shown("removing files"):
            reasons = [(removal, remove_or_say_why(removal)) for removal in listing.removals]
        refused = Counter(why for _, why in reasons if why)
        listing = Listing(view, [removal for removal, why in reasons if not why])
    warn([f"{count} not removed: {why}" for why, count in refused.items()])
    failed = refused.keys() - {IN_USE, GONE}
    done = "can be removed" if dry_run else f"removed in {time.monotonic() - started:.1f} s"
    if listing.removals or as_json or not failed:
        say(listing.document(), as_json, lambda: (listing.total if asks else listing.show)(done))
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A file or folder that `clean` removes."""

    path: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class Listing:
    """Files and folders of a storage that go, as `clean` shows them."""

    view: StorageView
    removals: list[Removal]

    def place_of(self, removal: Removal) -> str:
        """Relative to the storage; what is in a mirror, as it is on this machine."""
        folder = self.view.folder
        if not removal.path.is_relative_to(folder):
            return str(removal.path)
        inside = removal.path.relative_to(folder).as_posix()
        return inside if self.view.mirror is None or hasattr(removal, "key") else f"{folder}/{inside}"

    def show(self, done: str) -> None:
        """Prints a table of them, and `total`."""
        columns = (Column(title, overflow="fold") for title in ("why", "path"))
        table = plain_table(Column("MB", justify="right", overflow="fold"), *columns)
        for removal in self.removals:
            table.add_row(f"{removal.size / 1e6:,.1f}", removal.reason, self.place_of(removal))
        if self.removals:
            out.print(table, soft_wrap=True)
        self.total(done)

    def total(self, done: str) -> None:
        """Prints how many they are and their size."""
        cluster = self.view.cluster
        where = cluster.folder if self.view.mirror is None else f"{cluster.storage} and {cluster.folder}"
        size = sum(removal.size for removal in self.removals) / 1e6
        things = plural(len(self.removals), "file or folder", "files and folders")
        words = f"{things}, {size:,.1f} MB, {done} in {where}" if self.removals else f"nothing to remove in {where}"
        say_out(words)

    def document(self) -> list[Removed]:
        """For `--json`."""
        whole = self.view.mirror is None
        return [
            Removed(path=str(each.path) if whole else self.place_of(each), bytes=each.size, reason=each.reason)
            for each in self.removals
        ]
