"""Plugins that a recipe uses."""

from collections.abc import Iterator, Sequence
from typing import Any

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.losses import losses
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.serving.samplers import samplers
from astraflow.datasets import datasets
from astraflow.models import models
from astraflow.raas.engines import engines
from astraflow.raas.preemption import notices
from astraflow.recipe.config import Recipe, Spec
from astraflow.rewards import group_rewards, rewards
from astraflow.runtime.plugins import Registry
from astraflow.trainer.backends import backends
from astraflow.weights.store.storage import storages
from astraflow.workflows import workflows


def plugin_lists(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Registry[Any], Sequence[Spec]]]:
    """Yields every ordered list of plugins in a recipe: its path, the registry of its kinds, and its specs."""
    for name, policy in recipe.policies.items():
        yield ("policies", name, "algorithm", "advantages"), advantages, policy.algorithm.advantages
        yield ("policies", name, "algorithm", "token_advantages"), token_advantages, policy.algorithm.token_advantages
    for name, flow in recipe.flows.items():
        yield ("flows", name, "filters"), filters, flow.filters


def plugin_specs(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Registry[Any], Spec]]:
    """Yields every plugin of a recipe: its path, its registry, and its spec. Plugins in the options of another one,
    such as the environment of a workflow, follow it."""
    for path, registry, spec in outer_plugin_specs(recipe):
        yield path, registry, spec
        for below, inner_registry, inner in registry.nested(spec):
            yield (*path, *below), inner_registry, dict(inner)


def outer_plugin_specs(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Registry[Any], Spec]]:
    """Yields the plugins that are not in the options of another one."""
    for name, policy in recipe.policies.items():
        yield ("policies", name, "model"), models, policy.model
        yield ("policies", name, "sampler"), samplers, policy.sampler
        yield ("policies", name, "backend"), backends, policy.backend
        yield ("policies", name, "algorithm", "loss"), losses, policy.algorithm.loss
        if policy.algorithm.critic is not None:
            yield ("policies", name, "algorithm", "critic", "loss"), losses, policy.algorithm.critic.loss
        for teacher, spec in policy.algorithm.teacher_models.items():
            yield ("policies", name, "algorithm", "teachers", teacher, "model"), models, spec
    for name, flow in recipe.flows.items():
        yield ("flows", name, "dataset"), datasets, flow.dataset
        yield ("flows", name, "workflow"), workflows, flow.workflow
        yield ("flows", name, "reward"), rewards, flow.reward
        if flow.group_reward is not None:
            yield ("flows", name, "group_reward", "reward"), group_rewards, flow.group_reward.reward
        yield ("flows", name, "selector"), selectors, flow.selector
    for name, evaluation in recipe.evaluations.items():
        yield ("evaluations", name, "dataset"), datasets, evaluation.dataset
        yield ("evaluations", name, "workflow"), workflows, evaluation.workflow
        yield ("evaluations", name, "reward"), rewards, evaluation.reward
    yield ("nodes", "engine"), engines, recipe.nodes.engine
    for name, engine in recipe.nodes.engines.items():
        yield ("nodes", "engines", name), engines, engine
    yield ("nodes", "preemption"), notices, recipe.nodes.preemption
    yield ("weights", "storage"), storages, recipe.weights.storage
    for path, registry, specs in plugin_lists(recipe):
        for index, spec in enumerate(specs):
            yield (*path, str(index)), registry, spec
