"""`python -m maintainer.fleet.rehearsal fleet.toml`: would a launch of each pool be let through?

A line for each pool; ends with code 1 where one would not. It needs the configuration and the credentials, and no run.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.service import exit_code
from maintainer.fleet.__main__ import read_config
from maintainer.fleet.config import FleetConfig, PoolConfig
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Provider, Rehearsing, Tags
from maintainer.fleet.service import build_providers

NOWHERE = "127.0.0.1:1"
"""Where its nodes would join: no node is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What came of one pool."""

    pool: str
    is_good: bool
    message: str


async def rehearse(config: FleetConfig, built: Mapping[str, Provider], *, clock: Clock) -> tuple[Rehearsed, ...]:
    """Ask for each pool: its price, and a launch that is none, where its provider can do that."""

    async def ask(name: str, pool: PoolConfig) -> Rehearsed:
        provider, spec = built[pool.provider], _launch(config, name, pool, now=clock.wall())
        try:
            async with asyncio.timeout(config.times.call_s):
                said = [await provider.rehearse(spec)] if isinstance(provider, Rehearsing) else []
                quote = await provider.quote(spec)
        except AstraFlowError as problem:
            return Rehearsed(pool=name, is_good=False, message=f"{type(problem).__name__}: {problem}")
        except TimeoutError:
            return Rehearsed(pool=name, is_good=False, message=f"no answer within {config.times.call_s:g} s")
        price = f"{quote.usd_per_hour:.2f} USD an hour ({quote.source})"
        return Rehearsed(pool=name, is_good=True, message="; ".join([*said, price]))

    return tuple(await asyncio.gather(*(ask(name, pool) for name, pool in config.pools.items())))


def _launch(config: FleetConfig, name: str, pool: PoolConfig, *, now: float) -> LaunchSpec:
    return LaunchSpec(
        tags=Tags(cluster=config.cluster, pool=name, run="rehearsal", expires_at=now + config.times.expires_s),
        node=NodePlan(dataflow=NOWHERE, engine=pool.engine, capacity=pool.capacity),
        type=pool.type,
        region=pool.region,
        is_spot=pool.is_spot,
        options=pool.options,
    )


async def _all(config: FleetConfig) -> tuple[Rehearsed, ...]:
    clock = SystemClock()
    async with AsyncExitStack() as resources:
        directory = resources.enter_context(tempfile.TemporaryDirectory())
        built = build_providers(config, clock=clock, directory=Path(directory))
        for provider in built.values():
            resources.push_async_callback(provider.close)
        return await rehearse(config, built, clock=clock)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of each pool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintainer.fleet.rehearsal", description=__doc__)
    parser.add_argument("config", type=Path, help="TOML file with providers and pools")
    try:
        found = asyncio.run(_all(read_config(parser.parse_args(arguments).config)))
    except AstraFlowError as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (for a person)
        return exit_code(problem)
    for one in found:
        print(f"{one.pool}: {'yes' if one.is_good else 'no'}: {one.message}")  # noqa: T201 (for a person)
    return 0 if all(one.is_good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
