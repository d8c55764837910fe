"""Equal requests for short answers, which are sent to a server as one."""

import asyncio
from dataclasses import dataclass, field

from astraflow.client.model_server import ServerClient
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.server.dialect import Dialect

MAX_TOKENS = 32
"""Longest answers that are requested together, in tokens."""
MAX_REQUESTS = 32


@dataclass(slots=True, kw_only=True)
class _Group:
    client: ServerClient
    prompt: Int32Array
    sampling: Sampling
    replies: dict[str, asyncio.Future[Generation]] = field(default_factory=dict)
    """Generation of each member, by its id in the server."""


class RequestGroups:
    """Sends equal requests that are made in one iteration of the event loop as one HTTP request.

    The episodes of a group begin with the same prompt. A server's HTTP side works 1 to 3 ms for each request, which is
    more than a short answer of a small model costs. The generations of a group come when its longest is complete, so
    requests for more than `MAX_TOKENS` tokens are sent alone, and those with a seed, which are meant to be equal.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._waiting: dict[tuple[ServerClient, bytes, Sampling], _Group] = {}
        self._sent: set[asyncio.Task[None]] = set()

    async def generate(self, client: ServerClient, wire_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`. A caller that is cancelled must abort `wire_id`. Raises: the errors of the dialect."""
        if sampling.max_new_tokens > MAX_TOKENS or sampling.seed is not None:
            (generation,) = await self._dialect.generate(client, [wire_id], prompt, sampling)
            return generation
        loop = asyncio.get_running_loop()
        key = (client, prompt.tobytes(), sampling)
        group = self._waiting.get(key)
        if group is None or len(group.replies) >= MAX_REQUESTS:
            group = self._waiting[key] = _Group(client=client, prompt=prompt, sampling=sampling)
            loop.call_soon(self._send, key, group)
        reply: asyncio.Future[Generation] = loop.create_future()
        group.replies[wire_id] = reply
        return await reply

    def _send(self, key: tuple[ServerClient, bytes, Sampling], group: _Group) -> None:
        if self._waiting.get(key) is group:
            del self._waiting[key]
        task = asyncio.create_task(self._complete(group))
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)

    async def _complete(self, group: _Group) -> None:
        replies = {wire_id: reply for wire_id, reply in group.replies.items() if not reply.done()}
        if not replies:
            return
        try:
            generations = await self._dialect.generate(group.client, list(replies), group.prompt, group.sampling)
        except Exception as problem:  # each caller decides for its request
            for reply in replies.values():
                if not reply.done():
                    reply.set_exception(problem)
            return
        for reply, generation in zip(replies.values(), generations, strict=True):
            if not reply.done():  # its caller was cancelled
                reply.set_result(generation)
