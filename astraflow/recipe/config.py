"""Recipe of a run: the configurations of all roles."""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import WITHOUT_RECORDED_LOGPROBS
from astraflow.contract.errors import UnknownPolicy
from astraflow.dataflow.config import DataflowConfig, EvaluationConfig, FlowConfig, StreamConfig
from astraflow.dataflow.stop_condition import StopConfig
from astraflow.raas.config import RaasConfig
from astraflow.raas.engines.memory import MAX_RANK, SERVERS
from astraflow.runtime.config.base import Config, suggest_name
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.config.toml import Values
from astraflow.runtime.tracing import TracingConfig
from astraflow.trainer.config import TrainerConfig
from astraflow.trainer.memory import DEFAULT_RANK
from astraflow.weights.config import WeightsConfig

Spec = dict[str, Any]
"""Specification of a plugin: `kind` and the options of that kind."""


class CardConfig(Config):
    """Facts about a run for the list of recipes. They belong to one file: `extends` does not inherit them."""

    shows: Annotated[str, SettableBy.RECIPE] = ""
    """Purpose of a run, as a sentence."""
    minutes: Annotated[float | None, SettableBy.RECIPE] = Field(default=None, gt=0)
    """Time to the stop condition, on the machine of `measured_on`. Minutes; None if it was not measured."""
    measured_on: Annotated[str, SettableBy.RECIPE] = ""
    """Machine on which `minutes` was measured."""
    memory_gb: Annotated[float, SettableBy.RECIPE] = Field(default=0.0, ge=0)
    """Main memory of models on the CPU, in addition to that of the processes. Gigabytes."""


class PolicyConfig(StreamConfig):
    """A model: its architecture, its batches and its algorithm."""

    model: Spec
    """Architecture, initial weights and tokenizer, for the trainer and the nodes."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Advantage and loss."""
    backend: Spec
    """Backend that runs the optimizer step."""
    is_trained: Annotated[bool, SettableBy.AGENT] = True
    """False: the trainer publishes the initial weights as version 0 and exits. Only rewards can ask the policy then."""


class NodesConfig(RaasConfig):
    """The RaaS nodes that a run starts on this machine; others may join at any time."""

    count: int = Field(default=2, ge=0)
    """Number of nodes that the run starts."""
    engine: Spec
    """Engine of these nodes, and of nodes that join later and configure no engine."""


class Recipe(Config):
    """Description of a run. Policies and flows are maps, also when there is only one."""

    name: Annotated[str, SettableBy.RECIPE]
    """Name of the recipe, from which runs get theirs."""
    summary: Annotated[str, SettableBy.RECIPE] = ""
    """One sentence for the list of recipes."""
    card: Annotated[CardConfig, SettableBy.RECIPE] = CardConfig()
    """Further facts for the list of recipes."""
    seed: int = 0
    """Seed of prompts, sampling and initial weights."""
    data_root: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder that `astraflow fetch RECIPE --to DIR` filled: models and data sets are read from it instead of the
    network. Empty: each where its options say."""
    stop: StopConfig = StopConfig()
    """Condition that completes the run."""
    policies: dict[str, PolicyConfig] = Field(min_length=1)
    """Models in training, by name."""
    flows: dict[str, FlowConfig] = Field(min_length=1)
    """Prompts with workflow and reward that feed the policies, by name."""
    evaluations: dict[str, EvaluationConfig] = Field(default_factory=dict)
    """Measure versions during training; an evaluation and a flow cannot have the same name."""
    nodes: NodesConfig
    """Nodes that the run starts, and their engine."""
    weights: WeightsConfig = WeightsConfig()
    """Weight store."""
    tracing: TracingConfig = TracingConfig()
    """OpenTelemetry spans of a group's processing."""
    trainer: Values = Field(default_factory=dict)
    """Further options of every trainer, such as timeouts and the number of checkpoints."""
    fleet: Values = Field(default_factory=dict)
    """Options of the fleet service that starts the nodes of `run --fleet`; it validates them itself
    (docs/how-to/fleet.md)."""
    maintainer: Values = Field(default_factory=dict)
    """Options of the maintainer of `run --fleet --maintainer`; it validates them itself (docs/how-to/maintainer.md)."""
    dataflow: Values = Field(default_factory=dict)
    """Further options of dataflow, such as leases, heartbeats and history."""


