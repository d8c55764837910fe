"""Time that the proxy of agents adds to a model call: `python -m benchmarks.agent_proxy`.

A process with the proxy and another with all clients, each with one connection, run conversations of several turns at
once. The scripted engine waits for a fixed time, so everything beyond it is overhead: the connection, parsing, the
session's traces, rendering, the reply, and waiting for other calls. The same clients also call a server without a
proxy, which reads each request, waits as long and writes a fixed answer: what sockets, sleeping tasks and the clients
themselves cost. Columns: milliseconds of overhead (median, 95th percentile), its median beyond that server's, and
milliseconds of CPU time of the server's process for each call.
"""

import argparse
import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, cast

import numpy as np
import orjson
import uvloop

from astraflow.agents.calls import CallHandler
from astraflow.agents.dialects.chat import ChatDialect
from astraflow.agents.dialects.dialect import CallContext
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.proxy.server import AgentProxy
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from tests.fakes.agent_handlers import ScriptedHandler, text_reply
from tests.fakes.policy import FakePolicy

CHARACTERS_PER_TOKEN = 4
REPLY = "The reply of the policy, which has a usual length for a step of an agent. " * 3
WARM_UP_TURNS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a measurement."""

    sessions: int
    turns: int
    tokens: int
    """Tokens of the first message, with four characters each. Count."""
    engine_s: float

    def first_message(self) -> str:
        """Returns a text as long as the context."""
        return ("Some words of a long prompt. " * self.tokens)[: self.tokens * CHARACTERS_PER_TOKEN]

    def bodies(self) -> list[bytes]:
        """Returns the requests of a conversation."""
        messages = [{"role": "user", "content": self.first_message()}]
        bodies = []
        for turn in range(self.turns):
            bodies.append(orjson.dumps({"model": "policy", "messages": messages}))
            messages += [{"role": "assistant", "content": REPLY}, {"role": "user", "content": f"Result {turn}."}]
        return bodies


class SlowPolicy(FakePolicy):
    """Waits before each reply. Its tokens are bytes: four for each token of the load."""

    def __init__(self, engine_s: float, turns: int) -> None:
        super().__init__(*[REPLY] * turns)
        self._engine_s = engine_s

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the reply after the wait."""
        await asyncio.sleep(self._engine_s)
        return await super().generate(prompt, sampling)


def traced_handler(load: Load) -> CallHandler:
    """Returns a session with exact traces."""
    policy = PolicyId("policy")
    context = 2 * CHARACTERS_PER_TOKEN * load.tokens + 2 * load.turns * len(REPLY)
    options = SessionOptions(max_context=context, max_new_tokens=len(REPLY) + 1)
    return PolicySession({policy: SlowPolicy(load.engine_s, load.turns)}, options, default=policy)


def scripted_handler(load: Load) -> CallHandler:
    """Returns a handler without traces."""

    async def answer(_: Any) -> Any:
        await asyncio.sleep(load.engine_s)
        return text_reply(REPLY)

    return ScriptedHandler(answer)


async def staggered(load: Load, run: Callable[[int], Awaitable[list[float]]]) -> list[float]:
    """Returns the overheads of all sessions, in seconds; their starts are spread over the time of the engine."""

    async def session(number: int) -> list[float]:
        await asyncio.sleep(load.engine_s * number / load.sessions)
        return (await run(number))[WARM_UP_TURNS:]

    latencies = await asyncio.gather(*(session(number) for number in range(load.sessions)))
    return [latency - load.engine_s for session_latencies in latencies for latency in session_latencies]


async def direct(load: Load, handler_of: Callable[[Load], CallHandler]) -> list[float]:
    """Calls handlers in this process with requests that are already parsed."""
    context = CallContext(retry_key="", is_retry=False, created_s=0, conversation=lambda _: ())
    calls = [ChatDialect().parse(orjson.loads(body), context).call for body in load.bodies()]

    async def run(_: int) -> list[float]:
        handler = handler_of(load)
        latencies = []
        for call in calls:
            began = perf_counter()
            await handler.complete(call)
            latencies.append(perf_counter() - began)
        return latencies

    return await staggered(load, run)


async def proxied(load: Load, handler_of: Callable[[Load], CallHandler]) -> list[float]:
    """Runs clients in another process, which call sessions of a proxy."""
    proxy = AgentProxy()
    await proxy.start()
    try:
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(proxy.session(handler_of(load))) for _ in range(load.sessions)]
            return await called_by_clients(load, [f"{session.url}/v1/chat/completions" for session in sessions])
    finally:
        await proxy.close()


