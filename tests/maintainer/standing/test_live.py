"""What a run came to since the maintainer's first change, beside the rule, measured and weighed alike."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.advice import WhatIfAnswer, WhatIfQuestion
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet import Decision, FleetStatus, Pool
from astraflow.contract.reports import Report
from astraflow.scaling.options import Spec
from astraflow.scaling.replay import changed_spec, replayed
from maintainer.sight import Sight
from maintainer.standing.live import MOST_S, changes_of, live_score
from maintainer.standing.standing import AGAIN_S, Standing
from maintainer.standing.worth import WAIT_WEIGHT, cost
from tests.fakes.clock import ManualClock
from tests.maintainer.fleet.parts import ALICE, HAL, POOL, START, build, spec
from tests.maintainer.standing.test_board import board
from tests.scaling.test_replay import recorded

pytestmark = pytest.mark.anyio


class Recorded:
    """A dataflow that has recorded a run: answers by the replay itself, or as a test has it."""

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
        return replayed(self.reports, changed_spec(Spec(), options=question.options, pools=question.pools))


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
        kind="apply",
        pool=POOL,
        actor=HAL,
        reason="launches fail elsewhere",
        message="from 3 to 5 nodes, 2 launched",
    )
    return replace(usual, **changes)


async def status(tmp_path: Path) -> FleetStatus:
    parts = await build(tmp_path, pool=spec(min_nodes=1, max_nodes=9))
    return parts.fleet.status(last_sweep_at=None, troubles=())


async def pools(tmp_path: Path) -> tuple[Pool, ...]:
    return (await status(tmp_path)).pools


def test_only_changes_of_its_own_that_were_made_count_and_only_for_a_day() -> None:
    journal = (
        change(5, age_s=10.0),
        change(4, age_s=20.0, kind="refuse"),
        change(3, age_s=30.0, actor=ALICE),
        change(2, age_s=MOST_S),
        change(1, age_s=MOST_S + 1.0),
    )
    assert [one.ordinal for one in changes_of(HAL, journal, at=START)] == [5, 2]


async def test_both_sides_are_weighed_alike(tmp_path: Path) -> None:
    port = Recorded(answer())
    found = await live_score(port, [change(1, age_s=3600.0)], await pools(tmp_path), at=START)
    assert found is not None
    assert (found.node_hours, found.rule_node_hours, found.is_priced) == (6.0, 5.0, False)
    assert (found.wait_hours, found.rule_wait_hours) == (0.05, 0.1)
    assert found.cost == 6.0 + WAIT_WEIGHT * 0.05 == cost(node_hours=6.0, wait_hours=0.05)
    assert found.rule_cost == 5.0 + WAIT_WEIGHT * 0.1
    assert found.ratio == found.cost / found.rule_cost < 1
    assert (found.changes, found.reports) == (1, 60)


async def test_machines_that_cost_something_count_by_their_price(tmp_path: Path) -> None:
    port = Recorded(answer(dollars=10.0, recorded_dollars=12.0, wait=0.0, recorded_wait=0.0))
    found = await live_score(port, [change(1, age_s=3600.0)], await pools(tmp_path), at=START)
    assert found is not None
    assert (found.cost, found.rule_cost, found.is_priced) == (12.0, 10.0, True)
    idle = answer(node_hours={}, recorded_node_hours={}, wait=0.0, recorded_wait=0.0)
    nothing = await live_score(Recorded(idle), [change(1, age_s=3600.0)], await pools(tmp_path), at=START)
    assert nothing is not None
    assert nothing.ratio is None


async def test_the_rule_is_played_since_the_first_change_within_the_fleets_bounds(tmp_path: Path) -> None:
    port, seen = Recorded(answer()), await pools(tmp_path)
    await live_score(port, [change(2, age_s=100.0), change(1, age_s=600.5)], seen, at=START)
    await live_score(port, [change(2, age_s=100.0), change(1, age_s=7200.0)], seen, at=START)
    young, old = port.asked
    assert (young.resolution_s, young.limit) == (1, 601)
    assert (old.resolution_s, old.limit) == (60, 120)
    assert young.pools == {POOL: {"mode": "on", "min_nodes": 1, "max_nodes": 9, "launch_delay_s": 60.0}}


async def test_without_a_change_or_right_after_it_nothing_is_asked(tmp_path: Path) -> None:
    port, seen = Recorded(answer()), await pools(tmp_path)
    assert await live_score(port, [], seen, at=START) is None
    assert await live_score(port, [change(1, age_s=30.0)], seen, at=START) is None
    assert port.asked == []


async def test_a_recorded_run_is_played_by_the_rule_itself(tmp_path: Path) -> None:
    """Eight nodes were there where the rule has what the demand needs: more was paid, and nothing was waited for."""
    reports = recorded(120, ready=8)
    seen = tuple(
        replace(one, spec=replace(one.spec, id=reports[0].advice[0].pool, min_nodes=0, max_nodes=20))
        for one in await pools(tmp_path)
    )
    found = await live_score(Recorded(reports=reports), [change(1, age_s=7200.0)], seen, at=START)
    assert found is not None
    assert found.node_hours > found.rule_node_hours > 0
    assert found.ratio is not None
    assert found.ratio > 1


def sight(seen: FleetStatus, *decisions: Decision) -> Sight:
    """What the loop has seen."""
    return Sight(at=START, fleet=seen, decisions=decisions)


async def test_it_looks_once_a_minute_and_keeps_what_it_knew_when_dataflow_is_away(tmp_path: Path) -> None:
    clock, port, seen = ManualClock(START), Recorded(answer()), await status(tmp_path)
    standing = Standing(model="m", board=tmp_path / "leaderboard.json", actor=HAL, port=port, clock=clock)
    await standing.refresh(sight(seen))
    assert (standing.live, standing.live_problem) == (None, "none of its changes was made in the last day")
    assert "is not there" in standing.evaluation_problem
    board(tmp_path)
    await standing.refresh(sight(seen, change(1, age_s=3600.0)))
    assert (standing.evaluation, standing.live) == (None, None), "not before the minute is over"
    clock.advance(AGAIN_S)
    await standing.refresh(sight(seen, change(1, age_s=3600.0)))
    assert standing.evaluation is not None
    assert (standing.evaluation_problem, standing.live_problem) == ("", "")
    assert standing.source == str(tmp_path / "leaderboard.json")
    known = standing.live
    assert known is not None
    for problem in (Unavailable("dataflow is away"), InvalidInput("no report has measured demand")):
        port.problem = problem
        clock.advance(AGAIN_S)
        await standing.refresh(sight(seen, change(1, age_s=3600.0)))
        assert (standing.live, standing.live_problem) == (known, str(problem))


async def test_who_is_told_of_nothing_looks_at_nothing(tmp_path: Path) -> None:
    standing = Standing(model="m", board=None, actor=HAL, port=None, clock=ManualClock(START))
    await standing.refresh(sight(await status(tmp_path), change(1, age_s=3600.0)))
    assert (standing.source, standing.evaluation, standing.live) == ("", None, None)
