"""A flow's reward, as a workflow asks it: always awaited, and never a number when it has none."""

import inspect
import math

from astraflow.contract.generation import Finish
from astraflow.contract.tasks import Prompt
from astraflow.contract.trajectories import Boundary
from astraflow.rewards.base import Reward
from astraflow.workflows.errors import RolloutBroke


class Judge:
    """Asks one reward."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        """The reward of a completion. Raises: RolloutBroke at the boundary `reward`; let it pass."""
        try:
            found = self._reward.score(prompt, completion, finish)
            score = float(await found if inspect.isawaitable(found) else found)
        except Exception as problem:
            raise RolloutBroke(Boundary.REWARD, f"{type(problem).__name__}: {problem}") from problem
        if not math.isfinite(score):
            raise RolloutBroke(Boundary.REWARD, f"the score of a completion is {score}: it must be a finite number")
        return score
