"""Interface of sandboxes, which run code that a policy wrote."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from astraflow.contract.errors import AstraFlowError


class SandboxError(AstraFlowError):
    """The sandbox itself failed, not the code in it: the job has no result and may be repeated."""


class Level(Enum):
    """Isolation of a sandbox, from strong to weak."""

    NAMESPACES = "namespaces"
    """Own file system, network, processes and users, with a system call filter and resource limits."""
    RESTRICTED = "restricted"
    """Landlock, a system call filter and resource limits, without namespaces."""
    REMOTE = "remote"
    """Service of another operator; AstraFlow does not know its isolation."""
    NONE = "none"
    """Resource limits only. Refused unless the options allow it."""


class Outcome(Enum):
    """Outcome of a job. Each says something about the code; failures of the sandbox raise `SandboxError`."""

    PASSED = "passed"
    """Exit status 0."""
    FAILED = "failed"
    """Another exit status, or an exception."""
    TIMEOUT = "timeout"
    """Limit of wall or processor time."""
    MEMORY = "memory"
    """Limit of memory."""
    CRASHED = "crashed"
    """Killed by a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Resources that a job may use."""

    wall_s: float = 10.0
    cpu_s: float = 5.0
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 2**20
    """Limit of standard output and standard error, each; the rest is discarded."""
    processes: int = 16
    """Processes and threads."""
    may_trace: bool = False
    """Programs may trace and confine those that they start, as the supervisor of terminal tests does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Python program."""

    source: str
    library: str = ""
    """Trusted Python whose names `source` sees. Workers run it once, outside of a job's limits, before the first job
    that has it: never text of a policy."""
    stdin: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by path, relative to the working directory."""
    limits: JobLimits = field(default_factory=JobLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start in a session, without a shell."""

    arguments: tuple[str, ...]
    """The program, by name or path, and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to those of the sandbox, which has no variables of the host."""
    stdin: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by path, relative to the session's working directory; written before the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job or of a command in a session."""

    outcome: Outcome
    exit_status: int | None
    """None when a signal or a limit ended the program."""
    stdout: str
    stderr: str
    wall_s: float
    is_output_cut: bool = False
    """Output beyond the limit was discarded."""


class Session(Protocol):
    """Persistent shell and Python interpreter of one episode, with a working directory of its own."""

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> JobResult:
        """Runs a command; variables and the working directory last until the next one. A timeout restarts the shell.

        Raises: SandboxError.
        """

    async def python(self, source: str, *, timeout_s: float = 30.0) -> JobResult:
        """Runs statements; names last until the next call. The value of a last expression is printed.

        A timeout restarts the interpreter. Raises: SandboxError.
        """

    async def execute(self, command: Command, *, timeout_s: float = 30.0, output_bytes: int | None = None) -> JobResult:
        """Runs a program in the working directory until it exits, and ends all processes that it started.

        output_bytes: limit in place of that of the session.
        Raises: InvalidInput for a file outside of the working directory; SandboxError.
        """

    async def stop(self) -> None:
        """Ends shell and interpreter with all processes that they started; files remain. Raises: SandboxError."""


class Sandbox(Protocol):
    """Runs jobs and sessions. Built by `sandboxes.build(spec)`; a `ManagedPlugin`.

    Flows whose specifications are equal share one sandbox: see `sandbox.shared`.
    """

    @property
    def level(self) -> Level:
        """Isolation, known after `start`."""

    async def run(self, job: Job) -> JobResult:
        """Runs a job in a fresh process and an empty working directory; waits for a free worker.

        Raises: SandboxError.
        """

    def session(self, limits: JobLimits, *, port: int | None = None) -> AbstractAsyncContextManager[Session]:
        """Opens a session. port: of 127.0.0.1 on this machine, which the session's programs reach at the same address,
        and nothing else; None: they reach nothing. Raises: SandboxError, also at a level that cannot limit programs to
        one port."""
