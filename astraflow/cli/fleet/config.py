"""Configuration of the fleet service of a run on this machine, from the recipe's `fleet` table and defaults."""

from astraflow.recipe.config import Recipe
from astraflow.runtime.config.toml import Values, merge_tables
from astraflow.runtime.http.hosts import is_loopback

DEFAULT_GROWTH_FACTOR = 4
"""Default of a pool's `max_nodes`, as a multiple of `nodes.count`."""

DATAFLOW_TIMEOUT_S = 30.0
"""Seconds without dataflow after which the nodes of a run on one machine exit."""


def fleet_values(recipe: Recipe, *, run: str) -> Values:
    """Returns the complete configuration. Without pools in the recipe, adds a pool of processes on this machine.

    Its nodes have the settings and the initial count of the recipe's nodes and end with the run; the bounds come from
    `dataflow.pools`, if present.
    """
    defaults: Values = {
        "cluster": run,
        "retire_on_stop": True,
    }
    if all(_is_on_this_machine(provider) for provider in _tables(_providers(recipe)).values()):
        # Instances of a cloud start slowly, and their nodes outlast an outage of dataflow.
        defaults["times"] = {"dataflow_timeout_s": DATAFLOW_TIMEOUT_S, "sweep_s": 5.0, "quarantine_s": 10.0}
    if not recipe.fleet.get("providers"):
        defaults["providers"] = {"here": {"kind": "local_process"}}
    if not recipe.fleet.get("pools"):
        defaults["pools"] = {recipe.nodes.pool: _pool(recipe, provider=next(iter(_providers(recipe))))}
    return merge_tables(defaults, recipe.fleet)


def remote_pools(recipe: Recipe) -> tuple[str, ...]:
    """Returns the pools whose nodes run on other machines, from which the join address must be reachable.

    Processes of this machine and hosts on its loopback are local; all others are remote. The fleet service refuses
    invalid values.
    """
    values = fleet_values(recipe, run="here")
    pools, providers = _tables(values.get("pools")), _tables(values.get("providers"))
    return tuple(
        name for name, pool in pools.items() if not _is_on_this_machine(providers.get(str(pool.get("provider")), {}))
    )


def _is_on_this_machine(provider: Values) -> bool:
    match provider.get("kind"):
        case "static_ssh":
            return all(is_loopback(str(host.get("address"))) for host in _tables(provider.get("hosts")).values())
        case None | "local_process":
            return True
        case _:
            return False


def _tables(value: object) -> dict[str, Values]:
    items = value.items() if isinstance(value, dict) else ()
    return {name: table for name, table in items if isinstance(table, dict)}


def _providers(recipe: Recipe) -> Values:
    providers: Values = recipe.fleet.get("providers") or {"here": {}}
    return providers


def _pool(recipe: Recipe, *, provider: str) -> Values:
    count = max(1, recipe.nodes.count)
    bounds = recipe.dataflow.get("pools", {}).get(recipe.nodes.pool, {})
    return {
        "provider": provider,
        "mode": bounds.get("mode", "advise" if recipe.nodes.policies else "on"),
        "nodes": count,
        "min_nodes": bounds.get("min_nodes", count),
        "max_nodes": bounds.get("max_nodes", DEFAULT_GROWTH_FACTOR * count),
        "is_spot": bounds.get("is_spot", False),
        "region": recipe.nodes.region,
        "capacity": recipe.nodes.capacity,
        "policies": recipe.nodes.policies,
        "drain_s": max(recipe.nodes.drain_s, 5.0),
    }
