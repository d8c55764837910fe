"""Throughput and pauses of engine servers on this machine.

    python -m benchmarks.engine_servers sglang --json figures.json
    python -m benchmarks.engine_servers vllm --updates 200

Needs an installed environment (`astraflow engines install`). Measures, for one server:

- tokens per second of a node's path (`TaskPolicy` over the engine) and of bare HTTP requests with the same prompts and
  lengths, whose answers are not parsed, 64 in flight, alternating; the medians and their ratio.
- the pause of weight updates with 16 requests in flight (`--requests`), one update about every second: a whole reload,
  and patches of 0.1 % and 1 % of the elements where the engine supports them; by phase. The first phase is the wait for
  the step in flight, whose tokens count; the swap, without tokens, is the others. The model has 165 MB: 83 million
  parameters in bfloat16, or 41 million with `--dtype float32`. A CPU without instructions for bfloat16 takes seconds
  for a step, and computes all requests in flight again after each update; there, float32 and short requests
  (`--prompt-tokens 8 --answer-tokens 24`) make 200 updates possible.
- the gap: differences of sampled tokens' logprobs to a float32 forward of transformers with the same weights, in nats.
- start time and memory of the server's processes.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import psutil
import torch
from transformers import PreTrainedModel

from astraflow.client.model_server import ServerClient
from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.contract.weights import Dtype
from astraflow.models import build_tokenizer, models
from astraflow.models.causal import named_weights
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import LoadTimings
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.served_policies import ServedPolicy, TaskPolicy
from astraflow.runtime.logs import configure
from astraflow.runtime.service import prepare_for_large_messages
from astraflow.weights.tensors import VerifiedWeights, build_layout, tensor_bits
from tests import make, make_torch

SMALL = {"kind": "tiny", "hidden_size": 128, "layers": 4, "heads": 4, "key_value_heads": 2, "intermediate_size": 384}
LARGE = {"kind": "tiny", "hidden_size": 768, "layers": 12, "heads": 12, "key_value_heads": 4, "intermediate_size": 2304}
HALF = {**LARGE, "layers": 6}
"""As many bytes in float32 as the large model in bfloat16."""
EIGHT_BILLION = {
    "kind": "tiny",
    "hidden_size": 4096,
    "layers": 36,
    "heads": 32,
    "key_value_heads": 8,
    "intermediate_size": 12_288,
}
"""7 billion parameters with the small vocabulary of our tokenizer: layers as in Qwen3-8B. For a GPU."""
MODELS = {"small": (SMALL, LARGE), "8b": (EIGHT_BILLION, EIGHT_BILLION)}
"""Models of the measurements of throughput and of pauses."""
IN_FLIGHT = 64
NEW_TOKENS = 64
PROMPT_TOKENS = 25
THROUGHPUT, RELOAD = "throughput", "reload"
SHARES = {RELOAD: 0.01, "patch-0.1": 0.001, "patch-1": 0.01}
"""Share of the elements that an update changes, by its kind."""
PARTS = (THROUGHPUT, *SHARES)
GAP_REQUESTS = 8


def main() -> None:
    """Runs the measurements and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("sglang", "vllm"))
    parser.add_argument("--rounds", type=int, default=5, help="alternations of the throughput measurement")
    parser.add_argument("--updates", type=int, default=200, help="weight updates of each kind")
    parser.add_argument("--interval-s", type=float, default=0.7, help="seconds between two updates")
    parser.add_argument("--requests", type=int, default=16, help="requests in flight during updates")
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="of each request during updates")
    parser.add_argument("--answer-tokens", type=int, default=200, help="of each request during updates")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="weights during updates")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="measurements to run")
    parser.add_argument("--model", choices=MODELS, default="small", help="8b: in bfloat16, and without the gap")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    configure(level="ERROR")
    prepare_for_large_messages()  # as a node: a collection of all objects takes 0.1 s, and would be part of a swap
    torch.set_num_threads(1)
    figures = asyncio.run(measure(arguments))
    figures["machine"] = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one engine."""
    kind, parts = arguments.engine, arguments.parts
    figures: dict[str, Any] = {"engine": kind}
    if THROUGHPUT in parts:
        figures |= await _throughput(kind, MODELS[arguments.model][0], arguments.rounds)
    if shares := {name: share for name, share in SHARES.items() if name in parts}:
        dtype = Dtype[arguments.dtype.upper()]
        model = HALF if dtype is Dtype.FLOAT32 and arguments.model == "small" else MODELS[arguments.model][1]
        load = RequestLoad(
            requests=arguments.requests,
            prompt_tokens=arguments.prompt_tokens,
            sampling=Sampling(max_new_tokens=arguments.answer_tokens),
        )
        figures["pauses"] = await _pauses(
            kind, model, dtype, shares, load, updates=arguments.updates, interval_s=arguments.interval_s
        )
    return figures


@asynccontextmanager
async def serving(kind: str, model: dict[str, Any], **options: Any) -> AsyncIterator[tuple[ServerEngine, float]]:
    """Starts an engine; yields it with its start time in seconds."""
    engine = engines.build({"kind": kind, "context_tokens": 512, **options}, model)
    assert isinstance(engine, ServerEngine)
    began_at = time.perf_counter()
    try:
        await engine.start()
        yield engine, time.perf_counter() - began_at
    finally:
        await engine.close()


async def _throughput(kind: str, model: dict[str, Any], rounds: int) -> dict[str, Any]:
    dtype = Dtype.FLOAT32 if model is SMALL else Dtype.BFLOAT16
    async with serving(kind, model, dtype=dtype.name.lower()) as (engine, start_s):
        first = random_version(model, dtype)
        await engine.load(first)
        policy = TaskPolicy(
            ServedPolicy(PolicyId("solver"), engine, build_tokenizer(model)),
            make.task(),
            RolloutRecorder(()),
            NodeCounters(),
        )
        policy._served.version = Version(0)
        sampling = Sampling(max_new_tokens=NEW_TOKENS)
        await asyncio.gather(*(policy.generate(prompt, sampling) for prompt in prompts(IN_FLIGHT, seed=0)))
        node, bare = [], []
        for number in range(1, rounds + 1):
            batch = prompts(2 * IN_FLIGHT, seed=number)
            node.append(await _rate(policy.generate(prompt, sampling) for prompt in batch))
            bare.append(await _rate(_bare(engine, number, index, prompt) for index, prompt in enumerate(batch)))
        memory = _memory_gib(engine)
        gap = await _gap(engine, model, first)
    return {
        "start_s": round(start_s, 1),
        "rss_gib": memory,
        "gap": gap,
        "node_tokens_per_s": round(statistics.median(node)),
        "bare_tokens_per_s": round(statistics.median(bare)),
        "ratio": round(statistics.median(a / b for a, b in zip(node, bare, strict=True)), 3),
        "ratios": [round(a / b, 3) for a, b in zip(node, bare, strict=True)],
    }


async def _rate(requests: Iterator[Any]) -> float:
    """Returns tokens per second with `IN_FLIGHT` requests at once."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def limited(request: Any) -> None:
        async with slots:
            await request

    pending = [limited(request) for request in requests]
    began_at = time.perf_counter()
    await asyncio.gather(*pending)
    return len(pending) * NEW_TOKENS / (time.perf_counter() - began_at)


