"""A fleet service for pages: the real plane, manager, guard and ledger, over a cloud and a database in memory.

Time and machines advance when the test calls `pass_time`.
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.contract.fleet.pools import FleetStatus, PoolSpec
from astraflow.contract.records import Record
from astraflow.wire.pb.fleet_plane_pb2_grpc import add_FleetPlaneServicer_to_server
from astraflow.wire.server import ListenOptions, serving
from maintainer.fleet.servicer import FleetPlaneServicer
from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import TOKEN
from tests.maintainer.fleet.parts import Parts, build, spec


@dataclass(kw_only=True)
class RunningFleet:
    """A fleet service that listens."""

    address: str
    parts: Parts
    problems: tuple[Record, ...] = ()

    def status(self) -> FleetStatus:
        """Returns the status of the service."""
        return self.parts.fleet.status(last_sweep_at=self.parts.clock.wall(), problems=self.problems)

    async def pass_time(self, duration_s: float) -> None:
        """Lets the service work, and machines boot and end."""
        await self.parts.pass_time(duration_s)


@asynccontextmanager
async def running_fleet(
    directory: Path, *, pool: Mapping[str, Any] | None = None, nodes: int = 0, port: int = 0, **changes: Any
) -> AsyncIterator[RunningFleet]:
    """Serves the pool `eu` until the block ends. pool: changes to its spec; nodes: ready at the start."""
    pool_spec: PoolSpec = replace(spec(), **(pool or {}))
    parts = await build(directory, pool=pool_spec, clock=ManualClock(float(int(time.time()))), **changes)
    running = RunningFleet(address="", parts=parts)
    plane = FleetPlaneServicer(
        parts.fleet_manager,
        parts.faults,
        parts.proposals,
        parts.maintainer_api,
        parts.preflight_checks,
        parts.ledger,
        lambda: running.status(),
        lambda: None,
    )
    if nodes:
        parts.fleet.observation.update(parts.run.report())
        await parts.want(nodes)
        await parts.pass_time(120.0)
    listen = ListenOptions(port=port, token=TOKEN, drain_s=0.0)
    async with serving(listen, lambda server: add_FleetPlaneServicer_to_server(plane, server)) as address:
        running.address = address
        yield running
