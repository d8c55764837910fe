"""Savings of partial rollouts: tokens discarded when a node leaves in the middle of long-tailed answers.

    python -m benchmarks.partial_rollouts [--episodes 128] [--mean 800] [--seeds 3]

Two nodes, one after the other: the first is drained when an answer of mean length would have ended, the second runs
the rest. Restarted answers are sampled again, so the long answers, which are the interrupted ones, become rare: the
mean length shows it. Task loop, recording and wire are the real ones; dataflow is simulated and, for comparison, can
discard the partial rollouts; the engine is the scripted one, in real time, with long-tailed lengths.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, replace

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.raas.engines.scripted import ScriptedEngine, ScriptedEngineOptions
from astraflow.runtime.logs import configure
from tests import make
from tests.fakes.dataflow import FakeDataflow, flow
from tests.raas.parts import working

TOKENS_PER_S = 1000.0
LONGEST = 20
"""Longest answer, in means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run."""

    name: str
    trained: int
    """Tokens in the resulting episodes."""
    mean_length: float
    """Mean length of an answer, where `--mean` was requested."""
    discarded_tokens: int
    """Generated tokens that are not in the episodes."""
    rest_s: float
    """Seconds from the end of the first node to the last episode."""

    @property
    def share(self) -> float:
        """Returns the share of generated tokens that were discarded."""
        return self.discarded_tokens / (self.trained + self.discarded_tokens)


async def measure(*, episodes: int, mean: int, seed: int, is_kept: bool) -> Outcome:
    """Measures a run; without `is_kept`, partial rollouts are discarded."""
    dataflow = FakeDataflow(flows=(flow(workflow={"kind": "single_turn", "max_new_tokens": LONGEST * mean}),))
    prompt = Prompt(id=PromptId("scripted:0"), fields={"question": "say right", "answer": "right"})
    dataflow.add(make.task(group=group, prompt_given=prompt) for group in range(episodes))
    async with working(dataflow, await _engine(mean, seed), slots=episodes) as first:
        await asyncio.sleep(mean / TOKENS_PER_S)
        first.loop.stop_leasing()
        await first.loop.hand_back()
        await first.loop.wait_until_idle()
    if not is_kept:
        dataflow.queue.extend(replace(dataflow.queue.popleft(), resume_from=()) for _ in range(len(dataflow.queue)))
    began = time.monotonic()
    async with working(dataflow, await _engine(mean, seed + 1000), slots=episodes) as second:
        await dataflow.until(lambda: len(dataflow.episodes) == episodes)
        rest_s = time.monotonic() - began
    trained = sum(
        trajectory.model_tokens for episode in dataflow.episodes.values() for trajectory in episode.trajectories
    )
    written = sum(int(node.counters.counters()["tokens_generated"]) for node in (first, second))
    name = "handed back" if is_kept else "begun anew"
    return Outcome(
        name=name, trained=trained, mean_length=trained / episodes, discarded_tokens=written - trained, rest_s=rest_s
    )


async def _engine(mean: int, seed: int) -> ScriptedEngine:
    options = {
        "first_token_s": {"kind": "constant", "mean": 0.01},
        "tokens": {"kind": "lognormal", "mean": mean, "spread": 1.0},
        "tokens_per_s": TOKENS_PER_S,
        "swap_s": 0,
        "accuracy_start": 1.0,
        "accuracy_ceiling": 1.0,
        "seed": seed,
    }
    engine = ScriptedEngine(ScriptedEngineOptions.parse(options, where="engine"), {"kind": "scripted"})
    await engine.load(make.verified_weights(version=0))
    return engine


def main() -> None:
    """Prints one line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--mean", type=int, default=800, help="tokens of an answer")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    configure(level="ERROR")
    sys.stdout.write("seed  unfinished work  trained  mean length  thrown away  share   rest\n")
    for seed in range(chosen.seeds):
        for is_kept in (False, True):
            measurement = asyncio.run(measure(episodes=chosen.episodes, mean=chosen.mean, seed=seed, is_kept=is_kept))
            sys.stdout.write(
                f"{seed:4d}  {measurement.name:15s}  {measurement.trained:7d}  {measurement.mean_length:11.0f}  "
                f"{measurement.discarded_tokens:11d}  {measurement.share:5.1%}  {measurement.rest_s:4.1f} s\n"
            )


if __name__ == "__main__":
    main()
