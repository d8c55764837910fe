"""Stop condition of a run: judges each acknowledged step and keeps the result over restarts."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Completion
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class StopConfig(Config):
    """Condition that completes a run."""

    reward: float | None = None
    """Target: every policy's mean reward over the last `window_steps` steps is at least this. None: `steps` decide."""
    window_steps: int = Field(default=10, ge=1)
    """Steps over which `reward` is averaged."""
    steps: int = Field(default=2000, ge=1)
    """Trainer steps of every policy after which the run ends in any case."""
    then: Annotated[Literal["end", "continue"], SettableBy.AGENT] = "end"
    """`end`: no more tasks and batches are served, trainers and nodes exit with code 0. `continue`: the report states
    that the condition is met, and the run continues. `astraflow run` without --headless continues."""


class StopCondition:
    """Completion of one run. Without a configuration it is never met."""

    def __init__(self, config: StopConfig | None, policies: Iterable[PolicyId]) -> None:
        self._config = config
        self._steps = dict.fromkeys(policies, 0)
        window = config.window_steps if config else 0
        self._rewards: dict[PolicyId, deque[float]] = {policy: deque(maxlen=window) for policy in self._steps}
        self._met: Completion | None = None

    @property
    def completion(self) -> Completion | None:
        """Completion of the run; None before the condition is met."""
        return self._met

    @property
    def is_over(self) -> bool:
        """True if the condition is met and ends the run."""
        return self._met is not None and self._met.ends_run

    def observe(self, policy: PolicyId, *, steps: int, reward: float, at: float) -> Completion | None:
        """Judges the run after a step was acknowledged; returns the completion when it is new.

        steps: acknowledged steps of the policy. reward: mean of the rollouts that arrived since the previous step.
        at: Unix seconds.
        """
        self._steps[policy] = steps
        self._rewards[policy].append(reward)
        if self._met is not None and (self._met.ends_run or self._met.has_learned):
            return None
        new = self._judged(at)
        if new is None or (self._met is not None and not new.has_learned):
            return None
        self._met = new
        return new

    def ends_at(self, policy: PolicyId, steps: int) -> bool:
        """Returns True if the run ends for the number of its steps, once this policy has `steps` of them."""
        config = self._config
        return (
            config is not None
            and config.then == "end"
            and all(done >= config.steps for done in {**self._steps, policy: steps}.values())
        )

    def state_dict(self) -> dict[str, Json]:
        """Returns the condition, the rewards and the completion."""
        met = self._met
        return {
            "condition": self._condition(),
            "rewards": {str(policy): list(rewards) for policy, rewards in self._rewards.items()},
            "met": None if met is None else {"reason": met.reason, "has_learned": met.has_learned, "at": met.at},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state. A completion under another condition is discarded: the next `resume` judges again."""
        for policy, rewards in self._rewards.items():
            rewards.extend(state["rewards"].get(policy, ()))
        if self._config is not None and state["met"] is not None and state["condition"] == self._condition():
            self._met = Completion(**state["met"], ends_run=self._config.then == "end")

    def resume(self, steps: Mapping[PolicyId, int], *, at: float) -> None:
        """Judges a resumed run with these acknowledged steps."""
        self._steps.update(steps)
        self._met = self._met or self._judged(at)

    def _judged(self, at: float) -> Completion | None:
        config = self._config
        if config is None:
            return None
        has_steps = all(steps >= config.steps for steps in self._steps.values())
        if config.reward is not None and self._has_reward(config.reward):
            reason = f"the mean reward of the last {config.window_steps} steps reached {config.reward:g}"
            return self._completion(config, reason, has_learned=True, at=at)
        if has_steps and config.reward is None:
            reason = f"all {config.steps} steps are done"
            return self._completion(config, reason, has_learned=True, at=at)
        if has_steps:
            reason = f"{config.steps} steps are done and the mean reward did not reach {config.reward:g}"
            if config.steps < config.window_steps:
                reason = f"{config.steps} steps are done, fewer than the {config.window_steps} of the mean reward"
            return self._completion(config, reason, has_learned=False, at=at)
        return None

    def _has_reward(self, min_reward: float) -> bool:
        windows = self._rewards.values()
        return all(len(window) == window.maxlen and sum(window) / len(window) >= min_reward for window in windows)

    def _completion(self, config: StopConfig, reason: str, *, has_learned: bool, at: float) -> Completion:
        return Completion(reason=reason, has_learned=has_learned, at=at, ends_run=config.then == "end")

    def _condition(self) -> dict[str, Json] | None:
        """Returns the condition without `then`, so that a run that continued ends when `then` becomes `end`."""
        return None if self._config is None else self._config.model_dump(mode="json", exclude={"then"})
