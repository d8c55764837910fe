"""Preemption notices as files and over real HTTP, in the formats of clouds."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import Notice, NoticeSource, wait_for_notice
from tests.errors import raises_code
from tests.fakes.clock import ManualClock, settle


@dataclass(kw_only=True)
class Metadata:
    """Answers of a cloud's metadata service, and the requests that it received."""

    status: int = 404
    body: str = ""
    token: str | None = "secret-1"  # the token that is valid now; None if none is required
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def metadata_service(metadata: Metadata) -> Iterator[str]:
    """Runs a server on loopback; yields its base address."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            metadata.asked.append(("PUT", self.path))
            is_asked_well = int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
            self._answer(200 if is_asked_well else 400, metadata.token or "")

        def do_GET(self) -> None:
            metadata.asked.append(("GET", self.path))
            is_let_in = metadata.token is None or self.headers["X-aws-ec2-metadata-token"] == metadata.token
            self._answer(metadata.status if is_let_in else 401, metadata.body)

        def _answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Location", "http://192.0.2.1/elsewhere")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (http.server's name)
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def http_source(base: str, **options: Any) -> NoticeSource:
    return notices.build(
        {"kind": "http", "url": f"{base}/spot/instance-action", "token_url": f"{base}/token", **options}
    )


def test_an_ec2_notice_has_its_time() -> None:
    metadata = Metadata()
    with metadata_service(metadata) as base:
        source = http_source(base)
        assert source.poll(now=1000.0) is None
        metadata.status, metadata.body = 200, '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
        notice = source.poll(now=1000.0)
    end = datetime(2017, 9, 18, 8, 22, tzinfo=UTC).timestamp()
    assert notice == Notice(at=end, source=f"{base}/spot/instance-action")
    assert metadata.asked == [("PUT", "/token"), ("GET", "/spot/instance-action"), ("GET", "/spot/instance-action")]


def test_an_expired_session_token_is_renewed() -> None:
    metadata = Metadata()
    with metadata_service(metadata) as base:
        source = http_source(base)
        source.poll(now=0.0)
        metadata.token = "secret-2"
        with raises_code(Unavailable, "preemption.unexpected_answer"):
            source.poll(now=0.0)
        assert source.poll(now=0.0) is None


@pytest.mark.parametrize(("body", "is_noticed"), [("FALSE", False), ("TRUE", True), ("{}", True), ("going down", True)])
def test_a_google_cloud_notice_is_true_or_false(body: str, is_noticed: bool) -> None:
    with metadata_service(Metadata(status=200, body=body, token=None)) as base:
        source = http_source(base, token_url="", headers={"Metadata-Flavor": "Google"}, deadline_s=30)
        notice = source.poll(now=1000.0)
    assert notice == (Notice(at=1030.0, source=f"{base}/spot/instance-action") if is_noticed else None)


@pytest.mark.parametrize("status", [302, 403, 500])
def test_an_invalid_answer_is_an_error_and_not_a_notice(status: int) -> None:
    with (
        metadata_service(Metadata(status=status, token=None)) as base,
        raises_code(Unavailable, "preemption.unexpected_answer"),
    ):
        http_source(base, token_url="").poll(now=0.0)


def test_an_unreachable_metadata_service_is_an_error_and_not_a_notice() -> None:
    with metadata_service(Metadata()) as base:
        pass
    with pytest.raises(Unavailable) as caught:
        http_source(base).poll(now=0.0)
    assert caught.value.code == "preemption.unreachable"


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/x", "http://example.org/x", "http://10.0.0.1/x", "file:///etc/passwd", "http://[::1/x", "x"],
)
def test_only_addresses_of_this_machine_are_polled(url: str) -> None:
    with raises_code(InvalidInput, "config.invalid", "notice http.url"):
        notices.build({"kind": "http", "url": url})


def test_loopback_and_link_local_addresses_can_be_polled() -> None:
    assert http_source("http://[fe80::1]").poll_interval_s == http_source("http://localhost:80").poll_interval_s > 0


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", 120.0),
        ("the operator says so", 120.0),
        ("[1]", 120.0),
        ('{"deadline_s": 30}', 30.0),
        ('{"deadline_s": "soon"}', 120.0),
        ('{"deadline_s": -1}', 120.0),
    ],
)
def test_a_notice_file_with_any_content_is_a_notice(text: str, end: float, tmp_path: Path) -> None:
    path = tmp_path / "notice"
    source = notices.build({"kind": "file", "path": str(path)})
    assert source.poll(now=5.0) is None
    path.write_text(text)
    assert source.poll(now=5.0) == Notice(at=path.stat().st_mtime + end, source=f"the file {path}")


def test_a_notice_file_can_contain_the_time(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_text('{"time": "2030-01-31T12:00:00", "deadline_s": 1}')
    notice = notices.build({"kind": "file", "path": str(path)}).poll(now=5.0)
    assert notice is not None
    assert notice.at == datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp()


def test_an_unreadable_notice_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        notices.build({"kind": "file", "path": str(tmp_path)}).poll(now=5.0)
    assert caught.value.code == "preemption.unreadable_notice"


class Scripted:
    """Returns or raises the given results, one per poll."""

    poll_interval_s = 2.0

    def __init__(self, *finds: Notice | Exception | None) -> None:
        self.finds = list(finds)

    def poll(self, now: float) -> Notice | None:
        """Returns the next result."""
        result = self.finds.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


@pytest.mark.anyio
async def test_polling_continues_despite_errors_until_a_notice() -> None:
    clock, notice = ManualClock(), Notice(at=1100.0, source="there")
    source = Scripted(None, Unavailable("away"), Unavailable("away"), None, notice)
    looking = asyncio.create_task(wait_for_notice(source, clock=clock))
    while not looking.done():
        await asyncio.sleep(0.001)  # each poll runs in a thread
        await settle()
        clock.advance(source.poll_interval_s)
    assert looking.result() is notice
    assert source.finds == []


def test_no_notice_source_is_polled_by_default() -> None:
    assert notices.build({"kind": "none"}).poll(now=0.0) is None
