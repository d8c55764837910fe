"""Cards of recipes: parts, needs, and why this machine cannot run one."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import psutil

from astraflow.cli.ports import free_ports
from astraflow.cli.recipes.declared import DeclaredRecipe, check_declared_recipe, declared_recipes
from astraflow.cli.recipes.fleet_form import FleetForm
from astraflow.cli.recipes.placement import needs_gpu
from astraflow.cli.recipes.plan import plan_recipe
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.launching import FormCheck, RecipeCard, RecipeNeeds, RecipeObstacle, RecipeParts
from astraflow.models import models
from astraflow.models.shapes import ModelShape, model_shape
from astraflow.raas.engines.server.environments import installed_environments
from astraflow.raas.engines.server.installation.host import Gpu, this_host
from astraflow.raas.engines.server.installation.releases import server_kinds
from astraflow.recipe.config import Recipe, engine_of
from astraflow.recipe.files import find_recipe, packaged_recipes, summary_of
from astraflow.recipe.loading import Check, load_recipe
from astraflow.recipe.plugins import plugin_specs
from astraflow.runtime.folders.run_folders import runs_folder
from astraflow.workflows import workflows

_GPU_BYTES = 79 * 2**30
"""Memory of the GPUs for which recipes are planned; an engine takes its share of it."""

MACHINE_S = 60.0
"""Time after which the facts about this machine are read again. Seconds."""

TWIN = "tiny"
"""Name of a variant that trains a small model on the same task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts about this machine that decide which recipes it can run."""

    gpus: tuple[Gpu, ...]
    memory_bytes: int
    """Total memory: what other programs take now does not decide."""
    disk_bytes: int
    """Free space for run directories."""
    engines: frozenset[str]
    """Kinds of installed engine servers."""
    has_torch: bool


def recipe_cards(folders: Sequence[Path] = ()) -> list[RecipeCard]:
    """Returns the card of every packaged recipe and of every recipe in the folders.

    Raises: InvalidInput for an unreadable folder.
    """
    packaged = [_recipe_card(name, name, folders=()) for name in packaged_recipes()]
    return packaged + [_declared_card(recipe, folders) for recipe in declared_recipes(folders)]


def recipe_card(name: str, folders: Sequence[Path] = ()) -> RecipeCard:
    """Returns the card of a recipe. Raises: InvalidInput for an unknown name, and as `recipe_cards`."""
    packaged, declared = packaged_recipes(), {recipe.name: recipe for recipe in declared_recipes(folders)}
    if name in packaged:
        return _recipe_card(name, name, folders=())
    if name in declared:
        return _declared_card(declared[name], folders)
    raise InvalidInput(
        f"cannot launch the recipe {name[:80]!r}: unknown name; use one of {', '.join([*packaged, *declared])}",
        code="recipe.unknown",
    )


def obstacles(recipe: Recipe, location: str, machine: Machine) -> Iterator[RecipeObstacle]:
    """Yields the reasons why a machine cannot run a recipe as it is. location: argument that launches it."""
    try:
        needs = needs_of(recipe)
    except InvalidInput as problem:
        yield _obstacle(problem, location)
        return
    yield from _gpu_obstacles(needs, location, machine)
    needed, memory = needed_memory_bytes(recipe, FleetForm()), machine.memory_bytes
    if needed > memory:
        yield RecipeObstacle(
            cause=f"it needs {needed / 1e9:,.1f} GB of memory; this machine has {memory / 1e9:,.1f} GB",
            remedy="start fewer nodes here (nodes.count), or run it on a larger machine",
        )
    if needs.disk_gb * 1e9 > machine.disk_bytes:
        yield RecipeObstacle(
            cause=f"it needs {needs.disk_gb:g} GB of disk; {machine.disk_bytes / 1e9:,.1f} GB are free in "
            f"{runs_folder()}",
            remedy="free space, or set ASTRAFLOW_HOME to another folder",
        )
    if not machine.has_torch and any(
        policy.backend.get("kind") != SIMULATED_KIND for policy in recipe.policies.values()
    ):
        yield RecipeObstacle(cause="torch is not installed", remedy="run pip install 'astraflow[train]'")
    yield from _software_obstacles(recipe, location, machine)


def needs_of(recipe: Recipe) -> RecipeNeeds:
    """Returns the hardware that a recipe needs on one machine, by its dry run (`astraflow check recipe`).

    Raises: InvalidInput for a recipe that cannot be planned.
    """
    plan = plan_recipe(recipe, gpu_bytes=_GPU_BYTES)
    used: dict[int, int] = {}
    for use in plan.uses:
        used[use.gpu] = used.get(use.gpu, 0) + (use.size_bytes or 0)
    return RecipeNeeds(
        gpus=len(used),
        gpu_memory_gb=ceil(max(used.values(), default=0) / 1e9),
        memory_gb=round(needed_memory_bytes(recipe, FleetForm()) / 1e9, 1),
        disk_gb=max(1, ceil(sum(plan.disk.values()) / 1e9)),
    )


def this_machine() -> Machine:
    """Returns the facts about this machine, as `astraflow doctor` finds them."""
    folder = next(path for path in (runs_folder(), *runs_folder().parents) if path.exists())
    return Machine(
        gpus=this_host().gpus,
        memory_bytes=psutil.virtual_memory().total,
        disk_bytes=shutil.disk_usage(folder).free,
        engines=frozenset(environment.kind for environment in installed_environments()),
        has_torch=find_spec("torch") is not None,
    )


def recent_machine() -> Machine:
    """Returns the facts about this machine, at most a minute old: finding its GPUs and engines starts programs."""
    return _machine_of(int(time.monotonic() // MACHINE_S))


@lru_cache(maxsize=1)
def _machine_of(interval: int) -> Machine:
    return this_machine()


def _needs_if_planned(recipe: Recipe) -> RecipeNeeds:
    try:
        return needs_of(recipe)
    except InvalidInput:  # an obstacle has the reason
        return RecipeNeeds(memory_gb=round(needed_memory_bytes(recipe, FleetForm()) / 1e9, 1))


def simulated_kinds(recipe: Recipe) -> tuple[str, ...]:
    """Returns the kinds of the recipe's simulated plugins."""
    kinds = (str(spec.get("kind")) for _, _, spec in plugin_specs(recipe))
    return tuple(sorted({kind for kind in kinds if kind == SIMULATED_KIND}))


