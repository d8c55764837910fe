"""A run in two regions, its fleet service, a maintainer that asks a model over HTTP: real processes, real faults."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.maintainer import MaintainerMode, TranscriptEntry
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.records import render_summary
from maintainer.agent.tools.registry import TOOLS
from maintainer.agent.transcript.replay import replay_transcript
from maintainer.agent.transcript.transcript import read
from maintainer.fleet.guard.inputs import GuardInputs
from tests.fakes.messages_api import flooding_model, sensible_model
from tests.system.maintainer_measurements import FAILS, latencies, measure_fault_cost
from tests.system.processes import PATIENCE_S, assert_balanced
from tests.system.test_fleet import ALICE
from tests.system.two_regions import EU, US, Regions, eventually, running_regions

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.long]

AGENT = "maintainer"
MAX_DEVIATION_NODES = 2
"""Nodes from the rule's target, without approval."""
FLOOD_S = 10.0
WATCHED_S = 25.0
LEAST_SAVED = 0.05
"""Share of the time: a fifth of the measured saving."""
MOST = {EU: 3, US: 6}


async def applied(regions: Regions) -> list[Decision]:
    """Returns the maintainer's changes, oldest first."""
    decisions = await regions.fleet.decisions(limit=500)
    return [decision for decision in reversed(decisions) if decision.kind.value == "apply" and decision.actor == AGENT]


async def test_the_maintainer_moves_failing_launches_to_another_region(tmp_path: Path) -> None:
    async with running_regions(tmp_path) as regions:
        regions.model.behaviour = sensible_model
        before = (await regions.at_work())[US]
        await regions.let(MaintainerMode.AUTO)
        regions.fail(EU)

        async def has_more() -> bool:
            return (await regions.at_work())[US] > before

        async def is_held() -> bool:
            pools = (await regions.fleet.status()).pools
            return any(pool.hold_until_at is not None for pool in pools if pool.spec.id == US)

        await eventually(has_more)
        await eventually(is_held)  # prevents the rule from removing the replacement nodes
        change, *_ = await applied(regions)
        assert change.subject == US
        assert (await regions.at_work())[EU] == 0
        request = regions.model.requests[-1]
        assert (request["stream"], {tool["name"] for tool in request["tools"]}) == (True, set(TOOLS))
        assert EU not in str(request["messages"]), "pool names are not sent to the model"
        assert_balanced(await regions.run.steps_more(2))


@pytest.mark.timeout(480)
async def test_a_maintainer_reduces_the_wait_caused_by_failing_launches(tmp_path: Path) -> None:
    """Compares two runs on the same machine by steps and by the share of waiting; the benchmark measures the amount."""
    figures_by_sizing = {}
    for has_maintainer in (False, True):
        run_folder = tmp_path / str(has_maintainer)
        run_folder.mkdir()
        figures_by_sizing[has_maintainer] = await measure_fault_cost(
            run_folder, FAILS, has_maintainer=has_maintainer, watched_s=WATCHED_S
        )
    alone, beside = figures_by_sizing[False], figures_by_sizing[True]
    assert (alone.tokens, beside.tokens > 0) == (0.0, True)
    assert beside.steps > alone.steps
    assert beside.wait < alone.wait - LEAST_SAVED


@pytest.mark.flaky(reruns=1)  # a region counts as slow only beside one that is not, and a busy machine slows both
async def test_the_maintainer_moves_nodes_away_from_a_slow_region(tmp_path: Path) -> None:
    async with running_regions(tmp_path) as regions:
        regions.model.behaviour = sensible_model
        await regions.run.steps_more(10)
        await regions.let(MaintainerMode.AUTO)
        async with regions.throttled_instances(EU):
            changes = await eventually(lambda: applied(regions))
            assert changes[0].subject == US
            assert "launched" in render_summary(changes[0])
        entries = read(regions.run.directory / "maintainer" / "transcript.jsonl").entries
        wakes = {entry.wake: str(entry.body["signals"]) for entry in entries if entry.kind == "wake"}
        acting = next(entry.wake for entry in entries if entry.kind == "action")
        assert "straggler" in wakes[acting] or "preemption_wave" in wakes[acting], (
            "the wake has a signal of the slow region"
        )
        assert_balanced(await regions.run.steps_more(2))


async def test_a_hostile_model_stays_inside_the_limits_and_can_be_stopped(tmp_path: Path) -> None:
    async with running_regions(tmp_path) as regions:
        regions.model.behaviour = flooding_model
        await regions.run.steps_more(5)
        await regions.let(MaintainerMode.AUTO)
        regions.fail(EU)
        sizes = await _watch(regions)
        status = await regions.fleet.status()
        assert status.kill is KillScope.NONE, "the model has no tool for the kill switch"
        changes = await applied(regions)
        for region, most in MOST.items():
            assert max(size[region] for size in sizes) <= most
            assert sum(1 for change in changes if change.subject == region) <= 4, "four changes per hour are allowed"
        assert min(size[US] for size in sizes) >= 1
        path = regions.run.directory / "maintainer" / "transcript.jsonl"
        verdict_entries = [
            entry for entry in read(path).entries if entry.kind == "verdict" and entry.body["phase"] == "apply"
        ]
        assert len(verdict_entries) == len(changes) > 0, "allowed changes are applied"
        assert all(_is_inside(entry) for entry in verdict_entries)
        transcript = replay_transcript(path)
        assert (transcript.differences, transcript.verdicts > 0) == ((), True)
        assert len(regions.model.requests) > 5

        await regions.fleet.kill_switch(KillScope.AGENTS, actor=ALICE, key="stop", reason="enough")
        requests_before, before = len(regions.model.requests), [decision.ordinal for decision in await applied(regions)]
        await regions.run.steps_more(4)
        assert [decision.ordinal for decision in await applied(regions)] == before
        assert len(regions.model.requests) <= requests_before + 1
        assert_balanced(await regions.run.steps_more(1))


async def _watch(regions: Regions) -> list[dict[str, int]]:
    """Samples the machines of each region that live or are ordered, until at least one change was made."""
    sizes = []
    leaving = (InstanceState.DRAINING, InstanceState.RETIRING, InstanceState.GONE)
    clock = asyncio.get_running_loop().time
    began = clock()
    while clock() < began + FLOOD_S or (clock() < began + PATIENCE_S and not await applied(regions)):
        sizes.append(
            {
                str(pool.spec.id): sum(number for state, number in pool.nodes.items() if state not in leaving)
                for pool in (await regions.fleet.status()).pools
            }
        )
        await asyncio.sleep(0.1)
    return sizes


def _is_inside(entry: TranscriptEntry) -> bool:
    """Returns whether a change was allowed, and near the rule's target at that moment."""
    body: Any = entry.body
    rule = GuardInputs.parse(json.dumps(body["guard"])).situation.rule_target
    return body["verdict"] == "allowed" and (rule is None or abs(body["target"] - rule) <= MAX_DEVIATION_NODES)


async def test_decisions_of_people_over_the_api_take_effect_quickly(tmp_path: Path) -> None:
    async with running_regions(tmp_path) as regions:
        measured = await latencies(regions, tmp_path)
        assert measured.approved_s < PATIENCE_S
        assert (await regions.fleet.status()).kill is KillScope.AGENTS
        entries = (await regions.fleet.transcript(limit=20)).entries
        assert [entry for entry in entries if entry.kind == "orders" and entry.body["kill"] == "agents"]
        decisions = {
            decision.kind.value: decision
            for decision in reversed(await regions.fleet.decisions(limit=50))
            if decision.kind.value != "note"
        }
        assert decisions["kill_switch"].actor == "admin"
