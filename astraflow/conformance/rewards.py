"""Conformance of any reward with its interface: finite, repeatable, concurrent, unharmed by hostile completions."""

import asyncio
import time
from collections.abc import Sequence

from astraflow.conformance.promises import result_from
from astraflow.contract.plugins import CheckResult
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards.base import Reward, Score, score_completion
from astraflow.runtime.plugins import plugin_cause

REPEATS = "gives a finite score, and the same one again"
CONCURRENT = "gives the same scores to calls that run at the same time"
SURVIVES = "scores a hostile completion in time"

CONCURRENT_CALLS = 32
"""Calls that run at the same time. Count."""

MAX_PROBLEMS = 2
"""Problems that a result names. Count."""

LONG_CHARS = 10_000_000
"""Length of the longest completion. Characters."""

LONG_LIMIT_S = 30.0
"""Longest time for one hostile completion, on a busy machine. Seconds."""

BLOCKED_LIMIT_S = 5.0
"""Longest time for which one call may stop the event loop, on a busy machine. Seconds."""

HOSTILE = {
    "empty": "",
    "null character": "\0",
    "lone surrogate": "\ud800",
    "right to left": "\u202e42",
    "long digits": "9" * 100_000,
    "nested braces": "\\boxed" + "{" * 5_000 + "}" * 5_000,
    "nested brackets": "(" * 5_000 + "1" + ")" * 5_000,
    "open tags": "<answer>" * 5_000,
    "placeholders": "{question} {completion} {0} %s %(x)s",
    "code": "__import__('os').abort()",
    "long text": "the answer is 42 " * (LONG_CHARS // 17),
    "long line": "a" * LONG_CHARS,
    "many boxes": "\\boxed{4} " * (LONG_CHARS // 10),
}
"""Completions that a policy may write, by name."""


async def check_reward(
    reward: Reward, prompt: Prompt, completions: Sequence[str], *, tokens: int | None = 16
) -> list[CheckResult]:
    """Returns a result for each promise.

    The reward is started, if it is managed. prompt: one that it can score. completions: at least two that it can score.
    tokens: the length that is given to rewards that depend on it.
    """
    check = _Check(reward, prompt, tokens)
    for completion in completions:
        await check.repeatable(completion)
    results = [check.result(REPEATS)]
    await check.concurrent(completions)
    results.append(check.result(CONCURRENT))
    for name, completion in HOSTILE.items():
        await check.hostile(name, completion)
        results.append(check.result(f"{SURVIVES}: {name}"))
    return results


class _Check:
    """Collects the problems of one reward."""

    def __init__(self, reward: Reward, prompt: Prompt, tokens: int | None) -> None:
        self._reward = reward
        self._prompt = prompt
        self._tokens = tokens
        self.problems: list[str] = []
        """Problems since the last result."""

    def result(self, promise: str) -> CheckResult:
        """Returns the result of the checks since the last one."""
        problems, self.problems = self.problems, []
        return result_from(promise, problems, shown=MAX_PROBLEMS)

    async def repeatable(self, completion: str) -> None:
        """Scores a completion twice, for each reason of its end."""
        for finish in (Finish.STOP, Finish.LENGTH):
            first = await self._score(completion, finish, what=f"completion {completion[:40]!r}")
            second = await self._score(completion, finish, what=f"completion {completion[:40]!r}, again")
            if first is not None and second is not None and first != second:
                self.problems.append(f"completion {completion[:40]!r} is scored {first}, then {second}")

    async def concurrent(self, completions: Sequence[str]) -> None:
        """Scores completions at the same time, and compares with one after the other."""
        one_by_one = [await self._score(text, Finish.STOP, what="a completion") for text in completions]
        count = -(-CONCURRENT_CALLS // len(completions))
        calls = [self._score(text, Finish.STOP, what="a concurrent call") for _ in range(count) for text in completions]
        together = await asyncio.gather(*calls)
        if together != one_by_one * count:
            self.problems.append("concurrent calls return other scores than one call after the other")

    async def hostile(self, name: str, completion: str) -> None:
        """Scores a hostile completion, within the time limit and without stopping the event loop for long."""
        what = f"hostile completion {name!r}"
        watch = _LoopWatch()
        watching = asyncio.create_task(watch.run())
        try:
            async with asyncio.timeout(LONG_LIMIT_S):
                await self._score(completion, Finish.STOP, what=what)
        except TimeoutError:
            self.problems.append(f"{what} takes longer than {LONG_LIMIT_S:g} s")
        await asyncio.sleep(0)  # the watch sees the last stop
        watching.cancel()
        if watch.longest_stop_s > BLOCKED_LIMIT_S:
            self.problems.append(f"{what} stops the event loop for {watch.longest_stop_s:.1f} s")

    async def _score(self, completion: str, finish: Finish, *, what: str) -> Score | None:
        """Returns the score, None after an exception or a score that is not finite, which are problems."""
        try:
            score = await score_completion(self._reward, self._prompt, completion, finish, tokens=self._tokens)
        except Exception as problem:  # a third-party reward may raise anything
            self.problems.append(f"{what} raises {plugin_cause(problem)}"[:300])
            return None
        if not score.is_finite:
            self.problems.append(f"{what} has the score {score.value}, or a term, that is not finite")
            return None
        return score


class _LoopWatch:
    """Measures for how long the event loop runs nothing else."""

    def __init__(self) -> None:
        self.longest_stop_s = 0.0

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0)
            self.longest_stop_s = max(self.longest_stop_s, time.monotonic() - began)
            await asyncio.sleep(0.005)
