"""Maintainer API: status reports, control state and the copy of the transcript."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import Conflict, CorruptData, NotPermitted
from astraflow.contract.fleet.maintainer import MaintainerMode, MaintainerState, MaintainerStatus, TranscriptEntry
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.record_kinds import RecordKind
from maintainer.agent.transcript.transcript import Kind, Transcript
from maintainer.fleet.maintainer_api import MaintainerApi
from tests.errors import raises_code
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


def maintainer_api(parts: Parts) -> MaintainerApi:
    return MaintainerApi(parts.fleet, parts.fleet_manager, parts.database)


async def entries(directory: Path, count: int) -> tuple[TranscriptEntry, ...]:
    with Transcript(directory / "t.jsonl", ManualClock(START)) as transcript:
        return tuple([await transcript.add(Kind.NOTE, {"text": f"note {n}"}) for n in range(count)])


async def test_the_maintainers_own_mode_counts_until_people_set_one(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = maintainer_api(parts)
    assert between.receive_status(STATUS).mode is MaintainerMode.SHADOW
    await between.set_mode(MaintainerMode.AUTO, actor=OTTO, key="m", reason="it has earned it")
    assert between.receive_status(STATUS).mode is MaintainerMode.AUTO
    again = await build(tmp_path, database=parts.database, clock=parts.clock, cloud=parts.cloud)
    view = maintainer_api(again).view()
    assert (view.mode, view.mode_by, view.status) == (MaintainerMode.AUTO, "otto", None)


async def test_agents_cannot_set_the_mode(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    with pytest.raises(NotPermitted) as caught:
        await maintainer_api(parts).set_mode(MaintainerMode.AUTO, actor=HAL, key="m", reason="trust me")
    assert caught.value.code == "fleet.people_only"


async def test_the_kill_switch_is_in_the_next_control_state(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = maintainer_api(parts)
    assert between.receive_status(STATUS).may_act
    await parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=OTTO, key="k", reason="strange plans")
    orders = between.receive_status(STATUS)
    assert (orders.kill, orders.kill_reason, orders.may_act) == (KillScope.AGENTS, "strange plans", False)


async def test_people_wake_a_running_maintainer_once_per_request(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = maintainer_api(parts)
    request: dict[str, Any] = {"actor": OTTO, "key": "w", "reason": "look now"}
    with raises_code(Conflict, "maintainer.cannot_wake"):
        await between.wake(**request)
    between.receive_status(STATUS)
    with raises_code(NotPermitted, "fleet.people_only"):
        await between.wake(actor=HAL, key="h", reason="I want to")
    decision = await between.wake(**request)
    assert (decision.kind, decision.actor) == (RecordKind.MAINTAINER_WAKE, "otto")
    await between.wake(**request)
    assert between.receive_status(STATUS).wake_requests == 1, "the same key wakes once"
    await between.wake(**request | {"key": "w2"})
    assert between.receive_status(STATUS).wake_requests == 2
    for stop in (
        between.set_mode(MaintainerMode.OFF, actor=OTTO, key="o", reason="no"),
        parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=OTTO, key="k", reason="no"),
    ):
        await stop
        with raises_code(Conflict, "maintainer.cannot_wake"):
            await between.wake(**request | {"key": "w3"})
    parts.clock.advance(60.0)
    with raises_code(Conflict, "maintainer.cannot_wake"):
        await between.wake(**request | {"key": "w4"})


async def test_the_age_of_the_last_heartbeat_is_reported(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = maintainer_api(parts)
    between.receive_status(STATUS)
    parts.clock.advance(7.0)
    assert between.view().status_age_s == 7.0


async def test_a_note_is_in_the_audit_log_once(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between = maintainer_api(parts)
    first = await between.add_note("done", pool="", actor=HAL, key="n", reason="as asked")
    assert await between.add_note("done", pool="", actor=HAL, key="n", reason="as asked") == first
    decisions, _ = await parts.ledger.decisions(pool="", before=None, limit=10)
    assert [entry.kind.value for entry in decisions] == ["note"]


async def test_the_transcripts_copy_continues_where_it_ended(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between, written = maintainer_api(parts), await entries(tmp_path, 5)
    chain = written[0].hash
    assert await between.store_transcript(chain, ()) == 0
    assert await between.store_transcript(chain, written[:3]) == 3
    assert await between.store_transcript(chain, written[1:]) == 5
    _, page, has_older = await between.transcript_page(chain="", wake="", before=None, limit=2)
    assert (page, has_older) == (written[:2:-1], True)
    _, page, has_older = await between.transcript_page(chain=chain, wake="", before=3, limit=10)
    assert (page, has_older) == (written[2::-1], False)


async def test_transcript_entries_that_break_the_chain_are_refused(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    between, written = maintainer_api(parts), await entries(tmp_path, 3)
    chain = written[0].hash
    with pytest.raises(Conflict) as caught:
        await between.store_transcript(chain, written[1:])
    assert caught.value.code == "transcript.gap"
    with pytest.raises(CorruptData) as damaged:
        await between.store_transcript(chain, (replace(written[0], body={"text": "another"}),))
    assert damaged.value.code == "transcript.hash_mismatch"
    await between.store_transcript(chain, written)
    (tmp_path / "t.jsonl").unlink()
    parts.clock.advance(1.0)
    with Transcript(tmp_path / "t.jsonl", parts.clock) as transcript:
        other = await transcript.add(Kind.NOTE, {"text": "rewritten"})
    with pytest.raises(Conflict) as caught:
        await between.store_transcript(chain, (other,))
    assert caught.value.code == "transcript.changed"
    decisions, _ = await parts.ledger.decisions(pool="", before=None, limit=10)
    assert not decisions
