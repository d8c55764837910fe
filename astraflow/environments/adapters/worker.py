"""Worker process of the adapter `process`: one JSON request per line on standard input, one answer per line.

`python -m astraflow.environments.adapters.worker`. The first request is `open`, with the specification of
the environment or game. Output that it prints goes to standard error, because standard output carries the answers.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.environments import environments, games
from astraflow.environments.adapters.host import EnvironmentHost
from astraflow.environments.adapters.messages import ActRequest, BeginRequest, CloseRequest
from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.two_player import GameFactory
from astraflow.runtime.plugins import Registry, plugin_cause, start_managed
from astraflow.runtime.processes.requests import Answers
from astraflow.runtime.processes.supervised import end_with_parent

MAX_LINE_BYTES = 32 * 2**20
"""Longest request or answer."""


def main() -> None:
    """Serves requests until standard input ends."""
    end_with_parent()
    asyncio.run(_serve(Answers()))


async def _serve(answers: Answers) -> None:
    requests = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    async with AsyncExitStack() as resources:
        worker = _Worker(resources)
        tasks: set[asyncio.Task[None]] = set()
        while line := await requests.readline():
            task = asyncio.create_task(_answer(worker, json.loads(line), answers))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def _answer(worker: "_Worker", request: dict[str, Any], answers: Answers) -> None:
    number, operation = request.pop("number"), request.pop("operation")
    answer: Mapping[str, Any]
    try:
        answer = {"result": await worker.operations[operation](request)}
    except Exception as problem:  # of the environment, whose code is of others
        code = problem.code if isinstance(problem, AstraFlowError) else "environment.crashed"
        message = str(problem) if isinstance(problem, AstraFlowError) else plugin_cause(problem)
        is_invalid = isinstance(problem, InvalidInput)
        answer = {"error": {"code": code, "message": message[:1000], "is_invalid": is_invalid}}
    answers.send(number, **answer)


class _Worker:
    """Environment factory of the process, and its episodes."""

    def __init__(self, resources: AsyncExitStack) -> None:
        self._resources = resources
        self._host: EnvironmentHost | None = None
        self.operations: dict[str, Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]]] = {
            "open": self._open,
            "begin": self._begin,
            "act": self._act,
            "close": self._close,
        }

    async def _open(self, request: dict[str, Any]) -> Mapping[str, Any]:
        registry: Registry[EnvironmentFactory] | Registry[GameFactory] = games if request["is_game"] else environments
        factory = registry.build(request["spec"])
        await start_managed([factory], self._resources)
        await factory.check()
        self._host = EnvironmentHost(factory, max_episodes=request["episodes"], idle_s=0.0)
        self._resources.push_async_callback(self._host.close_all)
        return {}

    async def _begin(self, request: dict[str, Any]) -> Mapping[str, Any]:
        return await self._opened.begin(BeginRequest.parse(request, where=""))

    async def _act(self, request: dict[str, Any]) -> Mapping[str, Any]:
        return await self._opened.act(ActRequest.parse(request, where=""))

    async def _close(self, request: dict[str, Any]) -> Mapping[str, Any]:
        return await self._opened.close(CloseRequest.parse(request, where=""))

    @property
    def _opened(self) -> EnvironmentHost:
        if self._host is None:
            raise InvalidInput(
                "cannot use the worker: it is not open; send the request `open` first", code="environment.not_open"
            )
        return self._host


if __name__ == "__main__":
    main()
