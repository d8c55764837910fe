"""How the maintainer says it is, what it is told, and the copy of its transcript."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import Conflict, CorruptData, NotPermitted
from astraflow.contract.fleet import KillScope
from astraflow.contract.maintenance import MaintainerMode, MaintainerState, MaintainerStatus, TranscriptEntry
from maintainer.fleet.liaison import Liaison
from maintainer.transcript import Kind, Transcript
from tests.fakes.clock import ManualClock
from tests.maintainer.fleet.parts import HAL, OTTO, START, Parts, build

pytestmark = pytest.mark.anyio

STATUS = MaintainerStatus(
    run="run-1",
    model="scripted",
    is_simulated=True,
    state=MaintainerState.SLEEPING,
    mode=MaintainerMode.SHADOW,
    at=START,
    started_at=START,
)


def liaison(parts: Parts) -> Liaison:
    return Liaison(parts.fleet, parts.desk, parts.database)


async def entries(directory: Path, count: int) -> tuple[TranscriptEntry, ...]:
    with Transcript(directory / "t.jsonl", ManualClock(START)) as transcript:
        return tuple([await transcript.add(Kind.NOTE, {"text": f"note {n}"}) for n in range(count)])


async def test_its_own_mode_counts_until_people_set_one(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = liaison(parts)
    assert between.beat(STATUS).mode is MaintainerMode.SHADOW
    await between.set_mode(MaintainerMode.AUTO, actor=OTTO, key="m", reason="it has earned it")
    assert between.beat(STATUS).mode is MaintainerMode.AUTO
    again = await build(tmp_path, database=parts.database, clock=parts.clock, cloud=parts.cloud)
    seen = liaison(again).view()
    assert (seen.mode, seen.mode_by, seen.status) == (MaintainerMode.AUTO, "otto", None)


async def test_no_agent_says_how_far_it_may_go(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    with pytest.raises(NotPermitted, match="people say"):
        await liaison(parts).set_mode(MaintainerMode.AUTO, actor=HAL, key="m", reason="trust me")


async def test_the_kill_switch_is_in_its_next_orders(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = liaison(parts)
    assert between.beat(STATUS).may_act
    await parts.desk.kill_switch(KillScope.AGENTS, actor=OTTO, key="k", reason="strange plans")
    orders = between.beat(STATUS)
    assert (orders.kill, orders.kill_reason, orders.may_act) == (KillScope.AGENTS, "strange plans", False)


async def test_how_long_ago_it_was_heard_is_told(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = liaison(parts)
    between.beat(STATUS)
    parts.clock.advance(7.0)
    assert between.view().status_age_s == 7.0


async def test_notes_stand_in_the_journal_once(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = liaison(parts)
    first = await between.hand_over("done", pool="", actor=HAL, key="n", reason="as asked")
    assert await between.hand_over("done", pool="", actor=HAL, key="n", reason="as asked") == first
    found, _ = await parts.ledger.decisions(pool="", before=None, limit=10)
    assert [entry.kind for entry in found] == ["note"]


async def test_a_copy_of_the_transcript_goes_on_where_it_ended(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between, written = liaison(parts), await entries(tmp_path, 5)
    chain = written[0].hash
    assert await between.keep(chain, ()) == 0
    assert await between.keep(chain, written[:3]) == 3
    assert await between.keep(chain, written[1:]) == 5
    _, page, has_older = await between.page(chain="", wake="", before=None, limit=2)
    assert (page, has_older) == (written[:2:-1], True)
    _, page, has_older = await between.page(chain=chain, wake="", before=3, limit=10)
    assert (page, has_older) == (written[2::-1], False)


async def test_what_does_not_follow_or_was_changed_is_not_kept(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between, written = liaison(parts), await entries(tmp_path, 3)
    chain = written[0].hash
    with pytest.raises(Conflict, match="entry 0 is wanted"):
        await between.keep(chain, written[1:])
    with pytest.raises(CorruptData, match="does not have the hash"):
        await between.keep(chain, (replace(written[0], body={"text": "another"}),))
    await between.keep(chain, written)
    (tmp_path / "t.jsonl").unlink()
    parts.clock.advance(1.0)
    with Transcript(tmp_path / "t.jsonl", parts.clock) as transcript:
        other = await transcript.add(Kind.NOTE, {"text": "rewritten"})
    with pytest.raises(Conflict, match="changed since"):
        await between.keep(chain, (other,))
    found, _ = await parts.ledger.decisions(pool="", before=None, limit=10)
    assert not found
