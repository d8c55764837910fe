"""Choice of the tasks on which a baseline is scored: an evaluation of a recipe, or a flow as if it were one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.dataflow.config import EvaluationConfig, FlowConfig
from astraflow.recipe.config import Recipe
from astraflow.runtime.config.base import suggest_name
from astraflow.workflows import workflows
from astraflow.workflows.components.answers import AnswerOptions
from astraflow.workflows.dataset_answers import DatasetAnswers

_SHARED = ("dataset", "workflow", "reward", "reward_range", "max_attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Tasks to score a subject on."""

    name: FlowId
    config: EvaluationConfig
    policies: tuple[PolicyId, ...]
    dataset_seed: int
    """Seed of the dataset and of the choice of its prompts: that of the recipe, so that a run has the same prompts."""


def select(recipe: Recipe, name: str, *, samples: int = 0, prompts: int = 0, seed: int | None = None) -> Selection:
    """Returns the evaluation or flow called `name`.

    samples, prompts: instead of those of the recipe, unless 0. seed: of the sampling, instead of the workflow's.
    Raises: InvalidInput for an unknown name, a workflow without answers of a policy, and a seed that it does not take.
    """
    config = _config(recipe, name)
    workflow = workflows.build(config.workflow)
    if isinstance(workflow, DatasetAnswers):
        raise InvalidInput(
            f"cannot score a model on {name!r}: its workflow trains on answers of the dataset and asks no policy; name "
            "another flow or evaluation",
            code="baseline.no_policy",
        )
    changes: dict[str, Any] = {}
    if samples:
        changes["samples"] = samples
    if prompts:
        changes["prompts"] = prompts
    if seed is not None:
        changes["workflow"] = _seeded(name, config.workflow, seed)
    return Selection(
        name=FlowId(name),
        config=EvaluationConfig.parse({**config.model_dump(), **changes}, where=name),
        policies=workflow.policies,
        dataset_seed=recipe.seed,
    )


def by_policy(values: Sequence[str], policies: Sequence[PolicyId], *, option: str) -> dict[PolicyId, str]:
    """Returns the value of each policy from texts `VALUE`, for all, or `POLICY=VALUE`. Raises: InvalidInput.

    >>> by_policy(["small", "verifier=large"], [PolicyId("solver"), PolicyId("verifier")], option="--model")
    {'solver': 'small', 'verifier': 'large'}
    """
    chosen: dict[PolicyId, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if equals and name in policies:
            chosen[PolicyId(name)] = value
        else:
            chosen = {**dict.fromkeys(policies, text), **chosen}
    missing = [policy for policy in policies if not chosen.get(policy)]
    if missing:
        raise InvalidInput(
            f"cannot score the policies {', '.join(policies)}: {option} names nothing for {', '.join(missing)}; give "
            f"one value for all, or {missing[0]}=VALUE",
            code="baseline.policy_missing",
        )
    return {policy: chosen[policy] for policy in policies}


def _config(recipe: Recipe, name: str) -> EvaluationConfig:
    if name in recipe.evaluations:
        return recipe.evaluations[name]
    flow = recipe.flows.get(name)
    if flow is None:
        raise InvalidInput(
            f"cannot score a model on {name!r}: recipe {recipe.name!r} has no such evaluation or flow; "
            f"{suggest_name(name, [*recipe.evaluations, *recipe.flows])}",
            code="baseline.unknown_tasks",
        )
    return _as_evaluation(flow)


def _as_evaluation(flow: FlowConfig) -> EvaluationConfig:
    return EvaluationConfig(**{key: getattr(flow, key) for key in _SHARED}, samples=flow.group_size)


def _seeded(name: str, workflow: dict[str, Any], seed: int) -> dict[str, Any]:
    if not isinstance(workflows.check(workflow), AnswerOptions):
        raise InvalidInput(
            f"cannot set the seed of {name!r}: its workflow {workflow['kind']!r} leaves the sampling to its program; "
            "leave out --seed",
            code="baseline.no_seed",
        )
    return {**workflow, "seed": seed}
