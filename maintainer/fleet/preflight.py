"""Preflight checks of providers, without starting instances, costs, or changes of pools.

For each provider: can its instances be listed, and for each of its pools, would a launch be accepted, and at which
price. An error of the provider is a failed check, with a remedy.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from weakref import WeakValueDictionary

from astraflow.contract.fleet.plans import Actor
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.preflight import CheckKind, PreflightCheck, PreflightResult, ProviderFacts
from astraflow.contract.ids import PoolId
from astraflow.runtime.logs import get_logger
from maintainer.fleet.changes.plans import Plans
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    InvalidError,
    LaunchSpec,
    Provider,
    ProviderError,
    QuotaError,
    Quote,
    RetryError,
    UnknownError,
    unread_places,
)
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.idempotency import require_pool_access

log = get_logger()

CALL_S = 20.0
"""Timeout of a provider call, because a person waits for the page."""

NO_POOL = PoolId("preflight")
"""Pool in the tags of requests to a provider without pools."""

TO_DO: Mapping[type[ProviderError], str] = {
    RetryError: "Retry in a minute; if it fails again, check that the fleet service reaches the provider's network.",
    QuotaError: "Raise the account's limit, or lower max_nodes of the pool.",
    CapacityError: "Use another type, region or provider in the pool's spec, or retry later.",
    AuthError: "Renew the credentials, or their permissions, where the provider finds them (see docs/how-to/fleet.md); "
    "only credentials in environment variables need a restart.",
    InvalidError: "Correct the named value in the provider's table of the fleet's file, or in the pool's spec.",
    UnknownError: "Check the provider's log or console; the check started no instance.",
}
"""Remedy by type of error."""

NO_ANSWER = "Check that the fleet service reaches the provider over the network, and that the provider is healthy."


class PreflightChecks:
    """Preflight checks and their latest results, in memory. One instance per service."""

    def __init__(self, fleet: FleetState, plans: Plans) -> None:
        self._fleet = fleet
        self._plans = plans
        self._latest: dict[str, PreflightResult] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def providers(self) -> tuple[ProviderFacts, ...]:
        """Returns the configured providers, by name."""
        return tuple(self._facts(name, provider) for name, provider in sorted(self._fleet.providers.items()))

    async def preflight(self, name: str, *, actor: Actor) -> PreflightResult:
        """Checks one provider. A call during a running check gets that check's result.

        Raises: InvalidInput for an unknown provider; NotPermitted for an actor of one pool.
        """
        require_pool_access(actor, "")
        provider, clock = self._fleet.provider(name), self._fleet.clock
        requested_at = clock.wall()
        async with self._locks.setdefault(name, asyncio.Lock()):
            latest = self._latest.get(name)
            if latest is not None and latest.began_at + latest.duration_s > requested_at:
                return latest
            began_at = clock.wall()
            specs: dict[PoolId | None, PoolSpec] = {pool.id: pool for pool in self._pools(name)}
            launches = {
                pool: self._plans.launch(spec)
                for pool, spec in (specs or {None: PoolSpec(id=NO_POOL, provider=name)}).items()
            }
            limit_s = min(CALL_S, self._fleet.config.times.call_timeout_s)
            checks = await run_checks(provider, launches, cluster=self._fleet.cluster, limit_s=limit_s)
            took_s = clock.wall() - began_at
            result = PreflightResult(
                provider=name, began_at=began_at, duration_s=took_s, requested_by=actor.name, checks=checks
            )
            self._latest[name] = result
        log.info("provider_preflight", provider=name, by=actor.name, is_ok=result.is_ok)
        return result

    def _facts(self, name: str, provider: Provider) -> ProviderFacts:
        capabilities = provider.capabilities()
        return ProviderFacts(
            name=name,
            kind=capabilities.kind,
            pools=tuple(pool.id for pool in self._pools(name)),
            simulated=capabilities.simulated,
            has_spot=capabilities.has_spot,
            last_preflight=self._latest.get(name),
        )

    def _pools(self, name: str) -> list[PoolSpec]:
        specs = [pool.spec for _, pool in sorted(self._fleet.ledger.pools.items())]
        return [spec for spec in specs if spec.provider == name]


async def run_checks(
    provider: Provider, launches: Mapping[PoolId | None, LaunchSpec], *, cluster: str, limit_s: float
) -> tuple[PreflightCheck, ...]:
    """Runs all checks of a provider concurrently; returns the list check first, then the pools' checks.

    launches: launch request of a further instance, by pool. limit_s: timeout of each call.
    """

    async def of_pool(pool: PoolId | None, spec: LaunchSpec) -> list[PreflightCheck]:
        launch = await _check(CheckKind.LAUNCH, pool, provider.preflight(spec), limit_s=limit_s)
        if not launch.is_ok:
            return [launch]  # a refused launch has no price
        return [launch, await _check(CheckKind.PRICE, pool, _price(provider, spec), limit_s=limit_s)]

    async def of_list() -> list[PreflightCheck]:
        return [await _check(CheckKind.LIST, None, _listed(provider, cluster), limit_s=limit_s)]

    answers = await asyncio.gather(of_list(), *(of_pool(pool, spec) for pool, spec in launches.items()))
    return tuple(check for checks in answers for check in checks)


async def _check(kind: CheckKind, pool: PoolId | None, call: Awaitable[str], *, limit_s: float) -> PreflightCheck:
    """Runs one check with a timeout."""
    try:
        async with asyncio.timeout(limit_s):
            return PreflightCheck(kind=kind, pool=pool, is_ok=True, message=await call)
    except ProviderError as problem:
        remedy = next((text for error, text in TO_DO.items() if isinstance(problem, error)), TO_DO[UnknownError])
        return PreflightCheck(
            kind=kind, pool=pool, is_ok=False, message=f"{type(problem).__name__}: {problem}", remedy=remedy
        )
    except TimeoutError:
        message = f"no answer within {limit_s:g} s"
        return PreflightCheck(kind=kind, pool=pool, is_ok=False, message=message, remedy=NO_ANSWER)


async def _listed(provider: Provider, cluster: str) -> str:
    instances = await provider.list(cluster)
    for problem in unread_places(instances).values():
        raise problem
    return f"{len(instances)} {'instance' if len(instances) == 1 else 'instances'} with the tag {cluster}"


async def _price(provider: Provider, spec: LaunchSpec) -> str:
    quote: Quote = await provider.quote(spec)
    return f"{quote.usd_per_hour:.2f} USD an hour ({quote.source})"
