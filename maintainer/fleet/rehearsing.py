"""Asking providers whether they would do their part. Nothing is started, nothing is paid for, and no pool changes.

Of each provider: can what it has be listed; and for each of its pools, would a launch be let through, at which price.
A provider that cannot do something has answered too: what it said is a check that failed, with what would help.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from weakref import WeakValueDictionary

from astraflow.contract.fleet import Actor, PoolSpec
from astraflow.contract.ids import PoolId
from astraflow.contract.rehearsals import Check, CheckKind, ProviderFacts, Rehearsal
from astraflow.runtime.logs import get_logger
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.plans import Plans
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Quota,
    Quote,
    Retry,
    Unknown,
)
from maintainer.fleet.replies import within

log = get_logger()

CALL_S = 20.0
"""A provider that has not answered by then is not waited for: somebody looks at a page meanwhile."""

NO_POOL = PoolId("rehearsal")
"""Stands in the tags of what a provider is asked that no pool uses."""

TO_DO: Mapping[type[ProviderError], str] = {
    Retry: "Ask again in a minute; if it stays, see whether the fleet service reaches the provider over the network.",
    Quota: "Have the account's limit raised, or lower max_nodes of the pool.",
    Capacity: "Try another type, region or provider in the pool's spec, or ask again later.",
    Auth: "Give the fleet service credentials that may do this (docs/fleet.md names them), and start it again.",
    Invalid: "Correct what is named: the provider's table in the fleet's file, or the pool's spec.",
    Unknown: "Look into the provider's own log or console; nothing was started by this.",
}
"""By what a provider says it is."""

NO_ANSWER = "See whether the fleet service reaches the provider over the network, and whether the provider is well."


class Rehearsals:
    """One for the service. The latest of each provider is remembered until the service ends."""

    def __init__(self, fleet: Fleet, plans: Plans) -> None:
        self._fleet = fleet
        self._plans = plans
        self._latest: dict[str, Rehearsal] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def providers(self) -> tuple[ProviderFacts, ...]:
        """Those of the configuration, by name."""
        return tuple(self._facts(name, provider) for name, provider in sorted(self._fleet.providers.items()))

    async def rehearse(self, name: str, *, actor: Actor) -> Rehearsal:
        """Ask one provider. Who asks while somebody else does is answered with what is found then.

        Raises: InvalidInput for one that is not configured; NotPermitted for somebody of one pool.
        """
        within(actor, "")
        provider, clock = self._fleet.provider(name), self._fleet.clock
        asked_at = clock.wall()
        async with self._turns.setdefault(name, asyncio.Lock()):
            latest = self._latest.get(name)
            if latest is not None and latest.began_at + latest.took_s > asked_at:
                return latest
            began_at = clock.wall()
            specs: dict[PoolId | None, PoolSpec] = {pool.id: pool for pool in self._pools(name)}
            launches = {
                pool: self._plans.launch(spec)
                for pool, spec in (specs or {None: PoolSpec(id=NO_POOL, provider=name)}).items()
            }
            limit_s = min(CALL_S, self._fleet.config.times.call_s)
            checks = await checked(provider, launches, cluster=self._fleet.config.cluster, limit_s=limit_s)
            took_s = clock.wall() - began_at
            made = Rehearsal(provider=name, began_at=began_at, took_s=took_s, by=actor.name, checks=checks)
            self._latest[name] = made
        log.info("provider_rehearsed", provider=name, by=actor.name, is_ok=made.is_ok)
        return made

    def _facts(self, name: str, provider: Provider) -> ProviderFacts:
        known = provider.capabilities()
        return ProviderFacts(
            name=name,
            kind=known.kind,
            pools=tuple(pool.id for pool in self._pools(name)),
            simulated=known.simulated,
            has_spot=known.has_spot,
            last=self._latest.get(name),
        )

    def _pools(self, name: str) -> list[PoolSpec]:
        specs = [pool.spec for _, pool in sorted(self._fleet.ledger.pools.items())]
        return [spec for spec in specs if spec.provider == name]


async def checked(
    provider: Provider, launches: Mapping[PoolId | None, LaunchSpec], *, cluster: str, limit_s: float
) -> tuple[Check, ...]:
    """What came of each question, all asked at once; the list first, then pool by pool.

    launches: for each pool, what one more machine of it would be. limit_s: of each call.
    """

    async def of_pool(pool: PoolId | None, spec: LaunchSpec) -> list[Check]:
        launch = await _check(CheckKind.LAUNCH, pool, provider.rehearse(spec), limit_s=limit_s)
        if not launch.is_ok:
            return [launch]  # what is not let through has no price
        return [launch, await _check(CheckKind.PRICE, pool, _price(provider, spec), limit_s=limit_s)]

    async def of_list() -> list[Check]:
        return [await _check(CheckKind.LIST, None, _listed(provider, cluster), limit_s=limit_s)]

    answers = await asyncio.gather(of_list(), *(of_pool(pool, spec) for pool, spec in launches.items()))
    return tuple(check for checks in answers for check in checks)


async def _check(kind: CheckKind, pool: PoolId | None, asked: Awaitable[str], *, limit_s: float) -> Check:
    """One question, bounded in time."""
    try:
        async with asyncio.timeout(limit_s):
            return Check(kind=kind, pool=pool, is_ok=True, message=await asked)
    except ProviderError as problem:
        to_do = next((text for error, text in TO_DO.items() if isinstance(problem, error)), TO_DO[Unknown])
        return Check(kind=kind, pool=pool, is_ok=False, message=f"{type(problem).__name__}: {problem}", to_do=to_do)
    except TimeoutError:
        message = f"no answer within {limit_s:g} s"
        return Check(kind=kind, pool=pool, is_ok=False, message=message, to_do=NO_ANSWER)


async def _listed(provider: Provider, cluster: str) -> str:
    found = await provider.list(cluster)
    return f"{len(found)} {'machine' if len(found) == 1 else 'machines'} with the tag {cluster}"


async def _price(provider: Provider, spec: LaunchSpec) -> str:
    quote: Quote = await provider.quote(spec)
    return f"{quote.usd_per_hour:.2f} USD an hour ({quote.source})"
