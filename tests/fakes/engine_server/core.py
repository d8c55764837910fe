"""Core process of a simulated engine: generates for all requests in steps, with a key-value cache per request.

It talks JSON lines with the frontend over a socket: `{"id", "call", ...}` in, `{"id", "result"}` or `{"id", "error"}`
out, and `{"gauges"}` without an id.
"""

import asyncio
import contextlib
import json
import math
import mmap
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fakes.engine_server import token_model
from tests.fakes.engine_server.sampling import (
    InvalidRequest,
    Parameters,
    allowed_characters,
    choose,
    is_complete,
    kept,
    logprobs_of,
    schema_choices,
)
from tests.fakes.engine_server.weights import CannotLoad, Weights

LINGER_S = 5.0
"""Seconds for which the core outlives its frontend, as the inner processes of real servers do."""


@dataclass(eq=False)
class _Request:
    id: str
    prompt: list[int]
    parameters: Parameters
    done: Callable[[Mapping[str, Any]], None]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    candidates: list[list[tuple[int, float]]] = field(default_factory=list)
    """For each token those that could be sampled, with logprobs, the most likely first; if the request records them."""
    versions: list[str] = field(default_factory=list)
    text: str = ""
    adapter: str = ""
    state: bytes | None = None
    """Key-value cache; None before it is computed, and after it was discarded."""
    cached: int = 0
    """Tokens of the prompt that were in the prefix cache."""
    records: str = ""
    """`kept`: candidates are those that filters leave; `all`: those before the filters; empty: none are recorded."""


