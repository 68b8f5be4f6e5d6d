"""The server of `babeltune ui`: MLflow's own without its log, whose first page leads to a sweep's runs.

`serve_command` has the command that runs this module. It must be a process of its own, since MLflow's server reads its
store from the environment when it is imported."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI


def app_of(uri: str, artifacts: str, page: str) -> FastAPI:
    """MLflow's server of a store. Whoever opens `/` gets to the page, whose address begins with `/#`."""
    from mlflow.server import constants

    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: uri,
        constants.REGISTRY_STORE_URI_ENV_VAR: uri,
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
    }
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from fastapi.responses import HTMLResponse
    from mlflow.server import app as flask_app
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(uri, uri, "mlflow-artifacts:/")
    index = Path(str(flask_app.static_folder), "index.html").read_text(encoding="utf-8")
    # The browser keeps what follows `#` to itself, so that no redirect of a server can lead there.
    script = f"<script>if (!location.hash) location.replace({json.dumps(page.removeprefix('/'))})</script>"
    first = HTMLResponse(index.replace("<head>", f"<head>{script}", 1), headers={"Cache-Control": "no-cache"})
    app.add_api_route("/", lambda: first)
    app.router.routes.insert(0, app.router.routes.pop())  # before MLflow's own, which answers to every path
    return app  # type: ignore[no-any-return]


def main(artifacts: str, port: str, page: str) -> None:
    """Serves on this machine only until it is interrupted. Only errors are printed."""
    import uvicorn

    app = app_of(os.environ["MLFLOW_BACKEND_STORE_URI"], artifacts, page)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends, also while it starts
        main(*sys.argv[1:])
