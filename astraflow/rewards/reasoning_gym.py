"""Reward by the verifiers of reasoning-gym.

Source: Reasoning Gym, arXiv:2505.24760.
"""

from typing import Annotated

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.generated.reasoning_gym import GENERATOR, METADATA, SETTINGS
from astraflow.rewards import rewards
from astraflow.rewards.base import Score, last_tagged
from astraflow.rewards.workers.pool import CallKilled, WorkerPool
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import require_package

FUNCTION = "astraflow.rewards.workers.reasoning_gym:score"


class ReasoningGymRewardOptions(Config):
    """Extraction of the answer, and worker processes."""

    tag: Annotated[str, SettableBy.AGENT] = ""
    """Tag around the answer in the completion, such as `answer`; the last one counts, and a completion without one
    scores 0. Empty: the whole completion is the answer."""
    has_partial_credit: Annotated[bool, SettableBy.AGENT] = True
    """Use the scores between 0 and 1 that some verifiers give for parts or for form; else they count as 0."""
    max_answer_chars: int = Field(default=20_000, ge=1)
    """A longer answer is wrong. Characters."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes that run the verifiers."""
    limit_s: float = Field(default=5.0, gt=0)
    """An answer that takes longer to verify is wrong. Seconds."""


@rewards.register("reasoning_gym", options=ReasoningGymRewardOptions)
class ReasoningGymReward:
    """Returns the score of the verifier that belongs to the prompt of the data set `reasoning_gym`, in 0 to 1."""

    def __init__(self, options: ReasoningGymRewardOptions) -> None:
        require_package("reasoning_gym", extra="reasoning-gym", needed_by="reward 'reasoning_gym'")
        self._options = options
        self._pool = WorkerPool(FUNCTION, workers=options.workers, limit_s=options.limit_s)

    @property
    def pool(self) -> WorkerPool:
        """The worker processes."""
        return self._pool

    async def start(self) -> None:
        """Starts the worker processes. Raises: Unavailable."""
        await self._pool.start()

    async def close(self) -> None:
        """Ends them."""
        await self._pool.close()

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns the score. Raises: InvalidInput for a prompt of another data set; CallFailed, Unavailable."""
        fields = prompt.fields
        missing = {GENERATOR, SETTINGS, METADATA, QUESTION, ANSWER} - fields.keys()
        if missing:
            raise InvalidInput(
                f"cannot score prompt {prompt.id!r}: it has no field {min(missing)!r}; use this reward with the "
                "dataset 'reasoning_gym'",
                code="reward.no_generator",
            )
        answer = last_tagged(completion, self._options.tag) if self._options.tag else completion
        answer = (answer or "").strip()
        if not answer or len(answer) > self._options.max_answer_chars:
            return Score(value=0.0)
        entry = {name: fields[name] for name in (QUESTION, ANSWER, METADATA)}
        call = {"generator": fields[GENERATOR], "settings": fields[SETTINGS], "entry": entry, "answer": answer}
        try:
            value = float(await self._pool.call(call))
        except CallKilled:
            value = 0.0
        return Score(value=value if value >= 1 or self._options.has_partial_credit else 0.0, answer=answer)
