"""Agent programs that run elsewhere on this machine and begin on an HTTP request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import aiohttp
from pydantic import Field
from yarl import URL

from astraflow.agents.programs import programs
from astraflow.agents.programs.base import (
    MAX_OUTPUT_BYTES,
    AgentTask,
    ProgramExit,
    ProgramFeatures,
    RunningProgram,
    program_failure,
)
from astraflow.contract.errors import InternalError
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.untrusted_json import PLAIN, parsed_json
from astraflow.sandbox.base import Command, JobResult, Outcome

_STOP_S = 5.0
_ACCEPTED = 202


class EndpointOptions(Config):
    """Address of the service that runs agents."""

    url: Annotated[str, SettableBy.RECIPE] = Field(pattern=r"^https?://")
    """URL to which each episode is posted, as a JSON object with `fields`, `base_url`, `api_key`, `models`,
    `environment` and `seed`. The reply is the agent's result, once it has ended; or 202 with a `Location` below the
    same origin, which answers 202 until the agent has ended, and then its result."""
    poll_s: float = Field(default=1.0, gt=0)
    """Time between two requests for the result."""
    concurrency: int = Field(default=64, ge=1, le=4096)
    """Agents at once on a node; further episodes wait."""


@programs.register("endpoint", options=EndpointOptions)
class EndpointProgram:
    """Asks a service on this machine to run an agent. The service reaches the model calls on loopback."""

    features = ProgramFeatures(has_value=True)

    def __init__(self, options: EndpointOptions) -> None:
        self._options = options
        self._slots = asyncio.Semaphore(options.concurrency)
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the client."""
        self._client = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
            headers=PLAIN,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    @asynccontextmanager
    async def open(self, task: AgentTask) -> AsyncIterator[RunningProgram]:
        """Waits for a free slot."""
        if self._client is None:
            raise InternalError("cannot call an agent: the program is not started", code="agent.program_not_started")
        async with self._slots:
            yield _RunningEndpoint(self._client, self._options, task)


class _RunningEndpoint:
    """One run of an agent in the service."""

    def __init__(self, client: aiohttp.ClientSession, options: EndpointOptions, task: AgentTask) -> None:
        self._client = client
        self._options = options
        self._task = task

    async def run(self, *, timeout_s: float) -> ProgramExit:
        """Posts the task and waits for the result; a run that is left early is deleted."""
        location: URL | None = None
        is_over = False
        try:
            async with asyncio.timeout(timeout_s):
                status, text, location = await self._request("POST", URL(self._options.url), json=self._message())
                while status == _ACCEPTED and location is not None:
                    await asyncio.sleep(self._options.poll_s)
                    status, text, _ = await self._request("GET", location)
            is_over = True
        except TimeoutError:
            return ProgramExit(outcome=Outcome.TIMEOUT)
        except (aiohttp.ClientError, OSError) as problem:
            cause = f"{self._options.url} fails with {type(problem).__name__}: {problem}"
            raise program_failure(cause, "start the service", code="agent.endpoint_failed") from problem
        finally:
            if location is not None and not is_over:
                await asyncio.shield(self._delete(location))
        return _exit(status, text)

    async def read(self, path: str) -> str | None:
        """The service keeps its files. Raises: InternalError."""
        raise InternalError("cannot read a file: the agent runs in a service", code="agent.no_files")

    async def execute(self, command: Command, *, timeout_s: float) -> JobResult:
        """The service runs no commands. Raises: InternalError."""
        raise InternalError("cannot run a command: the agent runs in a service", code="agent.no_commands")

    def _message(self) -> dict[str, Json]:
        task = self._task
        return {
            "fields": dict(task.fields),
            "base_url": task.base_url,
            "api_key": task.api_key,
            "models": list(task.models),
            "environment": dict(task.environment),
            "seed": task.seed,
        }

    async def _request(self, method: str, url: URL, *, json: Json = None) -> tuple[int, str, URL | None]:
        """Returns status, text, and the location below the same origin. Raises: aiohttp.ClientError, OSError."""
        async with self._client.request(method, url, json=json, allow_redirects=False) as reply:
            content = bytearray()
            async for chunk in reply.content.iter_chunked(2**16):
                content += chunk[: MAX_OUTPUT_BYTES - len(content)]
            named = reply.headers.get("Location")
            location = url.join(URL(named)) if named else None
            if location is not None and location.origin() != url.origin():
                raise aiohttp.ClientError(f"the location {location} is not below {url.origin()}")
            return reply.status, content.decode(errors="replace"), location

    async def _delete(self, location: URL) -> None:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):  # its calls are refused anyway
            async with asyncio.timeout(_STOP_S):
                await self._request("DELETE", location)


def _exit(status: int, text: str) -> ProgramExit:
    if not 200 <= status < 300 or status == _ACCEPTED:
        return ProgramExit(outcome=Outcome.FAILED, exit_status=status, stderr=text)
    try:
        value = parsed_json(text, limit=MAX_OUTPUT_BYTES) if text.strip() else None
    except ValueError:
        value = text
    return ProgramExit(outcome=Outcome.PASSED, exit_status=0, stdout=text, value=value)
