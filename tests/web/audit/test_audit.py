"""The audit log is complete, detects tampering, and exports exactly the filtered entries."""

import csv
import io
import json

import pytest
from markupsafe import escape
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, select

from tests.fakes.clock import ManualClock
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from web.audit.views import as_csv, as_ndjson, change_text
from web.database.db import Database
from web.database.tables import AuditEntry
from web.security.audit_log import AuditedCommand, AuditLog, Author, entry_hash

pytestmark = pytest.mark.anyio

ALICE = Author(name="alice", role="operator", via="session", came_from="192.0.2.1")
DAY_S = 86400.0


def entries(database: Database) -> list[AuditEntry]:
    return database.read_sync(lambda session: list(session.exec(select(AuditEntry).order_by(AuditEntry.sequence))))  # type: ignore[arg-type] # a column


async def log_of(database: Database, count: int) -> AuditLog:
    audit_log = AuditLog(database, clock=ManualClock())
    for number in range(count):
        await audit_log.write(ALICE, AuditedCommand(action="node.drain", target=f"n{number}", reason="slow"))
    return audit_log


async def test_entries_form_a_valid_chain(database: Database) -> None:
    audit_log = await log_of(database, 3)
    verdict = await audit_log.verify()

    first, second, third = entries(database)
    assert (first.sequence, second.sequence, third.sequence) == (1, 2, 3)
    assert second.previous_hash == first.entry_hash
    assert third.previous_hash == second.entry_hash
    assert (verdict.problem, verdict.checked, verdict.last_hash) == ("", 3, third.entry_hash)
    assert (await AuditLog(database, clock=ManualClock()).verify()).problem == ""


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE audit_entries SET actor = 'bob' WHERE sequence = 2", "entry 2 was changed"),
        ("UPDATE audit_entries SET at = at + 1 WHERE sequence = 1", "entry 1 was changed"),
        ("DELETE FROM audit_entries WHERE sequence = 2", "entry 2 is missing"),
        ("DELETE FROM audit_entries WHERE sequence = 3", "entries 3 to 3 are missing at the end"),
        ("DELETE FROM audit_entries WHERE sequence = 1", "entry 1 is missing"),
        ("UPDATE audit_chain SET last_sequence = 2", "are missing at the end"),
        ("UPDATE audit_chain SET seal = 'made up'", "seal"),
        ("UPDATE audit_entries SET previous_hash = entry_hash WHERE sequence = 2", "does not follow"),
    ],
)
async def test_tampering_is_detected(database: Database, statement: str, problem: str) -> None:
    audit_log = await log_of(database, 3)

    def tamper(session: Session) -> None:
        for trigger in ("audit_entries_update", "audit_entries_delete"):
            session.execute(text(f"DROP TRIGGER {trigger}"))
        session.execute(text(statement))

    database.write_sync(tamper)
    assert problem in (await audit_log.verify()).problem


async def test_a_rewritten_chain_fails_the_check_of_its_seal(database: Database) -> None:
    audit_log = await log_of(database, 2)

    def rewrite(session: Session) -> None:
        session.execute(text("DROP TRIGGER audit_entries_update"))
        newest = session.get_one(AuditEntry, 2)
        newest.actor = "another user"
        newest.entry_hash = entry_hash(newest)
        session.flush()
        session.execute(text("UPDATE audit_chain SET last_hash = :hash").bindparams(hash=newest.entry_hash))

    database.write_sync(rewrite)
    assert "seal" in (await audit_log.verify()).problem


async def test_the_database_itself_refuses_to_change_or_remove_entries(database: Database) -> None:
    await log_of(database, 2)
    for statement in ("UPDATE audit_entries SET actor = 'bob'", "DELETE FROM audit_entries"):
        with pytest.raises(DBAPIError, match="audit entries"):
            database.write_sync(lambda session, statement=statement: session.execute(text(statement)))  # type: ignore[misc] # lambda with a default

    assert [entry.actor for entry in entries(database)] == ["alice", "alice"]


async def test_retention_removes_old_entries_and_the_rest_stays_valid(database: Database) -> None:
    clock = ManualClock()
    audit_log = AuditLog(database, clock=clock)
    for _ in range(3):
        await audit_log.write(ALICE, AuditedCommand(action="node.drain"))
        clock.advance(DAY_S)
    removed = database.write_sync(
        lambda session: audit_log.prune(session, before_at=clock.wall() - 1.5 * DAY_S, author=ALICE)
    )

    assert removed == 2
    assert [(entry.sequence, entry.action) for entry in entries(database)] == [(3, "node.drain"), (4, "audit.prune")]
    verdict = await audit_log.verify()
    assert (verdict.problem, verdict.first_sequence, verdict.checked) == ("", 3, 2)