def _declared_card(recipe: DeclaredRecipe, folders: Sequence[Path]) -> RecipeCard:
    if recipe.problem:
        return RecipeCard(name=recipe.name, name_or_path=str(recipe.file), problem=recipe.problem, is_own=True)
    return replace(_recipe_card(recipe.name, str(recipe.file), folders=folders), is_own=True)


def _recipe_card(name: str, location: str, *, folders: Sequence[Path]) -> RecipeCard:
    summary = ""
    try:
        if folders:
            check_declared_recipe(Path(location), folders)
        summary = summary_of(find_recipe(location))
        recipe = load_recipe(location, check=Check.NONE)
    except InvalidInput as error:
        return RecipeCard(name=name, name_or_path=location, summary=summary, problem=str(error))
    return RecipeCard(
        name=name,
        name_or_path=location,
        summary=recipe.summary,
        simulated=simulated_kinds(recipe),
        shows=recipe.card.shows,
        minutes=recipe.card.minutes,
        measured_on=recipe.card.measured_on,
        needs=_needs_if_planned(recipe),
        parts=_parts(recipe),
        obstacles=tuple(dict.fromkeys(obstacles(recipe, location, recent_machine()))),
    )


def _gpu_obstacles(needs: RecipeNeeds, location: str, machine: Machine) -> Iterator[RecipeObstacle]:
    large = [gpu for gpu in machine.gpus if gpu.memory_bytes >= needs.gpu_memory_gb * 1e9]
    if needs.gpus <= len(large):
        return
    size = f" with {needs.gpu_memory_gb:g} GB each" if needs.gpu_memory_gb else ""
    counts = Counter(f"{gpu.name} ({gpu.memory_bytes / 1e9:.0f} GB)" for gpu in machine.gpus)
    names = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    twin = f"{location.partition('/')[0]}/{TWIN}"
    tiny = f"; its small twin {twin} runs here" if twin in packaged_recipes() and twin != location else ""
    yield RecipeObstacle(
        cause=f"it needs {needs.gpus} GPUs{size}; this machine has {names}",
        remedy=f"launch it on a machine with {needs.gpus} GPUs{size}, or with pools that have them{tiny}",
    )


def _software_obstacles(recipe: Recipe, location: str, machine: Machine) -> Iterator[RecipeObstacle]:
    for kind in sorted({str(engine.get("kind")) for engine in (recipe.nodes.engine, *recipe.nodes.engines.values())}):
        if kind in server_kinds() and kind not in machine.engines:
            yield RecipeObstacle(
                cause=f"the engine {kind} is not installed", remedy=f"run astraflow engines install {kind}"
            )
    for _, registry, spec in plugin_specs(recipe):
        if registry is not models or spec.get("kind") == SIMULATED_KIND:
            continue
        try:
            models.build(spec).check()
        except AstraFlowError as problem:
            yield _obstacle(problem, location)


def _obstacle(problem: AstraFlowError, location: str) -> RecipeObstacle:
    cause, _, remedy = str(problem).replace("fetch RECIPE", f"fetch {location}").partition("; ")
    return RecipeObstacle(cause=cause, remedy=remedy or f"run astraflow check recipe {location}")


def _parts(recipe: Recipe) -> RecipeParts:
    flow = next(iter(recipe.flows.values()))
    environment, tools = flow.workflow.get("environment"), flow.workflow.get("tools") or ()
    if isinstance(environment, Mapping) and isinstance(environment.get("of"), Mapping):
        environment = environment["of"]  # the environment that a process has
    world = str(environment.get("kind")) if isinstance(environment, Mapping) else ""
    return RecipeParts(
        prompts=tuple(dict.fromkeys(str(flow.dataset.get("kind")) for flow in recipe.flows.values())),
        policies=tuple(recipe.policies),
        workflow=str(flow.workflow.get("kind")),
        world=world or ", ".join(str(tool.get("kind")) for tool in tools if isinstance(tool, Mapping)),
        reward=str(flow.reward.get("kind")),
    )


