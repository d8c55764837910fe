"""Recommendations of a run: in every report, in the journal, across restarts, and under other bounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from astraflow.archive.reports import read_reports
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.recommendations import (
    FleetConstraints,
    LimitInEffect,
    Mode,
    PoolConstraints,
    PoolRecommendation,
    Reason,
    WhatIfQuestion,
)
from astraflow.contract.ids import PoolId
from astraflow.contract.record_causes import WORDS
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import Completion, Event, PoolReport, Report
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.history import History
from astraflow.dataflow.reporting.recommender import Recommender
from astraflow.dataflow.run import Run
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from tests import make
from tests.dataflow.running import Service, config, facts, opened, running
from tests.errors import raises_code
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

LOCAL = PoolId("local")
NODES = 10


def spec(**pool: Any) -> Spec:
    bounds = PoolOptions.parse({"max_nodes": 40, "mode": "on"} | pool, where="pool")
    return Spec(options=SizerOptions(), pools={LOCAL: bounds})


def course(second: int, *, nodes: int = NODES, step_s: int = 20) -> Report:
    """Returns a report of a run that needs 20 nodes: 0.1 groups of four per node and second, 20 groups in 10 s."""
    flow = replace(make.flow_report(issued=100, dropped=0), tasks_leased=0)
    steps = second // step_s
    stream = make.stream_report(
        steps=steps, admitted=second, trained=20 * steps, wait_s=10.0 * steps, compute_s=10.0 * steps, publish_s=0.0
    )
    node_facts = {"episodes_done": 0.4 * second, "busy_s": float(second)}
    members = tuple(make.node_report(f"node-{n}.{n}", counters=node_facts) for n in range(nodes))
    return replace(make.report(stream, flows=(flow,), nodes=members), at=1000.0 + second)


async def test_the_demand_is_known_with_the_third_step_and_while_the_kill_switch_is_on(tmp_path: Path) -> None:
    slow_ticks = replace(spec(), options=SizerOptions(tick_s=60.0))
    async with opened(tmp_path, config()) as (run, journal):
        recommender = Recommender(slow_ticks, journal=journal, events=run.events)
        for second in range(31):
            recommender.observe(course(second, step_s=10))
        (measured,) = recommender.latest
        recommender.set_fleet_constraints(FleetConstraints(pools=(), is_kill_switch_on=True))
        recommender.observe(course(31, step_s=10))
        (held,) = recommender.latest

    assert measured.inputs["demand_groups_per_s"] == pytest.approx(2.0)
    assert held.reasons[0] is Reason.SWITCHED_OFF
    assert held.inputs["demand_groups_per_s"] == measured.inputs["demand_groups_per_s"]
    assert (held.target, held.limited_by) == (measured.target, (LimitInEffect.KILL_SWITCH,))


@pytest.mark.long
async def test_a_changed_target_is_recorded_as_an_event(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        recommender = Recommender(spec(), journal=journal, events=run.events)
        for second in range(400):
            recommender.observe(course(second))
        (advice,) = recommender.latest
        assert advice.target == 22
        moves = [event for event in run.events.latest(50) if event.kind.value == "target_moved"]
        assert {(event.subject, event.actor) for event in moves} == {("local", "sizer")}
        assert [(event.values["before"], event.values["target"]) for event in moves] == [(10, 15), (15, 22)]


async def test_a_limit_on_the_target_is_recorded_at_its_start_and_end(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        recommender = Recommender(spec(max_nodes=NODES), journal=journal, events=run.events)
        for second in range(600):
            recommender.observe(course(second))
        (advice,) = recommender.latest
        assert (advice.target, advice.limited_by) == (NODES, (LimitInEffect.MAX_NODES,))
        (capped,) = rules(run)
        assert capped.kind is RecordKind.TARGET_LIMITED
        assert (capped.values["target"], capped.values["limits"]) == (NODES, "max_nodes")
        assert render(capped).endswith(f"held back by {WORDS['max_nodes']}")
        await journal.wait_durable()
    async with opened(tmp_path, config()) as (run, journal):
        again = Recommender(spec(), journal=journal, events=run.events)
        for second in range(600, 1200):
            again.observe(course(second))
        later_events = [event for event in rules(run) if event.ordinal > capped.ordinal]
        first_steps, _, ended = later_events  # after a restart, few steps are measured at first
        assert [event.kind.value for event in later_events] == ["target_moved", "target_moved", "limit_ended"]
        assert (first_steps.cause, first_steps.values["steps"]) == ("cold_start", 3)
        assert (ended.cause, ended.values) == ("max_nodes", {"limit": "max_nodes", "minutes": 8, "target": 22})


@pytest.mark.long
async def test_a_trainer_at_the_staleness_gate_causes_one_event_and_no_growth(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        recommender = Recommender(spec(), journal=journal, events=run.events)
        for second in range(900):
            report = course(second, nodes=22)
            node_facts = {"episodes_done": 0.2 * second, "busy_s": second / 2, "blocked_s": second / 2}
            nodes = tuple(replace(node, counters=node_facts) for node in report.nodes)
            stream = replace(report.streams[0], issue_headroom=0)
            recommender.observe(replace(report, nodes=nodes, streams=(stream,)))
        (advice,) = recommender.latest
        assert (advice.target, advice.reasons, advice.inputs["trim"]) == (22, (Reason.GATED,), 1.0)
        (held,) = rules(run)
        assert held.kind is RecordKind.TARGET_LIMITED
        assert (held.cause, held.values) == (advice.change.cause, advice.change.values)


def rules(run: Run) -> list[Event]:
    """Returns the sizer's events in the journal."""
    kinds = ("target_moved", "target_limited", "limit_ended")
    return [event for event in run.events.latest(50) if event.kind.value in kinds]


