"""A sweep's report as a page that follows the sweep: `babeltune watch` serves it.

The page is the report's own. Server-sent events tell the browser when the sweep's records have changed, what its
driver does, and that nothing will change any more. Everything comes from this one server: no other one is asked."""

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse

from babeltune.errors import SweepError
from babeltune.files import json_text
from babeltune.promotion.decisions import FOLDER
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import trial_rows
from babeltune.sweep.state.log import LEDGER, log_of
from babeltune.sweep.state.progress import doing_words, is_driven, read_stage, running_words, standing
from babeltune.sweep_report.document import Paragraph, ReportPage, ReportTable, Section
from babeltune.sweep_report.gather import gather, gather_data
from babeltune.sweep_report.page import document
from babeltune.sweep_report.render import LiveNote, render
from babeltune.sweep_report.sections.provenance import data
from babeltune.sweep_report.words import score

POLL_INTERVAL_S = 1.0  # seconds after which the sweep's records are read again
MOST_ROWS = 100  # trials that a live page shows: it is drawn again at each report
RECORDS = ("state.json", "facts.json", "baselines.json", "prepared.json", LEDGER)
"""Records of a sweep's folder that its page shows."""
DRAWING_SHARE = 0.02  # the share of a core that drawing the page again may take, while its trials report all the time
FREE_DRAWING_S = 5.0
"""CPU seconds of drawing before that share counts. Who looks at a small sweep for a while sees each report."""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The policy of what the browser loads for the page: this server's script and events, and nothing of the network."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SCRIPT = (resources.files("babeltune.sweep_report") / "templates" / "live.js").read_text(encoding="utf-8")
"""The page's program: it takes over the new page when the sweep has changed.

It keeps what the reader has unfolded, the focus and the place, all by the ids of elements. The two lines of the live
page stay: `#live`, which may change each second, and `#news`, which screen readers say.
"""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The sweep at one moment."""

    version: str  # equal for equal records
    note: str  # the stage of its driver, or that the page is frozen
    news: str  # the same for the ear: it changes only with the stage and the number of trials that have ended
    over: bool  # whether no driver has the sweep, so that nothing changes any more


class LivePage:
    """One sweep's page, drawn again only if the sweep's records have changed. Several threads may ask for it."""

    def __init__(self, folder: SweepFolder) -> None:
        self.folder = folder
        self._drawn: tuple[str, str] | None = None
        self._begun, self._drawing_s = time.monotonic(), 0.0
        """When it began, by the monotonic clock, and the CPU seconds of all drawing since."""
        self._drawing = threading.Lock()

    def snapshot(self) -> Snapshot:
        """The sweep now. A storage behind a URI is read anew every few seconds."""
        driven = is_driven(self.folder)
        spare_s = FREE_DRAWING_S + DRAWING_SHARE * (time.monotonic() - self._begun) - self._drawing_s
        if driven and self._drawn is not None and spare_s < 0:
            records = self._drawn[0]
        else:
            place = self.folder.path
            files = [*(place / name for name in RECORDS), *sorted((place / FOLDER).glob("*.json"))]
            records = hashlib.sha256(repr((driven, [*map(_version, files)])).encode()).hexdigest()[:16]
        note, news = self._notes() if driven else (self._last_note(),) * 2
        return Snapshot(version=records, note=note, news=news, over=not driven)

    def _last_note(self) -> str:
        state = self.folder.state()
        ended = "was interrupted" if state in ("running", "paused") else f"is {state}"
        return f"Sweep {self.folder.id} {ended}: this page no longer changes."

    def _notes(self) -> tuple[str, str]:
        """The stage of the driver, for the eye and for the ear."""
        rows, stage = trial_rows(self.folder, self.folder.sweep(), "running"), read_stage(self.folder)
        doing = f"{doing_words(self.folder, rows) or 'starting'}{running_words(rows)}"
        news = f"{stage.name if stage else 'starting'}; trials that have ended: {log_of(self.folder.path).ended}"
        return f"Live: {doing}. The page follows the sweep.", news

    def html(self) -> str:
        """The page as it is now."""
        with self._drawing:
            now = self.snapshot()
            if self._drawn is None or self._drawn[0] != now.version:
                begun = time.thread_time()
                note = LiveNote(text=now.note, news=now.news, version=now.version, frozen=now.over)
                self._drawn = now.version, render(self._document(), "html", live=note)
                self._drawing_s += time.thread_time() - begun
            return self._drawn[1]

    def _document(self) -> ReportPage:
        """The report, of trials that run too, or what there is before the first report."""
        try:
            return document(gather(self.folder, unfinished=True), MOST_ROWS)
        except SweepError:
            return waiting(self.folder)


def waiting(folder: SweepFolder) -> ReportPage:
    """The page of a sweep whose trials have no report: the trials as they stand, and the data."""
    sweep = folder.sweep()
    metric = sweep.objectives[0].metric
    rows = tuple(
        (row.name, row.state, str(row.reports), score(row.metrics.get(metric)), row.reason or row.warning)
        for row in standing(folder)[:MOST_ROWS]
    )
    columns = ("trial", "state", "reports", metric.removeprefix("dev/"), "reason")
    table = ReportTable(caption="Trials and baselines so far", columns=columns, rows=rows, left=frozenset({0, 1, 4}))
    blocks = (table,) if rows else (Paragraph(text="No trial has begun yet."),)
    sections = (Section(anchor="trials", title="Trials", blocks=blocks), data(gather_data(folder)))
    return ReportPage(
        title=f"Sweep {sweep.name}",
        subtitle=f"{folder.id} · {folder.state()}",
        verdict=("No trial has finished yet.", "The report appears here with the first score."),
        facts=(),
        sections=tuple(section for section in sections if section is not None),
        footer="Made by babeltune from the sweep's records.",
    )


def _version(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_size
    return None


# --- The server ----------------------------------------------------------------------------------------------------


def live_app(page: LivePage) -> FastAPI:
    """The server's routes: the page, its program, its events, and `/health`."""
    app = FastAPI(title="babeltune", docs_url=None, redoc_url=None, openapi_url=None)
    # A page of the network could send a browser here under another name of this machine.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])

    @app.get("/")
    def report() -> HTMLResponse:
        return HTMLResponse(page.html(), headers=HEADERS)

    @app.get("/live.js")
    def script() -> Response:
        return Response(SCRIPT, media_type="text/javascript", headers=HEADERS)

    @app.get("/health")
    def health() -> PlainTextResponse:
        return PlainTextResponse("OK", headers=HEADERS)

    async def snapshot() -> Snapshot:
        return await run_in_threadpool(page.snapshot)

    @app.get("/events")
    async def events(request: Request, seen: str = "") -> StreamingResponse:
        stream = changes(snapshot, seen, request.is_disconnected)
        return StreamingResponse(stream, media_type="text/event-stream", headers=HEADERS)

    return app


async def changes(
    snapshot: Callable[[], Awaitable[Snapshot]], seen_version: str, has_disconnected: Callable[[], Awaitable[bool]]
) -> AsyncIterator[str]:
    """The events of one reader who has seen that version, until the sweep is over or the reader is gone."""
    note = news = ""
    while not await has_disconnected():
        now = await snapshot()
        if now.version != seen_version:
            seen_version = now.version
            yield event("changed", now.version)
        if now.over:
            yield event("frozen", now.note)
            return
        if now.note != note:
            note = now.note
            yield event("stage", now.note)
        if now.news != news:
            news = now.news
            yield event("news", now.news)
        await asyncio.sleep(POLL_INTERVAL_S)


def event(kind: str, data: str) -> str:
    """One server-sent event. Its data are JSON, so a line break in them ends nothing."""
    return f"event: {kind}\ndata: {json_text(data)}\n\n"
