"""Labels of a recipe's settings: from the schema, from the table here, or from the key."""

import re
from fnmatch import fnmatchcase

SHORT_FORM = {
    "seed": "Seed",
    "stop.reward": "Target reward",
    "stop.window_steps": "Reward window (steps)",
    "stop.steps": "Maximum steps",
    "stop.*": "",
    "nodes.count": "Nodes",
    "nodes.capacity": "Node capacity",
    "nodes.engine.kind": "Engine",
    "policies.*.model.kind": "Model",
    "policies.*.model.path": "Model path",
    "policies.*.batch_groups": "Batch size (groups)",
    "policies.*.max_staleness": "Staleness bound (versions)",
    "policies.*.backend.learning_rate": "Learning rate",
    "flows.*.dataset.kind": "Dataset",
    "flows.*.workflow.kind": "Workflow",
    "flows.*.reward.kind": "Reward",
    "flows.*.filters": "Filters",
    "policies.*.algorithm.advantages": "Advantages",
    "flows.*.group_size": "Group size (episodes)",
    "flows.*.workflow.max_new_tokens": "Maximum answer length (tokens)",
    "flows.*.workflow.temperature": "Temperature",
    "dataflow.pools.*": "",
    "fleet.pools.*.mode": "Pool mode",
    "fleet.pools.*.nodes": "Initial nodes",
    "fleet.pools.*.min_nodes": "Minimum nodes",
    "fleet.pools.*.max_nodes": "Maximum nodes",
    "fleet.pools.*.usd_per_hour_max": "Pool budget ($/hour)",
    "fleet.pools.*.usd_per_day_max": "Pool budget ($/day)",
    "fleet.budget.usd_per_hour_max": "Total budget ($/hour)",
    "fleet.budget.usd_per_day_max": "Total budget ($/day)",
}
"""Settings of the short form with their labels. An empty label is derived from the key. Other settings are collapsed.
The first matching pattern applies."""

UNITS = {"s": "s", "bytes": "bytes", "tokens": "tokens", "per_hour": "$/hour", "versions": "versions"}
"""Suffixes of keys that name a unit, with the unit."""

_OWNER = re.compile(r"^(?:policies|flows|evaluations|dataflow\.pools|fleet\.pools|fleet\.providers|mirrors)\.([^.]+)\.")


def is_basic(key: str) -> bool:
    """Returns True if the setting is part of the basic form."""
    return any(fnmatchcase(key, pattern) for pattern in SHORT_FORM)


def title_of(key: str, schema_title: str | None = None) -> str:
    """Returns the label of a setting.

    >>> title_of("stop.steps"), title_of("policies.solver.backend.step_s"), title_of("nodes.engine.text_share")
    ('Maximum steps', 'Step (s)', 'Text share')
    >>> title_of("evaluations.progress.dataset.kind")
    'Dataset kind'
    """
    table_title = next((title for pattern, title in SHORT_FORM.items() if fnmatchcase(key, pattern)), "")
    return schema_title or table_title or _title_from_key(key)


def owner_of(key: str) -> str:
    """Returns the policy, flow, evaluation or pool of a setting; empty for a setting of the whole run.

    >>> owner_of("flows.train.group_size"), owner_of("seed")
    ('train', '')
    """
    match = _OWNER.match(key)
    return match[1] if match else ""


def _title_from_key(key: str) -> str:
    *parents, last = key.split(".")
    if last == "kind" and parents:
        return f"{_words(parents[-1] if not parents[-1].isdecimal() else parents[-2]).capitalize()} kind"
    for ending, unit in UNITS.items():
        if last.endswith(f"_{ending}"):
            return f"{_words(last.removesuffix(f'_{ending}')).capitalize()} ({unit})"
    return _words(last).capitalize()


def _words(name: str) -> str:
    return name.replace("_", " ")