async def _bare(engine: ServerEngine, number: int, index: int, prompt: Int32Array) -> None:
    """Sends the request that the engine would send, and reads the bytes of the answer."""
    sampling = Sampling(max_new_tokens=NEW_TOKENS)
    client = cast("ServerClient", _BareClient(engine.servers[0].client))
    with suppress(CorruptData):  # the dialect got no answer to parse
        await engine.dialect.generate(client, [f"bare-{number}-{index}"], prompt, sampling)


class _BareClient:
    """Client of a server that does not parse answers."""

    adapter = ""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def post(self, path: str, body: Mapping[str, Any], *, limit_s: float | None) -> None:
        """Sends a request and reads the answer."""
        payload = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        assert await self._client._send("POST", path, payload, {}, limit_s)


def prompts(count: int, *, seed: int, tokens: int = PROMPT_TOKENS) -> list[Int32Array]:
    """Returns random prompts."""
    random = np.random.default_rng(seed)
    return [random.integers(4, 100, tokens).astype(np.int32) for _ in range(count)]


async def _pauses(
    kind: str,
    model: dict[str, Any],
    dtype: Dtype,
    shares: Mapping[str, float],
    load: "RequestLoad",
    *,
    updates: int,
    interval_s: float,
) -> dict[str, Any]:
    figures: dict[str, Any] = {"dtype": dtype.name.lower()}
    async with serving(kind, model, dtype=dtype.name.lower()) as (engine, _):
        versions = Versions(random_version(model, dtype))
        await engine.load(versions.latest)
        figures["megabytes"] = round(versions.latest.manifest.size_bytes / 1e6)
        figures["gap_before"] = await _gap(engine, model, versions.latest)
        async with load.on(engine):
            for name, share in shares.items():
                if name != RELOAD and not engine._can_patch:
                    continue
                timings = []
                for _ in range(updates):
                    weights = await asyncio.to_thread(versions.next, share, as_patch=name != RELOAD)
                    await asyncio.sleep(interval_s)  # back to back, each would wait for the prefill after the last
                    timings.append(await engine.load(weights))
                figures[name] = summary(timings)
                sys.stderr.write(f"{name}: {json.dumps(figures[name])}\n")  # the whole takes many minutes
        figures["gap_after"] = await _gap(engine, model, versions.latest)
        figures["rss_gib"] = _memory_gib(engine)
    return figures


