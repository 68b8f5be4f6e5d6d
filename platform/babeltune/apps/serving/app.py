"""The server of vectors as an ASGI app: `/v1/embeddings` as OpenAI has it, and `/embed` as text-embeddings-inference.

It refuses what is too much before it keeps it, and says what is wrong in the error object of either API. uvicorn and
Ray Serve run the same app."""

import asyncio
import base64
import hmac
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request, Response

from babeltune.apps.serving.models import Encoded, Served
from babeltune.errors import shortened
from babeltune.evaluation.projection import unit_rows

Handler = Callable[[Request], Awaitable[Response]]
log = logging.getLogger(__name__)
MOST_TEXTS = 2_048  # texts of a request, as many as OpenAI takes
MOST_CHARACTERS = 32_768  # of a text: OpenAI's 8,192 tokens of four each. Those that are cut off take time, too.
MOST_BYTES = 16 << 20  # bytes of a request's body
MOST_WAITING = 8_192  # texts of all requests that wait for a batch; with more, an answer would take minutes
BODY_S = 10.0  # seconds within which a body must have come
ALIAS_S = 5.0  # seconds between two looks at where an alias points
REPORT_S = 5.0  # seconds between two reports to Ray, which exports its metrics every ten
HERE = re.compile(r"(127(\.\d{1,3}){3}|localhost|\[::1\])(:\d+)?", re.IGNORECASE)  # hosts of requests to this machine
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # bounds of the histogram of seconds
SIZES = (1, 2, 4, 8, 16, 32, 64)  # bounds of the histogram of texts in a batch
KINDS = {
    400: ("invalid_request_error", "Validation"),
    401: ("authentication_error", "Unauthorized"),
    404: ("not_found_error", "Not found"),
    408: ("timeout_error", "Timeout"),
    429: ("rate_limit_error", "Overloaded"),
    500: ("server_error", "Backend"),
}
"""The kinds of errors, as OpenAI and text-embeddings-inference call them. Those without one are like 400."""


class RequestError(Exception):
    """A request that is not answered, in words for who sent it."""

    def __init__(self, status: int, words: str, field: str | None = None) -> None:
        super().__init__(words)
        self.status, self.words, self.field = status, words, field


