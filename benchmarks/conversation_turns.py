"""Conversations of several turns in the local engine: with the keys and values of earlier turns kept, and without.

    python -m benchmarks.conversation_turns [--model FOLDER] [--conversations N] [--turns N] [--repeats N]

Each turn is the whole conversation so far and 80 new tokens, and 8 tokens are generated. Alternating; medians and all
repeats. The model is a created one, or a Hugging Face folder.
"""

import argparse
import asyncio
import statistics
import sys
import time

import numpy as np

from astraflow.contract.rollouts.generation import Sampling
from astraflow.models import models
from astraflow.raas.engines import engines
from tests import make_torch

OPENING, REPLY, GENERATED = 150, 80, 8
"""Tokens of the first prompt, of the text before each further turn, and of each answer."""


async def seconds(model: dict[str, object], prefix_bytes: int, conversations: int, turns: int) -> float:
    """Runs the conversations at once in a new engine; returns the seconds from the first turn to the last."""
    engine = engines.build({"kind": "local_torch", "seed": 0, "prefix_bytes": prefix_bytes}, model)
    architecture = models.build(model).architecture()
    await engine.load(make_torch.published(architecture))
    vocabulary = architecture.config.get_text_config().vocab_size

    async def converse(number: int) -> None:
        draws = np.random.default_rng(number)
        text = draws.integers(0, vocabulary, OPENING).astype(np.int32)
        for turn in range(turns):
            answer = await engine.generate(f"{number}/{turn}", text, Sampling(max_new_tokens=GENERATED))
            text = np.concatenate([text, answer.tokens, draws.integers(0, vocabulary, REPLY).astype(np.int32)])

    began = time.perf_counter()
    await asyncio.gather(*(converse(number) for number in range(conversations)))
    elapsed = time.perf_counter() - began
    await engine.close()
    return elapsed


def main() -> None:
    """Prints a line for each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder; default: a created model")
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    model = (
        {"kind": "huggingface", "path": arguments.model}
        if arguments.model
        else {"kind": "tiny", "max_context_tokens": 1024}
    )
    forms = {"computed again": 0, "kept": 2**30}
    times_s: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(arguments.repeats):
        for name, prefix_bytes in forms.items():
            times_s[name].append(asyncio.run(seconds(model, prefix_bytes, arguments.conversations, arguments.turns)))
    turns = arguments.conversations * arguments.turns
    for name, values in times_s.items():
        median = statistics.median(values)
        repeats = ", ".join(f"{value:.2f}" for value in values)
        sys.stdout.write(f"{name:15} {turns / median:8.1f} turns/s {median:7.2f} s  ({repeats})\n")


if __name__ == "__main__":
    main()
