"""The SkyPilot provider keeps the port's promises, against a stand-in of its API server."""

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Quota,
    Retired,
    Retry,
    State,
    Unknown,
)
from maintainer.fleet.providers.skypilot import SkyPilot, cluster_name
from tests.fakes.skypilot_api import FakeSkyPilot
from tests.suites.provider import CANARY, ProviderSuite, World, launch_id, launches, listed, retire, until

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "fakes" / "sleeper.py"))

ERRORS: dict[type[ProviderError], tuple[str, str]] = {
    Quota: ("ResourcesUnavailableError", "Failed to provision: VcpuLimitExceeded: you have requested more vCPU"),
    Capacity: ("ResourcesUnavailableError", "Failed to acquire resources in all zones in us-east-1"),
    Auth: ("NoCloudAccessError", "Cloud access is not set up. Run: \x1b[1msky check\x1b[0m"),
    Invalid: ("InvalidSkyPilotConfigError", "Invalid resources YAML: 'nosuch' does not match"),
    Retry: ("RequestInterruptedError", "interrupted by an API server restart"),
    Unknown: ("RuntimeError", "something broke"),
}


class SkyWorld(World):
    """One user of the stand-in."""

    def __init__(self, fake: FakeSkyPilot) -> None:
        self.fake = fake
        self.providers: list[Provider] = []

    async def provider(self, **options: Any) -> SkyPilot:
        given = {
            "endpoint": self.fake.endpoint,
            "program": SLEEPER,
            "types": {"small": {"cpus": "2+", "usd_per_hour": 1.0}, "large": {"accelerators": "H100:8", "usd_per_hour": 4.0}},
        } | options
        directory = self.fake.directory / "own"
        built = providers.build({"kind": "skypilot", **given}, clock=SystemClock(), directory=directory)
        assert isinstance(built, SkyPilot)
        self.providers.append(built)
        return built

    async def lose(self, launch_id: str) -> None:
        self.fake.lose(cluster_name(launch_id))

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        name, message = ERRORS[error]
        self.fake.launch_errors.append({"type": name, "message": message})
        return await self.provider()

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def spoken(self) -> str:
        bodies = [body for _, path, body in self.fake.seen if path != "/launch"]
        logs = [path.read_text() for path in self.fake.directory.glob("*.log")]
        lines = [
            Path(f"/proc/{job.pid}/cmdline").read_text() for one in self.fake.clusters.values() for job in one.jobs
        ]
        paths = [path for _, path, _ in self.fake.seen]
        return "".join([*bodies, *logs, *lines, *paths, *(one.yaml for one in self.fake.clusters.values())])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SkyWorld]:
    with FakeSkyPilot(tmp_path / "sky") as fake:
        world = SkyWorld(fake)
        try:
            yield world
        finally:
            for provider in world.providers:
                await provider.close()


class TestSkyPilot(ProviderSuite):
    """The suite, on clusters that sleep."""
