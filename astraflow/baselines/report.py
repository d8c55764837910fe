"""Result of a baseline: scores with their confidence intervals, failures, and what was used."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Self

from astraflow.baselines.intervals import CONFIDENCE, Interval
from astraflow.contract.ids import FlowId, PromptId
from astraflow.contract.reports.evaluations import EvaluationScore, EvaluationState
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScore(EvaluationScore):
    """A metric as rounds of evaluations have it, with its confidence interval."""

    interval: Interval | None
    """95 % interval; None for a single prompt."""
    prompts: int
    """Prompts for which the metric exists. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineReport:
    """Scores of a subject on an evaluation. The figures cover the prompts whose samples all have a result."""

    evaluation: FlowId
    subject: Mapping[str, Json]
    state: EvaluationState
    """`done`, or `stopped` by a signal or because the subject has halted."""
    reason: str
    """Why the subject has halted, such as a spent budget; empty when it has not."""
    prompts: int
    complete_prompts: int
    samples: int
    """Samples of a prompt: the k of the scores."""
    done: int
    """Samples with a result, masked ones included."""
    total: int
    masked: int
    """Samples that failed in every attempt. All figures exclude them."""
    failed: int
    """Prompts whose samples were all masked."""
    failures: Mapping[str, int]
    """Masked samples by the boundary of their last failure."""
    retried: int
    """Attempts that failed and were repeated. Count."""
    errors: tuple[str, ...]
    """Latest distinct messages of failures."""
    scores: tuple[BaselineScore, ...]
    usage: Mapping[str, Json]
    """Tokens, and calls of an endpoint. Counts."""
    duration_s: float

    def json_value(self) -> dict[str, Json]:
        return {"confidence": CONFIDENCE, **_json(asdict(self))}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """Result of one sample: rewards, answers and texts of its trajectories, or the failure of its last attempt."""

    prompt: PromptId
    sample: int
    """Number of the sample of its prompt, from 0."""
    attempt: int
    duration_s: float
    """Duration of the last attempt. Seconds."""
    failure: Mapping[str, str] | None
    trajectories: tuple[Mapping[str, Json], ...]

    @classmethod
    def of(cls, prompt: Prompt, member: int, episode: Episode) -> Self:
        """Creates the result from an episode with texts."""
        failure = episode.failure
        return cls(
            prompt=prompt.id,
            sample=member,
            attempt=episode.attempt,
            duration_s=round(episode.duration_s, 3),
            failure=None if failure is None else {"boundary": failure.boundary.value, "message": failure.message},
            trajectories=tuple(
                {
                    "policy": str(trajectory.policy),
                    "role": trajectory.role,
                    "reward": trajectory.reward,
                    "answer": trajectory.answer,
                    "is_truncated": trajectory.is_truncated,
                    "ending": trajectory.ending.value if trajectory.ending else None,
                    "prompt": trajectory.prompt_text,
                    "completion": trajectory.completion_text,
                }
                for trajectory in episode.trajectories
            ),
        )

    def json_value(self) -> dict[str, Json]:
        return dict(_json(asdict(self)))


def _json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    return [_json(item) for item in value] if isinstance(value, list | tuple) else value
