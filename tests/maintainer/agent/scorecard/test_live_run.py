"""Cost of a run since the maintainer's first change, compared with the rule by the same measure."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.pools import FleetStatus, Pool
from astraflow.contract.fleet.recommendations import WhatIfAnswer, WhatIfQuestion
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.report import Report
from astraflow.scaling.options import Spec
from astraflow.scaling.what_if import changed_spec, replay
from maintainer.agent.observation.snapshot import Snapshot
from maintainer.agent.scorecard.live_run import MAX_AGE_S, WAIT_WEIGHT, applied_changes, cost, live_score
from maintainer.agent.scorecard.scorecard import NO_CHANGES, REFRESH_S, Scorecard
from tests.fakes.clock import ManualClock
from tests.maintainer.agent.scorecard.test_leaderboard import board
from tests.maintainer.fleet.parts import ALICE, HAL, POOL, START, build, spec
from tests.scaling.test_what_if import recorded

pytestmark = pytest.mark.anyio


class Recorded:
    """Dataflow with a recorded run: answers from the real replay, or with a given answer."""

    def __init__(self, answer: WhatIfAnswer | None = None, reports: Sequence[Report] = ()) -> None:
        self.answer = answer
        self.reports = reports
        self.asked: list[WhatIfQuestion] = []
        self.problem: Exception | None = None

    async def what_if(self, question: WhatIfQuestion) -> WhatIfAnswer:
        self.asked.append(question)
        if self.problem is not None:
            raise self.problem
        if self.answer is not None:
            return self.answer
        return replay(self.reports, changed_spec(Spec(), options=question.options, pools=question.pools))


def answer(**changes: Any) -> WhatIfAnswer:
    usual = WhatIfAnswer(
        reports=60,
        began_at=START - 3600,
        ended_at=START,
        node_hours={"eu": 4.0, "us": 1.0},
        recorded_node_hours={"eu": 3.0, "us": 3.0},
        dollars=0.0,
        recorded_dollars=0.0,
        wait=0.1,
        recorded_wait=0.05,
    )
    return replace(usual, **changes)


def change(ordinal: int, *, age_s: float, **changes: Any) -> Decision:
    usual = Decision(
        ordinal=ordinal,
        at=START - age_s,
        kind=RecordKind.APPLY,
        subject=POOL,
        actor=HAL.name,
        role=HAL.role,
        reason="launches fail elsewhere",
        values={"before": 3, "after": 5, "launched": 2},
    )
    return replace(usual, **changes)


async def status(tmp_path: Path) -> FleetStatus:
    parts = await build(tmp_path, pool=spec(min_nodes=1, max_nodes=9))
    return parts.fleet.status(last_sweep_at=None, problems=())


async def pools(tmp_path: Path) -> tuple[Pool, ...]:
    return (await status(tmp_path)).pools


def test_only_its_own_applied_changes_of_the_last_day_count() -> None:
    journal = (
        change(5, age_s=10.0),
        change(4, age_s=20.0, kind=RecordKind.REFUSE),
        change(3, age_s=30.0, actor=ALICE.name),
        change(2, age_s=MAX_AGE_S),
        change(1, age_s=MAX_AGE_S + 1.0),
    )
    assert [applied_change.ordinal for applied_change in applied_changes(HAL, journal, at=START)] == [5, 2]


async def test_the_rule_and_the_run_have_the_same_cost_measure(tmp_path: Path) -> None:
    port = Recorded(answer())
    live_run = await live_score(port, [change(1, age_s=3600.0)], await pools(tmp_path), at=START)
    assert live_run is not None
    assert (live_run.node_hours, live_run.rule_node_hours, live_run.is_priced) == (6.0, 5.0, False)
    assert (live_run.wait_hours, live_run.rule_wait_hours) == (0.05, 0.1)
    assert live_run.cost == 6.0 + WAIT_WEIGHT * 0.05 == cost(node_hours=6.0, wait_hours=0.05)
    assert live_run.rule_cost == 5.0 + WAIT_WEIGHT * 0.1
    assert live_run.ratio == live_run.cost / live_run.rule_cost < 1
    assert (live_run.changes, live_run.reports) == (1, 60)


async def test_priced_nodes_count_by_their_price(tmp_path: Path) -> None:
    port = Recorded(answer(dollars=10.0, recorded_dollars=12.0, wait=0.0, recorded_wait=0.0))
    live_run = await live_score(port, [change(1, age_s=3600.0)], await pools(tmp_path), at=START)
    assert live_run is not None
    assert (live_run.cost, live_run.rule_cost, live_run.is_priced) == (12.0, 10.0, True)
    idle = answer(node_hours={}, recorded_node_hours={}, wait=0.0, recorded_wait=0.0)
    nothing = await live_score(Recorded(idle), [change(1, age_s=3600.0)], await pools(tmp_path), at=START)
    assert nothing is not None
    assert nothing.ratio is None


async def test_the_rule_is_replayed_since_the_first_change_within_the_fleets_bounds(tmp_path: Path) -> None:
    port, fleet_pools = Recorded(answer()), await pools(tmp_path)
    await live_score(port, [change(2, age_s=100.0), change(1, age_s=600.5)], fleet_pools, at=START)
    await live_score(port, [change(2, age_s=100.0), change(1, age_s=7200.0)], fleet_pools, at=START)
    young, old = port.asked
    assert (young.resolution_s, young.limit) == (1, 601)
    assert (old.resolution_s, old.limit) == (60, 120)
    assert young.pools == {POOL: {"mode": "on", "min_nodes": 1, "max_nodes": 9, "launch_delay_s": 60.0}}


async def test_no_replay_is_requested_without_a_change_or_right_after_it(tmp_path: Path) -> None:
    port, fleet_pools = Recorded(answer()), await pools(tmp_path)
    assert await live_score(port, [], fleet_pools, at=START) is None
    assert await live_score(port, [change(1, age_s=30.0)], fleet_pools, at=START) is None
    assert port.asked == []


@pytest.mark.long
async def test_a_recorded_run_is_replayed_with_the_real_rule(tmp_path: Path) -> None:
    """Eight recorded nodes exceed the rule's number: the run cost more and had no wait."""
    reports = recorded(120, ready=8)
    fleet_pools = tuple(
        replace(pool, spec=replace(pool.spec, id=reports[0].recommendations[0].pool, min_nodes=0, max_nodes=20))
        for pool in await pools(tmp_path)
    )
    live_run = await live_score(Recorded(reports=reports), [change(1, age_s=7200.0)], fleet_pools, at=START)
    assert live_run is not None
    assert live_run.node_hours > live_run.rule_node_hours > 0
    assert live_run.ratio is not None
    assert live_run.ratio > 1


