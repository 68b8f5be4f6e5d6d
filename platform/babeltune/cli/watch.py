"""The command that serves a sweep's live page on this machine: `babeltune watch`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from babeltune.cli.common import ClusterFile, Json, SweepName, say, say_out, sweep_folder
from babeltune.cli.models import check_port, open_later
from babeltune.cli.program import app

if TYPE_CHECKING:
    from uvicorn import Server

    from babeltune.sweep.state.folder import SweepFolder

HOST = "127.0.0.1"  # the page is for this machine only: it asks for no password
LAST_WAIT_S = 1
"""Seconds that a server that ends gives to open connections. Readers of events never hang up by themselves."""


@dataclass(frozen=True, kw_only=True)
class LivePageAddress:
    """Where `watch` serves a sweep's page."""

    sweep: str
    url: str


@app.command()
def watch(
    name: SweepName = None,
    port: Annotated[int, typer.Option(help="The port on this machine.", min=1, max=65535)] = 5001,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in a browser; by default on a desktop.")
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Serve a sweep's report as a page that follows the sweep while it runs, on this machine only.

    Ctrl-C ends the page and leaves the sweep running. At the sweep's end the page says so and stays as it is."""
    check_port(port)
    folder = sweep_folder(name, cluster)
    url = f"http://{HOST}:{port}/"
    words = f"sweep {folder.id} at {url} (Ctrl-C ends the page, not the sweep)"
    say(LivePageAddress(sweep=folder.id, url=url), as_json, lambda: say_out(words))
    sys.stdout.flush()
    open_later(url.rstrip("/"), choice=open_, as_json=as_json)
    server_of(folder, port).run()


def server_of(folder: SweepFolder, port: int) -> Server:
    """A server of the sweep's live page on the loopback interface; `run` serves until it is interrupted."""
    import uvicorn

    from babeltune.sweep_report.live import LivePage, live_app

    config = uvicorn.Config(
        live_app(LivePage(folder)),
        host=HOST,
        port=port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=LAST_WAIT_S,
        lifespan="off",  # there is none, and a second Ctrl-C would be its traceback
    )
    return uvicorn.Server(config)
