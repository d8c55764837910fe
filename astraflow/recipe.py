"""One run: the configurations of all roles composed, loaded from TOML."""

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from astraflow.algorithms.base import advantages
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import losses
from astraflow.contract.errors import InvalidInput, UnknownPolicy
from astraflow.dataflow.admitting.filters import filters
from astraflow.dataflow.config import DataflowConfig, EvaluationConfig, FlowConfig, StreamConfig
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.stopping import StopConfig
from astraflow.datasets import datasets
from astraflow.models import models
from astraflow.raas.config import RaasConfig
from astraflow.raas.engines import engines
from astraflow.raas.preemption import notices
from astraflow.rewards import rewards
from astraflow.runtime.config import Config, Origin, nearest
from astraflow.runtime.overrides import SetBy
from astraflow.runtime.plugins import Registry
from astraflow.runtime.toml import Layer, Values, assignment, origin_in, read_toml, stacked
from astraflow.runtime.tracing import TracingConfig
from astraflow.trainer.backends import backends
from astraflow.trainer.config import TrainerConfig
from astraflow.weights.config import WeightsConfig
from astraflow.weights.keeping import keeps
from astraflow.workflows import workflows

PACKAGED = Path(__file__).resolve().parent.parent / "recipes"
"""The recipes that come with AstraFlow: `reverse` is `reverse/recipe.toml` in there, `reverse/sort` its `sort.toml`."""

Spec = dict[str, Any]
"""A plug-in: `kind` and that kind's options."""


class PolicyConfig(StreamConfig):
    """A model being trained: what it is, what its batches are made of, how it learns from them."""

    model: Spec
    """Given as it is to the trainer and the nodes."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Advantage and loss."""
    backend: Spec
    """What runs the optimizer step."""


class NodesConfig(RaasConfig):
    """The RaaS nodes that a run starts on this machine; others may join at any time."""

    count: int = Field(default=2, ge=0)
    engine: Spec
    """Of these nodes, and of those that join later unless they are told otherwise."""


class Recipe(Config):
    """A run, described. Policies and flows are maps: a single one is a map of one."""

    name: Annotated[str, SetBy.RECIPE]
    summary: Annotated[str, SetBy.RECIPE] = ""
    """One sentence for the list of recipes."""
    seed: int = 0
    stop: StopConfig = StopConfig()
    policies: dict[str, PolicyConfig] = Field(min_length=1)
    flows: dict[str, FlowConfig] = Field(min_length=1)
    evaluations: dict[str, EvaluationConfig] = Field(default_factory=dict)
    """How good versions are, found out beside training; a name is a flow's or an evaluation's."""
    nodes: NodesConfig
    weights: WeightsConfig = WeightsConfig()
    tracing: TracingConfig = TracingConfig()
    """Spans of a group's way, for OpenTelemetry."""
    trainer: Values = Field(default_factory=dict)
    """What every trainer is told besides its policy: how long to wait, how many checkpoints to keep."""
    fleet: Values = Field(default_factory=dict)
    """What the fleet service is told that starts the nodes of `run --fleet`; it checks that itself (docs/fleet.md)."""
    maintainer: Values = Field(default_factory=dict)
    """What the maintainer of `run --fleet --maintainer` is told; it checks that itself (docs/maintainer.md)."""
    dataflow: Values = Field(default_factory=dict)
    """What dataflow is told besides flows, evaluations and policies: leases, beats, history."""


class Check(Enum):
    """Which plug-ins' kinds and options are checked when a recipe is loaded; for that their modules are imported."""

    NONE = "none"
    """Whoever builds them checks them."""
    LIGHT = "light"
    """Those that import at once; the others are checked by the processes that build them, first thing."""
    ALL = "all"


def load_recipe(place: str, overrides: Sequence[str] = (), *, check: Check = Check.ALL) -> Recipe:
    """The recipe called `place`, or in the file `place`, with `key=value` overrides.

    Raises: InvalidInput with one line for each mistake, each naming the file it is in.
    """
    layers = [*_layers(find_recipe(place)), *(Layer("--set", assignment(text)) for text in overrides)]
    origin = origin_in(layers)
    recipe = Recipe.parse(stacked(layers), where="", origin=origin)
    _check_names(recipe, origin)
    _check_roles(recipe, origin)
    if check is not Check.NONE:
        _check_plugins(recipe, origin, with_heavy=check is Check.ALL)
    return recipe


