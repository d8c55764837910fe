"""Conversations over the servers of one node: turns where their prefix is, against the server with the fewest requests.

    python -m benchmarks.server_conversations sglang [--servers 2] [--episodes 12] [--turns 8] [--cache-gib 0.5]

Needs an installed environment (`astraflow engines install`). All episodes run at once, those of a group with the same
first prompt. Each turn is the whole conversation so far and 80 new tokens, and 4 to 12 tokens are generated, such as a
call of a tool, which takes some time before the next turn (exponential). Before each run a load empties the caches.
Alternating; prompt tokens that the servers computed, by their own metrics, times of a turn, and the requests that left
their prefix.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines import engines
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.prefix_affinity import PrefixAffinity, ServerState
from tests import make_torch

USER, ANSWER = 80, (4, 13)
"""Tokens before each further turn, and the range of those of an answer."""
MODEL = {
    **make_torch.TINY,
    "hidden_size": 256,
    "heads": 4,
    "key_value_heads": 2,
    "intermediate_size": 768,
    "layers": 6,
    "max_context_tokens": 4096,
}
"""Its prompts of 1,500 tokens take most of a second to compute on a core, as those of useful models do on a GPU."""


class FewestRequests(PrefixAffinity):
    """Choice by the load alone."""

    def choose(self, prompt: Int32Array, servers: Sequence[ServerState]) -> int:
        """Returns the server with the fewest requests."""
        return min(servers, key=lambda server: server.in_flight).number


CHOICES = {"fewest requests": FewestRequests, "prefix": PrefixAffinity}


async def converse(engine: ServerEngine, run: str, arguments: argparse.Namespace) -> list[float]:
    """Runs all episodes at once; returns the seconds of each turn."""
    turns_s: list[float] = []

    async def episode(number: int) -> None:
        draws, shared = np.random.default_rng(number), np.random.default_rng(10_000 + number // arguments.group)
        text = shared.integers(5, 100, arguments.prompt_tokens).astype(np.int32)
        for turn in range(arguments.turns):
            await asyncio.sleep(draws.exponential(arguments.tool_s))
            sampling = Sampling(max_new_tokens=int(draws.integers(*ANSWER)))
            began_at = time.perf_counter()
            answer = await engine.generate(f"{run}/{number}/{turn}", text, sampling)
            turns_s.append(time.perf_counter() - began_at)
            text = np.concatenate([text, answer.tokens, draws.integers(5, 100, USER).astype(np.int32)])

    await asyncio.gather(*(episode(number) for number in range(arguments.episodes)))
    return turns_s


async def computed(engine: ServerEngine) -> tuple[float, float]:
    """Returns the prompt tokens so far, and those that the servers computed."""
    gauges = [(await engine.dialect.load(server.client)).gauges for server in engine.servers]
    prompts = sum(load.prompt_tokens for load in gauges)
    return prompts, prompts - sum(load.cached_tokens for load in gauges)


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of each choice."""
    options = {"servers": arguments.servers, "cache_gib": arguments.cache_gib, "probe_every_s": 600, "stall_s": 600}
    engine = engines.build({"kind": arguments.kind, **options, "context_tokens": 4096}, MODEL)
    assert isinstance(engine, ServerEngine)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CHOICES}
    try:
        for repeat in range(arguments.repeats):
            for number, (name, choice) in enumerate(CHOICES.items()):
                await engine.load(make_torch.published(make_torch.model(0, MODEL), 2 * repeat + number))
                affinity = engine._router.affinity = choice()
                prompts, missed = await computed(engine)
                began_at = time.perf_counter()
                turns_s = await converse(engine, f"{repeat}/{name}", arguments)
                elapsed_s = time.perf_counter() - began_at
                prompts_now, missed_now = await computed(engine)
                quantiles = statistics.quantiles(turns_s, n=20)
                runs[name].append(
                    {
                        "prompt_tokens": prompts_now - prompts,
                        "computed_tokens": missed_now - missed,
                        "p50_s": quantiles[9],
                        "p95_s": quantiles[18],
                        "seconds": elapsed_s,
                        "moves": affinity.moves,
                        "lost_tokens": affinity.lost_tokens,
                    }
                )
                sys.stdout.write(f"{name:16} {json.dumps(runs[name][-1])}\n")
                sys.stdout.flush()
    finally:
        await engine.close()
    return runs


def main() -> None:
    """Prints the figures of each run, and the ratios of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("sglang", "vllm"))
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--group", type=int, default=1, help="episodes with the same first prompt")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--tool-s", type=float, default=1.0, help="mean time of a tool before a turn")
    parser.add_argument("--cache-gib", type=float, default=0.5, help="cache of each server")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs = asyncio.run(measure(arguments))
    for figure in ("computed_tokens", "p50_s", "p95_s", "seconds"):
        before, after = (statistics.median(run[figure] for run in runs[name]) for name in CHOICES)
        sys.stdout.write(f"{figure:16} {before:10.4g} -> {after:10.4g}  ratio {after / before:.3f}\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"arguments": vars(arguments), "runs": runs}, indent=1, default=str))


if __name__ == "__main__":
    main()
