"""Slots of plugins, by the title under which the reference page of plugins lists their kinds."""

from dataclasses import dataclass
from typing import Any

from astraflow.agents.programs import programs
from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.losses import losses
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.serving.samplers import samplers
from astraflow.datasets import datasets
from astraflow.environments import environments, games
from astraflow.models import models
from astraflow.models.base import embedders
from astraflow.raas.engines import engines
from astraflow.raas.preemption import notices
from astraflow.rewards import group_rewards, rewards
from astraflow.runtime.plugins import Registry
from astraflow.sandbox import sandboxes
from astraflow.tools import tool_sources
from astraflow.tracking import trackers
from astraflow.trainer.backends import backends
from astraflow.weights.store.storage import storages
from astraflow.workflows import workflows
from maintainer.agent.llm.interface import models as maintainer_models
from maintainer.fleet.providers import providers


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSlot:
    """A slot: its registry, and where a configuration names its plugins."""

    registry: Registry[Any]
    where: str
    """Sentence with the keys of the slot."""
    title: str = ""
    """Heading; empty: the noun of the registry."""

    @property
    def heading(self) -> str:
        """Heading on the page of plugins."""
        return self.title or self.registry.noun


SLOTS = (
    PluginSlot(registry=models, where="Model of a policy: `policies.NAME.model`, and of a teacher."),
    PluginSlot(registry=backends, where="Trainer of a policy: `policies.NAME.backend`."),
    PluginSlot(registry=samplers, where="Choice among buffered groups: `policies.NAME.sampler`."),
    PluginSlot(registry=datasets, where="Source of prompts: `flows.NAME.dataset`, `evaluations.NAME.dataset`."),
    PluginSlot(registry=workflows, where="Course of an episode: `flows.NAME.workflow`, `evaluations.NAME.workflow`."),
    PluginSlot(registry=rewards, where="Score of an episode: `flows.NAME.reward`, `evaluations.NAME.reward`."),
    PluginSlot(registry=group_rewards, where="Comparison within a group: `flows.NAME.group_reward.reward`."),
    PluginSlot(registry=selectors, where="Choice of the next prompt: `flows.NAME.selector`."),
    PluginSlot(registry=filters, where="Choice of finished groups, in order: `flows.NAME.filters`."),
    PluginSlot(registry=engines, where="Generation on a node: `nodes.engine`, `nodes.engines.POLICY`."),
    PluginSlot(registry=notices, where="Source of preemption notices: `nodes.preemption`."),
    PluginSlot(registry=storages, where="Storage of the weight store: `weights.storage`."),
    PluginSlot(registry=environments, where="World of the workflow `act`: its option `environment`."),
    PluginSlot(registry=games, where="World of the workflow `versus`: its option `game`."),
    PluginSlot(registry=tool_sources, where="Tools of the workflow `tool_use`: its option `tools`."),
    PluginSlot(registry=programs, where="Program of the workflow `agent`: its option `program`."),
    PluginSlot(
        registry=sandboxes, where="Isolation of generated code: the option `sandbox` of rewards, tools and programs."
    ),
    PluginSlot(registry=embedders, where="Embeddings of texts: the option `embedder` of the tool `search`."),
    PluginSlot(registry=trackers, where="Experiment tracker: the argument of `astraflow track`."),
    PluginSlot(registry=providers, where="Provider of instances: `fleet.providers.NAME`."),
    PluginSlot(
        registry=maintainer_models,
        where="Language model of the maintainer: `maintainer.model`.",
        title="maintainer model",
    ),
)
"""Slots that the page lists with options."""

ALGORITHM_SLOTS = (advantages, token_advantages, losses, corrections)
"""Registries whose plugins the page of algorithms lists, with formulas."""