def snapshot(fleet_status: FleetStatus, *decisions: Decision) -> Snapshot:
    """Returns a snapshot with this fleet status and these decisions."""
    return Snapshot(at=START, fleet=fleet_status, decisions=decisions)


async def test_the_scorecard_refreshes_once_a_minute_and_keeps_its_score_on_errors(tmp_path: Path) -> None:
    clock, port, fleet_status = ManualClock(START), Recorded(answer()), await status(tmp_path)
    standing = Scorecard(model="m", leaderboard=tmp_path / "leaderboard.json", actor=HAL, port=port, clock=clock)
    await standing.refresh(snapshot(fleet_status))
    assert (standing.live, standing.live_problem) == (None, NO_CHANGES)
    assert str(tmp_path / "leaderboard.json") in standing.evaluation_problem
    board(tmp_path)
    await standing.refresh(snapshot(fleet_status, change(1, age_s=3600.0)))
    assert (standing.evaluation, standing.live) == (None, None), "not within the same minute"
    clock.advance(REFRESH_S)
    await standing.refresh(snapshot(fleet_status, change(1, age_s=3600.0)))
    assert standing.evaluation is not None
    assert (standing.evaluation_problem, standing.live_problem) == ("", "")
    assert standing.source == str(tmp_path / "leaderboard.json")
    known = standing.live
    assert known is not None
    for problem in (Unavailable("dataflow is away"), InvalidInput("no report has measured demand")):
        port.problem = problem
        clock.advance(REFRESH_S)
        await standing.refresh(snapshot(fleet_status, change(1, age_s=3600.0)))
        assert (standing.live, standing.live_problem) == (known, str(problem))


async def test_a_scorecard_without_sources_stays_empty(tmp_path: Path) -> None:
    standing = Scorecard(model="m", leaderboard=None, actor=HAL, port=None, clock=ManualClock(START))
    await standing.refresh(snapshot(await status(tmp_path), change(1, age_s=3600.0)))
    assert (standing.source, standing.evaluation, standing.live) == ("", None, None)
