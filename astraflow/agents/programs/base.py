"""Interface of agent programs."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.values import Json
from astraflow.sandbox.base import Command, JobResult, Outcome

TASK_FILE = "task.json"
"""File in the working directory of an agent with the fields of its task, as a JSON object."""
MAX_OUTPUT_BYTES = 2**20
"""Limit of the standard output and of the standard error of an agent, each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """Input of an agent for one episode."""

    fields: Mapping[str, Json]
    """Fields of the prompt that the agent may see."""
    base_url: str
    """Base URL for OpenAI clients, with `/v1`; it contains the secret of the session."""
    api_key: str
    """Secret of the session."""
    models: tuple[str, ...]
    """Model names that a call may have; the first is the default."""
    environment: Mapping[str, str]
    """Environment variables from which clients of all dialects read base URL and key."""
    port: int
    """Port of 127.0.0.1 on which the model calls are answered."""
    seed: int
    """Seed of the episode: the same on every node, another for each member of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExit:
    """End of a program."""

    outcome: Outcome
    exit_status: int | None = None
    """None when a signal or a limit ended the program."""
    stdout: str = ""
    stderr: str = ""
    value: Json = None
    """Return value of a function, or reply of an endpoint."""

    @classmethod
    def of(cls, result: JobResult) -> "ProgramExit":
        """Returns the end of a command."""
        return cls(outcome=result.outcome, exit_status=result.exit_status, stdout=result.stdout, stderr=result.stderr)


class RunningProgram(Protocol):
    """A program for one episode."""

    async def run(self, *, timeout_s: float) -> ProgramExit:
        """Starts the program and waits for its exit; called once. Raises: RolloutFailed at the boundary `environment`
        when it cannot be started or observed."""

    async def read(self, path: str) -> str | None:
        """Returns the text of a file that the program wrote, by its path relative to the working directory; None
        without the file. Raises: RolloutFailed."""

    async def execute(self, command: Command, *, timeout_s: float) -> JobResult:
        """Runs another program in the same place after the exit. Raises: RolloutFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFeatures:
    """Results that a program can have in addition to its exit status."""

    has_files: bool = False
    has_commands: bool = False
    has_value: bool = False


class Program(Protocol):
    """Starts an agent for each episode. Built by `programs.build(spec)`; a `ManagedPlugin` when it owns processes.

    Its constructor raises InvalidInput for what can never work.
    """

    @property
    def features(self) -> ProgramFeatures:
        """Results that the program can have."""

    def open(self, task: AgentTask) -> AbstractAsyncContextManager[RunningProgram]:
        """Prepares an episode; the end of the block ends everything that the program started, also when the episode is
        cancelled. Raises: RolloutFailed at the boundary `environment`."""


def program_failure(cause: str, remedy: str, *, code: str) -> RolloutFailed:
    """Returns the failure of the place in which a program runs, not of the program: another node may succeed."""
    return RolloutFailed(f"cannot run the agent: {cause}; {remedy}", boundary=Boundary.ENVIRONMENT, code=code)
