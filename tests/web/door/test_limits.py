"""How much one caller may ask: buckets that are filled as time goes by, and sockets that are counted."""

from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import running_web, shown_secret
from web.accounts.viewer import Viewer
from web.door.limits import KNOWN_CALLERS, Kind, Limits, TooMuch, kind_of
from web.door.roles import Role
from web.settings import Settings

pytestmark = pytest.mark.anyio

READ = {"type": "http", "method": "GET", "path": "/nodes"}
WRITE = {"type": "http", "method": "POST", "path": "/nodes/n0/drain"}
ADA = Viewer(user_id=1, name="ada", role=Role.VIEWER, session="s1")
BOB = Viewer(user_id=2, name="bob", role=Role.VIEWER, session="s2")


def limits(clock: ManualClock, **more: int) -> Limits:
    few = {"reads_a_minute": 6, "changes_a_minute": 2, "strangers_a_minute": 3, "sockets_a_user": 2}
    return Limits(Settings(directory=Path(), **few | more), clock)


def took(found: Limits, scope: dict[str, Any], viewer: Viewer | None, *, came_from: str = "10.0.0.1") -> bool:
    try:
        found.take(scope, viewer, came_from=came_from)
    except TooMuch:
        return False
    return True


def test_a_bucket_holds_a_minutes_worth_and_is_filled_as_time_goes_by() -> None:
    clock = ManualClock()
    found = limits(clock)
    assert [took(found, READ, ADA) for _ in range(7)] == [True] * 6 + [False]
    with pytest.raises(TooMuch, match=r"more than 6 reads in a minute: ask again in 10 s") as problem:
        found.take(READ, ADA, came_from="")
    assert problem.value.wait_s == 10
    clock.advance(9.5)
    assert not took(found, READ, ADA)
    clock.advance(0.6)
    assert [took(found, READ, ADA) for _ in range(2)] == [True, False]
    clock.advance(3600)
    assert [took(found, READ, ADA) for _ in range(7)] == [True] * 6 + [False], "never more than a minute's worth"


def test_each_caller_and_each_kind_has_a_bucket_of_its_own() -> None:
    found = limits(ManualClock())
    ci = Viewer(user_id=1, name="ada", role=Role.VIEWER, scope=Role.VIEWER, via="token ci")
    for viewer in (ADA, BOB, ci):
        assert [took(found, WRITE, viewer) for _ in range(3)] == [True, True, False]
        assert took(found, READ, viewer)


def test_strangers_are_told_apart_by_their_networks() -> None:
    found = limits(ManualClock())
    assert [took(found, READ, None, came_from=f"2001:db8::{one}") for one in range(4)] == [True, True, True, False]
    assert took(found, WRITE, None, came_from="2001:db8:1::1")


def test_sockets_are_counted_for_each_user_as_long_as_they_are_open() -> None:
    found = limits(ManualClock())
    problem = pytest.raises(TooMuch, match="2 live pages are open already")
    with found.socket(ADA), found.socket(ADA), found.socket(BOB), problem, found.socket(ADA):
        raise AssertionError("a third one was opened")
    with found.socket(ADA), found.socket(ADA):
        pass


def test_callers_that_were_not_heard_for_longest_are_forgotten() -> None:
    found = limits(ManualClock(), strangers_a_minute=1)
    assert took(found, READ, None, came_from="first")
    for number in range(KNOWN_CALLERS):
        took(found, READ, None, came_from=f"other {number}")
    assert took(found, READ, None, came_from="first")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/api/v1/nodes", Kind.READ),
        ("GET", "/api/v1/openapi.json", Kind.READ),
        ("GET", "/api/v1/series.csv", Kind.HEAVY),
        ("GET", "/audit.ndjson", Kind.HEAVY),
        ("POST", "/api/v1/launches", Kind.HEAVY),
        ("POST", "/runs/new", Kind.HEAVY),
        ("POST", "/runs/new/rehearsal", Kind.HEAVY),
        ("POST", "/api/v1/launches/a/stop", Kind.WRITE),
        ("PUT", "/api/v1/retention", Kind.WRITE),
    ],
)
def test_what_a_request_costs(method: str, path: str, kind: Kind) -> None:
    assert kind_of({"type": "http", "method": method, "path": path}) is kind


async def test_who_asks_too_much_is_told_when_to_ask_again(fake: FakeControlPlane, tmp_path: Path) -> None:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, exports_a_minute=2, sockets_a_user=1) as web,
        web.logged_in() as admin,
        web.client() as program,
    ):
        made = await admin.post("/settings/tokens", data={"name": "ci", "scope": "admin", "days": "1"})
        program.headers["authorization"] = f"Bearer {shown_secret(made)}"
        assert [(await program.get("/api/v1/audit.csv")).status_code for _ in range(2)] == [200, 200]
        refused = await program.get("/api/v1/audit.csv")
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert "more than 2 exports and launches in a minute" in refused.json()["detail"]
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