def find_recipe(place: str) -> Path:
    """The file that `place` means: a path to a file or folder, or the name of a packaged recipe.

    Raises: InvalidInput that names the nearest known recipe.
    """
    path = Path(place).expanduser()
    if path.is_dir() and (path / "recipe.toml").is_file():
        return path / "recipe.toml"
    if path.is_file():
        return path
    for packaged in (PACKAGED / place / "recipe.toml", PACKAGED / f"{place}.toml"):
        if packaged.is_file():
            return packaged
    if path.suffix in (".toml", ".json"):
        raise InvalidInput(f"there is no recipe file {place}: check the path")
    raise InvalidInput(f"no recipe is called {place!r}; {nearest(place, packaged_recipes())} (see: astraflow recipes)")


def packaged_recipes() -> list[str]:
    """Names of the recipes that come with AstraFlow, as `find_recipe` takes them."""
    names = (file.relative_to(PACKAGED).with_suffix("") for file in PACKAGED.glob("*/*.toml"))
    return sorted(str(name.parent if name.name == "recipe" else name) for name in names)


def summary_of(file: Path) -> str:
    """What a recipe file says about itself in one sentence. Raises: InvalidInput."""
    return str(stacked(_layers(file)).get("summary", ""))


def files_of(file: Path) -> list[Path]:
    """The file and those that it extends, resolved. Raises: InvalidInput."""
    return [Path(layer.name) for layer in _layers(file)]


def snapshot(recipe: Recipe) -> str:
    """The recipe as JSON, complete: `load_recipe` reads it back from a file that ends in `.json`."""
    of_this_process = {"name", "hardware"} - recipe.nodes.model_fields_set
    return json.dumps(recipe.model_dump(mode="json", exclude={"nodes": of_this_process}), indent=2)


def dataflow_config(recipe: Recipe, *, run: str) -> DataflowConfig:
    """What the dataflow service of the run called `run` is told."""
    return DataflowConfig.parse({**recipe.dataflow, **_dataflow_values(recipe), "run": run}, where="dataflow")


def weights_config(recipe: Recipe) -> WeightsConfig:
    """What the weight store is told."""
    return recipe.weights


def trainer_config(recipe: Recipe, policy: str) -> TrainerConfig:
    """What the trainer of `policy` is told. Raises: UnknownPolicy."""
    return TrainerConfig.parse({**recipe.trainer, **_trainer_values(recipe, policy)}, where="trainer")


def node_config(recipe: Recipe, *, name: str) -> RaasConfig:
    """What the node called `name` is told; its engine it learns from dataflow, as every node does."""
    options = recipe.nodes.model_dump(exclude={"count", "engine", "name"})
    return RaasConfig.parse({**options, "name": name}, where="nodes")


def _dataflow_values(recipe: Recipe) -> Values:
    policies = recipe.policies.items()
    return {
        "run": recipe.name,
        "seed": recipe.seed,
        "flows": recipe.flows,
        "evaluations": recipe.evaluations,
        "streams": {
            name: {key: getattr(policy, key) for key in StreamConfig.model_fields} for name, policy in policies
        },
        "models": {name: policy.model for name, policy in policies},
        "engine": recipe.nodes.engine,
        "stop": recipe.stop,
    }


def _trainer_values(recipe: Recipe, policy: str) -> Values:
    if policy not in recipe.policies:
        raise UnknownPolicy(f"recipe {recipe.name} has no policy {policy!r}; {nearest(policy, list(recipe.policies))}")
    config = recipe.policies[policy]
    return {
        "policy": policy,
        "model": config.model,
        "algorithm": config.algorithm.model_dump(),
        "backend": config.backend,
        "seed": recipe.seed,
    }


def _layers(file: Path, above: tuple[Path, ...] = ()) -> list[Layer]:
    """The file and what it extends, the most basic first."""
    file = file.resolve()
    if file in above:
        chain = " extends ".join(str(path) for path in (*above, file))
        raise InvalidInput(f"recipes extend each other in a circle: {chain}")
    values = _read(file)
    base = values.pop("extends", None)
    if base is None:
        return [Layer(str(file), values)]
    if not isinstance(base, str):
        raise InvalidInput(f"{file}: extends: must be the name of a recipe or a path from this file (found {base!r})")
    beside = file.parent / base
    try:
        base_file = beside if beside.is_file() else find_recipe(base)
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: extends: {problem}") from None
    return [*_layers(base_file, (*above, file)), Layer(str(file), values)]


