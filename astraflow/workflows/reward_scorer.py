"""Scorer of a flow's reward for workflows: awaits asynchronous rewards and turns errors into failed episodes."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards.base import JudgePolicy, PolicyReward, Reward, Score, score_completion
from astraflow.runtime.plugins import plugin_cause
from astraflow.runtime.tracing import span

MAX_ANSWER_CHARS = 200
"""Longer answers are replaced by their hash: answers are only compared, and are part of every trajectory."""


class RewardScorer:
    """Calls one reward."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward

    def asking(self, policies: Mapping[PolicyId, JudgePolicy]) -> "RewardScorer":
        """Returns the scorer of one episode, whose reward may ask these policies."""
        return RewardScorer(self.reward.asking(policies)) if isinstance(self.reward, PolicyReward) else self

    async def score(self, prompt: Prompt, completion: str, finish: Finish, *, tokens: int | None = None) -> Score:
        """Scores a completion. Raises: RolloutFailed at the boundary `reward`; do not catch it.

        tokens: tokens that the policy wrote, for rewards that depend on the length.
        """
        try:
            with span("rl.reward"):
                score = with_short_answer(
                    await score_completion(self.reward, prompt, completion, finish, tokens=tokens)
                )
        except Exception as problem:
            raise RolloutFailed(
                plugin_cause(problem), boundary=Boundary.REWARD, code="rollout.reward_failed"
            ) from problem
        if not score.is_finite:
            raise RolloutFailed(
                f"cannot use the score {score.value} of a completion for the prompt {prompt.id!r}: it or one of its "
                "terms is not finite; return finite numbers",
                boundary=Boundary.REWARD,
                code="rollout.non_finite_reward",
            )
        return score


def with_short_answer(score: Score) -> Score:
    """Returns the score; the hash of a long answer replaces it."""
    if len(score.answer) <= MAX_ANSWER_CHARS:
        return score
    return replace(score, answer=blake2b(score.answer.encode(errors="surrogatepass"), digest_size=16).hexdigest())