async def _gap(engine: ServerEngine, model: dict[str, Any], weights: VerifiedWeights) -> dict[str, float]:
    """Returns mean, 99th percentile and maximum of the differences to a float32 forward, in nats; nothing for a model
    that is too large for one on a CPU."""
    if model is EIGHT_BILLION:
        return {}
    source = trained(model, weights)
    differences = []
    for index, prompt in enumerate(prompts(GAP_REQUESTS, seed=0)):
        generation = await engine.generate(f"gap-{index}", prompt, Sampling(max_new_tokens=NEW_TOKENS))
        tokens = np.concatenate([prompt, generation.tokens])
        expected = await asyncio.to_thread(make_torch.logprobs, source, tokens, len(prompt))
        differences.append(np.abs(generation.logprobs - expected))
    all_differences = np.concatenate(differences)
    mean, p99, largest = all_differences.mean(), np.quantile(all_differences, 0.99), all_differences.max()
    return {
        "tokens": len(all_differences),
        "mean": float(f"{mean:.2g}"),
        "p99": float(f"{p99:.2g}"),
        "max": float(f"{largest:.2g}"),
    }


def trained(model: dict[str, Any], weights: VerifiedWeights) -> PreTrainedModel:
    """Returns a model of transformers in float32 with the values of a version."""
    source = models.build(model).architecture()
    source.float()
    parameters = named_weights(source)
    with torch.no_grad():
        for spec in weights.manifest.tensors:
            bits = torch.from_numpy(tensor_bits(spec, weights.buffer).copy())
            values = bits.view(torch.float32 if spec.dtype is Dtype.FLOAT32 else torch.bfloat16)
            parameters[spec.name].copy_(values.view(spec.shape))
    return source


def _memory_gib(engine: ServerEngine) -> float:
    processes = [psutil.Process(pid) for pid in engine.servers[0].pids]
    return round(sum(process.memory_info().rss for process in processes if process.is_running()) / 2**30, 2)


def summary(timings: list[LoadTimings]) -> dict[str, float]:
    """Returns medians of the phases and quantiles of the pause, in milliseconds."""

    def median(phase: str) -> float:
        seconds: list[float] = [getattr(timing, phase) for timing in timings]
        return round(1000 * statistics.median(seconds), 1)

    def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
        ordered = sorted(1000 * value for value in seconds)
        ranks = {"median": 0.5, "p95": 0.95, "max": 1.0}
        return {f"{name}_{rank}": round(ordered[int(q * (len(ordered) - 1))], 1) for rank, q in ranks.items()}

    return {
        "updates": len(timings),
        **{phase: median(phase) for phase in ("stage_s", "pause_s", "apply_s", "resume_s")},
        **quantiles("stopped", [timing.stopped_s for timing in timings]),
        **quantiles("swap", [timing.apply_s + timing.resume_s for timing in timings]),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """Requests in flight: each one that is complete is followed by another."""

    requests: int
    prompt_tokens: int
    sampling: Sampling

    @asynccontextmanager
    async def on(self, engine: ServerEngine) -> AsyncIterator[None]:
        """Keeps the requests in flight while the block runs."""
        numbers = itertools.count()

        async def go_on() -> None:
            while True:
                (prompt,) = prompts(1, seed=next(numbers), tokens=self.prompt_tokens)
                await engine.generate(f"load-{next(numbers)}", prompt, self.sampling)

        tasks = [asyncio.create_task(go_on()) for _ in range(self.requests)]
        try:
            yield
            assert not [task for task in tasks if task.done()], "no request failed"
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait(tasks)


def random_version(model: dict[str, Any], dtype: Dtype) -> VerifiedWeights:
    """Returns version 0 of a model with random weights."""
    return make_torch.published(models.build(model).architecture(), 0, dtype=dtype)


class Versions:
    """Versions that differ from the one before in the lowest bit of a random share of the elements."""

    def __init__(self, first: VerifiedWeights) -> None:
        self.latest = first
        self._random = np.random.default_rng(0)

    def next(self, share: float, *, as_patch: bool) -> VerifiedWeights:
        """Returns the next version, with its changes if `as_patch`."""
        buffer, changes, tensors = self.latest.buffer.copy(), {}, {}
        for spec in self.latest.manifest.tensors:
            bits = tensor_bits(spec, buffer)
            count = max(1, round(share * bits.size))
            positions = np.unique(self._random.integers(0, bits.size, count))
            bits[positions] ^= 1
            changes[spec.name] = positions
            tensors[spec.name] = (spec.dtype, spec.shape, bits)
        version = Version(self.latest.manifest.version + 1)
        manifest, buffer = build_layout(tensors, policy=self.latest.manifest.policy, version=version)
        base = self.latest.manifest.version
        self.latest = VerifiedWeights(
            manifest=manifest, buffer=buffer, base=base if as_patch else None, changes=changes if as_patch else None
        )
        return self.latest


if __name__ == "__main__":
    main()
