"""What a recipe's settings are called for people: by a title of the schema, by a name given here, else by their key."""

import re
from fnmatch import fnmatchcase

SHORT = {
    "seed": "Seed",
    "stop.reward": "Reward to reach",
    "stop.window_steps": "Window of the reward (steps)",
    "stop.steps": "Most steps",
    "stop.*": "",
    "nodes.count": "Nodes",
    "nodes.capacity": "Capacity of a node",
    "nodes.engine.kind": "Engine",
    "policies.*.model.kind": "Model",
    "policies.*.model.path": "Path of the model",
    "policies.*.batch_groups": "Batch size (groups)",
    "policies.*.max_staleness": "Staleness bound (versions)",
    "policies.*.backend.learning_rate": "Learning rate",
    "flows.*.dataset.kind": "Data set",
    "flows.*.workflow.kind": "Workflow",
    "flows.*.reward.kind": "Reward",
    "flows.*.filters": "Filters",
    "policies.*.algorithm.advantages": "Advantages",
    "flows.*.group_size": "Group size (episodes)",
    "flows.*.workflow.max_new_tokens": "Longest answer (tokens)",
    "flows.*.workflow.temperature": "Temperature",
    "dataflow.pools.*": "",
    "fleet.pools.*.mode": "Mode of the pool",
    "fleet.pools.*.nodes": "Nodes at first",
    "fleet.pools.*.min_nodes": "Fewest nodes",
    "fleet.pools.*.max_nodes": "Most nodes",
    "fleet.pools.*.usd_per_hour_max": "Budget of the pool ($ an hour)",
    "fleet.pools.*.usd_per_day_max": "Budget of the pool ($ a day)",
    "fleet.budget.usd_per_hour_max": "Budget of all pools ($ an hour)",
    "fleet.budget.usd_per_day_max": "Budget of all pools ($ a day)",
}
"""Settings that most launches are about, with a title where their keys leave it open; all others are there too, folded
away. The first pattern that fits counts."""

UNITS = {"s": "s", "bytes": "bytes", "tokens": "tokens", "per_hour": "$ an hour", "versions": "versions"}
"""How keys end that have a unit in them."""

_OWNED = re.compile(r"^(?:policies|flows|evaluations|dataflow\.pools|fleet\.pools|fleet\.providers|mirrors)\.([^.]+)\.")


def is_short(key: str) -> bool:
    """Whether most launches are about it."""
    return any(fnmatchcase(key, pattern) for pattern in SHORT)


def title_of(key: str, schema_title: str | None = None) -> str:
    """What a form calls a setting.

    >>> title_of("stop.steps"), title_of("policies.solver.backend.step_s"), title_of("nodes.engine.text_share")
    ('Most steps', 'Step (s)', 'Text share')
    >>> title_of("evaluations.progress.dataset.kind")
    'Kind of dataset'
    """
    given = next((title for pattern, title in SHORT.items() if fnmatchcase(key, pattern)), "")
    return schema_title or given or _spelled(key)


def owner_of(key: str) -> str:
    """The policy, flow, evaluation or pool that it is a setting of; empty for a setting of the whole run.

    >>> owner_of("flows.train.group_size"), owner_of("seed")
    ('train', '')
    """
    found = _OWNED.match(key)
    return found[1] if found else ""


def _spelled(key: str) -> str:
    *above, last = key.split(".")
    if last == "kind" and above:
        return f"Kind of {_words(above[-1] if not above[-1].isdecimal() else above[-2])}"
    for ending, unit in UNITS.items():
        if last.endswith(f"_{ending}"):
            return f"{_words(last.removesuffix(f'_{ending}')).capitalize()} ({unit})"
    return _words(last).capitalize()


def _words(name: str) -> str:
    return name.replace("_", " ")
