"""Training step of a hybrid (Qwen3.5) by the local engine as `tree` and as `rows`, and by a bare loop of padded rows.

    python -m benchmarks.trainer_step.hybrid [--repeats 5] [--threads 1] [--json FILE]

All train the same rows from the same weights with the same loss, alternately in one process; losses of the first two
steps agree to 1e-3. Prints medians and spread of the tokens per second of CPU time, and first what the decoder alone
allows: forward and backward passes over a prompt and its members, and over whole rows, without head, loss, optimizer.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from astraflow.contract.batches import Batch
from astraflow.models.causal import cast
from astraflow.models.output_head import decoder_of
from astraflow.models.state_cache import StateCache
from astraflow.trainer.engines.base import Batching
from benchmarks.trainer_step.__main__ import CLOCKS, LARGEST_LOSS_DIFFERENCE
from benchmarks.trainer_step.loops import BareLoop, LocalLoop, Loop, Setting
from benchmarks.trainer_step.rows import SMALL, SMALL_VOCABULARY, batch_of, lengths_lognormal

PROMPT, ANSWER, MEMBERS, GROUPS = 192, 64, 8, 8
BATCHES: dict[str, Callable[[], Batch]] = {
    "groups of 8, prompt 192, answer 64": lambda: batch_of([(PROMPT, [ANSWER] * MEMBERS)] * GROUPS, SMALL_VOCABULARY),
    "groups of 8, prompts 96 to 320, answers 16 to 112": lambda: batch_of(
        [(96 + 32 * group, [16 + (37 * member + 13 * group) % 97 for member in range(8)]) for group in range(8)],
        SMALL_VOCABULARY,
    ),
    "64 rows, lognormal lengths, no shared prompt": lambda: batch_of(
        [(16, [length]) for length in lengths_lognormal(64)], SMALL_VOCABULARY
    ),
}
GOALS = {next(iter(BATCHES)): 1.8}
"""Goals of `tree` against `rows`."""


@dataclass(frozen=True, kw_only=True)
class HybridSetting(Setting):
    """Qwen3.5 of the sizes in `shape`: three gated delta rules, and one layer with attention, of 32 channels a head."""

    def model(self) -> PreTrainedModel:
        """Returns the model with random weights."""
        kind: Any = CONFIG_MAPPING["qwen3_5_text"]
        heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 4}
        sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            kind(vocab_size=self.vocabulary, **self.shape, **heads, **sizes)
        )
        return cast(model, device=torch.device(self.device), dtype=self.dtype)


def loop_of(name: str) -> Loop:
    """Returns a loop: `bare`, or the local engine in a batching."""
    engine = {} if name == "bare" else {"batching": Batching(name)}
    setting = HybridSetting(vocabulary=SMALL_VOCABULARY, micro_batch_tokens=4096, shape=dict(SMALL), engine=engine)
    return BareLoop(setting) if name == "bare" else LocalLoop(setting)


def measure(batch: Batch, repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Returns tokens per second of the loops, by repeat."""
    tokens = sum(len(row.trajectory.tokens) for row in batch.rows)
    loops = {name: loop_of(name) for name in ("tree", "rows", "bare")}
    for _ in range(2):  # also warms up
        losses = [loop.step(batch) for loop in loops.values()]
        if max(losses) - min(losses) > LARGEST_LOSS_DIFFERENCE:
            raise SystemExit(f"the losses differ: {losses}")
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(repeats):
        for name, loop in loops.items():
            began = clock()
            loop.step(batch)
            speeds[name].append(tokens / (clock() - began))
    return speeds


def decoder_speeds(repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Returns the tokens per second of forward and backward passes of the decoder over the first batch."""
    model = HybridSetting(vocabulary=SMALL_VOCABULARY, micro_batch_tokens=4096, shape=dict(SMALL)).model()
    prompts = torch.randint(SMALL_VOCABULARY, (GROUPS, PROMPT))
    answers = torch.randint(SMALL_VOCABULARY, (GROUPS * MEMBERS, ANSWER))
    rows = torch.cat([prompts.repeat_interleave(MEMBERS, 0), answers], dim=1)

    def as_rows() -> None:
        for part in rows.split(4096 // rows.shape[1]):
            decoder_of(model)(input_ids=part, use_cache=False).last_hidden_state.sum().backward()

    def as_tree() -> None:
        states, cache = StateCache.empty(model).continued(model, prompts)
        further, _ = cache.repeated(MEMBERS).continued(model, answers)
        (states.sum() + further.sum()).backward()

    seconds: dict[str, list[float]] = {"tree": [], "rows": []}
    for _ in range(repeats + 1):
        for name, run in (("tree", as_tree), ("rows", as_rows)):
            began = clock()
            run()
            seconds[name].append(clock() - began)
    return {name: rows.numel() / statistics.median(times[1:]) for name, times in seconds.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    clock = CLOCKS[chosen.clock]
    floor = decoder_speeds(chosen.repeats, clock)
    sys.stdout.write(
        f"decoder alone: tree {floor['tree']:,.0f}, rows {floor['rows']:,.0f} tokens/s, "
        f"{floor['tree'] / floor['rows']:.2f}\n\n"
        "| rows | tree, tokens/s | rows | bare | tree / rows (lowest to highest) | rows / bare | goal |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    results: dict[str, Any] = {"decoder alone": floor}
    for name, build in BATCHES.items():
        speeds = results[name] = measure(build(), chosen.repeats, clock)
        gains = [tree / rows for tree, rows in zip(speeds["tree"], speeds["rows"], strict=True)]
        ratios = [rows / bare for rows, bare in zip(speeds["rows"], speeds["bare"], strict=True)]
        sys.stdout.write(
            f"| {name} | " + " | ".join(f"{statistics.median(own):,.0f}" for own in speeds.values()) + " | "
            f"{statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f}) | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {GOALS.get(name, '')} |\n"
        )
        sys.stdout.flush()
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
