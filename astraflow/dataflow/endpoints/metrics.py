"""The OpenMetrics endpoint: serves the newest report to Prometheus over HTTP. Off unless configured."""

import asyncio
import gzip
import hmac
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client.exposition import choose_encoder

from astraflow.contract.reports.report import Report
from astraflow.dataflow.endpoint_config import MetricsEndpoint
from astraflow.dataflow.endpoints.openmetrics import DiskSpace, ReportCollector
from astraflow.dataflow.history.losses import Losses
from astraflow.runtime.http.guard import BrowserGuard
from astraflow.runtime.http.hosts import is_loopback
from astraflow.runtime.http.server import listening, serving_http, url_of

PATH = "/metrics"

_GZIP_LEVEL = 1


@asynccontextmanager
async def serving_metrics(
    endpoint: MetricsEndpoint, report: Callable[[], Report], losses: Losses, *, directory: Path
) -> AsyncIterator[str]:
    """Serves the reports of `report()` and the space of `directory` during the block; yields the address.

    Raises: InvalidInput.
    """
    with listening(endpoint.host, endpoint.port) as listener:
        app = _MetricsApp(report, endpoint.token, losses, directory)
        checks_host = not endpoint.token and is_loopback(endpoint.host)
        async with serving_http(BrowserGuard(app, checks_host=checks_host, needs_json=False), listener):
            yield f"{url_of(listener, endpoint.host)}{PATH}"


class _MetricsApp:
    """One read-only path. The event loop, which owns the report, takes it; a thread formats it."""

    def __init__(self, report: Callable[[], Report], token: str, losses: Losses, directory: Path) -> None:
        self._report = report
        self._directory = directory
        self._losses = losses
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        status, extra, body = await self._answer(scope["path"], scope["method"], headers)
        fields = [(b"content-length", str(len(body)).encode()), *extra]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(
        self, path: str, method: str, headers: dict[bytes, bytes]
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        text = [(b"content-type", b"text/plain; charset=utf-8")]
        if self._expected and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            return 401, [*text, (b"www-authenticate", b"Bearer")], b"cannot read metrics: token missing or wrong\n"
        if path != PATH:
            return 404, text, f"not found; metrics are at {PATH}\n".encode()
        if method not in ("GET", "HEAD"):
            return 405, [*text, (b"allow", b"GET, HEAD")], b"method not allowed; use GET or HEAD\n"
        accept = headers.get(b"accept", b"").decode("latin-1")
        does_gzip = b"gzip" in headers.get(b"accept-encoding", b"")
        try:
            body, content_type = await asyncio.to_thread(self._exposition, self._report(), accept)
        except Exception as problem:  # a report that cannot be formatted; the next one may be
            self._losses.add("metrics", problem)
            return 503, text, b"cannot format the latest report; see the log of dataflow\n"
        fields = [(b"content-type", content_type.encode()), (b"vary", b"accept, accept-encoding")]
        if does_gzip:
            body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
            fields.append((b"content-encoding", b"gzip"))
        return 200, fields, body

    def _exposition(self, report: Report, accept: str) -> tuple[bytes, str]:
        disk = shutil.disk_usage(self._directory)
        space = DiskSpace(free_bytes=disk.free, size_bytes=disk.total)
        return exposition(report, accept, dict(self._losses.counts), space)


def exposition(
    report: Report, accept: str, left_out: Mapping[str, int] | None = None, disk: DiskSpace | None = None
) -> tuple[bytes, str]:
    """Returns a report as text, and its content type: OpenMetrics or the older format, as `accept` asks.

    left_out: numbers of items that could not be reported, by kind. disk: space for dataflow's directory.
    """
    encode, content_type = choose_encoder(accept)
    return encode(ReportCollector(report, left_out, disk)), content_type
