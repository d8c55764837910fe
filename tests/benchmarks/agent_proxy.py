"""Time that the proxy of agents adds to a model call: `python -m tests.benchmarks.agent_proxy`.

A process with the proxy and another with all clients, each with one connection, run conversations of several turns at
once. The scripted engine waits for a fixed time, so everything beyond it is overhead: the connection, parsing, the
session's traces, rendering, the reply, and waiting for other calls. Columns: milliseconds of overhead (median, 95th
percentile), and milliseconds of CPU time of the proxy's process for each call.
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
from typing import Any

import numpy as np
import orjson

from astraflow.agents.calls import CallHandler
from astraflow.agents.dialects.chat import ChatDialect
from astraflow.agents.dialects.dialect import CallContext
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.proxy import AgentProxy
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.generation import Generation, Sampling
from astraflow.contract.ids import PolicyId
from astraflow.contract.trajectories import Int32Array
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
    """Runs clients in another process."""
    proxy = AgentProxy()
    await proxy.start()
    try:
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(proxy.session(handler_of(load))) for _ in range(load.sessions)]
            urls = [f"{session.url}/v1/chat/completions" for session in sessions]
            client = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.benchmarks.agent_proxy",
                "--client",
                *load_arguments(load),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await client.communicate(json.dumps(urls).encode())
            if client.returncode:
                raise RuntimeError(f"the clients ended with {client.returncode}")
            return [float(value) for value in json.loads(output)]
    finally:
        await proxy.close()


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


def measured(name: str, load: Load, work: Callable[[], Awaitable[list[float]]]) -> str:
    """Returns a row of the table."""

    async def main() -> list[float]:
        return await work()

    before = resource.getrusage(resource.RUSAGE_SELF)
    overheads = np.array(asyncio.run(main())) * 1e3
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    calls = load.sessions * load.turns
    median, high = np.percentile(overheads, [50, 95])
    return f"| {name} | {median:.2f} | {high:.2f} | {cpu_s / calls * 1e3:.2f} |"


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
        sys.stdout.write(json.dumps(asyncio.run(run_clients(load, json.loads(sys.stdin.read())))))
        return
    sys.stdout.write(f"{floor(load)}\n| path | overhead p50, ms | p95, ms | CPU per call, ms |\n|---|---|---|---|\n")
    for handler, handler_of in (("without traces", scripted_handler), ("with traces", traced_handler)):
        for path, run in (("called directly", direct), ("through the proxy", proxied)):
            row = measured(f"session {handler}, {path}", load, partial(run, load, handler_of))
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
