"""Steps that wait for a slot of their provider obey people who act meanwhile."""

import asyncio
from pathlib import Path

import pytest

from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.nodes import JoinToken
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from maintainer.fleet.providers.base import Handle, LaunchSpec, RetireResult
from tests.fakes.clock import settle
from tests.fakes.cloud import Cloud, CloudProvider
from tests.maintainer.fleet.parts import ALICE, Parts, build, spec

pytestmark = pytest.mark.anyio


class BlockedProvider(CloudProvider):
    """Provider whose calls wait until they are released."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self.calls = 0
        self.began = asyncio.Event()
        self.released = asyncio.Event()

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        self.calls += 1
        self.began.set()
        await self.released.wait()
        return await super().launch(spec, launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        self.calls += 1
        self.began.set()
        await self.released.wait()
        return await super().retire(launch_id, keep=keep)


async def blocked(tmp_path: Path) -> tuple[Parts, BlockedProvider]:
    """Returns a fleet with 40 ordered launches, and its provider."""
    providers: list[BlockedProvider] = []

    def provider(cloud: Cloud) -> BlockedProvider:
        providers.append(BlockedProvider(cloud))
        return providers[0]

    parts = await build(tmp_path, pool=spec(max_nodes=50), provider=provider)
    await parts.want(40)
    return parts, providers[0]


async def kill(parts: Parts) -> None:
    await parts.fleet_manager.kill_switch(KillScope.ALL, actor=ALICE, key="kill", reason="stop")


async def test_the_kill_switch_stops_queued_launches_and_retirements(tmp_path: Path) -> None:
    parts, provider = await blocked(tmp_path)
    steps = asyncio.create_task(parts.actuator.run_due_steps())
    await provider.began.wait()
    await settle()
    begun = provider.calls
    assert begun < 40
    await kill(parts)
    provider.released.set()
    await steps
    assert provider.calls == begun
    await parts.fleet_manager.kill_switch(KillScope.NONE, actor=ALICE, key="on", reason="again")
    provider.released.clear()
    provider.began.clear()
    for record in parts.ledger.alive():
        await parts.records.record_event(record.id, InstanceEvent.STOP)
    steps, provider.calls = asyncio.create_task(parts.actuator.run_due_steps()), 0
    await provider.began.wait()
    await settle()
    begun = provider.calls
    await parts.fleet_manager.kill_switch(KillScope.ALL, actor=ALICE, key="off", reason="stop")
    provider.released.set()
    await steps
    assert provider.calls == begun < 40


async def test_a_queued_launch_that_was_retired_is_not_started(tmp_path: Path) -> None:
    parts, provider = await blocked(tmp_path)
    steps = asyncio.create_task(parts.actuator.run_due_steps())
    await provider.began.wait()
    await settle()
    begun = provider.calls
    for record in parts.ledger.alive():
        await parts.records.record_event(record.id, InstanceEvent.STOP)
    provider.released.set()
    await steps
    assert provider.calls == begun


async def test_the_kill_switch_stops_a_launch_whose_token_is_being_minted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, provider = await blocked(tmp_path)
    provider.released.set()
    mint = parts.run.mint_join_token

    async def mint_and_kill(*arguments: str, **options: object) -> JoinToken:
        (tmp_path / "KILL").touch()
        return await mint(*arguments, **options)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(parts.run, "mint_join_token", mint_and_kill)
    await parts.actuator.run_due_steps()
    assert provider.calls == 0
