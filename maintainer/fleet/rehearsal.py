"""`python -m maintainer.fleet.rehearsal fleet.toml`: would each provider do its part for its pools?

A line for each check; ends with code 1 where one failed. It needs the configuration and the credentials, and no run.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PoolId
from astraflow.contract.rehearsals import Check
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.service import exit_code
from maintainer.fleet.__main__ import read_config
from maintainer.fleet.config import FleetConfig, PoolConfig
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Tags
from maintainer.fleet.rehearsing import NO_POOL, checked
from maintainer.fleet.service import build_providers

NOWHERE = "127.0.0.1:1"
"""Where its nodes would join: no node is started."""

RUN = "rehearsal"


async def rehearse(config: FleetConfig, *, clock: Clock) -> dict[str, tuple[Check, ...]]:
    """What came of asking each provider of a configuration, by its name."""
    async with AsyncExitStack() as resources:
        directory = resources.enter_context(tempfile.TemporaryDirectory())
        built = build_providers(config, clock=clock, directory=Path(directory))
        for provider in built.values():
            resources.push_async_callback(provider.close)
        answers = await asyncio.gather(
            *(
                checked(
                    provider,
                    _launches(config, name, now=clock.wall()),
                    cluster=config.cluster,
                    limit_s=config.times.call_s,
                )
                for name, provider in built.items()
            )
        )
        return dict(zip(built, answers, strict=True))


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
    try:
        config = read_config(parser.parse_args(arguments).config)
        found = asyncio.run(rehearse(config, clock=SystemClock()))
    except AstraFlowError as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (for a person)
        return exit_code(problem)
    for provider, checks in found.items():
        for check in checks:
            print(line(provider, check))  # noqa: T201 (for a person)
    return 0 if all(check.is_ok for checks in found.values() for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
