"""Calls the AstraFlow command line as a child process, with an argument list and never through a shell."""

import os
import sys
from collections.abc import Sequence

from astraflow.contract.errors import DeadlineExceeded, InvalidInput
from astraflow.runtime.processes.child import run_command

CLI_COMMAND = (sys.executable, "-m", "astraflow.cli")

WITHHELD_VARIABLES = ("ASTRAFLOW_TOKEN", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET")
"""Secrets of this process, which runs must not inherit."""

FOLLOW_PARENT = "ASTRAFLOW_FOLLOW_PARENT"
"""Variable that ties a process to its parent; not inherited, because launched runs outlive this process."""


def child_environment() -> dict[str, str]:
    """Returns the environment of child processes."""
    return {name: value for name, value in os.environ.items() if name not in (*WITHHELD_VARIABLES, FOLLOW_PARENT)}


async def cli_output(arguments: Sequence[str], *, timeout_s: float, command: Sequence[str] = CLI_COMMAND) -> str:
    """Returns the output of a command. command: the command line. Raises: InvalidInput with its last error when it
    fails, DeadlineExceeded."""
    try:
        result = await run_command(*command, *arguments, environment=child_environment(), limit_s=timeout_s)
    except TimeoutError:
        raise DeadlineExceeded(
            f"cannot run `astraflow {arguments[0]}`: no result within {timeout_s:g} s; try again", code="cli.timeout"
        ) from None
    if result.code:
        raise InvalidInput(
            result.errors.strip().removeprefix("error: ")
            or f"cannot run `astraflow {arguments[0]}`: exit code {result.code}; run it in a terminal",
            code="cli.failed",
        )
    return result.output
