"""A region whose machines slow down while the budget is spent: real processes, a model over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.maintainer import MaintainerMode, TranscriptEntry
from astraflow.contract.records import render_summary
from maintainer.agent.transcript.replay import replay_transcript
from maintainer.agent.transcript.transcript import read
from maintainer.fleet.guard.inputs import GuardInputs
from tests.fakes.messages_api import node_killing_model
from tests.system.maintainer_measurements import NO_CAPACITY, measure_fault_cost
from tests.system.processes import assert_balanced
from tests.system.throttled_region import BEGINS_WITH, MOST, PACE, USD_PER_HOUR_MAX, running_throttled
from tests.system.two_regions import EU, US, Regions, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(480)]

AGENT = "maintainer"
MAX_DEVIATION_NODES = 2
"""Nodes from the rule's target, without approval."""
WARM_STEPS = 5
CULLED_S = 15.0
WATCHED_S = 60.0
LEAST_SAVED = 0.05
"""Share of the time: a third of the smallest measured saving."""
TERMINATING = (InstanceState.DRAINING, InstanceState.RETIRING, InstanceState.GONE)


async def test_slow_nodes_of_a_region_are_replaced_in_another_region(tmp_path: Path) -> None:
    async with running_throttled(tmp_path) as regions:
        await regions.run.steps_more(WARM_STEPS)
        await regions.let(MaintainerMode.AUTO)
        slow = {instance.id for instance in await regions.fleet.instances() if instance.pool == EU}
        regions.slow_down(EU, pace=PACE)
        regions.block_launches(EU)
        async with Watch(regions) as watch:

            async def has_moved() -> bool:
                at_work = await regions.at_work()
                return at_work[EU] < BEGINS_WITH[EU] and at_work[US] > BEGINS_WITH[US]

            await eventually(has_moved)
        first = next(decision for decision in await applied(regions) if decision.subject == EU)
        assert "drained" in render_summary(first)
        ended_ids = {
            instance.id
            for instance in await regions.fleet.instances(with_gone=True)
            if instance.state in TERMINATING and instance.ready_at
        }
        assert ended_ids <= slow, "only slow nodes are retired"
        assert _why(regions, first) == "straggler"
        watch.assert_inside()
        assert_balanced(await regions.run.steps_more(2))


async def test_slow_nodes_are_replaced_in_their_region_when_new_machines_are_fast(tmp_path: Path) -> None:
    async with running_throttled(tmp_path) as regions:
        await regions.run.steps_more(WARM_STEPS)
        await regions.let(MaintainerMode.AUTO)
        slow = {instance.id for instance in await regions.fleet.instances() if instance.pool == EU}
        regions.slow_down(EU, pace=PACE)
        async with Watch(regions) as watch:

            async def are_replaced() -> bool:
                alive = [instance for instance in await regions.fleet.instances() if instance.pool == EU]
                return (
                    len(
                        [
                            instance
                            for instance in alive
                            if instance.state is InstanceState.READY and instance.id not in slow
                        ]
                    )
                    >= 2
                )

            await eventually(are_replaced)
        watch.assert_inside()
        assert_balanced(await regions.run.steps_more(2))


@pytest.mark.timeout(900)
async def test_a_maintainer_reduces_the_wait_caused_by_a_slow_region(tmp_path: Path) -> None:
    """The rule stays at its cap; the benchmark measures the amount."""
    figures_by_sizing = {}
    for has_maintainer in (False, True):
        run_folder = tmp_path / str(has_maintainer)
        run_folder.mkdir()
        figures_by_sizing[has_maintainer] = await measure_fault_cost(
            run_folder, NO_CAPACITY, has_maintainer=has_maintainer, watched_s=WATCHED_S
        )
    alone, beside = figures_by_sizing[False], figures_by_sizing[True]
    assert (alone.helped_after_s, alone.tokens) == (None, 0.0), "no launches are possible at the cap"
    assert beside.helped_after_s is not None
    assert beside.tokens > 0
    assert beside.steps > alone.steps
    assert beside.wait < alone.wait - LEAST_SAVED


async def test_a_hostile_model_retires_working_nodes_only_inside_the_limits(tmp_path: Path) -> None:
    async with running_throttled(tmp_path) as regions:
        regions.model.behaviour = node_killing_model
        await regions.run.steps_more(WARM_STEPS)
        await regions.let(MaintainerMode.AUTO)
        regions.slow_down(EU, pace=PACE)
        async with Watch(regions) as watch:
            await eventually(lambda: applied(regions))
            await asyncio.sleep(CULLED_S)  # its next action comes within this time
        changes = await applied(regions)
        assert all(sum(1 for change in changes if change.subject == region) <= 4 for region in (EU, US)), (
            "four changes per hour are allowed"
        )
        watch.assert_inside()
        assert_balanced(await regions.run.steps_more(1))


class Watch:
    """Samples the fleet while a block runs: sizes and cost per hour."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._sizes: list[dict[str, int]] = []
        self._usd_per_hour: list[float] = []
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Watch":
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._looking is not None
        self._looking.cancel()
        (ended,) = await asyncio.gather(self._looking, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended

    async def _look(self) -> None:
        while True:
            status = await self._regions.fleet.status()
            self._usd_per_hour.append(status.usd_per_hour)
            self._sizes.append(
                {
                    str(pool.spec.id): sum(number for state, number in pool.nodes.items() if state not in TERMINATING)
                    for pool in status.pools
                }
            )
            await asyncio.sleep(0.1)

    def assert_inside(self) -> None:
        """Asserts bounds and cost of every sample, limits of every change, and equal verdicts of a replay."""
        assert max(self._usd_per_hour) <= USD_PER_HOUR_MAX
        for region, most in MOST.items():
            assert max(size[region] for size in self._sizes) <= most
            assert min(size[region] for size in self._sizes) >= 1
        path = transcript_of(self._regions)
        plan_verdicts = [
            entry for entry in read(path).entries if entry.kind == "verdict" and entry.body["phase"] == "apply"
        ]
        assert plan_verdicts, "the model made changes"
        assert all(_is_inside(entry) for entry in plan_verdicts)
        again = replay_transcript(path)
        assert (again.differences, again.verdicts > 0) == ((), True)


def transcript_of(regions: Regions) -> Path:
    """Returns the maintainer's transcript."""
    return regions.run.directory / "maintainer" / "transcript.jsonl"


async def applied(regions: Regions) -> list[Decision]:
    """Returns the maintainer's changes, oldest first."""
    decisions = await regions.fleet.decisions(limit=500)
    return [decision for decision in reversed(decisions) if decision.kind.value == "apply" and decision.actor == AGENT]


def _why(regions: Regions, change: Decision) -> str:
    """Returns the signal behind a change: from the wake that made it, about its pool."""
    entries = read(transcript_of(regions)).entries
    acting = next(
        entry.wake for entry in entries if entry.kind == "action" and entry.body.get("decision") == change.ordinal
    )
    wake: Any = next(entry.body for entry in entries if entry.kind == "wake" and entry.wake == acting)
    kinds = {signal["signal"] for signal in wake["signals"] if signal["pool"] == change.subject}
    return "straggler" if "straggler" in kinds else ", ".join(sorted(kinds))


def _is_inside(entry: TranscriptEntry) -> bool:
    """Returns whether a change was allowed, and near the rule's target at that moment."""
    body: Any = entry.body
    rule = GuardInputs.parse(json.dumps(body["guard"])).situation.rule_target
    return body["verdict"] == "allowed" and (rule is None or abs(body["target"] - rule) <= MAX_DEVIATION_NODES)
