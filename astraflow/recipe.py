"""Recipe of a run: the configurations of all roles, loaded from TOML."""

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.checks import check_algorithm, check_roles
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import losses
from astraflow.contract.errors import InvalidInput, UnknownPolicy
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.config import DataflowConfig, EvaluationConfig, FlowConfig, StreamConfig
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.stop_condition import StopConfig
from astraflow.datasets import datasets
from astraflow.models import models
from astraflow.raas.config import RaasConfig
from astraflow.raas.engines import engines
from astraflow.raas.preemption import notices
from astraflow.recipe_card import CardConfig
from astraflow.recipe_sources import local_values
from astraflow.rewards import group_rewards, judging_policies, rewards
from astraflow.runtime.config import Config, ValueOrigin, suggest_name
from astraflow.runtime.plugins import Registry
from astraflow.runtime.setting_permissions import SettableBy
from astraflow.runtime.toml import ConfigLayer, Values, layer_origin, merge_layers, parse_override, read_toml
from astraflow.runtime.tracing import TracingConfig
from astraflow.trainer.backends import backends
from astraflow.trainer.config import TrainerConfig
from astraflow.weights.config import WeightsConfig
from astraflow.weights.storage import storages
from astraflow.workflows import workflows
from astraflow.workflows.answers import AnswerOptions
from astraflow.workflows.dataset_answers import DatasetAnswers
from astraflow.workflows.roles import RoleWorkflow

PACKAGED = Path(__file__).resolve().parent.parent / "recipes"
"""Packaged recipes: `reverse` is `reverse/recipe.toml` in this folder, `reverse/sort` is `reverse/sort.toml`."""

EXAMPLES = "examples"
"""Folder of examples to copy: they need their own plugins, so they are no packaged recipes."""

Spec = dict[str, Any]
"""Specification of a plugin: `kind` and the options of that kind."""


class PolicyConfig(StreamConfig):
    """A model: its architecture, its batches and its algorithm."""

    model: Spec
    """Passed unchanged to the trainer and the nodes."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Advantage and loss."""
    backend: Spec
    """Backend that runs the optimizer step."""
    is_trained: bool = True
    """False: the trainer publishes the initial weights as version 0 and exits. Only rewards can ask the policy then."""


class NodesConfig(RaasConfig):
    """The RaaS nodes that a run starts on this machine; others may join at any time."""

    count: int = Field(default=2, ge=0)
    engine: Spec
    """Engine of these nodes, and of nodes that join later and configure no engine."""


class Recipe(Config):
    """Description of a run. Policies and flows are maps, also when there is only one."""

    name: Annotated[str, SettableBy.RECIPE]
    summary: Annotated[str, SettableBy.RECIPE] = ""
    """One sentence for the list of recipes."""
    card: Annotated[CardConfig, SettableBy.RECIPE] = CardConfig()
    """Further facts for the list of recipes."""
    seed: int = 0
    data_root: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder that `astraflow fetch RECIPE --to DIR` filled: models and data sets are read from it instead of the
    network. Empty: each where its options say."""
    stop: StopConfig = StopConfig()
    policies: dict[str, PolicyConfig] = Field(min_length=1)
    flows: dict[str, FlowConfig] = Field(min_length=1)
    evaluations: dict[str, EvaluationConfig] = Field(default_factory=dict)
    """Measure versions during training; an evaluation and a flow cannot have the same name."""
    nodes: NodesConfig
    weights: WeightsConfig = WeightsConfig()
    tracing: TracingConfig = TracingConfig()
    """OpenTelemetry spans of a group's processing."""
    trainer: Values = Field(default_factory=dict)
    """Further options of every trainer, such as timeouts and the number of checkpoints."""
    fleet: Values = Field(default_factory=dict)
    """Options of the fleet service that starts the nodes of `run --fleet`; it validates them itself (docs/fleet.md)."""
    maintainer: Values = Field(default_factory=dict)
    """Options of the maintainer of `run --fleet --maintainer`; it validates them itself (docs/maintainer.md)."""
    dataflow: Values = Field(default_factory=dict)
    """Further options of dataflow, such as leases, heartbeats and history."""


