"""The audit: nothing is lost, nothing can be changed unseen, and a file holds exactly what is filtered."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, select

from tests.fakes.clock import ManualClock
from tests.fakes.web import RunningWeb
from web.audit.entries import Author, Deed, Trail, entry_hash
from web.db import Database, open_database
from web.present.audit import as_csv, as_ndjson, audit_row
from web.tables import AuditEntry

pytestmark = pytest.mark.anyio

ALICE = Author(name="alice", role="operator", via="session", came_from="192.0.2.1")
DAY_S = 86400.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path)
    yield opened
    opened.close()


def entries(database: Database) -> list[AuditEntry]:
    return database.look_now(lambda session: list(session.exec(select(AuditEntry).order_by(AuditEntry.sequence))))  # type: ignore[arg-type] # a column


async def noted(database: Database, count: int) -> Trail:
    trail = Trail(database, clock=ManualClock())
    for number in range(count):
        await trail.note(ALICE, Deed(action="node.drain", target=f"n{number}", reason="slow"))
    return trail


async def test_entries_follow_one_another_and_the_chain_is_whole(database: Database) -> None:
    trail = await noted(database, 3)
    verdict = await trail.verify()

    first, second, third = entries(database)
    assert (first.sequence, second.sequence, third.sequence) == (1, 2, 3)
    assert second.previous_hash == first.entry_hash
    assert third.previous_hash == second.entry_hash
    assert (verdict.problem, verdict.checked, verdict.last_hash) == ("", 3, third.entry_hash)
    assert (await Trail(database, clock=ManualClock()).verify()).problem == ""


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
async def test_tampering_shows(database: Database, statement: str, problem: str) -> None:
    trail = await noted(database, 3)

    def tamper(session: Session) -> None:
        for trigger in ("audit_entries_update", "audit_entries_delete"):
            session.execute(text(f"DROP TRIGGER {trigger}"))
        session.execute(text(statement))

    database.do_now(tamper)
    assert problem in (await trail.verify()).problem


async def test_a_chain_that_was_written_anew_lacks_the_seal(database: Database) -> None:
    trail = await noted(database, 2)

    def rewrite(session: Session) -> None:
        session.execute(text("DROP TRIGGER audit_entries_update"))
        newest = session.get_one(AuditEntry, 2)
        newest.actor = "somebody else"
        newest.entry_hash = entry_hash(newest)
        session.flush()
        session.execute(text("UPDATE audit_chain SET last_hash = :hash").bindparams(hash=newest.entry_hash))

    database.do_now(rewrite)
    assert "not made with the secret" in (await trail.verify()).problem


async def test_the_database_itself_refuses_to_change_or_remove_entries(database: Database) -> None:
    await noted(database, 2)
    for statement in ("UPDATE audit_entries SET actor = 'bob'", "DELETE FROM audit_entries"):
        with pytest.raises(DBAPIError, match="audit entries are"):
            database.do_now(lambda session, statement=statement: session.execute(text(statement)))  # type: ignore[misc] # a default

    assert [entry.actor for entry in entries(database)] == ["alice", "alice"]


async def test_what_is_too_old_goes_an_entry_says_so_and_the_rest_still_holds(database: Database) -> None:
    clock = ManualClock()
    trail = Trail(database, clock=clock)
    for _ in range(3):
        await trail.note(ALICE, Deed(action="node.drain"))
        clock.advance(DAY_S)
    removed = database.do_now(lambda session: trail.prune(session, before_at=clock.wall() - 1.5 * DAY_S, author=ALICE))

    assert removed == 2
    assert [(entry.sequence, entry.action) for entry in entries(database)] == [(3, "node.drain"), (4, "audit.prune")]
    verdict = await trail.verify()
    assert (verdict.problem, verdict.first_sequence, verdict.checked) == ("", 3, 2)


async def test_a_deed_that_fails_leaves_no_entry(database: Database) -> None:
    trail = await noted(database, 1)

    def fails(session: Session) -> None:
        trail.append(session, ALICE, Deed(action="user.add"))
        raise LookupError

    with pytest.raises(LookupError):
        database.do_now(fails)
    assert len(entries(database)) == 1
    assert (await trail.verify()).problem == ""


async def test_texts_are_kept_as_any_database_can_and_pasted_secrets_are_not(database: Database) -> None:
    trail = Trail(database, clock=ManualClock())
    reason = "a\0b \ud800 astraflow_pat_abc-DEF_123 http://h/login?token=abc-DEF " + "x" * 5000
    await trail.note(ALICE, Deed(action="node.drain", reason=reason, after={"note": "astraflow_pat_zzz"}))

    (entry,) = entries(database)
    assert entry.reason.startswith("a\N{REPLACEMENT CHARACTER}b ? [secret] http://h/login?token=[secret] x")
    assert len(entry.reason) == 2000
    assert json.loads(entry.after) == {"note": "[secret]"}


async def test_many_at_once_make_one_chain(database: Database) -> None:
    import asyncio

    trail = Trail(database, clock=ManualClock())
    await asyncio.gather(*(trail.note(ALICE, Deed(action=f"a.{number}")) for number in range(40)))

    assert (await trail.verify()).checked == 40
    assert {entry.action for entry in entries(database)} == {f"a.{number}" for number in range(40)}


async def test_files_hold_every_column_and_no_formula(database: Database) -> None:
    trail = Trail(database, clock=ManualClock())
    await trail.note(ALICE, Deed(action="node.drain", target='=HYPERLINK("http://evil")', reason='"a",\nb'))
    found = entries(database)

    (line,) = as_ndjson(found).splitlines()
    assert entry_hash(AuditEntry(**json.loads(line))) == found[0].entry_hash, "a line can be checked by itself"
    (row,) = list(csv.reader(io.StringIO(as_csv(found))))
    assert row[7] == '\'=HYPERLINK("http://evil")'
    assert row[11] == '"a",\nb'


async def test_the_page_filters_pages_and_exports_exactly_what_is_filtered(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for number in range(60):
            await client.post("/nodes/n0/drain", data={"reason": f"why {number}"})
        await client.post("/flows/train/pause", data={"reason": "100% <script>alert(1)</script>"})
        await client.post("/nodes/gone/drain", data={"reason": "typo"})

        first = (await client.get("/audit?action=node.drain")).text
        assert "why 59" in first
        assert "why 9<" not in first
        assert "<code>flow.pause</code>" not in first
        older = first.partition("before=")[2].partition('"')[0]
        assert "why 9<" in (await client.get(f"/audit?action=node.drain&before={older}")).text
        hostile = (await client.get("/audit", params={"text": "100%"})).text
        assert "100% &lt;script&gt;" in hostile
        assert "why 59" not in hostile
        assert "Nothing that matches" in (await client.get("/audit?text=1%25%25")).text

        exported = (await client.get("/audit.ndjson?action=node.drain")).text.splitlines()
        rows = [json.loads(line) for line in exported]
        assert len(rows) == 61
        assert {row["action"] for row in rows} == {"node.drain"}
        failed = list(csv.DictReader(io.StringIO((await client.get("/audit.csv?result=failed")).text)))
        assert [(row["target"], row["actor"], row["came_from"]) for row in failed] == [("gone", "admin", "127.0.0.1")]
        tomorrow = await client.get("/audit.csv?since=9000-01-01")
        assert len(tomorrow.text.splitlines()) == 1, "the head only"
        assert "The chain is whole: 63 entries, from 1 to 63" in (await client.get("/audit/verify")).text


def test_a_change_leaves_out_what_was_empty_and_stayed_so() -> None:
    def change(before: dict[str, object], after: dict[str, object]) -> str:
        entry = AuditEntry(**NOTHING, before=json.dumps(before), after=json.dumps(after))
        return audit_row(entry).change

    assert change({}, {"set": "", "run": "smoke-1"}) == "run: smoke-1"
    assert change({"region": ""}, {"region": ""}) == ""
    assert change({"region": ""}, {"region": "eu"}) == "region: nothing → eu"
    assert change({"nodes": 0, "is_spot": False}, {"nodes": 2, "is_spot": True}) == "nodes: 0 → 2, is_spot: no → yes"


NOTHING: dict[str, Any] = {
    "sequence": 1,
    "at": 1.0,
    "actor": "",
    "role": "",
    "via": "",
    "came_from": "",
    "action": "run.launch",
    "target": "",
    "result": "done",
    "reason": "",
    "previous_hash": "",
    "entry_hash": "",
}
