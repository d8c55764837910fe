"""The in-memory cloud satisfies the provider interface, so tests on it hold for other providers."""

import time

import pytest

from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers.base import Handle, LaunchSpec, Provider, ProviderError, RetryError, UnknownError
from maintainer.testing.provider_harness import ProviderHarness, launch_id
from maintainer.testing.provider_suite import ProviderSuite
from tests.fakes.cloud import Cloud, CloudProvider, failing_once


class CloudHarness(ProviderHarness):
    """Provider harness with machines in memory."""

    def __init__(self) -> None:
        self.cloud = Cloud(SystemClock(), boot_s=0.02, end_s=0.02)

    async def provider(self) -> Provider:
        return CloudProvider(self.cloud)

    async def lose(self, launch_id: str) -> None:
        for machine in self.cloud.find(launch_id):
            machine.gone_at = time.time()

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        point = "launch after" if error in (RetryError, UnknownError) else "launch before"
        return CloudProvider(self.cloud, fault=failing_once(error, point))

    async def duplicate(self, launch_id: str) -> bool:
        self.cloud.start(self.spec(), launch_id)
        return True

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    async def two_places(self) -> tuple[Provider, LaunchSpec, LaunchSpec] | None:
        return CloudProvider(self.cloud), self.spec(), self.spec(region="us")

    async def silence_second(self) -> Provider:
        self.cloud.silent_regions.add("us")
        return CloudProvider(self.cloud)

    async def preempted(self) -> tuple[Provider, Handle] | None:
        provider = CloudProvider(self.cloud)
        handle = await provider.launch(self.spec(is_spot=True), launch_id())
        self.cloud.preempt(self.cloud.machines[handle.id], in_s=0.02)
        return provider, handle


class TestCloud(ProviderSuite):
    """Runs the provider suite in memory."""

    @pytest.fixture
    def harness(self) -> ProviderHarness:
        return CloudHarness()
