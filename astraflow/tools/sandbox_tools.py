"""Tools that run commands and code of a policy in a sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import JobLimits, JobResult, Outcome, SandboxError, Session
from astraflow.sandbox.shared import SharedSandbox
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool
from astraflow.tools.functions import tool_of

MARGIN_S = 10.0
"""Time that a call may take beyond the limit of its command, for a restart of the interpreter."""


class SandboxToolsOptions(Config):
    """Sandbox, tools and their limits."""

    sandbox: Annotated[dict[str, Any], SettableBy.RECIPE, sandboxes] = Field(default_factory=lambda: {"kind": "local"})
    """Sandbox: its kind and options."""
    tools: Annotated[tuple[Literal["bash", "python"], ...], SettableBy.AGENT] = Field(
        default=("bash", "python"), min_length=1
    )
    """Tools of an episode."""
    call_s: float = Field(default=30.0, gt=0)
    """Time limit of a call; the shell or interpreter is then restarted."""
    memory_mib: Annotated[int, SettableBy.OPERATOR] = Field(default=512, ge=16)
    """Memory of an episode. MiB."""
    output_bytes: Annotated[int, SettableBy.OPERATOR] = Field(default=65536, ge=1)
    """Limit of the standard output and of the standard error of a call, each."""
    processes: Annotated[int, SettableBy.OPERATOR] = Field(default=32, ge=1)
    """Processes and threads of an episode."""


@tool_sources.register("sandbox", options=SandboxToolsOptions)
class SandboxTools:
    """Tools `bash` and `python`: a shell and an interpreter that last for the episode, isolated from this machine."""

    def __init__(self, options: SandboxToolsOptions) -> None:
        self._options = options
        self._sandbox = SharedSandbox(options.sandbox)

    async def start(self) -> None:
        """Starts the sandbox. Raises: SandboxError when it cannot isolate here."""
        await self._sandbox.start()

    async def close(self) -> None:
        await self._sandbox.close()

    @asynccontextmanager
    async def open(self, prompt: Prompt, seed: int) -> AsyncIterator[tuple[Tool, ...]]:
        """Opens a session of the sandbox for the episode. Raises: RolloutFailed at the boundary `environment`."""
        options = self._options
        limits = JobLimits(
            wall_s=options.call_s,
            memory_bytes=options.memory_mib * 2**20,
            output_bytes=options.output_bytes,
            processes=options.processes,
        )
        try:
            async with self._sandbox.session(limits) as session:
                tools = {"bash": _bash, "python": _python}
                yield tuple(tools[name](session, options.call_s) for name in dict.fromkeys(options.tools))
        except SandboxError as problem:
            raise RolloutFailed(
                f"cannot use the sandbox: {problem}", boundary=Boundary.ENVIRONMENT, code="rollout.sandbox_failed"
            ) from problem


def _bash(session: Session, call_s: float) -> Tool:
    async def bash(command: Annotated[str, Field(description="Command of the shell.")]) -> str:
        """Runs a command in a shell. Variables, files and the working directory last until the next call."""
        return _text(await session.shell(command, timeout_s=call_s))

    return tool_of(bash, timeout_s=call_s + MARGIN_S)


def _python(session: Session, call_s: float) -> Tool:
    async def python(source: Annotated[str, Field(description="Python statements.")]) -> str:
        """Runs Python statements. Names last until the next call; the value of a last expression is printed."""
        return _text(await session.python(source, timeout_s=call_s))

    return tool_of(python, timeout_s=call_s + MARGIN_S)


def _text(result: JobResult) -> str:
    """Returns output, errors and a note on anything but success."""
    cut = "[the output was cut]" if result.is_output_cut else ""
    note = "" if result.outcome is Outcome.PASSED else f"[{_ENDINGS[result.outcome].format(result.exit_status)}]"
    parts = (result.stdout.rstrip("\n"), result.stderr.rstrip("\n"), cut, note)
    return "\n".join(part for part in parts if part) or "[no output]"


_ENDINGS = {
    Outcome.FAILED: "exit status {}",
    Outcome.TIMEOUT: "stopped after the time limit",
    Outcome.MEMORY: "stopped at the memory limit",
    Outcome.CRASHED: "killed by a signal",
}
