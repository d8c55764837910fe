"""Providers are asked whether they would do their part; what they say becomes checks, and nothing is started."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.client.fleet_plane import connect_fleet
from astraflow.contract.errors import InvalidInput, RateLimited
from astraflow.contract.fleet import Actor, Role
from astraflow.contract.ids import PoolId
from astraflow.contract.rehearsals import CheckKind
from astraflow.wire.routes import ROUTES
from maintainer.fleet.ledger import Changes
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Instance,
    Invalid,
    LaunchSpec,
    ProviderError,
    Quota,
    Quote,
    Retry,
    Unknown,
)
from maintainer.fleet.records import PoolRecord
from maintainer.fleet.rehearsing import TO_DO, checked
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud, CloudProvider, failing_once
from tests.fakes.control_plane import TOKEN
from tests.fakes.fleet import running_fleet
from tests.maintainer.fleet.parts import ALICE, POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


async def parts_with(tmp_path: Path, *, us: str = "") -> Parts:
    """With a second pool of that type, if one is named."""
    parts = await build(tmp_path)
    if us:
        made = PoolRecord(spec=replace(spec(), id=PoolId("us"), type=us), version=1, target=0)
        await parts.ledger.change(lambda _: (Changes(pools=(made,)), None))
    return parts


async def test_a_provider_is_asked_for_its_list_and_for_each_pool_a_launch_and_its_price(tmp_path: Path) -> None:
    parts = await parts_with(tmp_path, us="large")
    found = await parts.rehearsals.rehearse("cloud", actor=ALICE)
    assert [(check.kind, check.pool) for check in found.checks] == [
        (CheckKind.LIST, None),
        (CheckKind.LAUNCH, POOL),
        (CheckKind.PRICE, POOL),
        (CheckKind.LAUNCH, PoolId("us")),
        (CheckKind.PRICE, PoolId("us")),
    ]
    assert found.is_ok
    assert found.by == "alice"
    assert found.checks[0].message == "0 machines with the tag tests"
    assert "USD an hour (made up for tests)" in found.checks[2].message
    assert not any(check.to_do for check in found.checks)
    assert parts.cloud.starts == 0
    assert not (await parts.ledger.decisions(pool="", before=None, limit=10))[0]


async def test_what_is_not_let_through_is_told_with_what_would_help_and_has_no_price(tmp_path: Path) -> None:
    parts = await parts_with(tmp_path, us="enormous")
    found = await parts.rehearsals.rehearse("cloud", actor=ALICE)
    assert not found.is_ok
    (failed,) = [check for check in found.checks if not check.is_ok]
    assert (failed.kind, failed.pool) == (CheckKind.LAUNCH, PoolId("us"))
    assert failed.message.startswith("Invalid: no type is called 'enormous'")
    assert "the pool's spec" in failed.to_do
    assert CheckKind.PRICE not in {check.kind for check in found.checks if check.pool == "us"}


@pytest.mark.parametrize("error", [Retry, Quota, Capacity, Auth, Invalid, Unknown])
async def test_every_way_to_fail_has_a_sentence_of_its_own(tmp_path: Path, error: type[ProviderError]) -> None:
    parts = await build(
        tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=failing_once(error, "launch before"))
    )
    found = await parts.rehearsals.rehearse("cloud", actor=ALICE)
    (failed,) = [check for check in found.checks if not check.is_ok]
    assert failed.message.startswith(f"{error.__name__}: made up")
    assert failed.to_do == TO_DO[error]
    assert len(set(TO_DO.values())) == len(TO_DO)


class Silent(CloudProvider):
    """One whose list never comes."""

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        await asyncio.Event().wait()
        return ()


async def test_a_call_without_an_answer_is_given_up_and_the_others_are_told(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    launches: dict[PoolId | None, LaunchSpec] = {POOL: parts.desk.plans.launch(spec())}
    checks = await checked(Silent(parts.cloud), launches, cluster="tests", limit_s=0.2)
    assert [check.is_ok for check in checks] == [False, True, True]
    assert checks[0].message == "no answer within 0.2 s"
    assert "over the network" in checks[0].to_do


class Slow(CloudProvider):
    """One that is asked, and answers when it may."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self.asked = 0
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def quote(self, spec: LaunchSpec) -> Quote:
        self.asked += 1
        self.is_asked.set()
        await self.may_answer.wait()
        assert isinstance(self.cloud.clock, ManualClock)
        self.cloud.clock.advance(1.0)
        return await super().quote(spec)


async def test_who_asks_while_somebody_does_is_answered_with_what_is_found_then(tmp_path: Path) -> None:
    slow: list[Slow] = []

    def provider(cloud: Cloud) -> Slow:
        slow.append(Slow(cloud))
        return slow[0]

    parts = await build(tmp_path, provider=provider)
    first = asyncio.create_task(parts.rehearsals.rehearse("cloud", actor=ALICE))
    await slow[0].is_asked.wait()
    second = asyncio.create_task(parts.rehearsals.rehearse("cloud", actor=Actor(name="otto", role=Role.OPERATOR)))
    await asyncio.sleep(0)
    slow[0].may_answer.set()
    assert (await first, slow[0].asked) == (await second, 1)
    later = await parts.rehearsals.rehearse("cloud", actor=ALICE)
    assert slow[0].asked == 2
    assert later.began_at > (await first).began_at


async def test_the_configured_ones_are_listed_with_their_pools_and_their_latest_rehearsal(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    (before,) = parts.rehearsals.providers()
    assert (before.name, before.kind, before.pools, before.last) == ("cloud", "cloud", (POOL,), None)
    found = await parts.rehearsals.rehearse("cloud", actor=ALICE)
    (after,) = parts.rehearsals.providers()
    assert after == replace(before, last=found)
    with pytest.raises(InvalidInput, match="no provider is called 'sky'; known: cloud"):
        await parts.rehearsals.rehearse("sky", actor=ALICE)


async def test_it_is_asked_over_the_plane_in_the_name_of_who_holds_the_credential(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as fleet, connect_fleet(fleet.address, TOKEN) as plane:
        (listed,) = await plane.providers()
        assert (listed.name, listed.last) == ("cloud", None)
        found = await plane.rehearse("cloud", actor=ALICE)
        assert (found.by, found.is_ok) == ("alice", True)
        (listed,) = await plane.providers()
        assert listed.last == found
        with pytest.raises(InvalidInput, match="no provider is called 'sky'"):
            await plane.rehearse("sky", actor=ALICE)


async def test_it_is_asked_so_often_and_no_oftener(tmp_path: Path) -> None:
    rate = ROUTES["/astraflow.v1.FleetPlane/RehearseProvider"].rate
    assert rate is not None
    async with running_fleet(tmp_path) as fleet, connect_fleet(fleet.address, TOKEN) as plane:
        for _ in range(rate.burst):
            await plane.rehearse("cloud", actor=ALICE)
        with pytest.raises(RateLimited, match="RehearseProvider"):
            for _ in range(rate.burst):  # the bucket fills again meanwhile
                await plane.rehearse("cloud", actor=ALICE)
        assert (await plane.providers())[0].last is not None