class Check(Enum):
    """Plugins whose kinds and options are checked when a recipe is loaded; the check imports their modules."""

    NONE = "none"
    """No plugins; they are checked when they are built."""
    LIGHT = "light"
    """Plugins that import quickly; the processes that build the others check them at start."""
    ALL = "all"


def load_recipe(name_or_path: str, overrides: Sequence[str] = (), *, check: Check = Check.ALL) -> Recipe:
    """Loads a recipe with `key=value` overrides.

    Raises: InvalidInput with one line for each mistake, each with the file it is in.
    """
    layers = [*_layers(find_recipe(name_or_path)), *(ConfigLayer("--set", parse_override(text)) for text in overrides)]
    origin = layer_origin(layers)
    recipe = Recipe.parse(merge_layers(layers), where="", origin=origin)
    if recipe.data_root:
        local = local_values(plugin_specs(recipe), recipe.data_root, recipe=name_or_path)
        layers.append(ConfigLayer("data_root", local))
        recipe = Recipe.parse(merge_layers(layers), where="", origin=origin)
    _check_names(recipe, origin)
    _check_roles(recipe, origin)
    _check_node_policies(recipe, origin)
    if check is not Check.NONE:
        _check_plugins(recipe, origin, with_heavy=check is Check.ALL)
    return recipe


