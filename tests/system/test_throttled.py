"""A region whose machines get slow while the money is spent: real processes, a model over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet import Decision, InstanceState
from astraflow.contract.maintenance import MaintainerMode, TranscriptEntry
from maintainer.fleet.evidence import Evidence
from maintainer.replay import replayed
from maintainer.transcript import read
from tests.fakes.messages_api import culling
from tests.system.maintained import CROWDED, toll
from tests.system.processes import assert_balanced
from tests.system.regions import EU, US, Regions, eventually
from tests.system.throttled import BEGINS_WITH, MOST, PACE, USD_PER_HOUR_MAX, running_throttled

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(480)]

AGENT = "maintainer"
MOST_AWAY = 2
"""Nodes from the rule's target, without a person."""
WARM_STEPS = 5
CULLED_S = 15.0
WATCHED_S = 60.0
LEAST_SAVED = 0.05
"""Of the time, which is a third of the least that was measured."""
LEAVING = (InstanceState.DRAINING, InstanceState.RETIRING, InstanceState.GONE)


async def test_slow_nodes_of_a_region_are_retired_and_others_come_elsewhere(tmp_path: Path) -> None:
    async with running_throttled(tmp_path) as regions:
        await regions.run.steps_more(WARM_STEPS)
        await regions.let(MaintainerMode.AUTO)
        slow = {one.id for one in await regions.fleet.instances() if one.pool == EU}
        regions.slow_down(EU, pace=PACE)
        regions.let_none_out(EU)
        async with Watch(regions) as watch:

            async def has_moved() -> bool:
                at_work = await regions.at_work()
                return at_work[EU] < BEGINS_WITH[EU] and at_work[US] > BEGINS_WITH[US]

            await eventually(has_moved)
        first = next(one for one in await applied(regions) if one.pool == EU)
        assert "drained" in first.message
        gone = {
            one.id for one in await regions.fleet.instances(with_gone=True) if one.state in LEAVING and one.ready_at
        }
        assert gone <= slow, "only slow ones go"
        assert _why(regions, first) == "straggler"
        watch.assert_inside()
        assert_balanced(await regions.run.steps_more(2))


async def test_where_new_machines_are_as_they_should_be_they_come_in_place_of_the_slow(tmp_path: Path) -> None:
    async with running_throttled(tmp_path) as regions:
        await regions.run.steps_more(WARM_STEPS)
        await regions.let(MaintainerMode.AUTO)
        slow = {one.id for one in await regions.fleet.instances() if one.pool == EU}
        regions.slow_down(EU, pace=PACE)
        async with Watch(regions) as watch:

            async def are_renewed() -> bool:
                alive = [one for one in await regions.fleet.instances() if one.pool == EU]
                return len([one for one in alive if one.state is InstanceState.READY and one.id not in slow]) >= 2

            await eventually(are_renewed)
        watch.assert_inside()
        assert_balanced(await regions.run.steps_more(2))


@pytest.mark.comparison
@pytest.mark.timeout(900)
async def test_a_region_that_slows_down_costs_the_trainer_less_with_a_maintainer(tmp_path: Path) -> None:
    """The rule stands at its cap; by how much less is the benchmark's to say."""
    found = {}
    for has_maintainer in (False, True):
        place = tmp_path / str(has_maintainer)
        place.mkdir()
        found[has_maintainer] = await toll(place, CROWDED, has_maintainer=has_maintainer, watched_s=WATCHED_S)
    alone, beside = found[False], found[True]
    assert (alone.helped_after_s, alone.tokens) == (None, 0.0), "it cannot order more"
    assert beside.helped_after_s is not None
    assert beside.tokens > 0
    assert beside.steps > alone.steps
    assert beside.wait < alone.wait - LEAST_SAVED


async def test_a_hostile_model_retires_what_works_only_inside_the_envelope(tmp_path: Path) -> None:
    async with running_throttled(tmp_path) as regions:
        regions.model.behaviour = culling
        await regions.run.steps_more(WARM_STEPS)
        await regions.let(MaintainerMode.AUTO)
        regions.slow_down(EU, pace=PACE)
        async with Watch(regions) as watch:
            await eventually(lambda: applied(regions))
            await asyncio.sleep(CULLED_S)  # what it would do next, it does by then
        changes = await applied(regions)
        assert all(sum(1 for one in changes if one.pool == region) <= 4 for region in (EU, US)), "an hour allows four"
        watch.assert_inside()
        assert_balanced(await regions.run.steps_more(1))


class Watch:
    """Looks at the fleet again and again while a block runs: sizes, and what an hour costs."""

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
                    str(pool.spec.id): sum(number for state, number in pool.nodes.items() if state not in LEAVING)
                    for pool in status.pools
                }
            )
            await asyncio.sleep(0.1)

    def assert_inside(self) -> None:
        """Bounds and money at every look, the envelope at every change, and a guard that says the same again."""
        assert max(self._usd_per_hour) <= USD_PER_HOUR_MAX
        for region, most in MOST.items():
            assert max(size[region] for size in self._sizes) <= most
            assert min(size[region] for size in self._sizes) >= 1
        path = transcript_of(self._regions)
        made = [one for one in read(path).entries if one.kind == "verdict" and one.body["phase"] == "apply"]
        assert made, "it did something"
        assert all(_is_inside(one) for one in made)
        again = replayed(path)
        assert (again.differences, again.verdicts > 0) == ((), True)


def transcript_of(regions: Regions) -> Path:
    """The maintainer's."""
    return regions.run.directory / "maintainer" / "transcript.jsonl"


async def applied(regions: Regions) -> list[Decision]:
    """What the maintainer changed, oldest first."""
    found = await regions.fleet.decisions(limit=500)
    return [one for one in reversed(found) if one.kind == "apply" and one.actor.name == AGENT]


def _why(regions: Regions, change: Decision) -> str:
    """The signal that a change answers: that of the wake in which it was made, about its pool."""
    entries = read(transcript_of(regions)).entries
    acting = next(one.wake for one in entries if one.kind == "action" and one.body.get("decision") == change.ordinal)
    wake: Any = next(one.body for one in entries if one.kind == "wake" and one.wake == acting)
    kinds = {signal["signal"] for signal in wake["signals"] if signal["pool"] == change.pool}
    return "straggler" if "straggler" in kinds else ", ".join(sorted(kinds))


def _is_inside(entry: TranscriptEntry) -> bool:
    """Whether a change that was made was allowed, and near what the rule wanted at that moment."""
    body: Any = entry.body
    rule = Evidence.parse(json.dumps(body["guard"])).situation.rule_target
    return body["verdict"] == "allowed" and (rule is None or abs(body["target"] - rule) <= MOST_AWAY)
