"""Advice of a run: in every report, in the journal, over restarts, and under other bounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from astraflow.archive.reports import recorded
from astraflow.contract.advice import Cap, FleetTerms, Mode, PoolAdvice, PoolTerms, Reason, WhatIfQuestion
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PoolId
from astraflow.contract.lookups import EventQuery
from astraflow.contract.reports import Completion, Event, PoolReport, Report
from astraflow.dataflow.reporting.advice import Advisor
from astraflow.dataflow.reporting.archive import Archive
from astraflow.dataflow.reporting.history import History
from astraflow.dataflow.run import Run
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from tests import make
from tests.dataflow.running import Service, config, facts, opened, running
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

LOCAL = PoolId("local")
NODES = 10


def spec(**pool: Any) -> Spec:
    bounds = PoolOptions.parse({"max_nodes": 40, "mode": "on"} | pool, where="pool")
    return Spec(options=SizerOptions(), pools={LOCAL: bounds})


def course(second: int, *, nodes: int = NODES) -> Report:
    """A node finishes 0.1 groups of four a second; a step of 20 groups takes ten: 20 nodes are needed."""
    flow = replace(make.flow_report(), episodes={"accepted": 400}, admitted=100, dropped={})
    steps = second // 20
    stream = make.stream_report(
        steps=steps, admitted=second, trained=20 * steps, wait_s=10.0 * steps, compute_s=10.0 * steps, publish_s=0.0
    )
    told = {"episodes_done": 0.4 * second, "busy_s": float(second)}
    members = tuple(make.node_report(f"node-{n}.{n}", counters=told) for n in range(nodes))
    return replace(make.report(stream, flows=(flow,), nodes=members), at=1000.0 + second)


async def test_a_target_that_moves_is_journaled_with_its_sentence(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        advisor = Advisor(spec(), journal=journal, events=run.events)
        for second in range(400):
            advisor.observe(course(second))
        (advice,) = advisor.latest
        assert advice.target == 22
        (moved,) = [event for event in run.events.latest(50) if event.kind == "target_moved"]
        assert moved.subject == "local"
        assert moved.message.startswith("by the sizer: local: 10 to 22 nodes, because capacity is")


async def test_what_holds_a_target_back_is_journaled_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        advisor = Advisor(spec(max_nodes=NODES), journal=journal, events=run.events)
        for second in range(600):
            advisor.observe(course(second))
        (advice,) = advisor.latest
        assert (advice.target, advice.capped_by) == (NODES, (Cap.MAX_NODES,))
        (capped,) = rules(run)
        assert capped.kind == "target_capped"
        assert capped.message.startswith("by the sizer: local: stay at 10 nodes, because capacity is")
        assert capped.message.endswith("; held back by the largest number of nodes.")
        await journal.durable()
    async with opened(tmp_path, config()) as (run, journal):
        again = Advisor(spec(), journal=journal, events=run.events)
        for second in range(600, 1200):
            again.observe(course(second))
        told = [event for event in rules(run) if event.ordinal > capped.ordinal]
        assert [event.kind for event in told] == ["target_moved", "cap_ended"]
        assert "no more held back by the largest number of nodes, after 8 minutes; the target is 22" in told[1].message


async def test_a_trainer_that_waits_at_the_staleness_gate_is_told_of_once_and_orders_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        advisor = Advisor(spec(), journal=journal, events=run.events)
        for second in range(900):
            report = course(second, nodes=22)
            told = {"episodes_done": 0.2 * second, "busy_s": second / 2, "blocked_s": second / 2}
            nodes = tuple(replace(node, counters=told) for node in report.nodes)
            stream = replace(report.streams[0], issue_room=0)
            advisor.observe(replace(report, nodes=nodes, streams=(stream,)))
        (advice,) = advisor.latest
        assert (advice.target, advice.reasons, advice.inputs["trim"]) == (22, (Reason.GATED,), 1.0)
        (held,) = rules(run)
        assert held.kind == "target_capped"
        assert "stand empty at the staleness gate: more nodes hardly help" in held.message


def rules(run: Run) -> list[Event]:
    """What the rule has in the journal."""
    kinds = ("target_moved", "target_capped", "cap_ended")
    return [event for event in run.events.latest(50) if event.kind in kinds]


async def test_a_restart_goes_on_with_the_targets(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        advisor = Advisor(spec(), journal=journal, events=run.events)
        for second in range(400):
            advisor.observe(course(second))
        await journal.durable()
    async with opened(tmp_path, config()) as (run, journal):
        again = Advisor(spec(), journal=journal, events=run.events)
        again.observe(course(401, nodes=0))  # nobody has come back yet
        assert again.latest[0].target == 22
        assert again.latest[0].reasons == (Reason.UNMEASURED,)


async def test_reports_carry_advice_on_pools_that_nobody_configured(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.nodes.join(facts())
        advice = await first_advice(service)
        assert (advice.pool, advice.target, advice.mode.value) == ("local", 1, "advise")
        assert advice.sentence


def terms(**pool: Any) -> FleetTerms:
    given: dict[str, Any] = {
        "mode": Mode.ON,
        "min_nodes": 1,
        "max_nodes": 30,
        "launch_delay_s": 2.0,
        "price_per_hour": 1.5,
    }
    return FleetTerms(pools=(PoolTerms(pool=LOCAL, **given | pool),))


async def test_what_the_fleet_tells_counts_at_the_next_report_and_for_a_minute(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        advisor = Advisor(spec(), journal=journal, events=run.events)
        for second in range(400):
            advisor.observe(course(second))
        assert advisor.latest[0].target == 22
        advisor.learn(terms(max_nodes=12))
        advisor.observe(course(400))
        (advice,) = advisor.latest
        assert (advice.target, advice.inputs["price_per_hour"]) == (12, 1.5)
        assert advisor.spec.tick_s == 5.0
        for second in range(401, 480):
            advisor.observe(course(second))
        assert advisor.spec == spec()
        assert advisor.latest[0].inputs["price_per_hour"] == 0.0


async def test_the_fleets_kill_switch_is_in_the_next_report(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.nodes.join(facts())
        await first_advice(service)
        await service.control.tell_terms(replace(terms(), is_killed=True))
        with anyio.fail_after(20):
            async for report in service.control.watch_report():
                if report.advice and report.advice[0].capped_by:
                    break
        assert report.advice[0].capped_by == (Cap.KILL_SWITCH,)
        with pytest.raises(InvalidInput, match="the fleet's terms of pool local"):
            await service.control.tell_terms(terms(min_nodes=31))


async def test_bounds_of_the_recipe_hold(tmp_path: Path) -> None:
    async with running(tmp_path, config(pools={"local": {"max_nodes": 9, "min_nodes": 3}})) as service:
        advice = await first_advice(service)
        assert advice.target == 3
        events = await service.control.events(EventQuery(kinds=("target_moved",), limit=5))
        assert "local: 0 to 3 nodes" in events.events[0].message


async def test_what_if_needs_something_recorded(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        with pytest.raises(InvalidInput, match="no report has measured demand"):
            await service.control.what_if(WhatIfQuestion(resolution_s=1))
        with pytest.raises(InvalidInput, match="did you mean 'headroom'"):
            await service.control.what_if(WhatIfQuestion(options={"head_room": 0.1}))
        with pytest.raises(InvalidInput, match="resolution"):
            await service.control.what_if(WhatIfQuestion(resolution_s=7))


async def test_what_if_plays_the_recorded_run_under_other_bounds(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        archive = Archive(tmp_path / "history.sqlite", clock=ManualClock())
        history = History(journal, archive, seconds=900, minutes=1000)
        advisor = Advisor(spec(), journal=journal, events=run.events)
        for second in range(600):
            advisor.observe(course(second))
            pool = PoolReport(id=LOCAL, ready=NODES, joining=0, draining=0, lost=0, episodes_per_s=1, tokens_per_s=1)
            history.add(replace(course(second), sequence=second + 1, pools=(pool,), advice=advisor.latest))
        await journal.durable()
        archive.close()
    reports = list(recorded(tmp_path / "history.sqlite", resolution_s=1))
    assert len(reports) == 600
    async with running(tmp_path, config(pools={"local": {"max_nodes": 40, "launch_delay_s": 60}})) as service:
        as_is = await service.control.what_if(WhatIfQuestion(resolution_s=1))
        bounded = await service.control.what_if(WhatIfQuestion(resolution_s=1, pools={"local": {"max_nodes": 5}}))
        minutes = await service.control.what_if(WhatIfQuestion(resolution_s=60, pools={"local": {"max_nodes": 5}}))
    assert as_is.advice[-1].target == 22
    assert bounded.advice[-1].target == minutes.advice[-1].target == 5
    assert bounded.wait == pytest.approx(0.75, abs=0.05)
    assert as_is.wait < as_is.recorded_wait == pytest.approx(0.5, abs=0.05)


async def test_a_file_that_is_no_history_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no history"):
        list(recorded(tmp_path / "history.sqlite", resolution_s=60))
    (tmp_path / "history.sqlite").write_text("something else, and long enough to be no empty file")
    with pytest.raises(InvalidInput, match="holds no history"):
        list(recorded(tmp_path / "history.sqlite", resolution_s=60))


async def first_advice(service: Service) -> PoolAdvice:
    with anyio.fail_after(20):
        async for report in service.control.watch_report():
            if report.advice:
                return report.advice[0]
    raise AssertionError("the reports ended without advice")


async def test_a_complete_run_needs_no_nodes_whatever_the_rule_says(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        advisor = Advisor(spec(min_nodes=3), journal=journal, events=run.events)
        advisor.observe(course(0))
        completion = Completion(reason="because", has_learned=True, at=1000.0, ends_run=True)
        for second in range(1, 100):
            advisor.observe(replace(course(second), completion=completion))
        (advice,) = advisor.latest
        assert (advice.target, advice.victims) == (0, ())
        advisor.observe(replace(course(200), completion=replace(completion, ends_run=False)))
        assert advisor.latest[0].target > 0