class BareConnection(asyncio.Protocol):
    """Connection of a server without a proxy: reads a request, waits for the time of the engine, and writes a fixed
    answer as long as a chat completion."""

    def __init__(self, engine_s: float) -> None:
        self._engine_s = engine_s
        self._read = bytearray()
        body = orjson.dumps({"choices": [{"message": {"role": "assistant", "content": REPLY}}], "padding": "." * 200})
        self._answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport for the answers."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answers a request when its body is complete."""
        self._read += data
        head, separator, body = self._read.partition(b"\r\n\r\n")
        if separator and len(body) == int(head.rpartition(b" ")[2]):  # clients send the length last
            self._read.clear()
            asyncio.get_running_loop().call_later(self._engine_s, self._transport.write, self._answer)


async def unproxied(load: Load) -> list[float]:
    """Runs clients in another process, which call a server without a proxy."""
    server = await asyncio.get_running_loop().create_server(lambda: BareConnection(load.engine_s), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await called_by_clients(load, [f"http://127.0.0.1:{port}/v1/chat/completions"] * load.sessions)


async def called_by_clients(load: Load, urls: Sequence[str]) -> list[float]:
    """Runs clients in another process; returns the overheads that they saw."""
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.agent_proxy",
        "--client",
        *load_arguments(load),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await client.communicate(json.dumps(urls).encode())
    if client.returncode:
        raise RuntimeError(f"the clients ended with {client.returncode}")
    return [float(value) for value in json.loads(output)]


async def run_clients(load: Load, urls: Sequence[str]) -> list[float]:
    """Returns the overheads as clients see them."""
    bodies = load.bodies()

    async def run(number: int) -> list[float]:
        origin, path = urls[number].removeprefix("http://").split("/", 1)
        host, port = origin.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        latencies = []
        for body in bodies:
            head = f"POST /{path} HTTP/1.1\r\nHost: {origin}\r\nContent-Length: {len(body)}\r\n\r\n"
            began = perf_counter()
            writer.write(head.encode() + body)
            answer_head = await reader.readuntil(b"\r\n\r\n")
            size = int(answer_head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
            latencies.append(perf_counter() - began)
            if not answer_head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"unexpected answer: {answer_head!r}")
        writer.close()
        return latencies

    return await staggered(load, run)


def floor(load: Load) -> str:
    """Returns milliseconds of parsing the last body, with orjson and with the standard library."""
    body = load.bodies()[-1]
    times = []
    for parse in (orjson.loads, json.loads):
        began = perf_counter()
        for _ in range(200):
            parse(body)
        times.append((perf_counter() - began) / 200 * 1e3)
    return f"parsing a body of {len(body)} bytes: orjson {times[0]:.3f} ms, json {times[1]:.3f} ms"


def load_arguments(load: Load) -> list[str]:
    """Returns the arguments that make the same load."""
    values = {"sessions": load.sessions, "turns": load.turns, "tokens": load.tokens, "engine-s": load.engine_s}
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a path. Milliseconds."""

    median: float
    high: float
    """95th percentile."""
    cpu: float
    """Processor time of this process for each call."""

    def row(self, path: str, bare: "Figures | None") -> str:
        """Returns a row of the table. bare: figures of the server without a proxy; None for direct calls."""
        beyond = "" if bare is None else f"{self.median - bare.median:.2f}"
        return f"| {path} | {self.median:.2f} | {self.high:.2f} | {beyond} | {self.cpu:.2f} |\n"


def measured(load: Load, work: Callable[[], Awaitable[list[float]]]) -> Figures:
    """Returns the figures of calls."""

    async def main() -> list[float]:
        return await work()

    before = resource.getrusage(resource.RUSAGE_SELF)
    overheads = np.array(uvloop.run(main())) * 1e3
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    median, high = np.percentile(overheads, [50, 95])
    return Figures(median=median, high=high, cpu=cpu_s / (load.sessions * load.turns) * 1e3)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--engine-s", type=float, default=2.0)
    parser.add_argument("--client", action="store_true", help="runs the clients; internal")
    arguments = parser.parse_args()
    load = Load(
        sessions=arguments.sessions, turns=arguments.turns, tokens=arguments.tokens, engine_s=arguments.engine_s
    )
    if arguments.client:
        sys.stdout.write(json.dumps(uvloop.run(run_clients(load, json.loads(sys.stdin.read())))))
        return
    sys.stdout.write(f"{floor(load)}\n| path | overhead p50, ms | p95, ms | beyond no proxy | CPU per call, ms |\n")
    bare = measured(load, partial(unproxied, load))
    sys.stdout.write(f"|---|---|---|---|---|\n{bare.row('no proxy', bare)}")
    for handler, handler_of in (("without traces", scripted_handler), ("with traces", traced_handler)):
        direct_figures = measured(load, partial(direct, load, handler_of))
        sys.stdout.write(direct_figures.row(f"session {handler}, called directly", None))
        proxied_figures = measured(load, partial(proxied, load, handler_of))
        sys.stdout.write(proxied_figures.row(f"session {handler}, through the proxy", bare))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
