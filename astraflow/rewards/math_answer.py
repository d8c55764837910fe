"""Reward for a mathematically correct final answer."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER
from astraflow.rewards import rewards
from astraflow.rewards.base import Score, outside_thoughts, text_field
from astraflow.rewards.mathematics.extraction import last_boxed, unboxed
from astraflow.rewards.mathematics.spelling import bare, plain_number
from astraflow.rewards.worker_pool import CallKilled, WorkerPool
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import require_package

FUNCTION = "astraflow.rewards.mathematics.votes:compare"

UNBOXED_CORRECT = "unboxed_correct"
"""Term of a score: 1 for a correct answer without a box, whether it counts or not; else 0."""

_REMEMBERED = 4096
"""Compared pairs that are remembered: members of a group often give the same answer. Count."""


class MathAnswerOptions(Config):
    """Extraction of the answer, precision, and worker processes."""

    answer_field: Annotated[str, SettableBy.AGENT] = ANSWER
    """Field of the prompt with the correct answer, LaTeX or plain."""
    requires_box: Annotated[bool, SettableBy.AGENT] = True
    """Only an answer in `\\boxed{}` counts; else the end of a completion without a box may state one."""
    decimals: int = Field(default=6, ge=0, le=15)
    """Decimal places to which decimal numbers are compared; of numbers below 0.1, digits from the first that is not
    0."""
    max_answer_chars: int = Field(default=1000, ge=1)
    """A longer answer is wrong. Characters."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes for the answers that take more than a comparison of texts or plain numbers."""
    limit_s: float = Field(default=2.0, gt=0)
    """An answer that takes longer to compare is wrong. Seconds of processor time."""

    @property
    def prompt_fields(self) -> tuple[tuple[str, ...], ...]:
        """Fields of the prompt that the reward needs."""
        return ((self.answer_field,),)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Whether an answer is correct, and its text for votes."""

    is_correct: bool
    answer: str


@rewards.register("math_answer", options=MathAnswerOptions)
class MathAnswer:
    """Returns 1 when the final answer equals the correct one, else 0.

    The last box behind all thoughts is the answer. Equal texts and plain numbers are compared at once, everything else
    in worker processes. A comparison that uses up its processor time is a wrong answer, because only hostile
    expressions do; a lost or stalled process is a failure of the reward.
    """

    def __init__(self, options: MathAnswerOptions) -> None:
        require_package("mpmath", extra="math", to="use reward 'math_answer'")
        self._options = options
        self._pool = WorkerPool(FUNCTION, workers=options.workers, limit_s=options.limit_s)
        self._remembered: dict[tuple[str, str], _Verdict] = {}

    @property
    def pool(self) -> WorkerPool:
        """The worker processes."""
        return self._pool

    async def start(self) -> None:
        """Starts the worker processes. Raises: Unavailable."""
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns 1 or 0, with the answer. Raises: InvalidInput without an answer field; Unavailable."""
        gold = text_field(prompt, self._options.answer_field)
        text = outside_thoughts(completion)
        boxed = last_boxed(text)
        answer = boxed if boxed is not None else unboxed(text)
        if not answer.strip() or len(answer) > self._options.max_answer_chars:
            return Score(value=0.0, terms={UNBOXED_CORRECT: 0.0})
        verdict = await self._verdict(gold, answer)
        counts = boxed is not None or not self._options.requires_box
        return Score(
            value=float(verdict.is_correct and counts),
            answer=verdict.answer if counts else "",
            terms={UNBOXED_CORRECT: float(verdict.is_correct and boxed is None)},
        )

    async def _verdict(self, gold: str, answer: str) -> _Verdict:
        key = (gold, answer)
        verdict = self._remembered.get(key) or _decided(gold, answer)
        if verdict is None:
            call = {"gold": gold, "answer": answer, "decimals": self._options.decimals}
            try:
                reply = await self._pool.call(call)
            except CallKilled:  # not remembered: the next one is measured again
                return _Verdict(False, bare(answer))
            verdict = _Verdict(reply["is_equal"], bare(gold) if reply["is_equal"] else reply["vote"])
        self._remember(key, verdict)
        return verdict

    def _remember(self, key: tuple[str, str], verdict: _Verdict) -> None:
        if len(self._remembered) >= _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[key] = verdict


def _decided(gold: str, answer: str) -> _Verdict | None:
    r"""Returns the verdict on equal texts and on integers and fractions; None for everything else.

    >>> _decided("12", "12.") == _Verdict(True, "12"), _decided("12", "24/2").is_correct, _decided("x+1", "1+x")
    (True, True, None)
    """
    expected, spelled = bare(gold), bare(answer)
    if expected == spelled:
        return _Verdict(True, expected)
    number, other = plain_number(expected), plain_number(spelled)
    if number is None or other is None:
        return None
    return _Verdict(number == other, expected if number == other else str(other))