LOOPBACK = "127.0.0.1"

FREE_BYTES = 10**9
"""Recommended free space for a run directory."""

PORTS = 6
"""Ports of a run: data, weights, joining, fleet, metrics, page."""

SERVICES = 3
"""Service processes: weight store, dataflow, and the supervisor of the run."""

PROCESS_BYTES = 100 * 10**6
TORCH_BYTES = 400 * 10**6
"""Minimum memory of a process without and with torch, measured with `reverse`; models are not included."""

SECOND_ENGINE_BYTES = 10
"""Peak memory of a node's second engine for evaluations, for each weight of the model: the weights in float32, their
next values during a load, and the received version."""

SIMULATED_KIND = "scripted"


def checks(recipe: Recipe, fleet: FleetForm, *, problems: int, host: str) -> Iterator[FormCheck]:
    """Yields the results of the checks.

    problems: number of problems shown next to the fields. host: address at which remote nodes join.
    """
    yield FormCheck(
        name="Recipe",
        is_ok=not problems,
        message=f"{problems} problem{'s' if problems > 1 else ''}, shown next to the fields"
        if problems
        else "all settings are valid",
    )
    yield _disk()
    yield _memory(recipe, fleet)
    yield _ports(host if any(pool.is_remote for pool in fleet.pools) else LOOPBACK)


def _disk() -> FormCheck:
    folder = next(path for path in (runs_folder(), *runs_folder().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    return FormCheck(
        name="Disk", is_ok=free >= FREE_BYTES, message=f"{free / 1e9:,.1f} GB free for the run in {runs_folder()}"
    )


def needed_memory_bytes(recipe: Recipe, fleet: FleetForm) -> int:
    """Returns the memory of the processes on this machine, without nodes that a provider starts elsewhere, and of the
    models as far as the recipe's card states it, with the second engines of evaluations."""
    count, with_torch = _processes(recipe, fleet)
    models = round(recipe.card.memory_gb * 1e9) + _local_nodes(recipe, fleet) * _second_engine_bytes(recipe)
    return with_torch * TORCH_BYTES + (count - with_torch) * PROCESS_BYTES + models


def _second_engine_bytes(recipe: Recipe) -> int:
    """Returns the memory of the second engines of a node on a CPU; 0 for models of unknown shape."""
    if needs_gpu(recipe) or not recipe.nodes.evaluates:
        return 0
    flows = (workflows.build(flow.workflow).policies for flow in recipe.evaluations.values())
    names = {str(policy) for policies in flows for policy in policies}
    shapes = [_shape(recipe, name) for name in names if engine_of(recipe, name).get("kind") == "local_torch"]
    return sum(SECOND_ENGINE_BYTES * shape.parameters for shape in shapes if shape is not None)


def _shape(recipe: Recipe, policy: str) -> ModelShape | None:
    try:
        return model_shape(recipe.policies[policy].model)
    except InvalidInput:  # the dry run reports it
        return None


def _local_nodes(recipe: Recipe, fleet: FleetForm) -> int:
    if fleet.pools:
        return sum(pool.initial_nodes for pool in fleet.pools if not pool.is_remote)
    return recipe.nodes.count


def _processes(recipe: Recipe, fleet: FleetForm) -> tuple[int, int]:
    """Returns the number of processes on this machine, and how many of them use torch."""
    nodes = _local_nodes(recipe, fleet)
    trainers = [policy.backend.get("kind") != SIMULATED_KIND for policy in recipe.policies.values()]
    kinds = {engine.get("kind") for engine in (recipe.nodes.engine, *recipe.nodes.engines.values())}
    nodes_with_torch = nodes if kinds != {SIMULATED_KIND} else 0
    return SERVICES + bool(fleet.pools) + len(trainers) + nodes, sum(trainers) + nodes_with_torch


def _memory(recipe: Recipe, fleet: FleetForm) -> FormCheck:
    needed, free = needed_memory_bytes(recipe, fleet), psutil.virtual_memory().available
    models = "" if recipe.card.memory_gb else " plus models"
    return FormCheck(
        name="Memory",
        is_ok=free >= needed,
        message=f"{free / 1e9:,.1f} GB free; {_processes(recipe, fleet)[0]} processes on this machine need at least "
        f"{needed / 1e9:,.1f} GB{models}",
    )


def _ports(host: str) -> FormCheck:
    try:
        free_ports(PORTS, host=host)
    except InvalidInput as problem:
        return FormCheck(name="Ports", is_ok=False, message=str(problem))
    return FormCheck(name="Ports", is_ok=True, message=f"{PORTS} ports are free on {host}")
