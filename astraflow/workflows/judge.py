"""A flow's reward, as a workflow asks it: always awaited, and never a number when it has none."""

import inspect
import math
from dataclasses import replace
from hashlib import blake2b

from astraflow.contract.failures import Boundary
from astraflow.contract.generation import Finish
from astraflow.contract.tasks import Prompt
from astraflow.rewards.base import Reward, Score
from astraflow.runtime.tracing import span
from astraflow.workflows.errors import RolloutBroke

ANSWER_LETTERS = 200
"""A longer answer is kept as its hash: it is there to be compared with others, and travels with every trajectory."""


class Judge:
    """Asks one reward."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """The reward of a completion. Raises: RolloutBroke at the boundary `reward`; let it pass."""
        try:
            with span("rl.reward"):
                found = self._reward.score(prompt, completion, finish)
                score = _as_score(await found if inspect.isawaitable(found) else found)
        except Exception as problem:
            raise RolloutBroke(Boundary.REWARD, f"{type(problem).__name__}: {problem}") from problem
        if not math.isfinite(score.value):
            message = f"the score of a completion is {score.value}: it must be a finite number"
            raise RolloutBroke(Boundary.REWARD, message)
        return score


def _as_score(found: float | Score) -> Score:
    score = Score.of(found)
    if len(score.answer) <= ANSWER_LETTERS:
        return score
    return replace(score, answer=blake2b(score.answer.encode(errors="surrogatepass"), digest_size=16).hexdigest())