def find_recipe(name_or_path: str) -> Path:
    """Returns the file of a recipe: a path to a file or folder, or the name of a packaged recipe.

    Raises: InvalidInput with the closest known recipe.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir() and (path / "recipe.toml").is_file():
        return path / "recipe.toml"
    if path.is_file():
        return path
    for packaged in (PACKAGED / name_or_path / "recipe.toml", PACKAGED / f"{name_or_path}.toml"):
        if packaged.is_file():
            return packaged
    if path.suffix in (".toml", ".json"):
        raise InvalidInput(
            f"cannot load recipe {name_or_path!r}: no such file; check the path", code="recipe.file_not_found"
        )
    raise InvalidInput(
        f"cannot load recipe {name_or_path!r}: no packaged recipe has this name; "
        f"{suggest_name(name_or_path, packaged_recipes())} (see: astraflow recipes)",
        code="recipe.unknown",
    )


def packaged_recipes() -> list[str]:
    """Returns the names of the packaged recipes, as `find_recipe` takes them."""
    files = (file.relative_to(PACKAGED) for file in PACKAGED.glob("*/*.toml"))
    names = (file.with_suffix("") for file in files if file.parts[0] != EXAMPLES)
    return sorted(str(name.parent if name.name == "recipe" else name) for name in names)


def summary_of(file: Path) -> str:
    """Returns the summary in a recipe file. Raises: InvalidInput."""
    return str(merge_layers(_layers(file)).get("summary", ""))


def files_of(file: Path) -> list[Path]:
    """Returns the file and the files that it extends, resolved. Raises: InvalidInput."""
    return [Path(layer.name) for layer in _layers(file)]


def snapshot(recipe: Recipe) -> str:
    """Returns the complete recipe as JSON; `load_recipe` reads it back from a file that ends in `.json`."""
    process_defaults = {"name", "hardware"} - recipe.nodes.model_fields_set
    return json.dumps(recipe.model_dump(mode="json", exclude={"nodes": process_defaults}), indent=2)


def dataflow_config(recipe: Recipe, *, run: str) -> DataflowConfig:
    """Returns the configuration of the dataflow service of the run called `run`."""
    return DataflowConfig.parse({**recipe.dataflow, **_dataflow_values(recipe), "run": run}, where="dataflow")


def weights_config(recipe: Recipe) -> WeightsConfig:
    """Returns the configuration of the weight store."""
    return recipe.weights


def trainer_config(recipe: Recipe, policy: str) -> TrainerConfig:
    """Returns the configuration of the trainer of `policy`. Raises: UnknownPolicy."""
    values = {**recipe.trainer, **_trainer_values(recipe, policy)}
    if not recipe.policies[policy].is_trained:
        values["max_steps"] = 0
    return TrainerConfig.parse(values, where="trainer")


def node_config(recipe: Recipe, *, name: str) -> RaasConfig:
    """Returns the configuration of the node called `name`, without the engines, which dataflow sends to every node."""
    options = recipe.nodes.model_dump(exclude={"count", "engine", "engines", "name"})
    return RaasConfig.parse({**options, "name": name}, where="nodes")


def _dataflow_values(recipe: Recipe) -> Values:
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
        "engine": recipe.nodes.engine,
        "engines": recipe.nodes.engines,
        "stop": recipe.stop,
    }


def _trainer_values(recipe: Recipe, policy: str) -> Values:
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


def _layers(file: Path, extending: tuple[Path, ...] = ()) -> list[ConfigLayer]:
    """Returns the layers of the file and of the files it extends, the most basic first."""
    file = file.resolve()
    if file in extending:
        chain = " extends ".join(str(path) for path in (*extending, file))
        raise InvalidInput(
            f"cannot load recipe {str(file)!r}: recipes extend each other in a circle: {chain}; remove one `extends`",
            code="recipe.circular_extends",
        )
    values = _read(file)
    base = values.pop("extends", None)
    if extending:
        values.pop("card", None)  # describes one recipe, and is not inherited
    if base is None:
        return [ConfigLayer(str(file), values)]
    if not isinstance(base, str):
        raise InvalidInput(
            f"{file}: extends: must be the name of a recipe or a path relative to this file (got {base!r})",
            code="recipe.invalid_extends",
        )
    sibling = file.parent / base
    try:
        base_file = sibling if sibling.is_file() else find_recipe(base)
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: extends: {problem}", code=problem.code) from None
    return [*_layers(base_file, (*extending, file)), ConfigLayer(str(file), values)]


def _read(file: Path) -> Values:
    if file.suffix != ".json":
        return read_toml(file)
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as problem:
        raise InvalidInput(
            f"cannot read {str(file)!r} as the snapshot of a recipe: {problem}; check the file",
            code="recipe.invalid_snapshot",
        ) from None
    if not isinstance(values, dict):
        raise InvalidInput(
            f"cannot read {str(file)!r} as the snapshot of a recipe: it contains no object; check the file",
            code="recipe.invalid_snapshot",
        )
    return values


def _check_names(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks that no evaluation has the name of a flow, since task ids begin with this name, and no policy the name
    under which the base of another policy's adapters is published."""
    for name in recipe.policies.keys() & {f"{policy}.base" for policy in recipe.policies}:
        where = f"{origin(('policies', name))}: policies.{name}"
        raise InvalidInput(
            f"{where}: is reserved for the base of the adapters of {name.removesuffix('.base')!r}; choose another name",
            code="recipe.reserved_policy",
        )
    for name in recipe.evaluations.keys() & recipe.flows.keys():
        where = f"{origin(('evaluations', name))}: evaluations.{name}"
        raise InvalidInput(f"{where}: a flow has this name; choose another", code="recipe.duplicate_name")


