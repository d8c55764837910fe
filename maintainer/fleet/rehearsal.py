"""`python -m maintainer.fleet.rehearsal fleet.toml`: would each provider do its part for its pools?

A line for each check; ends with code 1 where one failed. It needs the configuration and the credentials, and no run.
With `--json` everything that somebody needs to know before a launch, as one object: what is wrong with the
configuration, what it is with all defaults, its schema, each pool's bounds, and unless `--no-calls`, prices and checks.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PoolId
from astraflow.contract.rehearsals import Check, CheckKind
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.service import exit_code, print_error
from maintainer.fleet.__main__ import read_config
from maintainer.fleet.config import FleetConfig, PoolConfig
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Provider, ProviderError, Quote, Tags
from maintainer.fleet.rehearsing import CALL_S, NO_POOL, checked
from maintainer.fleet.service import build_providers

NOWHERE = "127.0.0.1:1"
"""Where its nodes would join: no node is started."""

RUN = "rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What came of asking one provider."""

    checks: tuple[Check, ...]
    quotes: Mapping[PoolId | None, Quote]
    """Of those of its pools whose price was told."""


async def rehearse(config: FleetConfig, *, clock: Clock, limit_s: float) -> dict[str, Rehearsed]:
    """What came of asking each provider of a configuration, by its name. limit_s: of each call."""
    async with AsyncExitStack() as resources:
        directory = resources.enter_context(tempfile.TemporaryDirectory())
        built = build_providers(config, clock=clock, directory=Path(directory))
        for provider in built.values():
            resources.push_async_callback(provider.close)
        answers = await asyncio.gather(
            *(
                _rehearsed(
                    provider,
                    _launches(config, name, now=clock.wall()),
                    cluster=config.cluster,
                    limit_s=limit_s,
                )
                for name, provider in built.items()
            )
        )
        return dict(zip(built, answers, strict=True))


async def _rehearsed(
    provider: Provider, launches: Mapping[PoolId | None, LaunchSpec], *, cluster: str, limit_s: float
) -> Rehearsed:
    checks = await checked(provider, launches, cluster=cluster, limit_s=limit_s)
    priced = [check.pool for check in checks if check.kind is CheckKind.PRICE and check.is_ok]
    quotes = {}
    for pool in priced:
        try:
            async with asyncio.timeout(limit_s):
                quotes[pool] = await provider.quote(launches[pool])
        except (ProviderError, TimeoutError):
            continue  # it was told a moment ago, as the check says: then there is no figure
    return Rehearsed(checks=checks, quotes=quotes)


def _launches(config: FleetConfig, provider: str, *, now: float) -> dict[PoolId | None, LaunchSpec]:
    """Of its pools; of none in particular where no pool uses it."""
    pools = {PoolId(name): pool for name, pool in config.pools.items() if pool.provider == provider}
    if not pools:
        return {None: _launch(config, NO_POOL, PoolConfig(provider=provider), now=now)}
    return {name: _launch(config, name, pool, now=now) for name, pool in pools.items()}


def _launch(config: FleetConfig, name: str, pool: PoolConfig, *, now: float) -> LaunchSpec:
    return LaunchSpec(
        tags=Tags(cluster=config.cluster, pool=name, run=RUN, expires_at=now + config.times.expires_s),
        node=NodePlan(dataflow=NOWHERE, engine=pool.engine, capacity=pool.capacity),
        type=pool.type,
        region=pool.region,
        is_spot=pool.is_spot,
        options=pool.options,
    )


def line(provider: str, check: Check) -> str:
    """A check for people."""
    of_pool = f" for pool {check.pool}" if check.pool else ""
    said = f"{provider}: {check.kind.value}{of_pool}: {'yes' if check.is_ok else 'no'}: {check.message}"
    return f"{said}. {check.to_do}" if check.to_do else said


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of each check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintainer.fleet.rehearsal", description=__doc__)
    parser.add_argument("config", type=Path, help="TOML file with providers and pools")
    parser.add_argument("--json", action="store_true", help="one object for a program; wrong configurations are in it")
    parser.add_argument("--no-calls", action="store_true", help="with --json: look at the configuration alone")
    chosen = parser.parse_args(arguments)
    if chosen.json:
        print(json.dumps(told(chosen.config, has_calls=not chosen.no_calls)))  # noqa: T201 (for a program)
        return 0
    try:
        config = read_config(chosen.config)
        found = asyncio.run(rehearse(config, clock=SystemClock(), limit_s=config.times.call_s))
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)
    for provider, rehearsed in found.items():
        for check in rehearsed.checks:
            print(line(provider, check))  # noqa: T201 (for a person)
    return 0 if all(check.is_ok for rehearsed in found.values() for check in rehearsed.checks) else 1


def told(file: Path, *, has_calls: bool) -> dict[str, Any]:
    """What somebody needs to know of a configuration before a launch, as JSON takes it."""
    answer: dict[str, Any] = {"problems": [], "schema": FleetConfig.model_json_schema(), "config": None}
    answer |= {"pools": [], "checks": []}
    try:
        config = read_config(file)
        found: dict[str, Rehearsed] = {}
        if has_calls:
            limit_s = min(CALL_S, config.times.call_s)
            found = asyncio.run(rehearse(config, clock=SystemClock(), limit_s=limit_s))
    except AstraFlowError as problem:
        return answer | {"problems": str(problem).splitlines()}
    return answer | {
        "config": config.model_dump(mode="json", exclude={"providers", "database"}),
        "pools": [
            _pool(name, pool, found.get(pool.provider), kind=str(config.providers[pool.provider]["kind"]))
            for name, pool in config.pools.items()
        ],
        "checks": [
            {"provider": provider, "kind": check.kind.value, "pool": check.pool or "", "is_ok": check.is_ok}
            | {"message": check.message, "to_do": check.to_do}
            for provider, rehearsed in found.items()
            for check in rehearsed.checks
        ],
    }


def _pool(name: str, pool: PoolConfig, rehearsed: Rehearsed | None, *, kind: str) -> dict[str, Any]:
    quote = rehearsed.quotes.get(PoolId(name)) if rehearsed is not None else None
    return {
        "name": name,
        "provider": pool.provider,
        "kind": kind,
        "first_nodes": pool.first_target,
        "min_nodes": pool.min_nodes,
        "max_nodes": pool.max_nodes,
        "usd_per_hour_max": pool.usd_per_hour_max,
        "usd_per_day_max": pool.usd_per_day_max,
        "node_usd_per_hour": quote.usd_per_hour if quote is not None else None,
        "price_source": quote.source if quote is not None else "",
    }


if __name__ == "__main__":
    sys.exit(main())
