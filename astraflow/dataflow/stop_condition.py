"""Stop condition of a run: judges each acknowledged step and keeps the result over restarts."""

import math
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
    """Target: every policy's mean reward over the last `window_steps` steps is at least this. None: `loss` or `steps`
    decide."""
    loss: float | None = None
    """Target of policies that train on answers of data sets: every policy's mean loss over the last `window_steps`
    steps is at most this. With `reward` as well, both must be reached."""
    window_steps: int = Field(default=10, ge=1)
    """Steps over which `reward` and `loss` are averaged."""
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
        self._losses: dict[PolicyId, deque[float]] = {policy: deque(maxlen=window) for policy in self._steps}
        self._met: Completion | None = None

    @property
    def completion(self) -> Completion | None:
        """Completion of the run; None before the condition is met."""
        return self._met

    @property
    def is_over(self) -> bool:
        """True if the condition is met and ends the run."""
        return self._met is not None and self._met.ends_run

    def observe(
        self, policy: PolicyId, *, steps: int, reward: float, at: float, loss: float = math.nan
    ) -> Completion | None:
        """Judges the run after a step was acknowledged; returns the completion when it is new.

        steps: acknowledged steps of the policy. reward: mean of the rollouts that arrived since the previous step.
        at: Unix seconds. loss: of the step; NaN if unknown.
        """
        self._steps[policy] = steps
        self._rewards[policy].append(reward)
        self._losses[policy].append(loss)
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
            "losses": {
                str(policy): [None if math.isnan(loss) else loss for loss in losses]
                for policy, losses in self._losses.items()
            },
            "met": None if met is None else {"reason": met.reason, "has_learned": met.has_learned, "at": met.at},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state. A completion under another condition is discarded: the next `resume` judges again."""
        for policy, rewards in self._rewards.items():
            rewards.extend(state["rewards"].get(policy, ()))
        for policy, losses in self._losses.items():
            losses.extend(math.nan if loss is None else loss for loss in state["losses"].get(policy, ()))
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
        goals = self._goals(config)
        if goals and all(is_met for _, _, is_met in goals):
            window = f"of the last {config.window_steps} steps reached"
            reason = " and ".join(f"the mean {name} {window} {target:g}" for name, target, _ in goals)
            return self._completion(config, reason, has_learned=True, at=at)
        if has_steps and not goals:
            reason = f"all {config.steps} steps are done"
            return self._completion(config, reason, has_learned=True, at=at)
        if has_steps:
            missed = [(name, target) for name, target, is_met in goals if not is_met]
            reason = " and ".join(f"the mean {name} did not reach {target:g}" for name, target in missed)
            reason = f"{config.steps} steps are done and {reason}"
            if config.steps < config.window_steps:
                means = " and ".join(f"mean {name}" for name, _ in missed)
                reason = f"{config.steps} steps are done, fewer than the {config.window_steps} of the {means}"
            return self._completion(config, reason, has_learned=False, at=at)
        return None

    def _goals(self, config: StopConfig) -> list[tuple[str, float, bool]]:
        """Returns the name of each target, its value, and whether all policies have reached it."""
        goals = []
        if config.reward is not None:
            rewards = map(_mean, self._rewards.values())
            goals.append(("reward", config.reward, all(reward >= config.reward for reward in rewards)))
        if config.loss is not None:
            losses = map(_mean, self._losses.values())
            goals.append(("loss", config.loss, all(loss <= config.loss for loss in losses)))
        return goals

    def _completion(self, config: StopConfig, reason: str, *, has_learned: bool, at: float) -> Completion:
        return Completion(reason=reason, has_learned=has_learned, at=at, ends_run=config.then == "end")

    def _condition(self) -> dict[str, Json] | None:
        """Returns the condition without `then`, so that a run that continued ends when `then` becomes `end`."""
        return None if self._config is None else self._config.model_dump(mode="json", exclude={"then"})


def _mean(window: deque[float]) -> float:
    """Returns the mean of a full window; NaN, which reaches no target, before."""
    return sum(window) / len(window) if len(window) == window.maxlen else math.nan
