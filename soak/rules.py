"""Invariants from the recipe, and the messages of violations."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.recipe.config import Recipe
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.base import Backend
from astraflow.workflows import workflows


class Invariant(Enum):
    """Invariant that a violation breaks."""

    LOST = "lost"
    """Acknowledged data is missing."""
    TWICE = "twice"
    """A result was accepted or trained more than once."""
    STALE = "too stale"
    """A served row began longer ago than the bound allows, or with a version that does not exist yet."""
    CONTENT = "other content"
    """The trained content differs from the acknowledged one."""
    PROMPTS = "prompts"
    """A prompt was skipped or repeated within an epoch."""
    VERSIONS = "versions"
    """A published version is missing, has other bits, or came out of order."""
    BALANCE = "balance"
    """A report's counts do not add up, or shrank."""
    PROCESS = "process"
    """A process ended by itself, or did not reach the expected state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A violated invariant, described in a sentence."""

    promise: Invariant
    message: str

    def __str__(self) -> str:
        return f"{self.promise.value}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRules:
    """Rules of one flow."""

    policies: tuple[PolicyId, ...]
    group_size: int
    min_group_size: int
    prompts: int
    """Size of its data set: an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRules:
    """Rules of one policy's stream."""

    batch_groups: int
    max_staleness: int


class Rules:
    """Rules of a run of scripted parts whose flows use all groups and go through their prompts in epochs."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.retained_versions = recipe.weights.retained_versions
        self.flows: Mapping[FlowId, FlowRules] = {
            FlowId(name): FlowRules(
                policies=workflows.build(flow.workflow).policies,
                group_size=flow.group_size,
                min_group_size=flow.min_group_size,
                prompts=flow.dataset["size"],
            )
            for name, flow in recipe.flows.items()
        }
        self.streams: Mapping[PolicyId, StreamRules] = {
            PolicyId(name): StreamRules(batch_groups=policy.batch_groups, max_staleness=policy.max_staleness)
            for name, policy in recipe.policies.items()
        }

    def backend(self, policy: PolicyId) -> Backend:
        """Returns a trainer's backend in its initial state, without its sleeps."""
        config = self._recipe.policies[policy]
        return backends.build({**config.backend, "step_s": 0.0}, config.model, {}, seed=self._recipe.seed)
