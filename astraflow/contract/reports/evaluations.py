"""Results of evaluations: quality of pinned versions, as figures with their standard error."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version


class EvaluationState(Enum):
    """State of one round of an evaluation."""

    WAITING = "waiting"
    """Another round of the same evaluation is running. A newer request replaces this round."""
    RUNNING = "running"
    DONE = "done"
    """Every sample has a result or used all its attempts."""
    STOPPED = "stopped"
    """Stopped by a person. The scores cover the prompts that were complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """One metric of one policy: the mean over the prompts for which the metric exists."""

    policy: PolicyId
    """Policy that the score belongs to."""
    name: str
    """`avg@k`, `pass@1`, `pass@2`, ... `pass@k`, `maj@k`; with the role before it, `verifier.avg@4`, when the workflow
    names roles."""
    value: float
    """Mean over the prompts."""
    error: float | None
    """Standard error of the mean, with a prompt's samples counted as one; None for a single prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """One round of an evaluation: all its prompts, with one or more samples each, with pinned versions."""

    flow: FlowId
    """Name of the evaluation, which is the flow id of its tasks."""
    round: int
    """Counts the rounds of all evaluations of the run from 1: the paging key. 0 while the round waits."""
    versions: Mapping[PolicyId, Version]
    """Pinned version of each evaluated policy."""
    state: EvaluationState
    """State of the round."""
    done: int
    """Samples with a result, masked samples included."""
    total: int
    """Samples in the round: prompts times samples per prompt."""
    masked: int
    """Samples that failed in every attempt. All figures exclude them."""
    failed: int
    """Prompts whose samples were all masked."""
    scores: tuple[EvaluationScore, ...]
    """Empty until the round has ended."""
    actor: str
    """Name of the requester; `schedule` for rounds that the recipe schedules."""
    reason: str
    """Reason of the request."""
    requested_at: float
    """Unix seconds, like `started_at` and `finished_at`."""
    started_at: float | None
    """Time when the round began. Unix seconds; None before."""
    finished_at: float | None
    """Time when the round ended. Unix seconds; None before."""
    reserved_nodes: tuple[NodeId, ...] = ()
    """Nodes whose only engine serves the pinned versions while the round runs; they get no training tasks."""