class Metrics:
    """The counters of `/metrics`."""

    def __init__(self, models: Sequence[Served]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        place: Any = {"namespace": "babeltune_serve", "registry": self.registry}
        self.requests = Counter("requests", "Requests, by path and status.", ["path", "status"], **place)
        self.seconds = Histogram("seconds", "Seconds of requests for vectors.", buckets=SECONDS, **place)
        self.texts = Counter("texts", "Texts that were encoded.", **place)
        self.batches = Histogram("batch_texts", "Texts of a batch.", buckets=SIZES, **place)
        self.failures = Counter("alias_failures", "Looks at an alias that failed.", ["model"], **place)
        waiting = Gauge("waiting_texts", "Texts that wait for a batch.", ["model"], **place)
        version = Gauge("model_version", "The version that serves.", ["model"], **place)
        for model in models:
            waiting.labels(model.name).set_function(partial(getattr, model.batches, "waiting"))
            if model.version:
                version.labels(model.name).set_function(partial(lambda served: float(served.version), model))
            model.batches.sizes = self.batches.observe

    async def report_to_ray(self) -> None:
        """Has Ray export the figures with the replica's name, as a page of the service is that of any one replica."""
        from ray.serve.metrics import Gauge

        gauges: dict[str, Gauge] = {}
        while True:
            for family in self.registry.collect():
                for name, labels, value, *_ in family.samples:
                    if name not in gauges:
                        gauges[name] = Gauge(name, family.documentation, tuple(labels))
                    gauges[name].set(value, labels)
            await asyncio.sleep(REPORT_S)


class Server:
    """The models, and the answers to requests."""

    def __init__(
        self,
        models: Sequence[Served],
        *,
        token: str | None = None,
        loopback: bool = True,
        on_ray: bool = False,
        alias_s: float = ALIAS_S,
    ) -> None:
        """With `loopback` it answers only to names of this machine. `on_ray`: whether it is one replica of Ray Serve,
        whose metrics Ray exports."""
        self.models, self.alias_s, self.metrics = models, alias_s, Metrics(models)
        self.token = None if token is None else f"Bearer {token}".encode()
        self.loopback, self.on_ray = loopback, on_ray

    def app(self) -> FastAPI:
        """The app, with a handler for each path."""
        answers = {
            "/v1/embeddings": ("POST", self.embeddings),
            "/embed": ("POST", self.embed),
            "/health": ("GET", self.health),
            "/v1/models": ("GET", self.listed),
            **({} if self.on_ray else {"/metrics": ("GET", self.measured)}),
        }

        async def other(request: Request, error: Any) -> Response:
            path = request.url.path[:100]
            use = f"use {answers[path][0]}" if path in answers else f"there are {', '.join(answers)}"
            words = f"{request.method} {path}: {use}"
            return error_response(request.url.path, RequestError(error.status_code, words))

        app = FastAPI(openapi_url=None, exception_handlers={404: other, 405: other}, lifespan=self.lifespan)
        for path, (method, answer) in answers.items():
            app.router.add_route(path, self.endpoint(path, answer), methods=[method])
        return app

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Follows the aliases while the app runs."""
        if all(model.encoder.quick for model in self.models):
            # Batches are short. On a busy machine threads that wait for one another take fifty times as long.
            torch.set_num_threads(1)
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        failed = self.metrics.failures.labels
        tasks = [asyncio.create_task(each.follow(self.alias_s, failed(each.name).inc)) for each in self.models]
        if self.on_ray:
            tasks.append(asyncio.create_task(self.metrics.report_to_ray()))
        yield
        for task in tasks:
            task.cancel()

    def endpoint(self, path: str, answer: Handler) -> Handler:
        """The handler of a path: it asks for the token, counts, and makes error objects."""
        from starlette.requests import ClientDisconnect

        async def endpoint(request: Request) -> Response:
            try:
                self._check(request, path)
                response = await answer(request)
            except RequestError as error:
                response = error_response(path, error)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody reads it
            except Exception:
                log.exception("%s failed", path)
                response = error_response(path, RequestError(500, "the model failed; the server's log says why"))
            self.metrics.requests.labels(path, response.status_code).inc()
            return response

        return endpoint

    def _check(self, request: Request, path: str) -> None:
        """Raises `RequestError` without the token, and for a name by which a page may have sent a browser here."""
        host = request.headers.get("host", "")
        if self.loopback and not HERE.fullmatch(host):
            raise RequestError(400, f"Host {quoted(host)}: this server answers as 127.0.0.1 or localhost only")
        if self.token is not None and path != "/health":
            sent = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(sent, self.token):
                raise RequestError(401, "the token is missing or wrong; send `Authorization: Bearer TOKEN`")

    async def health(self, _: Request) -> Response:
        """Says that the models are loaded."""
        return json_response({"status": "ok", "models": {model.name: model.version for model in self.models}})

    async def listed(self, _: Request) -> Response:
        """The models, as OpenAI lists them."""
        entries = [{"id": model.name, "object": "model", "owned_by": "babeltune"} for model in self.models]
        return json_response({"object": "list", "data": entries})

    async def measured(self, _: Request) -> Response:
        """The figures, as Prometheus reads them."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def embeddings(self, request: Request) -> Response:
        """Vectors as OpenAI's API gives them."""
        fields = await fields_of(request)
        form = fields.get("encoding_format") or "float"
        if form not in ("float", "base64"):
            raise RequestError(400, f"encoding_format: {quoted(form)} must be float or base64", "encoding_format")
        model = self._model(fields.get("model"))
        encoded, vectors, headers = await self._encode(model, fields, "input")
        values = [base64.b64encode(row).decode() for row in vectors] if form == "base64" else vectors
        entries = [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(values)]
        usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(encoded.tokens))
        return json_response({"object": "list", "data": entries, "model": model.name, "usage": usage}, headers)

    async def embed(self, request: Request) -> Response:
        """Vectors as text-embeddings-inference gives them, of the model that was named first."""
        fields = await fields_of(request)
        for field in ("normalize", "truncate"):
            if not isinstance(fields.get(field), bool | None):
                raise RequestError(400, f"{field}: {quoted(fields[field])} must be true or false", field)
        if fields.get("prompt_name") is not None:
            raise RequestError(400, "prompt_name: leave it out; the model has its own for each text", "prompt_name")
        encoded, vectors, headers = await self._encode(self.models[0], fields, "inputs")
        if fields.get("truncate") is False and any(encoded.cut):
            place = encoded.cut.index(True)
            raise RequestError(
                413, f"inputs {place}: has more tokens than the model reads; cut it, or send truncate: true"
            )
        return json_response(vectors if fields.get("normalize") is False else unit_rows(vectors), headers)

    def _model(self, name: object) -> Served:
        if name is None:
            return self.models[0]
        for model in self.models:
            if name in (model.name, model.source):
                return model
        names = ", ".join(model.name for model in self.models)
        raise RequestError(404, f"model: {quoted(name)} is not served here; there: {names}", "model")

    async def _encode(self, model: Served, fields: dict[str, Any], key: str) -> tuple[Encoded, Any, dict[str, str]]:
        """The texts' vectors, whole and with the numbers that were asked for, and the headers of the answer."""
        begun, encoder = time.perf_counter(), model.encoder
        # The alias may move before the answer, so the version is asked for now.
        headers = {"x-model-version": model.version} if model.version else {}
        texts, dim = texts_of(fields.get(key), key), fields.get("dimensions")
        if dim is not None and not (type(dim) is int and 1 <= dim <= encoder.dim):
            raise RequestError(
                400, f"dimensions: {quoted(dim)} must be a whole number from 1 to {encoder.dim}", "dimensions"
            )
        if model.batches.waiting + len(texts) > MOST_WAITING:
            raise RequestError(429, f"{model.batches.waiting:,} texts wait already; try again in a second")
        encoded = await model.batches.encode(encoder, texts)
        self.metrics.texts.inc(len(texts))
        self.metrics.seconds.observe(time.perf_counter() - begun)
        vectors = encoded.vectors
        if dim not in (None, encoder.dim):
            vectors = unit_rows(np.ascontiguousarray(vectors[:, :dim]))
        return encoded, vectors, headers


