"""Scenarios that come with AstraFlow: those that the rule is judged by, and the published experiment."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import nearest
from astraflow.runtime.toml import Layer, merged, origin_in, stacked
from astraflow.scaling.scenario import Scenario

_PRICED = {"bounds": {"max_nodes": 400, "price_per_hour": 1.0}}


def _pool(nodes: int = 22, **more: Any) -> dict[str, Any]:
    return merged({"nodes": nodes, **_PRICED}, more)


def _one(summary: str, *events: dict[str, Any], trainer: dict[str, Any] | None = None, **pool: Any) -> dict[str, Any]:
    """20 nodes are needed at first; there are 22."""
    return {"summary": summary, "pools": {"nodes": _pool(**pool)}, "events": list(events), "trainer": trainer or {}}


_DOUBLE = {"at_h": 1.0, "kind": "demand", "factor": 2.0}

PUBLISHED_TRAINER_GPUS = 4


def _published() -> dict[str, Any]:
    """The published experiment, Qwen3-14B on math with 4 trainer GPUs, as far as its figures tell.

    23.4 hours of compute; responses grow as the model learns, so that 2.3 rollout GPUs are needed at first and 13.2 in
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
    "steady": _one("Nothing happens"),
    "over": _one("Twice the nodes that are needed", nodes=40),
    "step": _one("After an hour the trainer needs twice as much", _DOUBLE),
    "step-slow": _one("The same, and nodes take ten minutes to come", _DOUBLE, launch_delay_s=600.0),
    "step-and-back": _one("Twice as much for an hour and a half", {**_DOUBLE, "over_h": 1.5}),
    "tail": _one("After an hour all episodes are 1.8 times as long", {"at_h": 1.0, "kind": "rate", "factor": 1 / 1.8}),
    "drift": _one(
        "Nodes lose 40 % of their rate over two hours", {"at_h": 1.0, "kind": "rate", "factor": 0.6, "over_h": 2.0}
    ),
    "loss": _one("30 % of the nodes are gone at once", {"at_h": 1.0, "kind": "lose", "share": 0.3}),
    "slow-region": _one(
        "A third of the nodes falls to 30 %", {"at_h": 1.0, "kind": "rate", "factor": 0.3, "share": 1 / 3}
    ),
    "noisy": _one(
        "20 % noise in everything, and a trainer that stalls",
        trainer={"step_noise": 0.2, "stall_share": 0.03},
        rate_noise=0.2,
    ),
    "mixed": _one(
        "Hardware of three speeds, and 1.4 times the demand",
        {"at_h": 1.0, "kind": "demand", "factor": 1.4},
        nodes=34,
        speeds=(1.0, 0.6, 0.3),
    ),
    "spot": _one("Nodes are taken away after two hours on average", life_h=2.0),
    "published": _published(),
    "small": {
        "summary": "Five nodes are needed, and there are six",
        "pools": {"nodes": _pool(6)},
        "trainer": {"batch_groups": 16},
    },
    "gated": _one(
        "Episodes so long that the staleness bound, not the nodes, keeps the trainer waiting",
        trainer={"max_staleness": 2},
        slots=12,
    ),
    # The scenarios below are about rules 10 to 13: what is not measured, caps, pools, the spot market.
    "silence": _one(
        "Twice the nodes that are needed, and for an hour 40 % of them say nothing",
        {"at_h": 0.05, "kind": "silence", "share": 0.4, "over_h": 1.0},
        nodes=40,
    ),
    "pause": _one("The run is paused for an hour", {"at_h": 1.0, "kind": "pause", "over_h": 1.0}),
    "capped": {
        **_one("Twice the demand, and money for 30 nodes an hour", _DOUBLE),
        "sizer": {"max_dollars_per_hour": 30.0},
    },
    "daily": {
        **_one("Twice the demand, and 70 dollars for the day", _DOUBLE),
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
        "summary": "Twice the demand, and the cheapest region lets nothing out for two hours",
        "pools": {
            "us": _pool(11, bounds={"price_per_hour": 0.8, "max_nodes": 100}),
            "eu": _pool(11, bounds={"price_per_hour": 1.0, "max_nodes": 100}),
        },
        "events": [_DOUBLE, {"at_h": 1.0, "kind": "drought", "pool": "us", "over_h": 2.0}],
    },
    "spot-drought": {
        "summary": "Spot nodes at a third of the price; for an hour the market has none",
        "pools": {
            "spot": _pool(15, life_h=2.0, bounds={"price_per_hour": 0.35, "max_nodes": 100, "is_spot": True}),
            "on-demand": _pool(7, bounds={"price_per_hour": 1.0, "max_nodes": 100}),
        },
        "events": [{"at_h": 1.0, "kind": "drought", "pool": "spot", "over_h": 1.0}],
        "sizer": {"base_on_demand": 4},
    },
}


def scenario_names() -> list[str]:
    """All that come with AstraFlow."""
    return list(_SCENARIOS)


def find_scenario(name: str, *overrides: Mapping[str, Any]) -> Scenario:
    """A scenario by name, with differences. Raises: InvalidInput that names the nearest known one."""
    if name not in _SCENARIOS:
        raise InvalidInput(f"no scenario is called {name!r}; {nearest(name, scenario_names())}")
    return composed(Layer(f"scenario {name}", {"name": name, **_SCENARIOS[name]}), *overrides)


def composed(base: Layer, *overrides: Mapping[str, Any]) -> Scenario:
    """A scenario from what a file or a name says, with differences. Raises: InvalidInput."""
    layers = [base, *(Layer("--set", dict(values)) for values in overrides)]
    return Scenario.parse(stacked(layers), where="", origin=origin_in(layers))
