"""Checks of this machine before a recipe is launched on it."""

import shutil
from collections.abc import Iterator

import psutil

from astraflow.cli.ports import free_ports
from astraflow.cli.recipes.fleet_form import FleetForm
from astraflow.cli.recipes.gpu_placement import needs_gpu
from astraflow.contract.errors import InvalidInput
from astraflow.contract.launching import FormCheck
from astraflow.models.shapes import ModelShape, model_shape
from astraflow.recipe.config import Recipe, engine_of
from astraflow.runtime.folders.run_folders import runs_folder
from astraflow.workflows import workflows

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
        message=f"{problems} problems, shown next to the fields" if problems else "all settings are valid",
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