def _check_roles(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks the tables that are passed to a role against its configuration."""
    _check_role("dataflow", recipe.dataflow, DataflowConfig, _dataflow_values(recipe), origin)
    for policy in recipe.policies:
        _check_role("trainer", recipe.trainer, TrainerConfig, _trainer_values(recipe, policy), origin)


def _check_role(table: str, declared: Values, config: type[Config], derived: Values, origin: ValueOrigin) -> None:
    for key in declared.keys() & derived.keys():
        where = f"{origin((table, key))}: {table}.{key}"
        raise InvalidInput(
            f"{where}: is derived from the rest of the recipe; leave it out", code="recipe.derived_setting"
        )
    config.parse({**derived, **declared}, where=table, origin=lambda path: origin((table, *path)))


def _check_plugins(recipe: Recipe, origin: ValueOrigin, *, with_heavy: bool) -> None:
    for path, registry, spec in plugin_specs(recipe):
        if registry.is_heavy(str(spec.get("kind"))) and not with_heavy:
            continue
        try:
            registry.check(spec)
        except InvalidInput as problem:
            raise InvalidInput(f"{origin(path)}: {'.'.join(path)}: {problem}", code=problem.code) from None
    for name, flow in recipe.flows.items():
        path = ("flows", name, "workflow")
        _check_policies(workflows.build(flow.workflow).policies, recipe, path, origin)
        _check_trained(recipe, path, origin)
        _check_sampling(workflows.check(flow.workflow), path, origin)
        _check_answers(recipe, name, origin)
    for name, evaluation in recipe.evaluations.items():
        path = ("evaluations", name, "workflow")
        _check_policies(workflows.build(evaluation.workflow).policies, recipe, path, origin)
        _check_trained(recipe, path, origin)
    _check_judges(recipe, origin)
    if with_heavy:
        _check_algorithms(recipe, origin)


def _check_algorithms(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks that the parts of each algorithm fit together, and that its flows sample at its temperature."""
    for name, policy in recipe.policies.items():
        path = ("policies", name, "algorithm")
        try:
            check_algorithm(policy.algorithm, _temperatures(recipe, name))
            for flow, roles in _roles_in_flows(recipe, name).items():
                check_roles(policy.algorithm, flow, roles)
        except InvalidInput as problem:
            raise InvalidInput(f"{origin(path)}: {'.'.join(path)}: {problem}", code=problem.code) from None


def _roles_in_flows(recipe: Recipe, policy: str) -> dict[str, list[str]]:
    """Returns the roles that the policy plays in each flow whose workflow names roles."""
    built = {name: workflows.build(flow.workflow) for name, flow in recipe.flows.items()}
    return {
        name: [role for role, player in workflow.roles.items() if player == policy]
        for name, workflow in built.items()
        if isinstance(workflow, RoleWorkflow)
    }


def _temperatures(recipe: Recipe, policy: str) -> dict[str, float]:
    """Returns the sampling temperature of each flow that trains the policy."""
    options = {
        name: workflows.check(flow.workflow)
        for name, flow in recipe.flows.items()
        if policy in workflows.build(flow.workflow).policies
    }
    return {
        name: workflow_options.temperature
        for name, workflow_options in options.items()
        if isinstance(workflow_options, AnswerOptions)
    }


def _check_sampling(options: Config, path: tuple[str, ...], origin: ValueOrigin) -> None:
    """Checks that a training flow samples from the full distribution, over which the trainer recomputes logprobs."""
    if not isinstance(options, AnswerOptions) or options.allow_truncated_sampling or not options.truncating_options:
        return
    names = ", ".join(options.truncating_options)
    raise InvalidInput(
        f"{origin((*path, options.truncating_options[0]))}: {'.'.join(path)}: cannot train on samples of a truncated "
        f"distribution: {names}; the trainer recomputes logprobs over all tokens. Leave {names} to evaluations, or set "
        "allow_truncated_sampling = true",
        code="recipe.truncated_sampling",
    )


def _check_answers(recipe: Recipe, name: str, origin: ValueOrigin) -> None:
    """Checks that a flow which trains on the answers of its dataset has their number and a loss without logprobs."""
    flow, path = recipe.flows[name], ("flows", name)
    workflow = workflows.build(flow.workflow)
    if not isinstance(workflow, DatasetAnswers):
        return
    if flow.group_size != workflow.group_size:
        raise InvalidInput(
            f"{origin((*path, 'group_size'))}: flows.{name}.group_size: cannot make groups of {flow.group_size}: each "
            f"prompt has {workflow.group_size} answers; set group_size = {workflow.group_size}",
            code="recipe.answers_per_prompt",
        )
    needed = "dpo" if workflow.group_size > 1 else "sft"
    (policy,) = workflow.policies
    loss = recipe.policies[policy].algorithm.loss.get("kind")
    if loss != needed:
        raise InvalidInput(
            f"{origin((*path, 'workflow'))}: flows.{name}.workflow: cannot train {policy!r} on these answers with the "
            f"loss {loss!r}: no engine sampled them, and there is {'a' if workflow.group_size > 1 else 'no'} rejected "
            f"one; set loss = {{ kind = '{needed}' }} of the policy's algorithm",
            code="recipe.answers_and_loss",
        )


def _check_node_policies(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks that the tables of the nodes name policies of the recipe."""
    for key, names in (("engines", tuple(recipe.nodes.engines)), ("policies", recipe.nodes.policies)):
        _check_policies(names, recipe, ("nodes", key), origin)


def _check_policies(required: Sequence[str], recipe: Recipe, path: tuple[str, ...], origin: ValueOrigin) -> None:
    for policy in required:
        if policy not in recipe.policies:
            raise InvalidInput(
                f"{origin(path)}: {'.'.join(path)}: unknown policy {policy!r}; "
                f"{suggest_name(policy, list(recipe.policies))}",
                code="recipe.unknown_environment_policy",
            )


def _check_trained(recipe: Recipe, path: tuple[str, ...], origin: ValueOrigin) -> None:
    """Checks that the workflow of a flow or evaluation uses only policies that are trained."""
    workflow = getattr(recipe, path[0])[path[1]].workflow
    for policy in workflows.build(workflow).policies:
        if not recipe.policies[policy].is_trained:
            raise InvalidInput(
                f"{origin(path)}: {'.'.join(path)}: policy {policy!r} is not trained, so it can only judge; use "
                "another policy in the workflow, or leave out is_trained = false",
                code="recipe.untrained_policy",
            )


def _check_judges(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks that the policies that rewards ask exist, and that each has a flow which trains it or is not trained."""
    trained = {policy for flow in recipe.flows.values() for policy in workflows.build(flow.workflow).policies}
    for table, flows in (("flows", recipe.flows), ("evaluations", recipe.evaluations)):
        for name, flow in flows.items():
            path = (table, name, "reward")
            judges = judging_policies(flow.reward)
            _check_policies(judges, recipe, path, origin)
            for policy in judges:
                if recipe.policies[policy].is_trained and policy not in trained:
                    raise InvalidInput(
                        f"{origin(path)}: {'.'.join(path)}: no flow trains policy {policy!r}, which judges; set "
                        f"policies.{policy}.is_trained = false",
                        code="recipe.judge_without_flow",
                    )


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
    for path, registry, spec in _outer_specs(recipe):
        yield path, registry, spec
        for below, inner_registry, inner in registry.nested(spec):
            yield (*path, *below), inner_registry, dict(inner)


def _outer_specs(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Registry[Any], Spec]]:
    """Yields the plugins that are not in the options of another one."""
    for name, policy in recipe.policies.items():
        yield ("policies", name, "model"), models, policy.model
        yield ("policies", name, "sampler"), samplers, policy.sampler
        yield ("policies", name, "backend"), backends, policy.backend
        yield ("policies", name, "algorithm", "loss"), losses, policy.algorithm.loss
        if policy.algorithm.critic is not None:
            yield ("policies", name, "algorithm", "critic", "loss"), losses, policy.algorithm.critic.loss
        if policy.algorithm.teacher is not None:
            yield ("policies", name, "algorithm", "teacher"), models, policy.algorithm.teacher
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
