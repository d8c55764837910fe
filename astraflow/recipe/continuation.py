"""Settings that may change when a run continues. A fork may change the others."""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

_OF_DATAFLOW = (
    "lease_s episode_ceiling_s heartbeat_s report_s memory_bytes history history_minutes events metrics samples "
    "samples_per_step sample_bytes pools scaling keda"
)
_OF_BACKENDS = (
    # Course of the learning: all are read at each update, and none has a state.
    "learning_rate schedule warmup_steps decay_steps min_learning_rate_ratio betas epsilon weight_decay grad_clip "
    # Where and how it is computed.
    "device threads micro_batch_tokens batching recompute compile_blocks peak_flops probe_sequences probe_tokens"
)
CHANGEABLE = (
    *("summary", "card", "stop", "evaluations", "nodes", "trainer", "fleet", "maintainer", "tracing"),
    *(f"dataflow.{setting}" for setting in _OF_DATAFLOW.split()),
    *(f"policies.*.backend.{option}" for option in _OF_BACKENDS.split()),
)
"""Settings, and tables with all their settings, that may change. A `*` is any name. All others decide what was recorded
so far, or what a state on disk means: data, models, rewards, losses, batches, the optimizer and its state."""


def may_change(key: str) -> bool:
    """Returns whether a setting may change when a run continues.

    >>> may_change("policies.solver.backend.learning_rate"), may_change("policies.solver.backend.optimizer")
    (True, False)
    >>> may_change("stop.steps"), may_change("stopped"), may_change("flows.train.group_size")
    (True, False, False)
    """
    parts = key.split(".")
    return any(fnmatchcase(".".join(parts[: pattern.count(".") + 1]), pattern) for pattern in CHANGEABLE)


def refused_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Returns the settings that differ between two resolved recipes and may not change, with both values as JSON."""
    stored, wanted = dict(_settings(before)), dict(_settings(after))
    return {
        key: (_text(stored, key), _text(wanted, key))
        for key in sorted(stored.keys() | wanted.keys())
        if stored.get(key) != wanted.get(key) and not may_change(key)
    }


def _settings(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each setting of nested tables with its dotted path."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _text(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "not set"
