"""Held-out boards of the recipe `maintainer/tiny`: what the baseline and the best tactic in hindsight get.

    python -m benchmarks.maintainer_training [--seeds 3] [--size 64]

The rule alone has 0 on every board by definition. The trained policy's rewards are those of the run's evaluations.
"""

import argparse
import asyncio
import logging
import sys
from statistics import fmean

import structlog

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER
from maintainer.agent.llm.heuristic_baseline import RUN_TACTICS, TACTICS
from maintainer.training.boards import Boards, MaintainerOptions
from maintainer.training.environment import MaintainerFactory
from maintainer.training.environment import MaintainerOptions as EnvironmentOptions


async def reward(factory: MaintainerFactory, board: Prompt, tactic: str) -> float:
    """Returns the reward of one tactic."""
    environment = factory.make()
    await environment.begin(board, 0)
    return (await environment.act(tactic)).reward


async def rewards(seed: int, size: int) -> list[tuple[str, float, float]]:
    """Returns for each board its group, and the rewards of the baseline and of the best tactic."""
    factory = MaintainerFactory(EnvironmentOptions())
    boards = Boards(MaintainerOptions(size=size, is_held_out=True, fleet_share=0.1), seed)
    rows = []
    for board in map(boards.prompt, range(size)):
        baseline = await reward(factory, board, str(board.fields[ANSWER]))
        tactics = [name for name in TACTICS if (name in RUN_TACTICS) != bool(board.fields["case"])]
        best = baseline if baseline > 0.99 else max([await reward(factory, board, tactic) for tactic in tactics])
        rows.append((str(board.fields["case"]) or "learning", baseline, best))
    return rows


def main() -> None:
    """Prints means by seed and group."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=64)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for seed in range(arguments.seeds):
        rows = asyncio.run(rewards(seed, arguments.size))
        for group in ("learning", "slow-link", "quota-gone", ""):
            chosen = [row for row in rows if group in (row[0], "")]
            if chosen:
                baseline, best = fmean(row[1] for row in chosen), fmean(row[2] for row in chosen)
                figures = f"{len(chosen)} boards, baseline {baseline:.3f}, best {best:.3f}"
                sys.stdout.write(f"seed {seed}, {group or 'all'}: {figures}\n")


if __name__ == "__main__":
    main()
