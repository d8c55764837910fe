"""Calls the AstraFlow command line as a child process, with an argument list and never through a shell."""

import asyncio
import os
import sys
from collections.abc import Sequence

from astraflow.contract.errors import DeadlineExceeded, InvalidInput

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
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, problem = await process.communicate()
    except TimeoutError:
        raise DeadlineExceeded(
            f"cannot run `astraflow {arguments[0]}`: no result within {timeout_s:g} s; try again", code="cli.timeout"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        error = problem.decode(errors="replace").strip().removeprefix("error: ")
        raise InvalidInput(
            error or f"cannot run `astraflow {arguments[0]}`: exit code {process.returncode}; run it in a terminal",
            code="cli.failed",
        )
    return out.decode()