class Core:
    """Weights, cache and requests."""

    def __init__(self, model: Path, *, step_s: float, context_tokens: int, max_running: int, hold: Path) -> None:
        """hold: file with the number of tokens at which all requests wait; none do while it does not exist."""
        self._hold = hold
        self._weights = Weights()
        self._step_s = step_s
        self._context_tokens = context_tokens
        self._max_running = max_running
        self._vocabulary = [""] * token_model.VOCAB
        for text, token in json.loads((model / "tokenizer.json").read_text())["model"]["vocab"].items():
            self._vocabulary[token] = text if len(text) == 1 else ""
        self._version = "default"
        self._requests: list[_Request] = []
        self._prefixes: dict[tuple[str, tuple[int, ...]], bytes] = {}
        """Prefix cache: state by adapter and tokens."""
        self._is_paused = False
        self._running = asyncio.Event()
        self._running.set()
        self._work = asyncio.Event()
        self._tokens_total = self._prompt_tokens = self._cached_tokens = 0

    def gauges(self) -> dict[str, float]:
        """Returns the load."""
        count = len(self._requests)
        running = 0 if self._is_paused else min(count, self._max_running)
        used = sum(len(request.prompt) + len(request.tokens) for request in self._requests if request.state)
        return {
            "running": running,
            "waiting": count - running,
            "cache": min(1.0, used / 32_768),
            "tokens": self._tokens_total,
            "prompts": self._prompt_tokens,
            "cached": self._cached_tokens,
        }

    def call_generate(
        self, done: Callable[[Mapping[str, Any]], None], request_id: str, prompt: list[int], **options: Any
    ) -> None:
        """Queues a request."""
        if (
            not prompt
            or len(prompt) >= self._context_tokens
            or not all(0 <= token < token_model.VOCAB for token in prompt)
        ):
            raise InvalidRequest(f"{len(prompt)} tokens do not fit the model with {self._context_tokens}")
        pattern, schema = options.pop("regex", ""), options.pop("json_schema", "")
        adapter, records = options.pop("adapter", ""), options.pop("records", "")
        self._weights.identity_with(adapter)  # refuses an unknown one
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
        }
        parameters = Parameters(
            **values,
            allowed=allowed_characters(pattern) if pattern else (),
            choices=schema_choices(schema) if schema else (),
        )
        self._requests.append(_Request(request_id, prompt, parameters, done, adapter=adapter, records=records))
        self._work.set()

    async def call_score(self, tokens: list[int], scored_from: int, adapter: str = "") -> dict[str, Any]:
        """Scores with the cache of the prefix, if any; waits while paused."""
        await self._running.wait()
        state, cached = self._prefill(tokens[:scored_from], adapter)
        identity = self._weights.identity_with(adapter)
        values = []
        for token in tokens[scored_from:]:
            values.append(token_model.logprob(state, token))
            state = token_model.extended(state, (token,), identity)
        return {"logprobs": values, "cached": cached}

    def call_pause(self, mode: str) -> None:
        """Stops generation. abort: ends all requests. retract: discards their cache. in_place: keeps it."""
        self._is_paused = True
        self._running.clear()
        if mode == "abort":
            self.call_abort(None)
        if mode == "retract":
            self._discard_running()

    def call_resume(self) -> None:
        """Resumes generation."""
        self._is_paused = False
        self._running.set()
        self._work.set()

    def call_is_paused(self) -> bool:
        """Returns whether generation is paused."""
        return self._is_paused

    def call_abort(self, ids: list[str] | None) -> None:
        """Ends requests; None for all."""
        for request in [request for request in self._requests if ids is None or request.id in ids]:
            self._finish(request, "abort", None)

    def call_load(self, path: str, version: str | None) -> None:
        """Replaces the weights."""
        self._weights.load(Path(path))
        self._version = version or self._version

    def call_patch(self, path: str, version: str | None) -> int:
        """Changes elements of the weights."""
        elements = self._weights.patch(Path(path))
        self._version = version or self._version
        return elements

    def call_add_adapter(self, adapter: str, tensors: dict[str, str]) -> None:
        """Loads an adapter, from the bits of each tensor in hexadecimal digits."""
        self._weights.add_adapter(adapter, {tensor: bytes.fromhex(bits) for tensor, bits in tensors.items()})

    def call_remove_adapter(self, adapter: str) -> None:
        """Unloads an adapter."""
        self._weights.remove_adapter(adapter)

    def call_flush(self, discard_running: bool) -> bool:
        """Discards the prefix cache, unless running requests use it."""
        if discard_running:
            self._discard_running()
        if any(request.state for request in self._requests):
            return False
        self._prefixes.clear()
        return True

    def call_version(self, version: str) -> None:
        """Names the weights."""
        self._version = version

    def call_checksum(self) -> dict[str, str]:
        """Returns a checksum per tensor."""
        return self._weights.checksums()

    async def run(self) -> None:
        """Generates for ever."""
        while True:
            while self._is_paused or not self._requests:
                self._work.clear()
                await self._work.wait()
            began_at = time.perf_counter()
            limit = self._held_tokens()
            for request in self._requests[: self._max_running]:
                if len(request.tokens) < limit:
                    self._step(request)
            await asyncio.sleep(max(0.0, self._step_s - (time.perf_counter() - began_at)))

    def _held_tokens(self) -> float:
        try:
            return int(self._hold.read_text())
        except FileNotFoundError:
            return math.inf

    def _step(self, request: _Request) -> None:
        if request.state is None:
            request.state, cached = self._prefill([*request.prompt, *request.tokens], request.adapter)
            if not request.tokens:
                request.cached = cached
                self._prompt_tokens += len(request.prompt)
                self._cached_tokens += cached
        state, parameters = request.state, request.parameters
        context: Any = {"position": len(request.tokens), "text": request.text, "vocabulary": self._vocabulary}
        try:
            tokens, weights = kept(state, parameters, **context)
        except InvalidRequest:
            self._finish(request, "stop", None)
            return
        token = choose(tokens, weights, state, parameters)
        if request.records:
            if request.records == "all":
                tokens, weights = kept(state, replace(parameters, top_p=1.0, top_k=0, min_p=0.0), **context)
            request.candidates.append(logprobs_of(tokens, weights))
        request.tokens.append(token)
        recorded = dict(request.candidates[-1]) if request.records else {}
        request.logprobs.append(recorded[token] if recorded else token_model.logprob(request.state, token))
        request.versions.append(self._version)
        request.text += self._vocabulary[token]
        identity = self._weights.identity_with(request.adapter)
        request.state = token_model.extended(request.state, (token,), identity)
        self._tokens_total += 1
        stop = is_complete(request.parameters, request.tokens, request.text)
        if stop is not False:
            self._finish(request, "stop", None if stop is True else stop)
        elif len(request.tokens) >= request.parameters.max_tokens or (
            len(request.prompt) + len(request.tokens) >= self._context_tokens
        ):
            self._finish(request, "length", None)

    def _prefill(self, tokens: list[int], adapter: str) -> tuple[bytes, int]:
        """Returns the state of a prefix, and how many of its tokens were cached; the others are computed."""
        identity = self._weights.identity_with(adapter)
        state, cached = token_model.empty(identity), 0
        for end in range(len(tokens), 0, -1):
            cached_prefix = self._prefixes.get((adapter, tuple(tokens[:end])))
            if cached_prefix is not None:
                state, cached = cached_prefix, end
                break
        for end in range(cached, len(tokens)):
            state = token_model.extended(state, tokens[end : end + 1], identity)
            self._prefixes[adapter, tuple(tokens[: end + 1])] = state
        return state, cached

    def _discard_running(self) -> None:
        for request in self._requests:
            request.state = None

    def _finish(self, request: _Request, reason: str, stop: object) -> None:
        self._requests.remove(request)
        spans: list[dict[str, Any]] = []
        for index, version in enumerate(request.versions):
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = index + 1
            else:
                spans.append({"version": version, "start": index, "end": index + 1})
        request.done(
            {
                "tokens": request.tokens,
                "logprobs": request.logprobs,
                "candidates": request.candidates,
                "spans": spans,
                "finish": reason,
                "stop": stop,
                "text": request.text,
                "cached": request.cached,
                "version": self._version,
            }
        )


