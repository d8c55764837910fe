"""Rate limits of a caller: buckets that refill over time, and a limit on open sockets."""

from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import running_web, shown_secret
from web.accounts.viewer import Viewer
from web.middleware.rate_limits import MAX_CALLERS, RateExceeded, RateLimiter, RequestKind, request_kind
from web.process_settings import Settings
from web.security.problems import CODE_HEADER
from web.security.roles import Role

pytestmark = pytest.mark.anyio

READ = {"type": "http", "method": "GET", "path": "/nodes"}
WRITE = {"type": "http", "method": "POST", "path": "/nodes/n0/drain"}
ADA = Viewer(user_id=1, name="ada", role=Role.VIEWER, session="s1")
BOB = Viewer(user_id=2, name="bob", role=Role.VIEWER, session="s2")


def limits(clock: ManualClock, **more: int) -> RateLimiter:
    few = {"reads_a_minute": 6, "changes_a_minute": 2, "anonymous_requests_a_minute": 3, "sockets_a_user": 2}
    return RateLimiter(Settings(directory=Path(), **few | more), clock)


def took(limiter: RateLimiter, scope: dict[str, Any], viewer: Viewer | None, *, came_from: str = "10.0.0.1") -> bool:
    try:
        limiter.take(scope, viewer, came_from=came_from)
    except RateExceeded:
        return False
    return True


def test_a_bucket_holds_the_requests_of_a_minute_and_refills_over_time() -> None:
    clock = ManualClock()
    limiter = limits(clock)
    assert [took(limiter, READ, ADA) for _ in range(7)] == [True] * 6 + [False]
    with raises_code(RateExceeded, "request.rate_exceeded", "6", "10 s") as problem:
        limiter.take(READ, ADA, came_from="")
    assert problem.value.wait_s == 10
    clock.advance(9.5)
    assert not took(limiter, READ, ADA)
    clock.advance(0.6)
    assert [took(limiter, READ, ADA) for _ in range(2)] == [True, False]
    clock.advance(3600)
    assert [took(limiter, READ, ADA) for _ in range(7)] == [True] * 6 + [False], "at most the requests of one minute"


def test_each_caller_and_kind_of_request_has_its_own_bucket() -> None:
    limiter = limits(ManualClock())
    ci = Viewer(user_id=1, name="ada", role=Role.VIEWER, scope=Role.VIEWER, via="token ci")
    for viewer in (ADA, BOB, ci):
        assert [took(limiter, WRITE, viewer) for _ in range(3)] == [True, True, False]
        assert took(limiter, READ, viewer)


def test_callers_without_a_login_are_limited_by_network() -> None:
    limiter = limits(ManualClock())
    assert [took(limiter, READ, None, came_from=f"2001:db8::{number}") for number in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    assert took(limiter, WRITE, None, came_from="2001:db8:1::1")


def test_open_sockets_are_limited_for_each_user() -> None:
    limiter = limits(ManualClock())
    problem = raises_code(RateExceeded, "request.rate_exceeded", "2")
    with limiter.socket(ADA), limiter.socket(ADA), limiter.socket(BOB), problem, limiter.socket(ADA):
        raise AssertionError("a third one was opened")
    with limiter.socket(ADA), limiter.socket(ADA):
        pass


def test_the_least_recent_callers_are_forgotten() -> None:
    limiter = limits(ManualClock(), anonymous_requests_a_minute=1)
    assert took(limiter, READ, None, came_from="first")
    for number in range(MAX_CALLERS):
        took(limiter, READ, None, came_from=f"other {number}")
    assert took(limiter, READ, None, came_from="first")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/api/v1/nodes", RequestKind.READ),
        ("GET", "/api/v1/openapi.json", RequestKind.READ),
        ("GET", "/api/v1/series.csv", RequestKind.HEAVY),
        ("GET", "/audit.ndjson", RequestKind.HEAVY),
        ("POST", "/api/v1/launches", RequestKind.HEAVY),
        ("POST", "/runs/new", RequestKind.HEAVY),
        ("POST", "/runs/new/preflight", RequestKind.HEAVY),
        ("POST", "/api/v1/launches/a/stop", RequestKind.WRITE),
        ("PUT", "/api/v1/retention", RequestKind.WRITE),
    ],
)
def test_requests_are_classified_by_method_and_path(method: str, path: str, kind: RequestKind) -> None:
    assert request_kind({"type": "http", "method": method, "path": path}) is kind


async def test_a_rate_limited_answer_has_the_time_until_the_next_request(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, exports_a_minute=2, sockets_a_user=1) as web,
        web.logged_in() as admin,
        web.client() as program,
    ):
        token_response = await admin.post("/settings/tokens", data={"name": "ci", "scope": "admin", "days": "1"})
        program.headers["authorization"] = f"Bearer {shown_secret(token_response)}"
        assert [(await program.get("/api/v1/audit.csv")).status_code for _ in range(2)] == [200, 200]
        refused = await program.get("/api/v1/audit.csv")
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.json()["code"] == refused.headers[CODE_HEADER] == "request.rate_exceeded"
        assert (await program.get("/api/v1/session")).status_code == 200
        assert (await admin.get("/audit.csv")).status_code == 200, "another caller"
        web.clock.push(30)
        assert (await program.get("/api/v1/audit.csv")).status_code == 200

        cookie = "; ".join(f"{name}={value}" for name, value in admin.cookies.items())
        address = web.address.replace("http://", "ws://") + "/live"
        headers = {"cookie": cookie}
        async with connect(address, origin=web.address, additional_headers=headers) as first:  # type: ignore[arg-type] # a str
            assert await first.recv()
            async with connect(address, origin=web.address, additional_headers=headers) as second:  # type: ignore[arg-type] # a str
                with pytest.raises(ConnectionClosed) as closed:
                    await second.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
