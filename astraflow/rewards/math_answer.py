"""Reward for a mathematically correct final answer.

Source: math-verify, https://github.com/huggingface/Math-Verify; extraction and precision as in the paper's recipes.
"""

from typing import Annotated

from pydantic import Field

from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER
from astraflow.rewards import rewards
from astraflow.rewards.base import Score, text_field
from astraflow.rewards.math_text import TAIL_CHARS, decided, last_boxed, normalized
from astraflow.rewards.workers.pool import CallKilled, WorkerPool
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import require_package

FUNCTION = "astraflow.rewards.workers.math_answer:is_equal"

_REMEMBERED = 4096
"""Compared pairs that are remembered: members of a group often give the same answer. Count."""


class MathAnswerOptions(Config):
    """Extraction of the answer, precision, and worker processes."""

    answer_field: Annotated[str, SettableBy.AGENT] = ANSWER
    """Field of the prompt with the correct answer, LaTeX or plain."""
    requires_box: Annotated[bool, SettableBy.AGENT] = False
    """Only an answer in `\\boxed{}` counts; else the end of a completion without a box is searched for one."""
    decimals: int = Field(default=6, ge=0, le=15)
    """Decimal places to which decimal numbers are compared."""
    max_answer_chars: int = Field(default=1000, ge=1)
    """A longer answer is wrong. Characters."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes for the answers that take algebra to compare."""
    limit_s: float = Field(default=5.0, gt=0)
    """An answer that takes longer to compare is wrong. Seconds."""


@rewards.register("math_answer", options=MathAnswerOptions)
class MathAnswer:
    """Returns 1 when the final answer equals the correct one, else 0.

    The last box is the answer; of two different ones only the last counts. Equal texts and plain numbers are compared
    at once, everything else by computer algebra in worker processes. A comparison beyond the time limit is a wrong
    answer, because hostile expressions are; a lost process is a failure of the reward.
    """

    def __init__(self, options: MathAnswerOptions) -> None:
        require_package("math_verify", extra="math", needed_by="reward 'math_answer'")
        self._options = options
        self._pool = WorkerPool(FUNCTION, workers=options.workers, limit_s=options.limit_s)
        self._remembered: dict[tuple[str, str, bool], bool] = {}

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
        """Returns 1 or 0, with the normalized answer. Raises: InvalidInput without an answer field; Unavailable."""
        gold = text_field(prompt, self._options.answer_field)
        answer = last_boxed(completion)
        is_boxed = answer is not None
        if answer is None:
            answer = "" if self._options.requires_box else completion[-TAIL_CHARS:].strip()
        if not answer or (is_boxed and len(answer) > self._options.max_answer_chars):
            return Score(value=0.0)
        is_correct = decided(gold, answer, decimals=self._options.decimals)
        if is_correct is None or (not is_boxed and not is_correct):
            is_correct = await self._is_equal(gold, answer, is_boxed=is_boxed)
        return Score(value=float(is_correct), answer=normalized(answer) if is_boxed else "")

    async def _is_equal(self, gold: str, answer: str, *, is_boxed: bool) -> bool:
        key = (gold, answer, is_boxed)
        if key not in self._remembered:
            if len(self._remembered) >= _REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            call = {"gold": gold, "answer": answer, "is_boxed": is_boxed, "decimals": self._options.decimals}
            try:
                self._remembered[key] = await self._pool.call(call)
            except CallKilled:
                self._remembered[key] = False
        return self._remembered[key]
