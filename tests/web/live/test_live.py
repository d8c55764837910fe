"""The WebSocket: access control, and reconnects without lost reports."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, shown_secret
from web.process_settings import SESSION_S

pytestmark = pytest.mark.anyio


def socket(
    web: RunningWeb, *, after: int, cookie: str = "", origin: str | None = None, rows: str | None = None
) -> connect:
    headers = {"cookie": cookie} if cookie else {}
    address = web.address.replace("http", "ws")
    watched = "" if rows is None else f"&rows={quote(rows)}"
    return connect(f"{address}/live?after={after}{watched}", origin=origin or web.address, additional_headers=headers)  # type: ignore[arg-type] # a str


async def next_message(connection: ClientConnection) -> dict[str, Any]:
    message = json.loads(await connection.recv())
    assert isinstance(message, dict)
    return message


async def cookie_of(web: RunningWeb) -> str:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


@pytest.mark.long
async def test_each_report_becomes_one_frame_with_the_changes(web: RunningWeb, fake: FakeControlPlane) -> None:
    cookie = await cookie_of(web)
    async with socket(web, after=150, cookie=cookie) as connection:
        await fake.advance()
        frame = await next_message(connection)

    assert (frame["kind"], frame["seq"], frame["run"]) == ("frame", 151, "reverse-0001")
    assert frame["live_texts"]["run/uptime"][0].startswith("2")
    assert not any(key.startswith("node/") for key in frame["live_texts"]), "no rows were requested"
    assert [point[0] for point in frame["points"]] == [151]


async def test_frames_contain_the_list_of_events_only_when_it_changes(web: RunningWeb, fake: FakeControlPlane) -> None:
    cookie = await cookie_of(web)
    frames = []
    async with socket(web, after=150, cookie=cookie) as connection:
        for _ in range(8):
            await fake.advance()
            while (message := await next_message(connection))["kind"] != "frame":
                pass  # a heartbeat of a slow machine
            frames.append(message)

    events = {second: fake.synthetic_run.report(second).events for second in range(150, 159)}
    changed = [second for second in range(152, 159) if events[second] != events[second - 1]]
    assert [frame["seq"] for frame in frames[1:] if "events" in frame["html"]] == changed


@pytest.mark.long
async def test_a_short_disconnection_is_followed_by_the_missed_frames(web: RunningWeb, fake: FakeControlPlane) -> None:
    cookie = await cookie_of(web)
    async with socket(web, after=150, cookie=cookie) as first:
        for _ in range(3):
            await fake.advance()
            await next_message(first)
    async with socket(web, after=151, cookie=cookie) as second:
        frames = [await next_message(second) for _ in range(2)]

    assert [(frame["kind"], frame["seq"]) for frame in frames] == [("frame", 152), ("frame", 153)]


@pytest.mark.long
@pytest.mark.past_reports
async def test_a_long_disconnection_is_followed_by_a_snapshot_with_the_missing_points(web: RunningWeb) -> None:
    cookie = await cookie_of(web)
    async with socket(web, after=20, cookie=cookie) as connection:
        snapshot = await next_message(connection)

    assert (snapshot["kind"], snapshot["seq"]) == ("snapshot", 150)
    assert [point[0] for point in snapshot["points"]] == list(range(21, 151))
    assert snapshot["live_texts"]["run/nodes"] == ["2 ready", ""]
    assert "events" in snapshot["html"]


@pytest.mark.long
async def test_a_page_with_a_node_table_receives_its_rows_and_then_their_changes(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    cookie = await cookie_of(web)
    async with socket(web, after=150, cookie=cookie, rows="text=node-b") as connection:
        await fake.advance()
        first = [await next_message(connection) for _ in range(2)]
        await fake.advance()
        second = [await next_message(connection) for _ in range(2)]
        fake.synthetic_run.nodes = ("node-a", "node-b", "another-node-b")
        await fake.advance()
        third = [await next_message(connection) for _ in range(2)]

    assert [message["kind"] for message in first + second] == ["frame", "rows", "frame", "rows"]
    assert first[1]["live_texts"]["node/n1/state"] == ["ready", "good"]
    assert not any(key.startswith("node/n0/") for key in first[1]["live_texts"]), "its row is not on that page"
    assert "node/n1/state" not in second[1]["live_texts"], "it did not change"
    assert first[1]["members"] == second[1]["members"] != third[1]["members"]


@pytest.mark.long
async def test_cross_site_websocket_hijacking_is_refused(web: RunningWeb) -> None:
    cookie = await cookie_of(web)
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus) as refused:
            async with socket(web, after=0, cookie=cookie, origin=origin):
                pass
        assert refused.value.response.status_code == 403


async def test_without_a_login_the_socket_is_closed_with_its_own_code(web: RunningWeb) -> None:
    async with socket(web, after=0) as connection:
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4401


@pytest.mark.long
async def test_heartbeats_report_that_the_feed_is_lost(web: RunningWeb, fake: FakeControlPlane) -> None:
    cookie = await cookie_of(web)
    web.clock.push(8)
    async with socket(web, after=150, cookie=cookie) as connection:
        heartbeat = await next_message(connection)
        while heartbeat["kind"] != "heartbeat":
            heartbeat = await next_message(connection)

    assert heartbeat["age"] > 8


async def closed_code(connection: ClientConnection) -> int:
    """Returns the code with which the page closes a connection; skips earlier frames."""
    with pytest.raises(ConnectionClosed) as closed:
        async with asyncio.timeout(30):  # far below the interval of regular socket checks
            while True:
                await connection.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def cookies_of(client: httpx.AsyncClient) -> str:
    return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


@pytest.mark.long
async def test_a_logout_ends_the_frames_of_that_session_at_once_and_of_no_other(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        await web.until_live(admin, sequence=150)
        own, other = socket(web, after=150, cookie=cookies_of(viewer)), socket(web, after=150, cookie=cookies_of(admin))
        async with own as ended, other as going_on:
            assert (await viewer.post("/logout")).status_code == 303
            assert await closed_code(ended) == 4401
            await fake.advance()
            while (message := await next_message(going_on))["kind"] == "heartbeat":
                pass  # sent when the logout took more than 1.5 s
            assert message["seq"] == 151


async def test_disabling_a_user_ends_the_frames_of_its_sessions_and_tokens(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "operator", name="bob") as bob:
        await web.until_live(admin, sequence=150)
        token = shown_secret(await bob.post("/settings/tokens", data={"name": "a", "scope": "viewer", "days": "9"}))
        address = web.address.replace("http", "ws") + "/live?after=150"
        by_token = connect(address, additional_headers={"authorization": f"Bearer {token}"})
        async with socket(web, after=150, cookie=cookies_of(bob)) as first, by_token as second:
            assert (await admin.post("/settings/users/2/disable", data={})).status_code == 303
            assert [await closed_code(first), await closed_code(second)] == [4401, 4401]


async def test_a_revoked_token_ends_its_frames_at_once(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        await web.until_live(admin, sequence=150)
        token = shown_secret(await admin.post("/settings/tokens", data={"name": "a", "scope": "viewer", "days": "9"}))
        address = web.address.replace("http", "ws") + "/live?after=150"
        async with connect(address, additional_headers={"authorization": f"Bearer {token}"}) as connection:
            assert (await admin.post("/settings/tokens/1/revoke", data={})).status_code == 303
            assert await closed_code(connection) == 4401


async def test_a_new_role_or_grant_makes_the_page_reconnect(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="bob") as bob:
        await web.until_live(admin, sequence=150)
        for path, data in (
            ("/settings/users/2/role", {"role": "operator"}),
            ("/settings/grants", {"holder": "2", "role": "admin", "resource": "reverse-0001", "pool": ""}),
        ):
            async with socket(web, after=150, cookie=cookies_of(bob)) as connection:
                assert (await admin.post(path, data=data)).status_code == 303
                assert await closed_code(connection) == 1012


@pytest.mark.long
async def test_a_session_that_expires_ends_its_frames_at_that_moment(web: RunningWeb) -> None:
    cookie = await cookie_of(web)
    web.clock.push(SESSION_S - 1.5)
    async with socket(web, after=150, cookie=cookie) as connection:
        assert await closed_code(connection) == 4401
