"""Preflight checks query providers without starting instances."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.client.fleet_plane import connect_fleet
from astraflow.contract.errors import InvalidInput, RateLimited
from astraflow.contract.fleet.plans import Actor, Role
from astraflow.contract.fleet.preflight import CheckKind
from astraflow.contract.ids import PoolId
from astraflow.wire.routes import ROUTES
from maintainer.fleet.ledger.ledger import Changes
from maintainer.fleet.ledger.records import PoolRecord
from maintainer.fleet.preflight import NO_ANSWER, TO_DO, run_checks
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Instance,
    InvalidError,
    LaunchSpec,
    ProviderError,
    QuotaError,
    Quote,
    RetryError,
    UnknownError,
)
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud, CloudProvider, failing_once
from tests.fakes.control_plane import TOKEN
from tests.fakes.fleet import running_fleet
from tests.maintainer.fleet.parts import ALICE, POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


async def parts_with(tmp_path: Path, *, us: str = "") -> Parts:
    """Builds a fleet service, with a second pool if its type is given."""
    parts = await build(tmp_path)
    if us:
        record = PoolRecord(spec=replace(spec(), id=PoolId("us"), type=us), version=1, target=0)
        await parts.ledger.change(lambda _: (Changes(pools=(record,)), None))
    return parts


async def test_a_preflight_checks_the_list_and_each_pools_launch_and_price(tmp_path: Path) -> None:
    parts = await parts_with(tmp_path, us="large")
    preflight_result = await parts.preflight_checks.preflight("cloud", actor=ALICE)
    assert [(check.kind, check.pool) for check in preflight_result.checks] == [
        (CheckKind.LIST, None),
        (CheckKind.LAUNCH, POOL),
        (CheckKind.PRICE, POOL),
        (CheckKind.LAUNCH, PoolId("us")),
        (CheckKind.PRICE, PoolId("us")),
    ]
    assert preflight_result.is_ok
    assert preflight_result.requested_by == "alice"
    assert preflight_result.checks[0].message.startswith("0 ")
    quote = await parts.fleet.provider("cloud").quote(parts.fleet_manager.plans.launch(spec()))
    assert preflight_result.checks[2].message.startswith(f"{quote.usd_per_hour:.2f} USD")
    assert quote.source in preflight_result.checks[2].message
    assert not any(check.remedy for check in preflight_result.checks)
    assert parts.cloud.starts == 0
    assert not (await parts.ledger.decisions(pool="", before=None, limit=10))[0]


async def test_a_refused_launch_has_a_remedy_and_no_price(tmp_path: Path) -> None:
    parts = await parts_with(tmp_path, us="enormous")
    preflight_result = await parts.preflight_checks.preflight("cloud", actor=ALICE)
    assert not preflight_result.is_ok
    (failed,) = [check for check in preflight_result.checks if not check.is_ok]
    assert (failed.kind, failed.pool) == (CheckKind.LAUNCH, PoolId("us"))
    assert failed.message.startswith("InvalidError: ")
    assert "'enormous'" in failed.message
    assert failed.remedy == TO_DO[InvalidError]
    assert CheckKind.PRICE not in {check.kind for check in preflight_result.checks if check.pool == "us"}


@pytest.mark.parametrize("error", [RetryError, QuotaError, CapacityError, AuthError, InvalidError, UnknownError])
async def test_every_provider_error_has_its_own_remedy(tmp_path: Path, error: type[ProviderError]) -> None:
    parts = await build(
        tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=failing_once(error, "launch before"))
    )
    preflight_result = await parts.preflight_checks.preflight("cloud", actor=ALICE)
    (failed,) = [check for check in preflight_result.checks if not check.is_ok]
    assert failed.message.startswith(f"{error.__name__}: made up")
    assert failed.remedy == TO_DO[error]
    assert len(set(TO_DO.values())) == len(TO_DO)


class Silent(CloudProvider):
    """Provider whose list call never returns."""

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        await asyncio.Event().wait()
        return ()


async def test_a_call_without_an_answer_fails_and_the_others_are_reported(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    launches: dict[PoolId | None, LaunchSpec] = {POOL: parts.fleet_manager.plans.launch(spec())}
    checks = await run_checks(Silent(parts.cloud), launches, cluster="tests", limit_s=0.2)
    assert [check.is_ok for check in checks] == [False, True, True]
    assert "0.2 s" in checks[0].message
    assert checks[0].remedy == NO_ANSWER


class Slow(CloudProvider):
    """Provider that counts price quotes and answers when the test allows it."""

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


async def test_concurrent_preflights_share_one_result(tmp_path: Path) -> None:
    slow: list[Slow] = []

    def provider(cloud: Cloud) -> Slow:
        slow.append(Slow(cloud))
        return slow[0]

    parts = await build(tmp_path, provider=provider)
    first = asyncio.create_task(parts.preflight_checks.preflight("cloud", actor=ALICE))
    await slow[0].is_asked.wait()
    second = asyncio.create_task(
        parts.preflight_checks.preflight("cloud", actor=Actor(name="otto", role=Role.OPERATOR))
    )
    await asyncio.sleep(0)
    slow[0].may_answer.set()
    assert (await first, slow[0].asked) == (await second, 1)
    later = await parts.preflight_checks.preflight("cloud", actor=ALICE)
    assert slow[0].asked == 2
    assert later.began_at > (await first).began_at


async def test_providers_are_listed_with_their_pools_and_latest_preflight(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    (before,) = parts.preflight_checks.providers()
    assert (before.name, before.kind, before.pools, before.last_preflight) == ("cloud", "cloud", (POOL,), None)
    preflight_result = await parts.preflight_checks.preflight("cloud", actor=ALICE)
    (after,) = parts.preflight_checks.providers()
    assert after == replace(before, last_preflight=preflight_result)
    with pytest.raises(InvalidInput) as caught:
        await parts.preflight_checks.preflight("sky", actor=ALICE)
    assert caught.value.code == "fleet.unknown_provider"


async def test_a_preflight_over_the_network_has_the_credentials_name(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as fleet, connect_fleet(fleet.address, TOKEN) as plane:
        (listed,) = await plane.providers()
        assert (listed.name, listed.last_preflight) == ("cloud", None)
        preflight_result = await plane.run_preflight("cloud", actor=ALICE)
        assert (preflight_result.requested_by, preflight_result.is_ok) == ("alice", True)
        (listed,) = await plane.providers()
        assert listed.last_preflight == preflight_result
        with pytest.raises(InvalidInput) as caught:
            await plane.run_preflight("sky", actor=ALICE)
        assert caught.value.code == "fleet.unknown_provider"


async def test_preflights_over_the_network_are_rate_limited(tmp_path: Path) -> None:
    rate = ROUTES["/astraflow.v1.FleetPlane/RunPreflight"].rate
    assert rate is not None
    async with running_fleet(tmp_path) as fleet, connect_fleet(fleet.address, TOKEN) as plane:
        for _ in range(rate.burst):
            await plane.run_preflight("cloud", actor=ALICE)
        with raises_code(RateLimited, "rate_limit.calls"):
            for _ in range(rate.burst):  # the token bucket refills meanwhile
                await plane.run_preflight("cloud", actor=ALICE)
        assert (await plane.providers())[0].last_preflight is not None
