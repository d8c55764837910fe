"""Answers requests of a node in the interpreter of another project's package: one JSON object per line.

    python KIND_bridge.py             answers the requests on standard input until it is closed
    python KIND_bridge.py REQUEST     answers one request and ends

A request has a `number` and an `operation`; its answer has the same number, and a `result` or an `error`. `cancel` ends
the request in progress of an `episode` before it answers. What the package prints goes to standard error.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Request = dict[str, Any]
Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
Operations = Mapping[str, Callable[[Request], Awaitable[Any]]]

MAX_LINE_BYTES = 32 * 2**20
"""Longest request."""
_MAX_MESSAGE = 1000


class InvalidInput(Exception):
    """Input that can never work. The node raises its own error of this name."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class RolloutFailed(Exception):
    """The environment did not work; another try may succeed. The node raises its own error of this name."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


def serve(operations: Operations) -> None:
    """Answers requests: that of the command line, or those on standard input until it is closed."""
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # programs of the package read nothing of the node
    os.dup2(2, 1)
    asyncio.run(_serve(operations, requests, answers))
    os._exit(0)  # threads of the package do not hold the process


async def _serve(operations: Operations, requests: int, answers: int) -> None:
    server = _Server(operations, answers)
    if sys.argv[1:]:
        await server.answer(json.loads(sys.argv[1]))
        return
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    with os.fdopen(requests, "rb") as pipe:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        while line := await reader.readline():
            server.begin(json.loads(line))


class LoopbackOnly:
    """ASGI application that answers the process itself and no web page: neither another host nor an origin."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Refuses a request of a web page with 403; others reach the application."""
        headers = dict(scope.get("headers", ()))
        host = headers.get(b"host", b"127.0.0.1").partition(b":")[0]
        if host == b"127.0.0.1" and b"origin" not in headers:
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"requests of web pages are refused"})


class _Server:
    """Requests in progress."""

    def __init__(self, operations: Operations, answers: int) -> None:
        self._operations = operations
        self._answers = answers
        self._running: dict[str, asyncio.Task[None]] = {}
        """Tasks by episode, or by number for requests without one."""

    def begin(self, request: Request) -> None:
        """Begins to answer a request."""
        number = request["number"]
        if request["operation"] == "cancel":
            task = asyncio.create_task(self._cancel(number, str(request["episode"])))
            name = f"#{number}"
        else:
            task = asyncio.create_task(self.answer(request))
            name = str(request.get("episode", f"#{number}"))
        self._running[name] = task
        task.add_done_callback(lambda done: self._running.pop(name) if self._running.get(name) is done else None)

    async def answer(self, request: Request) -> None:
        """Answers a request."""
        number, operation = request.pop("number", 0), request.pop("operation")
        try:
            answer: Mapping[str, Any] = {"result": await self._operations[operation](request)}
        except asyncio.CancelledError:
            answer = _error("the episode was cancelled", code="environment.cancelled")
        except (InvalidInput, RolloutFailed) as problem:
            answer = _error(str(problem), code=problem.code, is_invalid=isinstance(problem, InvalidInput))
        except BaseException as problem:  # of the package, whose code is of others; also SystemExit
            traceback.print_exc()
            answer = _error(f"{type(problem).__name__}: {problem}", code="environment.crashed")
        self._send(number, answer)

    async def _cancel(self, number: int, episode: str) -> None:
        task = self._running.get(episode)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        self._send(number, {"result": {}})

    def _send(self, number: int, answer: Mapping[str, Any]) -> None:
        line = json.dumps({"number": number, **answer}).encode() + b"\n"
        while line:
            line = line[os.write(self._answers, line) :]


def _error(message: str, *, code: str, is_invalid: bool = False) -> Mapping[str, Any]:
    return {"error": {"code": code, "message": message[:_MAX_MESSAGE], "is_invalid": is_invalid}}
