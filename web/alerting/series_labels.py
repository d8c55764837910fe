"""Labels of recorded series, for people."""

from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.training_metrics import training_metric

VALUE_LABELS = {
    "policy": {
        "reward": "reward of a step",
        "reward_average": "reward, ten-step mean",
        "reward_trained": "reward of trained groups",
        "wait": "share of a step the trainer waits",
        "produced": "groups produced per second",
        "consumed": "groups consumed per second",
        "buffered": "groups in the buffer",
        "version": "version",
        "steps": "steps",
        "lag": "versions the slowest node is behind",
    },
    "fleet": {
        "demand": "demand, groups per second",
        "ready": "ready capacity, groups per second",
        "ordered": "capacity with pending nodes, groups per second",
        "ratio": "requested capacity over demand",
        "nodes": "ready nodes",
        "pending": "pending nodes",
        "target": "target of nodes",
        "dollars": "US dollars per hour",
        "price": "US dollars per thousand trajectories",
    },
    "node": {
        "episodes": "episodes per second",
        "tokens": "tokens per second",
        "busy": "share of slots that work",
        "blocked": "share of slots without a task",
        "lag": "versions behind",
        "leased": "leased tasks",
    },
}
"""Labels by kind of subject and value."""

_ANY = {"training": "any policy", "policy": "any policy", "node": "any node", "fleet": "the fleet"}
_RECORD_NOUNS = {"event": "event", "problem": "problem", "diagnosis": "diagnosis"}


def value_label(kind: str, value: str) -> str:
    """Returns the label of a value; its name where it has none.

    >>> value_label("policy", "wait"), value_label("training", "entropy"), value_label("event", "node_lost")
    ('share of a step the trainer waits', 'entropy', 'node lost')
    """
    if kind == "training":
        metric = training_metric(value)
        label = value if metric is None else metric.label
        return label if label[1:2].isupper() else label[:1].lower() + label[1:]
    if kind == "event":
        return "any" if value == "*" else _event_label(value)
    if kind in ("problem", "diagnosis"):
        return "any" if value == "*" else value.replace("_", " ")
    return VALUE_LABELS.get(kind, {}).get(value, value)


def series_label(subject: str, value: str) -> str:
    """Returns the label of a series.

    >>> series_label("training/*", "entropy"), series_label("node/gpu-7", "busy"), series_label("problem", "*")
    ('entropy of any policy', 'share of slots that work of gpu-7', 'any problem')
    """
    kind, _, name = subject.partition("/")
    if kind in _RECORD_NOUNS:
        label = value_label(kind, value)
        return f"{label} {_RECORD_NOUNS[kind]}" if value == "*" else f"{_RECORD_NOUNS[kind]} {label}"
    of = _ANY.get(kind, kind) if name in ("", "*") else name
    return f"{value_label(kind, value)} of {of}"


def event_kinds() -> list[RecordKind]:
    """Kinds of events, in the order of their declaration; decisions of the fleet service are not events."""
    return [kind for kind in RecordKind if not kind.is_decision]


def _event_label(value: str) -> str:
    kind = next((kind for kind in RecordKind if kind.value == value), None)
    return value.replace("_", " ") if kind is None else kind.label.lower()
