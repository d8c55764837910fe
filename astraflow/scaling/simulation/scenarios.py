"""Built-in scenarios: the test cases of the rule, and the published experiment."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import suggest_name
from astraflow.runtime.config.toml import ConfigLayer, layer_origin, merge_layers, merge_tables
from astraflow.scaling.simulation.scenario import Scenario

_PRICED = {"bounds": {"max_nodes": 400, "price_per_hour": 1.0}}


def _pool(nodes: int = 22, **overrides: Any) -> dict[str, Any]:
    return merge_tables({"nodes": nodes, **_PRICED}, overrides)


def _single_pool(
    summary: str, *events: dict[str, Any], trainer: dict[str, Any] | None = None, **pool: Any
) -> dict[str, Any]:
    """Returns a scenario with one pool that needs 20 nodes at first and has 22 by default."""
    return {"summary": summary, "pools": {"nodes": _pool(**pool)}, "events": list(events), "trainer": trainer or {}}


_DOUBLE = {"at_h": 1.0, "kind": "demand", "factor": 2.0}

PUBLISHED_TRAINER_GPUS = 4


def _published() -> dict[str, Any]:
    """Returns the published experiment, Qwen3-14B on math with 4 trainer GPUs, as far as its settings are published.

    23.4 hours of compute; responses grow during training, so that 2.3 rollout GPUs are needed at first and 13.2 at
    the end. Both, and the staleness bound, are chosen so that the fixed pools of 6 and 11 wait as long as published.
    """
    return {
        "summary": "The published experiment: responses grow until six times as many nodes are needed",
        "hours": 60.0,
        "steps": 281,
        "trainer": {"step_s": 300.0, "batch_groups": 32, "usable_share": 1.0, "max_staleness": 4, "step_noise": 0.05},
        "pools": {"rollout": _pool(6, groups_per_s=32 / 300 / 2.3, slots=4, bounds={"max_nodes": 16})},
        "events": [{"at_h": 0.0, "kind": "growth", "factor": 13.2 / 2.3}],
    }


_SCENARIOS: Mapping[str, dict[str, Any]] = {
    "steady": _single_pool("Constant demand, no events"),
    "over": _single_pool("Twice as many nodes as needed", nodes=40),
    "step": _single_pool("The demand doubles after an hour", _DOUBLE),
    "step-slow": _single_pool("The demand doubles, and nodes take ten minutes to start", _DOUBLE, launch_delay_s=600.0),
    "step-and-back": _single_pool("The demand doubles for an hour and a half", {**_DOUBLE, "duration_h": 1.5}),
    "tail": _single_pool(
        "Episodes become 1.8 times as long after an hour", {"at_h": 1.0, "kind": "rate", "factor": 1 / 1.8}
    ),
    "drift": _single_pool(
        "Nodes lose 40 % of their rate over two hours", {"at_h": 1.0, "kind": "rate", "factor": 0.6, "duration_h": 2.0}
    ),
    "loss": _single_pool("30 % of the nodes are lost at once", {"at_h": 1.0, "kind": "loss", "share": 0.3}),
    "slow-region": _single_pool(
        "A third of the nodes slows down to 30 %", {"at_h": 1.0, "kind": "rate", "factor": 0.3, "share": 1 / 3}
    ),
    "noisy": _single_pool(
        "20 % noise in all rates, and a trainer that stalls",
        trainer={"step_noise": 0.2, "stall_share": 0.03},
        rate_noise=0.2,
    ),
    "mixed": _single_pool(
        "Hardware of three speeds, and 1.4 times the demand",
        {"at_h": 1.0, "kind": "demand", "factor": 1.4},
        nodes=34,
        speeds=(1.0, 0.6, 0.3),
    ),
    "spot": _single_pool("Spot nodes are preempted after two hours on average", mean_life_h=2.0),
    "published": _published(),
    "small": {
        "summary": "A small pool: five nodes needed, six present",
        "pools": {"nodes": _pool(6)},
        "trainer": {"batch_groups": 16},
    },
    "gated": _single_pool(
        "Episodes so long that the trainer waits for the staleness bound, not for nodes",
        trainer={"max_staleness": 2},
        slots=12,
    ),
    # The scenarios below test missing measurements, limits, several pools and the spot market.
    "silence": _single_pool(
        "Twice as many nodes as needed, and for an hour 40 % of them send no heartbeats",
        {"at_h": 0.05, "kind": "silence", "share": 0.4, "duration_h": 1.0},
        nodes=40,
    ),
    "pause": _single_pool("The run is paused for an hour", {"at_h": 1.0, "kind": "pause", "duration_h": 1.0}),
    "capped": {
        **_single_pool("The demand doubles, with a budget of 30 nodes an hour", _DOUBLE),
        "sizer": {"max_dollars_per_hour": 30.0},
    },
    "daily": {
        **_single_pool("The demand doubles, with a budget of 70 dollars a day", _DOUBLE),
        "sizer": {"max_dollars_per_day": 70.0},
    },
    "regions": {
        "summary": "Three regions at three prices, and 1.5 times the demand",
        "pools": {
            "us": _pool(8, bounds={"price_per_hour": 1.0, "max_nodes": 100}),
            "eu": _pool(8, bounds={"price_per_hour": 1.3, "max_nodes": 100}),
            "apac": _pool(6, bounds={"price_per_hour": 0.8, "max_nodes": 12}),
        },
        "events": [{"at_h": 1.0, "kind": "demand", "factor": 1.5}],
    },
    "failing-region": {
        "summary": "The demand doubles, and the cheapest region is out of capacity for two hours",
        "pools": {
            "us": _pool(11, bounds={"price_per_hour": 0.8, "max_nodes": 100}),
            "eu": _pool(11, bounds={"price_per_hour": 1.0, "max_nodes": 100}),
        },
        "events": [_DOUBLE, {"at_h": 1.0, "kind": "out_of_capacity", "pool": "us", "duration_h": 2.0}],
    },
    "spot-drought": {
        "summary": "Spot nodes at a third of the price, with no spot capacity for an hour",
        "pools": {
            "spot": _pool(15, mean_life_h=2.0, bounds={"price_per_hour": 0.35, "max_nodes": 100, "is_spot": True}),
            "on-demand": _pool(7, bounds={"price_per_hour": 1.0, "max_nodes": 100}),
        },
        "events": [{"at_h": 1.0, "kind": "out_of_capacity", "pool": "spot", "duration_h": 1.0}],
        "sizer": {"base_on_demand": 4},
    },
}


def scenario_names() -> list[str]:
    """Returns the names of the built-in scenarios."""
    return list(_SCENARIOS)


def find_scenario(name: str, *overrides: Mapping[str, Any]) -> Scenario:
    """Returns a built-in scenario with overrides. Raises: InvalidInput that suggests the nearest name."""
    if name not in _SCENARIOS:
        hint = suggest_name(name, scenario_names())
        raise InvalidInput(
            f"cannot load the scenario: no scenario is named {name!r}; {hint}", code="scaling.unknown_scenario"
        )
    return compose(ConfigLayer(f"scenario {name}", {"name": name, **_SCENARIOS[name]}), *overrides)


def compose(base: ConfigLayer, *overrides: Mapping[str, Any]) -> Scenario:
    """Returns a scenario from a base table and overrides. Raises: InvalidInput."""
    layers = [base, *(ConfigLayer("--set", dict(values)) for values in overrides)]
    return Scenario.parse(merge_layers(layers), where="", origin=layer_origin(layers))