async def test_a_failed_transaction_leaves_no_entry(database: Database) -> None:
    audit_log = await log_of(database, 1)

    def fails(session: Session) -> None:
        audit_log.append(session, ALICE, AuditedCommand(action="user.add"))
        raise LookupError

    with pytest.raises(LookupError):
        database.write_sync(fails)
    assert len(entries(database)) == 1
    assert (await audit_log.verify()).problem == ""


async def test_stored_texts_are_valid_in_any_database_and_hide_secrets(database: Database) -> None:
    audit_log = AuditLog(database, clock=ManualClock())
    reason = "a\0b \ud800 astraflow_pat_abc-DEF_123 http://h/login?token=abc-DEF " + "x" * 5000
    await audit_log.write(
        ALICE, AuditedCommand(action="node.drain", reason=reason, after={"note": "astraflow_pat_zzz"})
    )

    (entry,) = entries(database)
    assert entry.reason.startswith("a\N{REPLACEMENT CHARACTER}b ? [secret] http://h/login?token=[secret] x")
    assert len(entry.reason) == 2000
    assert json.loads(entry.after) == {"note": "[secret]"}


@pytest.mark.long
async def test_concurrent_writes_form_one_chain(database: Database) -> None:
    import asyncio

    audit_log = AuditLog(database, clock=ManualClock())
    await asyncio.gather(*(audit_log.write(ALICE, AuditedCommand(action=f"a.{number}")) for number in range(40)))

    assert (await audit_log.verify()).checked == 40
    assert {entry.action for entry in entries(database)} == {f"a.{number}" for number in range(40)}


async def test_exports_have_every_column_and_no_formula(database: Database) -> None:
    audit_log = AuditLog(database, clock=ManualClock())
    await audit_log.write(
        ALICE, AuditedCommand(action="node.drain", target='=HYPERLINK("http://evil")', reason='"a",\nb')
    )
    stored = entries(database)

    (line,) = as_ndjson(stored).splitlines()
    assert entry_hash(AuditEntry(**json.loads(line))) == stored[0].entry_hash, "each line can be verified by itself"
    (row,) = list(csv.reader(io.StringIO(as_csv(stored))))
    assert row[7] == '\'=HYPERLINK("http://evil")'
    assert row[11] == '"a",\nb'


async def test_the_page_filters_and_exports_the_same_entries(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for number in range(60):
            await client.post("/nodes/n0/drain", data={"reason": f"why {number}"})
        reason = "100% <script>alert(1)</script>"
        await client.post("/flows/train/pause", data={"reason": reason})
        await client.post("/nodes/gone/drain", data={"reason": "typo"})

        first = (await client.get("/audit?action=node.drain")).text
        assert "why 59" in first
        assert "why 9<" not in first
        assert "<code>flow.pause</code>" not in first
        older = first.partition("before=")[2].partition('"')[0]
        assert "why 9<" in (await client.get(f"/audit?action=node.drain&before={older}")).text
        hostile = (await client.get("/audit", params={"text": "100%"})).text
        assert str(escape(reason)) in hostile
        assert "why 59" not in hostile
        assert parsed(await client.get("/audit?text=1%25%25")).rows() == []

        exported = (await client.get("/audit.ndjson?action=node.drain")).text.splitlines()
        rows = [json.loads(line) for line in exported]
        assert len(rows) == 61
        assert {row["action"] for row in rows} == {"node.drain"}
        failed = list(csv.DictReader(io.StringIO((await client.get("/audit.csv?result=failed")).text)))
        assert [(row["target"], row["actor"], row["came_from"]) for row in failed] == [("gone", "admin", "127.0.0.1")]
        tomorrow = await client.get("/audit.csv?since=9000-01-01")
        assert len(tomorrow.text.splitlines()) == 1, "only the header"
        chain = parsed(await client.get("/audit/verify")).one(".chain-sentence")
        assert (chain.tone, chain.numbers[:3]) == ("good", [63, 1, 63])


def test_a_change_leaves_out_values_that_stayed_empty() -> None:
    def change(before: dict[str, object], after: dict[str, object]) -> str:
        return change_text(json.dumps(before), json.dumps(after))

    assert change({}, {"set": "", "run": "smoke-1"}) == "run: smoke-1"
    assert change({"region": ""}, {"region": ""}) == ""
    assert change({"region": ""}, {"region": "eu"}) == "region: nothing → eu"
    assert change({"nodes": 0, "is_spot": False}, {"nodes": 2, "is_spot": True}) == "nodes: 0 → 2, is spot: no → yes"
    assert change({}, {"share": 0.5, "victims": 0}) == "share of the ready nodes: 50%, nodes removed: 0"


def test_damaged_values_of_an_entry_are_shown_as_they_are() -> None:
    assert change_text('{"nodes": ', '{"nodes": 2}') == 'unreadable: {"nodes": , nodes: 2'
    assert change_text("[1]", "") == "unreadable: [1]"