async def fields_of(request: Request) -> dict[str, Any]:
    """The JSON object of a body. Raises `RequestError` for one that is too large, too slow, or no object."""
    import orjson

    body = bytearray()
    too_large = RequestError(413, f"the body has more than {MOST_BYTES:,} bytes; send fewer or shorter texts")
    if int(request.headers.get("content-length") or 0) > MOST_BYTES:
        raise too_large
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise too_large
    except TimeoutError:
        raise RequestError(408, f"the body did not end within {BODY_S:g} seconds; send it whole") from None
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body cannot be read as JSON: {error}; send an object in UTF-8") from None
    if not isinstance(fields, dict):
        raise RequestError(400, "the body must be a JSON object")
    return fields


def texts_of(value: object, key: str) -> list[str]:
    """The texts of a request. Raises `RequestError` for too many, and for one that is too long or none."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise RequestError(400, f"{key}: must be a text or a list of texts, not empty", key)
    if len(texts) > MOST_TEXTS:
        raise RequestError(
            413, f"{key}: has {len(texts):,} texts; a request may have {MOST_TEXTS:,}; send several", key
        )
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(400, f"{key} {place}: {quoted(text)} must be a text", key)
        if len(text) > MOST_CHARACTERS:
            words = f"{key} {place}: has {len(text):,} characters; a text may have {MOST_CHARACTERS:,}; cut it"
            raise RequestError(413, words, key)
    return texts


def quoted(value: object) -> str:
    """A value of a request for a message."""
    import orjson

    return shortened(value) if isinstance(value, str) else orjson.dumps(value).decode()[:60]


def json_response(value: object, headers: dict[str, str] | None = None) -> Response:
    """The value as JSON. A number of fp32 has as many digits as it needs."""
    import orjson

    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), 200, headers, "application/json")


def error_response(path: str, error: RequestError) -> Response:
    """The error object of the API that the path belongs to."""
    import orjson

    openai, tei = KINDS.get(error.status, KINDS[400])
    body: dict[str, object] = {"error": error.words, "error_type": tei}
    if path.startswith("/v1/"):
        body = {"error": {"message": error.words, "type": openai, "param": error.field, "code": None}}
    closed = {"connection": "close"}  # the rest of the body is not read
    headers = {408: closed, 413: closed, 429: {"retry-after": "1"}}.get(error.status)
    return Response(orjson.dumps(body), error.status, headers, "application/json")
