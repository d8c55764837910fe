"""Answers of engine servers, real and simulated, to the same calls, and their shapes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import numpy as np

from astraflow.client.model_server import ServerClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.server import replica
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.formats import _FIELDS
from tests.suites.serving import Weights

Answers = dict[str, dict[str, Any]]
"""Answer by route, such as `POST /generate`, and step."""

METRICS = {f"{kind}:{name}" for kind in ("sglang", "vllm") for name in _FIELDS}
"""Time series that are read."""
PROMPT = np.array([5, 6, 7, 8, 9], dtype=np.int32)


class Recorder:
    """First answer of each route in each step."""

    def __init__(self) -> None:
        self.step = ""
        """Name of the current step; answers outside of steps are not recorded."""
        self.answers: Answers = {}

    def add(self, route: str, answer: Any) -> None:
        """Records an answer."""
        if self.step:
            self.answers.setdefault(route, {}).setdefault(self.step, answer)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Records the answers to all clients that are made within the block."""
    recorder = Recorder()

    class RecordingClient(ServerClient):
        async def get(self, path: str, *, limit_s: float) -> bytes:
            answer = await super().get(path, limit_s=limit_s)
            text = answer.decode()
            if path == "/metrics":
                text = "\n".join(line for line in text.splitlines() if line.partition("{")[0] in METRICS)
            if path != "/metrics" or recorder.step == "metrics":  # the supervisor reads them at any time
                recorder.add(f"GET {path}", text)
            return answer

        async def post(self, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
            answer = await super().post(path, body, **options)
            tokens = (body or {}).get("input_ids", (body or {}).get("token_ids"))
            if not np.array_equal(tokens, replica._PROBE_TOKENS):  # the supervisor probes at any time
                recorder.add(f"POST {path}", answer)
            return answer

    with mock.patch.object(replica, "ServerClient", RecordingClient):
        yield recorder


async def record(
    engine: ServerEngine,
    recorder: Recorder,
    weights: Weights,
    delta: Weights,
    *,
    begun: Callable[[ServerEngine, str, Sampling], Awaitable[asyncio.Task[Generation]]],
) -> Answers:
    """Starts the engine, makes every call of its dialect, and closes it; returns the answers.

    begun: starts a request and waits until it has some tokens, but not all.
    """
    try:
        recorder.step = "start"
        await engine.start()
        recorder.step = "load"
        await engine.load(weights(0))
        await engine.load(delta(1))
        server = engine.servers[0]
        assert engine.folder is not None
        await engine.pause(PauseMode.KEEP)
        await engine.dialect.reload(server.client, engine.folder.path, "1", learn_mapping=False)
        await engine.resume()
        recorder.step = "checksum"
        await engine.dialect.checksum(server.client)
        recorder.step = "length"
        await engine.generate("length", PROMPT, Sampling(max_new_tokens=4))
        recorder.step = "stop"
        with suppress(AstraFlowError):
            await engine.generate("stop", PROMPT, Sampling(max_new_tokens=200, stop_tokens=tuple(range(10, 25))))
        recorder.step = "candidates"
        await engine.generate("candidates", PROMPT, Sampling(max_new_tokens=2, top_tokens=3))
        recorder.step = "kept"
        await engine.generate("kept", PROMPT, Sampling(max_new_tokens=2, top_tokens=3, top_k=4))
        recorder.step = "score"
        await engine.score(PROMPT, 2)
        recorder.step = "abort"
        running = await begun(engine, "abort", Sampling(max_new_tokens=300))
        await engine.abort("abort")
        await running
        recorder.step = "metrics"
        await engine.dialect.load(server.client)
        recorder.step = ""
    finally:
        await engine.close()
    return recorder.answers


async def record_adapters(engine: ServerEngine, recorder: Recorder, adapters: Weights) -> Answers:
    """Starts an engine with `lora`, loads two versions of adapters, and closes it; returns the answers."""
    try:
        await engine.start()
        recorder.step = "first adapters"
        await engine.load(adapters(0))
        recorder.step = "second adapters"
        await engine.load(adapters(1))
        recorder.step = ""
    finally:
        await engine.close()
    return recorder.answers


def file_name(kind: str, route: str) -> str:
    """Returns the name of the file with the answers of a route."""
    return f"{kind}_{route.partition(' ')[2].strip('/').replace('/', '_')}.json"


def shape(answer: Any) -> Any:
    """Returns the shape of an answer: keys and types. Keys that are names of tensors or adapters are not compared."""
    if isinstance(answer, Mapping):
        is_open = all(key.isdigit() or "." in key or "-" in key for key in answer)
        return {"*" if is_open else key: shape(value) for key, value in sorted(answer.items())}
    if isinstance(answer, list):
        shapes = [shape(item) for item in answer]
        return [candidate for index, candidate in enumerate(shapes) if candidate not in shapes[:index]]
    if isinstance(answer, bool) or answer is None:
        return type(answer).__name__
    return "number" if isinstance(answer, int | float) else type(answer).__name__
