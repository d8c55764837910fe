"""`python -m maintainer.fleet.preflight_cli fleet.toml`: runs preflight checks of all providers for their pools.

Prints a line per check; exits with code 1 if a check failed. Needs the configuration and credentials, but no run.
`--json` prints one object for a launch form: problems of the configuration, the configuration with all defaults, its
schema, bounds of each pool, and unless `--no-calls` is given, prices and checks. `--lines` does the same without calls
for each configuration, a JSON object in a line of the standard input.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.preflight import CheckKind, PreflightCheck
from astraflow.contract.ids import PoolId
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.service import exit_code, print_error
from maintainer.fleet.__main__ import read_config
from maintainer.fleet.config import FleetConfig, PoolConfig
from maintainer.fleet.preflight import CALL_S, NO_POOL, run_checks
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Provider, ProviderError, Quote, Tags
from maintainer.fleet.service import build_providers

PLACEHOLDER_ADDRESS = "127.0.0.1:1"
"""Placeholder for the address where nodes join. No node is started."""

RUN = "preflight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPreflight:
    """Results of one provider's preflight checks."""

    checks: tuple[PreflightCheck, ...]
    quotes: Mapping[PoolId | None, Quote]
    """Quotes of the pools for which the provider gave a price."""


async def preflight(config: FleetConfig, *, clock: Clock, limit_s: float) -> dict[str, ProviderPreflight]:
    """Runs the preflight checks of all providers; returns results by provider. limit_s: timeout of each call."""
    async with AsyncExitStack() as resources:
        directory = resources.enter_context(tempfile.TemporaryDirectory())
        provider_by_name = build_providers(config, clock=clock, directory=Path(directory))
        for provider in provider_by_name.values():
            resources.push_async_callback(provider.close)
        answers = await asyncio.gather(
            *(
                _preflight_provider(
                    provider,
                    _launches(config, name, now=clock.wall()),
                    cluster=config.cluster or RUN,
                    limit_s=limit_s,
                )
                for name, provider in provider_by_name.items()
            )
        )
        return dict(zip(provider_by_name, answers, strict=True))


async def _preflight_provider(
    provider: Provider, launches: Mapping[PoolId | None, LaunchSpec], *, cluster: str, limit_s: float
) -> ProviderPreflight:
    checks = await run_checks(provider, launches, cluster=cluster, limit_s=limit_s)
    priced = [check.pool for check in checks if check.kind is CheckKind.PRICE and check.is_ok]
    quotes = {}
    for pool in priced:
        try:
            async with asyncio.timeout(limit_s):
                quotes[pool] = await provider.quote(launches[pool])
        except (ProviderError, TimeoutError):
            continue  # the price check succeeded, but this call failed: the result has no price
    return ProviderPreflight(checks=checks, quotes=quotes)


def _launches(config: FleetConfig, provider: str, *, now: float) -> dict[PoolId | None, LaunchSpec]:
    """Returns a launch request per pool of the provider; a placeholder for a provider without pools."""
    pools = {PoolId(name): pool for name, pool in config.pools.items() if pool.provider == provider}
    if not pools:
        return {None: _launch(config, NO_POOL, PoolConfig(provider=provider), now=now)}
    return {name: _launch(config, name, pool, now=now) for name, pool in pools.items()}


def _launch(config: FleetConfig, name: str, pool: PoolConfig, *, now: float) -> LaunchSpec:
    return LaunchSpec(
        tags=Tags(cluster=config.cluster or RUN, pool=name, run=RUN, expires_at=now + config.times.max_age_s),
        node=NodePlan(dataflow=PLACEHOLDER_ADDRESS, engine=pool.engine, capacity=pool.capacity, policies=pool.policies),
        type=pool.type,
        region=pool.region,
        is_spot=pool.is_spot,
        options=pool.options,
    )


def check_line(provider: str, check: PreflightCheck) -> str:
    """Returns a check as a line for people."""
    of_pool = f" for pool {check.pool}" if check.pool else ""
    text = f"{provider}: {check.kind.value}{of_pool}: {'yes' if check.is_ok else 'no'}: {check.message}"
    return f"{text}. {check.remedy}" if check.remedy else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the result of each check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintainer.fleet.preflight_cli", description=__doc__)
    parser.add_argument("config", type=Path, nargs="?", help="TOML file with providers and pools")
    parser.add_argument("--lines", action="store_true", help="validate a configuration for each line of the input")
    parser.add_argument("--json", action="store_true", help="print one JSON object, also for invalid configurations")
    parser.add_argument(
        "--no-calls", action="store_true", help="with --json: validate the configuration only, without provider calls"
    )
    options = parser.parse_args(arguments)
    if options.lines:
        for line in sys.stdin:
            print(json.dumps(describe(partial(_config_of, line))), flush=True)  # noqa: T201 (for a program)
        return 0
    if options.config is None:
        parser.error("the configuration is missing")
    if options.json:
        print(json.dumps(describe(partial(read_config, options.config), has_calls=not options.no_calls)))  # noqa: T201 (for a program)
        return 0
    try:
        config = read_config(options.config)
        results = asyncio.run(preflight(config, clock=SystemClock(), limit_s=config.times.call_timeout_s))
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)
    for provider, result in results.items():
        for check in result.checks:
            print(check_line(provider, check))  # noqa: T201 (for a person)
    return 0 if all(check.is_ok for result in results.values() for check in result.checks) else 1


def _config_of(line: str) -> FleetConfig:
    return FleetConfig.parse(json.loads(line), where="")


def describe(read: Callable[[], FleetConfig], *, has_calls: bool = False) -> dict[str, Any]:
    """Returns a configuration's problems, values, schema, pools and checks as JSON values."""
    answer: dict[str, Any] = {"problems": [], "schema": FleetConfig.model_json_schema(), "config": None}
    answer |= {"pools": [], "checks": []}
    try:
        config = read()
        results: dict[str, ProviderPreflight] = {}
        if has_calls:
            limit_s = min(CALL_S, config.times.call_timeout_s)
            results = asyncio.run(preflight(config, clock=SystemClock(), limit_s=limit_s))
    except AstraFlowError as problem:
        return answer | {"problems": str(problem).splitlines()}
    return answer | {
        "config": config.model_dump(mode="json", exclude={"providers", "database"}),
        "pools": [
            _pool(name, pool, results.get(pool.provider), kind=str(config.providers[pool.provider]["kind"]))
            for name, pool in config.pools.items()
        ],
        "checks": [
            {"provider": provider, **asdict(check), "kind": check.kind.value}
            for provider, result in results.items()
            for check in result.checks
        ],
    }


def _pool(name: str, pool: PoolConfig, result: ProviderPreflight | None, *, kind: str) -> dict[str, Any]:
    quote = result.quotes.get(PoolId(name)) if result is not None else None
    return {
        "name": name,
        "provider": pool.provider,
        "kind": kind,
        "initial_nodes": pool.first_target,
        "min_nodes": pool.min_nodes,
        "max_nodes": pool.max_nodes,
        "usd_per_hour_max": pool.usd_per_hour_max,
        "usd_per_day_max": pool.usd_per_day_max,
        "node_usd_per_hour": quote.usd_per_hour if quote is not None else None,
        "price_source": quote.source if quote is not None else "",
    }


if __name__ == "__main__":
    sys.exit(main())