@pytest.mark.long
async def test_targets_survive_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        recommender = Recommender(spec(), journal=journal, events=run.events)
        for second in range(400):
            recommender.observe(course(second))
        await journal.wait_durable()
    async with opened(tmp_path, config()) as (run, journal):
        again = Recommender(spec(), journal=journal, events=run.events)
        again.observe(course(401, nodes=0))  # no node has joined again yet
        assert again.latest[0].target == 22
        assert again.latest[0].reasons == (Reason.UNMEASURED,)


async def test_reports_contain_recommendations_for_unconfigured_pools(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.nodes.join(facts())
        advice = await first_advice(service)
        assert (advice.pool, advice.target, advice.mode.value) == ("local", 1, "advise")
        assert advice.reasons


def terms(**pool: Any) -> FleetConstraints:
    defaults: dict[str, Any] = {
        "mode": Mode.ON,
        "min_nodes": 1,
        "max_nodes": 30,
        "launch_delay_s": 2.0,
        "price_per_hour": 1.5,
    }
    return FleetConstraints(pools=(PoolConstraints(pool=LOCAL, **defaults | pool),))


async def test_fleet_constraints_apply_from_the_next_report_for_a_minute(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        recommender = Recommender(spec(), journal=journal, events=run.events)
        for second in range(400):
            recommender.observe(course(second))
        assert recommender.latest[0].target == 22
        recommender.set_fleet_constraints(terms(max_nodes=12))
        recommender.observe(course(400))
        (advice,) = recommender.latest
        assert (advice.target, advice.inputs["price_per_hour"]) == (12, 1.5)
        assert recommender.spec.tick_s == 5.0
        for second in range(401, 480):
            recommender.observe(course(second))
        assert recommender.spec == spec()
        assert recommender.latest[0].inputs["price_per_hour"] == 0.0


async def test_the_fleets_kill_switch_is_in_the_next_report(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.nodes.join(facts())
        await first_advice(service)
        await service.control.report_fleet_constraints(replace(terms(), is_kill_switch_on=True))
        with anyio.fail_after(20):
            async for report in service.control.watch_report():
                if report.recommendations and report.recommendations[0].limited_by:
                    break
        assert report.recommendations[0].limited_by == (LimitInEffect.KILL_SWITCH,)
        with raises_code(InvalidInput, "config.invalid", "pool local", "min_nodes 31"):
            await service.control.report_fleet_constraints(terms(min_nodes=31))


async def test_recommendations_stay_within_the_bounds_of_the_recipe(tmp_path: Path) -> None:
    async with running(tmp_path, config(pools={"local": {"max_nodes": 9, "min_nodes": 3}})) as service:
        advice = await first_advice(service)
        assert advice.target == 3
        events = await service.control.events(EventQuery(kinds=(RecordKind.TARGET_MOVED,), limit=5))
        assert events.events[0].values.items() >= {"before": 0, "target": 3}.items()


async def test_what_if_without_a_recording_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        with raises_code(InvalidInput, "scaling.demand_not_measured"):
            await service.control.what_if(WhatIfQuestion(resolution_s=1))
        with raises_code(InvalidInput, "config.invalid", "'headroom'"):
            await service.control.what_if(WhatIfQuestion(options={"head_room": 0.1}))
        with raises_code(InvalidInput, "history.unknown_resolution"):
            await service.control.what_if(WhatIfQuestion(resolution_s=7))


@pytest.mark.long
async def test_what_if_replays_the_recorded_run_with_other_bounds(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        archive = Archive(tmp_path / "history.sqlite", clock=ManualClock())
        history = History(journal, archive, seconds=900, minutes=1000)
        recommender = Recommender(spec(), journal=journal, events=run.events)
        for second in range(600):
            recommender.observe(course(second))
            pool = PoolReport(id=LOCAL, ready=NODES, joining=0, draining=0, lost=0, episodes_per_s=1, tokens_per_s=1)
            history.add(replace(course(second), sequence=second + 1, pools=(pool,), recommendations=recommender.latest))
        await journal.wait_durable()
        archive.close()
    reports = list(read_reports(tmp_path / "history.sqlite", resolution_s=1))
    assert len(reports) == 600
    async with running(tmp_path, config(pools={"local": {"max_nodes": 40, "launch_delay_s": 60}})) as service:
        as_is = await service.control.what_if(WhatIfQuestion(resolution_s=1))
        bounded = await service.control.what_if(WhatIfQuestion(resolution_s=1, pools={"local": {"max_nodes": 5}}))
        minutes = await service.control.what_if(WhatIfQuestion(resolution_s=60, pools={"local": {"max_nodes": 5}}))
    assert as_is.recommendations[-1].target == 22
    assert bounded.recommendations[-1].target == minutes.recommendations[-1].target == 5
    assert bounded.wait == pytest.approx(0.75, abs=0.05)
    assert as_is.wait < as_is.recorded_wait == pytest.approx(0.5, abs=0.05)


async def test_a_missing_and_a_damaged_history_are_different_errors(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "archive.missing"):
        list(read_reports(tmp_path / "history.sqlite", resolution_s=60))
    (tmp_path / "history.sqlite").write_text("something else, and long enough to be no empty file")
    with raises_code(InvalidInput, "archive.unsupported"):
        list(read_reports(tmp_path / "history.sqlite", resolution_s=60))


async def first_advice(service: Service) -> PoolRecommendation:
    with anyio.fail_after(20):
        async for report in service.control.watch_report():
            if report.recommendations:
                return report.recommendations[0]
    raise AssertionError("the reports ended without advice")


async def test_a_complete_run_has_a_target_of_zero_nodes(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        recommender = Recommender(spec(min_nodes=3), journal=journal, events=run.events)
        recommender.observe(course(0))
        completion = Completion(reason="because", has_learned=True, at=1000.0, ends_run=True)
        for second in range(1, 100):
            recommender.observe(replace(course(second), completion=completion))
        (advice,) = recommender.latest
        assert (advice.target, advice.victims) == (0, ())
        recommender.observe(replace(course(200), completion=replace(completion, ends_run=False)))
        assert recommender.latest[0].target > 0