async def serve(connection: socket.socket, core: Core) -> None:
    """Answers the frontend until it closes the connection."""
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=2**24)
    background: set[asyncio.Task[None]] = {
        asyncio.create_task(core.run()),
        asyncio.create_task(_report_regularly(core, writer)),
    }

    def answer(number: int, **content: Any) -> None:
        _report(core, writer)  # the frontend's gauges are never older than its answers
        writer.write(json.dumps({"id": number, **content}).encode() + b"\n")

    async def handle(message: dict[str, Any]) -> None:
        number, call = message.pop("id"), message.pop("call")
        try:
            if call == "generate":
                core.call_generate(lambda result: answer(number, result=result), **message)
                return
            result = getattr(core, f"call_{call}")(**message)
            answer(number, result=await result if asyncio.iscoroutine(result) else result)
        except (InvalidRequest, CannotLoad, OSError, TypeError, KeyError) as problem:
            answer(number, error=f"{type(problem).__name__}: {problem}", is_refused=isinstance(problem, InvalidRequest))

    while line := await reader.readline():
        task = asyncio.create_task(handle(json.loads(line)))
        background.add(task)
        task.add_done_callback(background.discard)


async def _report_regularly(core: Core, writer: asyncio.StreamWriter) -> None:
    while True:
        _report(core, writer)
        await asyncio.sleep(0.05)


def _report(core: Core, writer: asyncio.StreamWriter) -> None:
    writer.write(json.dumps({"gauges": core.gauges()}).encode() + b"\n")


def run_core(connection: socket.socket, make: Callable[[], Core]) -> None:
    """Runs in the core process; does not return. A killed core leaves a file in shared memory, as NCCL and vLLM do."""
    shared = Path(f"/dev/shm/fake_engine_{os.getpid()}")  # noqa: S108 (the test is that it is removed)
    with shared.open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    async def main() -> None:
        await serve(connection, make())

    with contextlib.suppress(ConnectionError):
        asyncio.run(main())
    time.sleep(LINGER_S)
    mapping.close()
    shared.unlink(missing_ok=True)
    os._exit(0)
