"""Sandboxes that several flows of a process use together."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from astraflow.runtime.plugins import ManagedPlugin
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Job, JobLimits, JobResult, Level, Sandbox, SandboxError, Session


class _Pool:
    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.users = 0
        self.is_started = False
        self._changing = asyncio.Lock()

    async def add_user(self) -> None:
        self.users += 1
        async with self._changing:
            if not self.is_started and isinstance(self.sandbox, ManagedPlugin):
                await self.sandbox.start()
            self.is_started = True

    async def remove_user(self) -> None:
        self.users -= 1
        async with self._changing:
            if not self.users and isinstance(self.sandbox, ManagedPlugin):
                await self.sandbox.close()


_pools: dict[str, _Pool] = {}
"""Pools with users, by specification."""


class SharedSandbox:
    """Sandbox of a specification: a `ManagedPlugin`, used in one event loop.

    All that are started with equal specifications share one sandbox, which ends with the last of them.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """spec: kind and options. Raises: InvalidInput for an unknown kind or invalid options."""
        options = sandboxes.check(spec)
        self._spec = dict(spec)
        self._key = json.dumps([spec["kind"], options.model_dump(mode="json")], sort_keys=True)
        self._pool: _Pool | None = None

    @property
    def level(self) -> Level:
        """Isolation, known after `start`. Raises: SandboxError before."""
        return self._sandbox().level

    async def start(self) -> None:
        """Starts the sandbox, unless another user did. Raises: SandboxError."""
        if self._pool is None:
            if self._key not in _pools:
                _pools[self._key] = _Pool(sandboxes.build(self._spec))
            self._pool = _pools[self._key]
            await self._pool.add_user()

    async def close(self) -> None:
        """Ends the sandbox after its last user. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            if pool.users == 1 and _pools.get(self._key) is pool:
                del _pools[self._key]
            await pool.remove_user()

    async def run(self, job: Job) -> JobResult:
        """Runs a job. Raises: SandboxError."""
        return await self._sandbox().run(job)

    def session(self, limits: JobLimits, *, port: int | None = None) -> AbstractAsyncContextManager[Session]:
        """Opens a session. Raises: SandboxError."""
        return self._sandbox().session(limits, port=port)

    def _sandbox(self) -> Sandbox:
        if self._pool is None or not self._pool.is_started:
            raise SandboxError("cannot use the sandbox: it is not started; call start", code="sandbox.closed")
        return self._pool.sandbox


def levels_in_use() -> tuple[Level, ...]:
    """Returns the levels of the shared sandboxes of this process, without repetition."""
    return tuple(dict.fromkeys(pool.sandbox.level for pool in _pools.values() if pool.is_started))