def dataflow_config(recipe: Recipe, *, run: str) -> DataflowConfig:
    """Returns the configuration of the dataflow service of the run called `run`."""
    return DataflowConfig.parse({**recipe.dataflow, **dataflow_values(recipe), "run": run}, where="dataflow")


def weights_config(recipe: Recipe) -> WeightsConfig:
    """Returns the configuration of the weight store."""
    return recipe.weights


def trainer_config(recipe: Recipe, policy: str) -> TrainerConfig:
    """Returns the configuration of the trainer of `policy`. Raises: UnknownPolicy."""
    values = {**_probe_values(recipe, policy), **recipe.trainer, **trainer_values(recipe, policy)}
    if not recipe.policies[policy].is_trained:
        values["max_steps"] = 0
    return TrainerConfig.parse(values, where="trainer")


def engine_of(recipe: Recipe, policy: str) -> Spec:
    """Returns the spec of the engine that serves a policy: servers serve its adapters unmerged if they can, and return
    the experts of tokens if its algorithm replays them, unless the recipe sets `lora` and `return_routes`."""
    engine = recipe.nodes.engines.get(policy, recipe.nodes.engine)
    if engine.get("kind") not in SERVERS:
        return engine
    config = recipe.policies[policy]
    rank = adapter_rank(config)
    needed = {"lora": rank <= MAX_RANK} if rank else {}
    return {**needed, **({"return_routes": True} if config.algorithm.router_replay else {}), **engine}


def adapter_rank(policy: PolicyConfig) -> int:
    """Returns the rank of the adapters that a policy's trainer publishes; 0 for whole weights."""
    lora = policy.backend.get("lora")
    return 0 if lora is None else int(lora.get("rank", DEFAULT_RANK))


def _probe_values(recipe: Recipe, policy: str) -> Values:
    """Returns a probe with every version where it is the only sign of the version that a server serves."""
    return {"probe_every": 1} if engine_of(recipe, policy).get("kind") == "openai_tokens" else {}


def node_config(recipe: Recipe, *, name: str) -> RaasConfig:
    """Returns the configuration of the node called `name`, without the engines, which dataflow sends to every node."""
    options = recipe.nodes.model_dump(exclude={"count", "engine", "engines", "name"})
    return RaasConfig.parse({**options, "name": name}, where="nodes")


def dataflow_values(recipe: Recipe) -> Values:
    policies = recipe.policies.items()
    return {
        "run": recipe.name,
        "seed": recipe.seed,
        "flows": recipe.flows,
        "evaluations": recipe.evaluations,
        "streams": {
            name: {key: getattr(policy, key) for key in StreamConfig.model_fields}
            for name, policy in policies
            if policy.is_trained
        },
        "models": {name: policy.model for name, policy in policies},
        "temperatures": {
            name: policy.algorithm.temperature
            for name, policy in policies
            if policy.is_trained and policy.algorithm.loss.get("kind") not in WITHOUT_RECORDED_LOGPROBS
        },
        "columns": {name: asdict(policy.algorithm.columns) for name, policy in policies if policy.is_trained},
        "teachers": {
            name: {"field": policy.algorithm.teacher_field, "names": tuple(policy.algorithm.teachers)}
            for name, policy in policies
            if policy.is_trained and policy.algorithm.teacher_field
        },
        "engine": recipe.nodes.engine,
        "engines": {**recipe.nodes.engines, **{name: engine_of(recipe, name) for name in _with_own_engine(recipe)}},
        "stop": recipe.stop,
    }


def _with_own_engine(recipe: Recipe) -> list[str]:
    return [name for name, policy in recipe.policies.items() if adapter_rank(policy) or policy.algorithm.router_replay]


def trainer_values(recipe: Recipe, policy: str) -> Values:
    if policy not in recipe.policies:
        raise UnknownPolicy(
            f"cannot configure a trainer: recipe {recipe.name!r} has no policy {policy!r}; "
            f"{suggest_name(policy, list(recipe.policies))}",
            code="recipe.unknown_policy",
        )
    config = recipe.policies[policy]
    return {
        "policy": policy,
        "model": config.model,
        "algorithm": config.algorithm.model_dump(),
        "backend": config.backend,
        "seed": recipe.seed,
    }
