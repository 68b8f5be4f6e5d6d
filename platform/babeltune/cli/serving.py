"""The command that serves models over HTTP: `babeltune serve`."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import typer

from babeltune.cli.common import ClusterFile, Json, cluster_of, say, say_out, steps_shown
from babeltune.cli.models import check_port
from babeltune.cli.program import app

LAST_WAIT_S = 30  # seconds that a server that ends gives to requests in flight


@dataclass(frozen=True, kw_only=True)
class ServedModels:
    """The models of `serve`, once it can answer."""

    url: str
    models: list[str]
    """The names of the models in requests."""


@app.command()
def serve(
    models: Annotated[
        list[str],
        typer.Argument(help="Model folders, SWEEP/t0003, or NAME@ALIAS, which is followed.", metavar="MODEL..."),
    ],
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 5002,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Serve models over HTTP, as OpenAI's /v1/embeddings and text-embeddings-inference's /embed.

    A new version behind an alias takes over without a pause. It listens on this machine only, unless `serve` of the
    cluster file says otherwise. Ctrl-C or SIGTERM ends it after the requests in flight."""
    from babeltune.errors import SpecError

    if twice := [name for place, name in enumerate(models) if name in models[:place]]:
        raise typer.BadParameter(f"{twice[0]!r} is named twice; name each model once", param_hint="MODEL")
    if missing := [name for name in ("httptools", "orjson", "prometheus_client") if find_spec(name) is None]:
        raise SpecError(f"serve needs the package {missing[0]}: `pip install 'babeltune[serve]'`")
    chosen = cluster_of(cluster)
    token = chosen.serve.token()
    check_port(port, chosen.serve.host)
    import uvicorn

    from babeltune.apps.serving.app import Server
    from babeltune.apps.serving.connections import Connection
    from babeltune.apps.serving.models import Served

    with steps_shown("loading the models"):
        served = [Served(name, chosen) for name in models]
    settings = uvicorn.Config(
        Server(served, token=token, loopback=chosen.serve.on_loopback).app(),
        host=chosen.serve.host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http=Connection,
        timeout_graceful_shutdown=LAST_WAIT_S,
    )
    host = f"[{chosen.serve.host}]" if ":" in chosen.serve.host else chosen.serve.host
    url = f"http://{host}:{port}"
    names = [model.name for model in served]
    words = f"{', '.join(names)} at {url}/v1/embeddings and {url}/embed (Ctrl-C ends it)"
    say(ServedModels(url=url, models=names), as_json, lambda: say_out(words))
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once all is answered
        uvicorn.Server(settings).run()
