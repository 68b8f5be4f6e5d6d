"""Servers of tests: in a thread, or MLflow's as a process of its own. Each ends with its block."""

import os
import signal
import subprocess
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from ports import free_port
from waiting import PATIENCE_S, wait_for_server, wait_until


@contextmanager
def answering(handler):
    """The HOST:PORT of an HTTP server that answers as this handler does and prints nothing."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def in_a_thread(server):
    """The address of this server of uvicorn."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server listens")
        yield f"http://127.0.0.1:{server.config.port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@contextmanager
def tracking(store, artifacts, folder, *page):
    """The address of an MLflow server, as `babeltune ui` starts it. Its log is in the folder."""
    from babeltune.tracking.mlflow_client import serve_command

    port = free_port()
    command, environment = serve_command(store, artifacts, port, *page)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_server(process, f"http://127.0.0.1:{port}", folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
