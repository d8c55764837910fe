"""Requests to a child process over its standard input and output: one JSON object per line, answers in any order.

A request has a `number`, and its answer has the same one.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from itertools import count
from typing import Any, Self

from astraflow.runtime.processes.child import ChildProcess

_TAIL_LINES = 20
_TAIL_CHARACTERS = 500
"""Maximum length of a line of standard error in a message. Characters."""


class Loss(Enum):
    """Cause of the loss of a process."""

    ENDED = "ended"
    TIMEOUT = "timeout"
    """No answer in time."""
    OUTPUT = "output"
    """An answer that is too long or no answer to a request."""


class ProcessLost(Exception):
    """The process cannot answer any more: it has ended, or was killed for the loss's reason."""

    def __init__(self, loss: Loss, cause: str) -> None:
        super().__init__(cause)
        self.loss = loss


class RequestProcess(ChildProcess):
    """Child process that answers requests.

    A request that is not answered in time, an answer that is too long or not JSON, and the end of the process fail all
    open requests and all later ones. The process is then killed with its group.
    """

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: Any) -> None:
        super().__init__(transport, protocol)
        self._numbers = count()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loss: ProcessLost | None = None
        self._errors: deque[str] = deque(maxlen=_TAIL_LINES)
        self._readers = [asyncio.create_task(self._read_answers()), asyncio.create_task(self._read_errors())]

    @classmethod
    async def spawn_answering(
        cls, *argv: str, environment: Mapping[str, str], max_answer_bytes: int, keeps_errors: bool = False
    ) -> Self:
        """Starts a program. keeps_errors: standard error is kept for `last_errors`; else it is that of this process.

        Raises: OSError.
        """
        pipe = asyncio.subprocess.PIPE
        return await cls.spawn(
            *argv, environment=environment, stdin=pipe, stdout=pipe, stderr=pipe if keeps_errors else None,
            max_line_bytes=max_answer_bytes,
        )  # fmt: skip

    @property
    def is_usable(self) -> bool:
        """Returns whether it can take requests."""
        return self._loss is None and self.code is None

    @property
    def is_busy(self) -> bool:
        """Returns whether a request was not answered yet."""
        return bool(self._pending)

    @property
    def last_errors(self) -> str:
        """Last lines of standard error, when they are kept."""
        return " | ".join(self._errors)

    async def request(self, values: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """Returns the answer to a request. A cancelled request keeps its time limit. Raises: ProcessLost."""
        _, answer = self.send(values)
        cause = ProcessLost(Loss.TIMEOUT, f"no answer to `{values.get('operation', 'call')}` within {limit_s:g} s")
        timer = asyncio.get_running_loop().call_later(limit_s, self._lose, cause)
        answer.add_done_callback(lambda _: timer.cancel())
        return await asyncio.shield(answer)

    def send(self, values: Mapping[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Sends a request without a time limit; returns its number, and its future answer or `ProcessLost`."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved if the caller left
        if self._loss is not None:
            answer.set_exception(self._loss)
        else:
            self._pending[number] = answer
            assert self._process.stdin is not None  # noqa: S101 (a pipe)
            with suppress(ConnectionError, RuntimeError):  # it has ended, which the reader of answers is about to see
                self._process.stdin.write(json.dumps({"number": number, **values}).encode() + b"\n")
        return number, answer

    async def stop(self, grace_s: float = 0.0) -> None:
        """Ends the process: by the end of its input when it then ends within `grace_s` seconds, else by a signal.
        Idempotent."""
        assert self._process.stdin is not None  # noqa: S101 (a pipe)
        self._process.stdin.close()
        if grace_s and self.is_usable:
            await self.has_ended_within(grace_s)
        self._lose(ProcessLost(Loss.ENDED, "it was stopped"))
        await super().stop()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _lose(self, loss: ProcessLost) -> None:
        self._loss = self._loss or loss
        self.kill()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(self._loss)

    async def _read_answers(self) -> None:
        stream = self._process.stdout
        try:
            while stream is not None and (line := await stream.readline()):
                message = json.loads(line)
                answer = self._pending.pop(message.pop("number"), None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            self._lose(ProcessLost(Loss.OUTPUT, f"it sent an answer that is too long or not valid ({problem})"))
        else:
            self._lose(ProcessLost(Loss.ENDED, f"it ended with status {await self.wait()}"))

    async def _read_errors(self) -> None:
        stream, rest = self._process.stderr, b""
        while stream is not None and (chunk := await stream.read(2**16)):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_TAIL_CHARACTERS:]
            self._errors.extend(line.decode(errors="replace")[-_TAIL_CHARACTERS:] for line in lines if line.strip())


class Answers:
    """Standard output of a process that answers requests: what the process prints goes to standard error."""

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def send(self, number: int, **values: Any) -> None:
        self._output.write(json.dumps({"number": number, **values}).encode() + b"\n")
        self._output.flush()
