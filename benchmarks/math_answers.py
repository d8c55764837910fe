"""Throughput of the reward `math_answer`, and the cost of hostile expressions.

    python -m benchmarks.math_answers [--workers N] [--rounds N]

Scores the labelled pairs of its tests, in the mixture in which they were written: most need more than a comparison of
texts. A few other expressions come first. In each round the texts differ, so that no result is remembered. Then each
hostile expression alone.
"""

import argparse
import asyncio
import sys
import time

import psutil

from astraflow.contract.rollouts.generation import Finish
from astraflow.rewards.math_answer import MathAnswer, MathAnswerOptions
from tests.rewards.test_math_answer import HOSTILE, PAIRS, completion_of, prompt

WARM_UP = ("x^2=9", "\\{7,y\\}", "[0,\\sqrt{5}]", "\\begin{pmatrix}7\\\\y\\end{pmatrix}", "\\tan^2 y", "y<7")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    asyncio.run(measure(workers=arguments.workers, rounds=arguments.rounds))


async def measure(*, workers: int, rounds: int) -> None:
    """Prints answers per second and seconds per hostile expression."""
    reward = MathAnswer(MathAnswerOptions(workers=workers, requires_box=False))
    began = time.perf_counter()
    await reward.start()
    sys.stdout.write(f"start of {workers} workers {time.perf_counter() - began:.2f} s\n")
    try:
        await asyncio.gather(
            *(
                reward.score(prompt(gold), f"\\boxed{{{answer}}}", Finish.STOP)
                for gold in WARM_UP
                for answer in WARM_UP
                if gold != answer
            )
        )
        for ordinal in range(rounds):
            # Spaces make the texts of every round new to the reward's memory and to the library's caches.
            golds = [pair["gold"] + " " * ordinal for pair in PAIRS]
            began, began_cpu_s = time.perf_counter(), cpu_s(reward)
            scores = await asyncio.gather(
                *(
                    reward.score(prompt(gold), completion_of(pair), Finish.STOP)
                    for gold, pair in zip(golds, PAIRS, strict=True)
                )
            )
            wall_s, used_s = time.perf_counter() - began, cpu_s(reward) - began_cpu_s
            wrong = sum(score.value != pair["is_correct"] for score, pair in zip(scores, PAIRS, strict=True))
            sys.stdout.write(
                f"round {ordinal}: {len(PAIRS) / wall_s:7.1f} answers/s, {used_s / len(PAIRS) * 1e3:.1f} ms of CPU, "
                f"{wrong} of {len(PAIRS)} wrong\n"
            )
        for hostile in HOSTILE:
            began = time.perf_counter()
            score = await reward.score(prompt("7"), f"\\boxed{{{hostile}}}", Finish.STOP)
            cost_s = time.perf_counter() - began
            began = time.perf_counter()
            await reward.score(prompt("x+3"), f"\\boxed{{3+x+{began}-{began}}}", Finish.STOP)
            next_s = time.perf_counter() - began
            sys.stdout.write(f"{hostile[:40]:42} reward {score.value:.0f} {cost_s:5.2f} s, the next {next_s:5.2f} s\n")
    finally:
        await reward.close()


def cpu_s(reward: MathAnswer) -> float:
    """Returns the processor time of this process and of the workers. Seconds."""
    times = [psutil.Process(process_id).cpu_times() for process_id in reward.pool.process_ids]
    return time.process_time() + sum(used.user + used.system for used in times)


if __name__ == "__main__":
    main()