def _read(file: Path) -> Values:
    if file.suffix != ".json":
        return read_toml(file)
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{file} is not a recipe's snapshot: {problem}") from None
    if not isinstance(values, dict):
        raise InvalidInput(f"{file} is not a recipe's snapshot: it holds no table")
    return values


def _check_names(recipe: Recipe, origin: Origin) -> None:
    """Tasks are named for their flow or evaluation."""
    for name in recipe.evaluations.keys() & recipe.flows.keys():
        where = f"{origin(('evaluations', name))}: evaluations.{name}"
        raise InvalidInput(f"{where}: a flow has this name; choose another")


def _check_roles(recipe: Recipe, origin: Origin) -> None:
    """The tables that are handed to a role must make sense to it."""
    _check_role("dataflow", recipe.dataflow, DataflowConfig, _dataflow_values(recipe), origin)
    for policy in recipe.policies:
        _check_role("trainer", recipe.trainer, TrainerConfig, _trainer_values(recipe, policy), origin)


def _check_role(table: str, given: Values, config: type[Config], derived: Values, origin: Origin) -> None:
    for key in given.keys() & derived.keys():
        where = f"{origin((table, key))}: {table}.{key}"
        raise InvalidInput(f"{where}: follows from the rest of the recipe; leave it out")
    config.parse({**derived, **given}, where=table, origin=lambda path: origin((table, *path)))


def _check_plugins(recipe: Recipe, origin: Origin, *, with_heavy: bool) -> None:
    for path, registry, spec in plugin_specs(recipe):
        if registry.is_heavy(str(spec.get("kind"))) and not with_heavy:
            continue
        try:
            registry.check(spec)
        except InvalidInput as problem:
            raise InvalidInput(f"{origin(path)}: {'.'.join(path)}: {problem}") from None
    for name, flow in recipe.flows.items():
        _check_policies(workflows.build(flow.workflow).policies, recipe, ("flows", name, "workflow"), origin)
    for name, evaluation in recipe.evaluations.items():
        path = ("evaluations", name, "workflow")
        _check_policies(workflows.build(evaluation.workflow).policies, recipe, path, origin)


def _check_policies(wanted: Sequence[str], recipe: Recipe, path: tuple[str, ...], origin: Origin) -> None:
    for policy in wanted:
        if policy not in recipe.policies:
            raise InvalidInput(
                f"{origin(path)}: {'.'.join(path)}: talks to the policy {policy!r}, which the recipe does not have; "
                f"{nearest(policy, list(recipe.policies))}"
            )


def plugin_lists(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Registry[Any], Sequence[Spec]]]:
    """Every list of plug-ins of a recipe, whose order counts: where it stands, who knows its kinds, its specs."""
    for name, policy in recipe.policies.items():
        yield ("policies", name, "algorithm", "advantages"), advantages, policy.algorithm.advantages
    for name, flow in recipe.flows.items():
        yield ("flows", name, "filters"), filters, flow.filters


def plugin_specs(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Registry[Any], Spec]]:
    """Every plug-in of a recipe: where it is asked for, who knows it, and its spec."""
    for name, policy in recipe.policies.items():
        yield ("policies", name, "model"), models, policy.model
        yield ("policies", name, "sampler"), samplers, policy.sampler
        yield ("policies", name, "backend"), backends, policy.backend
        yield ("policies", name, "algorithm", "loss"), losses, policy.algorithm.loss
    for name, flow in recipe.flows.items():
        yield ("flows", name, "dataset"), datasets, flow.dataset
        yield ("flows", name, "workflow"), workflows, flow.workflow
        yield ("flows", name, "reward"), rewards, flow.reward
        yield ("flows", name, "selector"), selectors, flow.selector
    for name, evaluation in recipe.evaluations.items():
        yield ("evaluations", name, "dataset"), datasets, evaluation.dataset
        yield ("evaluations", name, "workflow"), workflows, evaluation.workflow
        yield ("evaluations", name, "reward"), rewards, evaluation.reward
    yield ("nodes", "engine"), engines, recipe.nodes.engine
    yield ("nodes", "preemption"), notices, recipe.nodes.preemption
    yield ("weights", "keep_in"), keeps, recipe.weights.keep_in
    for path, registry, specs in plugin_lists(recipe):
        for index, spec in enumerate(specs):
            yield (*path, str(index)), registry, spec
