"""What a run on this machine tells its fleet service: its recipe's `fleet`, and what follows from the rest of it."""

from astraflow.recipe import Recipe
from astraflow.runtime.hosts import is_loopback
from astraflow.runtime.toml import Values, merged

LARGER = 4
"""Without a word from the recipe, the pool may grow to so many times `nodes.count`."""

DEAD_MAN_S = 30.0
"""A run on one machine is over when its dataflow has been away for so long."""


def fleet_values(recipe: Recipe, *, run: str) -> Values:
    """The configuration, complete. Without pools in the recipe there is one of processes of this machine.

    They are as the recipe's nodes are, at first as many, and end with the run; bounds are as the rule has them
    (`dataflow.pools`), where it does.
    """
    here: Values = {
        "cluster": run,
        "retire_on_stop": True,
        "times": {"dead_man_s": DEAD_MAN_S, "sweep_s": 5.0, "quarantine_s": 10.0},
    }
    if not recipe.fleet.get("providers"):
        here["providers"] = {"here": {"kind": "local_process"}}
    if not recipe.fleet.get("pools"):
        here["pools"] = {recipe.nodes.pool: _pool(recipe, provider=next(iter(_providers(recipe))))}
    return merged(here, recipe.fleet)


def pools_elsewhere(recipe: Recipe) -> tuple[str, ...]:
    """Pools whose machines are others than this one: what these are told to join must be reachable from there.

    Processes of this machine and hosts on its loopback are here; whatever else there is, is elsewhere. What makes no
    sense is the fleet service's to refuse.
    """
    values = fleet_values(recipe, run="here")
    pools, known = _tables(values.get("pools")), _tables(values.get("providers"))
    return tuple(name for name, pool in pools.items() if not _is_here(known.get(str(pool.get("provider")), {})))


def _is_here(provider: Values) -> bool:
    match provider.get("kind"):
        case "static_ssh":
            return all(is_loopback(str(host.get("address"))) for host in _tables(provider.get("hosts")).values())
        case None | "local_process":
            return True
        case _:
            return False


def _tables(value: object) -> dict[str, Values]:
    """The tables in a table, by name."""
    found = value.items() if isinstance(value, dict) else ()
    return {name: table for name, table in found if isinstance(table, dict)}


def _providers(recipe: Recipe) -> Values:
    found: Values = recipe.fleet.get("providers") or {"here": {}}
    return found


def _pool(recipe: Recipe, *, provider: str) -> Values:
    count = max(1, recipe.nodes.count)
    bounds = recipe.dataflow.get("pools", {}).get(recipe.nodes.pool, {})
    return {
        "provider": provider,
        "mode": bounds.get("mode", "on"),
        "nodes": count,
        "min_nodes": bounds.get("min_nodes", count),
        "max_nodes": bounds.get("max_nodes", LARGER * count),
        "is_spot": bounds.get("is_spot", False),
        "region": recipe.nodes.region,
        "capacity": recipe.nodes.capacity,
        "drain_s": max(recipe.nodes.drain_s, 5.0),
    }
