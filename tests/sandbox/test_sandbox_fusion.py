"""Adapter to SandboxFusion, against a fake of the service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astraflow.runtime.http.server import listening, serving_http
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Job, Level, Sandbox, SandboxError
from astraflow.sandbox.sandbox_fusion import SandboxFusion, SandboxFusionOptions
from astraflow.testing.sandboxes import SandboxSuite
from tests.fakes.sandbox_fusion import FakeSandboxFusion

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(service: FakeSandboxFusion) -> AsyncIterator[SandboxFusion]:
    with listening("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with serving_http(service.app, listener):
            sandbox = SandboxFusion(SandboxFusionOptions(url=url, retry_s=0))
            try:
                await sandbox.start()
                yield sandbox
            finally:
                await sandbox.close()


class TestSandboxFusion(SandboxSuite):
    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        async with connected(FakeSandboxFusion()) as sandbox:
            yield sandbox


async def test_the_isolation_of_a_service_is_not_known() -> None:
    async with connected(FakeSandboxFusion()) as sandbox:
        assert sandbox.level is Level.REMOTE


@pytest.mark.long
async def test_a_failed_request_is_repeated() -> None:
    service = FakeSandboxFusion()
    async with connected(service) as sandbox:
        service.failures = ["status", "sandbox"]
        assert (await sandbox.run(Job(source="print(1)"))).stdout == "1\n"


@pytest.mark.parametrize("failure", ["status", "sandbox", "form"])
async def test_a_service_that_keeps_failing_gives_no_result(failure: str) -> None:
    service = FakeSandboxFusion()
    async with connected(service) as sandbox:
        service.failures = [failure] * 3
        with pytest.raises(SandboxError) as raised:
            await sandbox.run(Job(source="print(1)"))
    assert raised.value.code == "sandbox.service_failed"
    assert not service.failures


@pytest.mark.long
async def test_limits_and_files_are_sent() -> None:
    service = FakeSandboxFusion()
    async with connected(service) as sandbox:
        await sandbox.run(Job(source="pass", files={"a": "b"}))
    request = service.requests[-1]
    assert (request["run_timeout"], request["memory_limit_MB"], request["files"]) == (5.0, 512, {"a": "Yg=="})


async def test_a_service_that_cannot_be_reached_is_refused_at_start() -> None:
    sandbox = sandboxes.build({"kind": "sandbox_fusion", "url": "http://127.0.0.1:1", "retry_s": 0})
    assert isinstance(sandbox, SandboxFusion)
    with pytest.raises(SandboxError):
        await sandbox.start()
    await sandbox.close()
