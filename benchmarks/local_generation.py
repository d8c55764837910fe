"""Tokens per second of the batchers of `local_torch`, and of transformers' own `generate`, on tiny models.

    OMP_NUM_THREADS=1 python -m benchmarks.local_generation [--repeats 5]

Each repeat runs every way one after another, so that load by others falls on all of them; a row has the medians.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models import models
from astraflow.raas.engines.local.batcher import Batcher, BatchLimits
from astraflow.raas.engines.local.lockstep import LockstepBatcher
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.slots import SlotBatcher
from astraflow.runtime.service import prepare_for_large_messages

NEW_TOKENS = 64
LIMITS = BatchLimits(sequences=256, cache_tokens=2**20, prefill_tokens=2**14, prefix_bytes=0)
WAYS: tuple[type[Batcher], ...] = (SlotBatcher, LockstepBatcher)
SIZES = {"hidden_size": 256, "layers": 4, "intermediate_size": 768, "heads": 4, "key_value_heads": 2}


def main() -> None:
    """Prints a row for each family and each kind of prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--families", nargs="*", default=["qwen3", "qwen35", "falcon_h1"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare_for_large_messages()  # as a node: pages of recurrent states would be mapped anew in each step
    _write("family", "prompts", *(f"{way.way}, tokens/s" for way in WAYS), "generate, tokens/s")
    _write(*["---"] * (len(WAYS) + 3))
    for family in arguments.families:
        model = models.build({"kind": "tiny", "family": family, **SIZES}).architecture().eval()
        for name, prompts in _prompts().items():
            speeds = _speeds(model, prompts, arguments.repeats)
            _write(family, name, *(f"{speed:,.0f}" for speed in speeds))


def _write(*cells: str) -> None:
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def _prompts() -> Mapping[str, list[Int32Array]]:
    draws = np.random.default_rng(0)
    lengths = [int(length) for length in draws.integers(16, 128, size=64)]
    return {
        "8 groups of 8, one length": [_text(draws, 64) for _ in range(8)] * 8,
        "8 groups of 8, eight lengths": [_text(draws, 32 + 8 * number) for number in range(8)] * 8,
        "64 of different lengths": [_text(draws, length) for length in lengths],
    }


def _text(draws: np.random.Generator, length: int) -> Int32Array:
    return draws.integers(4, 90, size=length).astype(np.int32)


def _speeds(model: PreTrainedModel, prompts: list[Int32Array], repeats: int) -> list[float]:
    runs: list[Callable[[], None]] = [partial(_run, kind, model, prompts) for kind in WAYS]
    runs.append(partial(_generate, model, prompts))
    _run(SlotBatcher, model, prompts[:2])  # imports kernels
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, times in zip(runs, seconds, strict=True):
            began_s = time.process_time()
            run()
            times.append(time.process_time() - began_s)
    return [len(prompts) * NEW_TOKENS / statistics.median(times) for times in seconds]


@torch.inference_mode()
def _run(kind: type[Batcher], model: PreTrainedModel, prompts: list[Int32Array]) -> None:
    batcher = kind(model, LIMITS)
    loop = asyncio.new_event_loop()
    sampling = Sampling(max_new_tokens=NEW_TOKENS)
    waiting = deque(
        Sequence(request_id="", prompt=prompt, sampling=sampling, random_key=number, reply=loop.create_future())
        for number, prompt in enumerate(prompts)
    )
    loop.close()
    while waiting or batcher.running:
        for _ in batcher.admit(waiting):
            pass
        batcher.step()


def _generate(model: Any, prompts: list[Int32Array]) -> None:
    """Samples with transformers: prompts are padded at the left."""
    width = max(map(len, prompts))
    ids, mask = torch.zeros(len(prompts), width, dtype=torch.int64), torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, width - len(prompt) :] = 1
    count = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
    model.generate(input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, **count)


if __name__ == "__main__":
    main()
