"""Audited commands while another program locks the database of the page, or the process ends: nothing is lost or done
twice."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.errors import NotPermitted, Unavailable
from astraflow.runtime.clock import SystemClock
from tests.errors import raises_code
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import RunningWeb, running_web
from web.database.db import DATABASE, open_database
from web.security.audit_log import AuditedCommand, AuditLog, Author

pytestmark = pytest.mark.anyio

BOB = Author(name="bob", role="operator", via="session", came_from="127.0.0.1")
DRAIN = AuditedCommand(action="node.drain", target="n0", reason="slow")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for no lock, so that an outage begins at once."""
    monkeypatch.setattr("astraflow.runtime.database.LOCK_TIMEOUT_S", 0.05)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Another program holds the exclusive lock of the page's database."""
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


async def entries(client: httpx.AsyncClient, action: str) -> list[dict[str, Any]]:
    """Returns the entries of an action, newest first."""
    items: list[dict[str, Any]] = (await client.get(f"/api/v1/audit?action={action}")).json()["items"]
    return items


async def until_entry(client: httpx.AsyncClient, action: str) -> list[dict[str, Any]]:
    """Waits for the first entry of an action."""
    deadline = time.monotonic() + 30  # a busy machine must not fail the test
    while not (items := await entries(client, action)):
        assert time.monotonic() < deadline, "the entry was not appended"
        await asyncio.sleep(0.02)
    return items


async def test_a_change_that_cannot_be_recorded_is_not_made_and_can_be_repeated(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_live(admin)
        plan = (await admin.post("/api/v1/pools/eu/plans", json={"target": 3, "reason": "more"})).json()["id"]

        async def apply() -> httpx.Response:
            address, headers = f"/api/v1/plans/{plan}/apply", {"idempotency-key": "once"}
            return await admin.post(address, json={"reason": "more"}, headers=headers)

        with locked(tmp_path):
            refused = await apply()
            drained = await admin.post("/nodes/n0/drain", data={"reason": "slow"})
            foreign = await admin.post("/settings/users", data={"name": "eve", "role": "viewer"})
        assert (refused.status_code, refused.json()["code"]) == (503, "database.unreachable")
        assert "Idempotency-Key" in refused.json()["remedy"]
        assert {drained.status_code, foreign.status_code} == {303}, "the pages show the problem"
        assert fake.actions == []
        assert await entries(admin, "pool.apply") == await entries(admin, "node.drain") == []
        answers = [(await apply()).json(), (await apply()).json()]
        assert answers[0] == answers[1]
        assert len(answers[0]["launched"]) == 1
        assert {item["result"] for item in await entries(admin, "pool.apply")} == {"done"}


async def test_a_change_during_which_the_database_is_locked_is_answered_and_recorded_once(
    web: RunningWeb, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = locked(web.directory)

    async def drain_and_lock(*_: object, **__: object) -> str:
        lock.__enter__()
        return "Node n0 drains."

    async with web.logged_in() as admin:
        await web.until_live(admin)
        monkeypatch.setattr("astraflow.client.control_plane.ControlPlaneClient.drain_node", drain_and_lock)
        body, headers = {"reason": "slow"}, {"idempotency-key": "k"}
        answer = await admin.post("/api/v1/nodes/n0/drain", json=body, headers=headers)
        assert (answer.status_code, answer.json()["message"]) == (200, "Node n0 drains.")
        assert await entries(admin, "node.drain") == []
        again = await admin.post("/api/v1/nodes/n0/drain", json=body, headers=headers)
        assert again.json() == answer.json()
        lock.__exit__(None, None, None)
        (entry,) = await until_entry(admin, "node.drain")
        assert (entry["result"], entry["actor"], entry["reason"]) == ("done", "admin", "slow")
        assert (await admin.get("/healthz")).status_code == 200


async def test_a_command_during_which_the_process_ended_has_an_entry_after_the_next_start(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    audit_log = AuditLog(database, clock=SystemClock())
    hostile = AuditedCommand(action="pool.apply", target="eu", reason="\0\ud800 astraflow_pat_canary", after={"to": 3})

    async def ends() -> str:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await audit_log.record(BOB, hostile, ends)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as copy:
        assert "canary" not in "".join(copy.iterdump())
    for _ in range(2):  # a second start appends nothing
        await AuditLog(database, clock=SystemClock()).record_interrupted()
    assert (await audit_log.verify()).checked == 1
    with closing(sqlite3.connect(tmp_path / DATABASE)) as copy:
        ((actor, action, after, result),) = copy.execute("SELECT actor, action, after, result FROM audit_entries")
    assert (actor, action, result, json.loads(after)["to"]) == ("bob", "pool.apply", "unknown", 3)
    database.close()


@pytest.mark.parametrize(
    ("problem", "result"),
    [
        (NotPermitted("no"), "refused"),
        (Unavailable("cannot reach dataflow"), "failed"),
        (ZeroDivisionError("defect"), "failed"),
    ],
)
async def test_a_failed_command_has_one_entry_with_its_problem(problem: Exception, result: str, tmp_path: Path) -> None:
    database = open_database(tmp_path)
    audit_log = AuditLog(database, clock=SystemClock())

    async def fail() -> str:
        raise problem

    with pytest.raises(type(problem)):
        await audit_log.record(BOB, DRAIN, fail)
    await audit_log.record_interrupted()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as copy:
        assert [row[0] for row in copy.execute("SELECT result FROM audit_entries")] == [result]
    database.close()


async def test_delayed_entries_are_appended_when_the_outage_ends(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    audit_log = AuditLog(database, clock=SystemClock())
    lock = locked(tmp_path)

    async def act() -> str:
        lock.__enter__()
        return "done"

    assert await audit_log.record(BOB, DRAIN, act) == "done"
    with raises_code(Unavailable, "database.unreachable"):
        await audit_log.record(BOB, DRAIN, act)
    appending = asyncio.create_task(audit_log.run())
    await asyncio.sleep(0)
    lock.__exit__(None, None, None)
    deadline = time.monotonic() + 30
    while (await audit_log.verify()).checked == 0:
        assert time.monotonic() < deadline, "the entry was not appended"
        await asyncio.sleep(0.02)
    appending.cancel()
    check = await audit_log.verify()
    assert (check.checked, check.problem) == (1, "")
    database.close()
