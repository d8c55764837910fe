"""The command line of AstraFlow, as this process calls it: arguments one by one, never through a shell."""

import asyncio
import os
import sys
from collections.abc import Sequence

from astraflow.contract.errors import DeadlineExceeded, InvalidInput

COMMAND = (sys.executable, "-m", "astraflow.cli")

NOT_PASSED_ON = ("ASTRAFLOW_TOKEN", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET")
"""Secrets of this process: a run has its own."""

FOLLOW_PARENT = "ASTRAFLOW_FOLLOW_PARENT"
"""What is launched outlives this process, whoever started it."""


def environment() -> dict[str, str]:
    """What a process that is started from here inherits."""
    return {name: value for name, value in os.environ.items() if name not in (*NOT_PASSED_ON, FOLLOW_PARENT)}


async def output_of(arguments: Sequence[str], *, timeout_s: float) -> str:
    """What a command prints. Raises: InvalidInput with its last word when it fails, DeadlineExceeded."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, problem = await process.communicate()
    except TimeoutError:
        raise DeadlineExceeded(f"`astraflow {arguments[0]}` took longer than {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = problem.decode(errors="replace").strip().removeprefix("error: ")
        raise InvalidInput(last or f"`astraflow {arguments[0]}` ended with code {process.returncode}")
    return out.decode()
