"""The server of vectors as an application of Ray Serve, which adds and ends replicas with the load.

`import_path: babeltune.apps.serving.deployment:build` of a Serve file; `clusters/kuberay/rayservice.yaml` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from babeltune.errors import SpecError
from babeltune.schema.cluster import read_cluster

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application


def build(args: dict[str, Any]) -> Application:
    """The application, by its `args`: `models`, a list of names, and `cluster`, a cluster file of the replicas.

    Raises `SpecError` for other arguments, and for a cluster file without a token: other machines reach Ray Serve."""
    from ray import serve

    models, file = args.get("models"), args.get("cluster")
    if set(args) - {"models", "cluster"} or not (isinstance(models, list) and models):
        raise SpecError(f"args: {args!r} must be `models`, a list of names, and `cluster`, a cluster file")
    cluster = read_cluster(file)
    if cluster.serve.token_env is None and cluster.serve.token_file is None:
        raise SpecError(f"{file or 'args'}: other machines reach Ray Serve; name a token: `serve: {{token_env: NAME}}`")

    def app() -> FastAPI:
        """The app of one replica, which loads the models."""
        from babeltune.apps.serving.app import Server
        from babeltune.apps.serving.models import Served

        served = [Served(name, cluster) for name in models]
        return Server(served, token=cluster.serve.token(), loopback=False, on_ray=True).app()

    deployment = serve.deployment(serve.ingress(app)(Replica), name="vectors")
    return deployment.bind()


class Replica:
    """The replica that Ray Serve starts. All answers are the app's."""
