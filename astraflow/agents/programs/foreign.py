"""Agent programs that are environments of other projects, with an agent, tasks and rewards of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar
from uuid import uuid4

from pydantic import Field

from astraflow.agents.programs import programs
from astraflow.agents.programs.base import AgentTask, ProgramExit, ProgramFeatures, RunningProgram
from astraflow.contract.errors import InternalError
from astraflow.environments.adapters.worker_process import WorkerProcess
from astraflow.environments.foreign.tasks import TASK
from astraflow.environments.foreign.workers import WorkerOptions, cancel, foreign_pool
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.sandbox.base import Command, JobResult, Outcome

_SPARE_S = 60.0
"""Time beyond that of the episode after which a process counts as lost, should it not answer to its cancellation."""


class _ForeignProgram:
    """Runs episodes in worker processes; the value of an episode is the reward that its environment gave."""

    kind: ClassVar[str]
    features = ProgramFeatures(has_value=True)

    def __init__(self, options: WorkerOptions) -> None:
        values = options.model_dump(mode="json", exclude=set(WorkerOptions.model_fields))
        self._pool = foreign_pool(self.kind, options, values)

    async def start(self) -> None:
        """Starts the processes. Raises: InvalidInput, Unavailable."""
        await self._pool.start()

    async def close(self) -> None:
        """Ends the processes and everything below them."""
        await self._pool.stop()

    @asynccontextmanager
    async def open(self, task: AgentTask) -> AsyncIterator[RunningProgram]:
        """Waits for a process."""
        worker = await self._pool.acquire()
        try:
            yield _RunningEpisode(worker, task)
        finally:
            self._pool.release(worker)


class VerifiersOptions(WorkerOptions):
    """Environment of the package `verifiers`."""

    id: Annotated[str, SettableBy.RECIPE] = Field(pattern=r"^[\w./@-]{1,200}$")
    """Name of the installed package with the taskset."""
    args: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=dict)
    """Options of the taskset."""
    agent: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=dict)
    """Options of the agent's seat, such as `harness`, `runtime` and `max_turns`. The runtime is `subprocess` by
    default, in which harnesses that run commands of the policy are refused."""


@programs.register("verifiers", options=VerifiersOptions)
class VerifiersProgram(_ForeignProgram):
    """Runs the agent of an environment of the package `verifiers`, which scores itself."""

    kind = "verifiers"


class _RunningEpisode:
    """One episode in a worker process."""

    def __init__(self, worker: WorkerProcess, task: AgentTask) -> None:
        self._worker = worker
        self._task = task
        self._episode = uuid4().hex

    async def run(self, *, timeout_s: float) -> ProgramExit:
        """Runs the episode to its reward. Raises: RolloutFailed at the boundary `environment`."""
        task = self._task
        values = {
            "episode": self._episode,
            "task": task.fields[TASK],
            "base_url": task.base_url,
            "model": task.models[0],
            "seed": task.seed,
        }
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._worker.request("run", values, limit_s=timeout_s + _SPARE_S)
        except TimeoutError:
            await self._cancel()
            return ProgramExit(outcome=Outcome.TIMEOUT)
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if error := result.get("error"):
            return ProgramExit(outcome=Outcome.FAILED, exit_status=1, stderr=str(error))
        return ProgramExit(outcome=Outcome.PASSED, exit_status=0, value=result)

    async def read(self, path: str) -> str | None:
        """The environment keeps its files. Raises: InternalError."""
        raise InternalError("cannot read a file: the environment keeps its files", code="agent.no_files")

    async def execute(self, command: Command, *, timeout_s: float) -> JobResult:
        """The environment runs no commands. Raises: InternalError."""
        raise InternalError("cannot run a command: the agent is an environment", code="agent.no_commands")

    async def _cancel(self) -> None:
        ending = asyncio.ensure_future(cancel(self._worker, self._episode))
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                continue  # a second cancellation does not leave the episode behind
