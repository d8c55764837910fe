"""Measurements of a maintainer in a run: the cost of a fault with and without it, and the latency of human actions."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from astraflow.contract.fleet.maintainer import MaintainerMode, MaintainerState, Proposal
from astraflow.contract.fleet.pools import KillScope
from tests.fakes.messages_api import sensible_model
from tests.fakes.web import running_web
from tests.system import throttled_region
from tests.system.processes import PATIENCE_S
from tests.system.two_regions import EU, US, Regions, eventually, running_regions

FAILS, THROTTLED, NO_CAPACITY = "fails", "throttled", "crowded"
"""Nodes end and none boots; nodes run at a fifth of their speed; the same, and the region starts no others."""
WARM_STEPS = {FAILS: 25, THROTTLED: 10, NO_CAPACITY: 10}
POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCost:
    """Cost of a fault."""

    fault: str
    has_maintainer: bool
    wait: float
    """Share of the time since the fault that the trainer waited."""
    steps: int
    helped_after_s: float | None
    """Seconds until the other region had more nodes than before; None when it never did."""
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanLatencies:
    """Seconds from a user's action on the page's API to its effect."""

    approved_s: float
    """Seconds until the first machine of an approved plan runs."""
    refused_s: float
    """Seconds from the kill switch until its plans are refused."""
    stopped_s: float
    """Seconds from the kill switch until a wake that waits for its model has ended."""


async def measure_fault_cost(directory: Path, fault: str, *, has_maintainer: bool, watched_s: float) -> FaultCost:
    """Measures the same fault, with or without a maintainer."""
    async with _setting(directory, fault, has_maintainer=has_maintainer) as regions:
        await regions.run.steps_more(WARM_STEPS[fault])
        if has_maintainer:
            await regions.let(MaintainerMode.AUTO)
        before = (await regions.at_work())[US]
        if fault == FAILS:
            regions.fail(EU)
        else:
            regions.slow_down(EU, pace=throttled_region.PACE)
        if fault == NO_CAPACITY:
            regions.block_launches(EU)
        return await _watched(regions, fault, before, watched_s=watched_s, has_maintainer=has_maintainer)


@asynccontextmanager
async def _setting(directory: Path, fault: str, *, has_maintainer: bool) -> AsyncIterator[Regions]:
    if fault == FAILS:
        async with running_regions(directory, has_maintainer=has_maintainer) as regions:
            regions.model.behaviour = sensible_model
            yield regions
    else:
        async with throttled_region.running_throttled(directory, has_maintainer=has_maintainer) as regions:
            yield regions


async def _watched(regions: Regions, fault: str, before: int, *, watched_s: float, has_maintainer: bool) -> FaultCost:
    began, first = time.monotonic(), (await regions.run.report()).streams[0]
    helped_after_s: float | None = None
    while time.monotonic() - began < watched_s:
        if helped_after_s is None and (await regions.at_work())[US] > before:
            helped_after_s = time.monotonic() - began
        await asyncio.sleep(0.1)
    last = (await regions.run.report()).streams[0]
    waited_s = last.training.wait_s - first.training.wait_s
    spent_s = last.training.total_s - first.training.total_s
    status = (await regions.fleet.maintainer()).status
    return FaultCost(
        fault=fault,
        has_maintainer=has_maintainer,
        wait=waited_s / max(1e-9, spent_s),
        steps=last.training.steps - first.training.steps,
        helped_after_s=helped_after_s,
        tokens=status.counters.get("tokens", 0.0) if status is not None else 0.0,
    )


async def latencies(regions: Regions, directory: Path) -> HumanLatencies:
    """Measures over the API of the web process. Leaves the kill switch on for agents."""
    async with api_of(regions, directory) as api:
        await regions.let(MaintainerMode.PROPOSE)
        regions.model.behaviour = sensible_model
        regions.fail(EU)
        proposal = await waiting(regions)
        machines = set(regions.machines(US))
        path = f"/api/v1/maintainer/proposals/{proposal.plan.id}/approve"
        began = time.monotonic()
        await _done(api.post(path, json={"reason": "agreed"}, headers={"idempotency-key": "yes"}))

        async def launched() -> set[int]:
            return set(regions.machines(US)) - machines

        await eventually(launched, every_s=POLL_S)
        approved_s = time.monotonic() - began
        regions.model.is_stalled = True
        async with asyncio.timeout(PATIENCE_S):
            await regions.model.stalled.wait()
        return HumanLatencies(approved_s=approved_s, **await _killed(regions, api))


async def _killed(regions: Regions, api: httpx.AsyncClient) -> dict[str, float]:
    """Sets the kill switch while a wake waits for its model."""
    body, headers = {"scope": KillScope.AGENTS.value, "reason": "enough"}, {"idempotency-key": "enough"}
    began = time.monotonic()
    await _done(api.put("/api/v1/kill-switch", json=body, headers=headers))
    assert (await regions.fleet.status()).kill is KillScope.AGENTS
    refused_s = time.monotonic() - began
    await eventually(lambda: _has_stopped(regions), every_s=POLL_S)
    return {"refused_s": refused_s, "stopped_s": time.monotonic() - began}


async def _has_stopped(regions: Regions) -> bool:
    status = (await regions.fleet.maintainer()).status
    return status is not None and status.state is MaintainerState.STOPPED


async def waiting(regions: Regions) -> Proposal:
    """Returns the first proposal that waits for approval."""
    return (await eventually(regions.fleet.proposals, every_s=POLL_S))[0]


@asynccontextmanager
async def api_of(regions: Regions, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yields the API of a web process over this run, for an admin."""
    facts, token = regions.run.facts(), regions.run.token()
    async with (
        running_web(directory / "web", facts["dataflow"], fleet=facts["fleet"], token=token) as web,
        web.logged_in() as client,
    ):
        await web.until_live(client)
        yield client


async def _done(request: Awaitable[httpx.Response]) -> None:
    answer = await request
    assert answer.status_code == 200, answer.text
