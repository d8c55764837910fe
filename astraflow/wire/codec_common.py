"""What several planes share: spans, node facts, JSON fields. None of it is an array."""

import json
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, PoolId, TaskId, Version
from astraflow.contract.links import LinkReport
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.spans import Author, Span
from astraflow.contract.values import Json
from astraflow.wire.pb import common_pb2 as pb

_LINK_FIELDS = (
    "source",
    "versions",
    "full_bytes",
    "delta_bytes",
    "shared_bytes",
    "fetch_s",
    "decode_s",
    "stage_s",
    "verify_s",
    "pause_s",
    "apply_s",
    "resume_s",
    "resumes",
    "failures",
    "latest_bytes",
    "latest_fetch_s",
    "latest_behind",
    "latest_changed_share",
)


def encode_json(value: Mapping[str, Json]) -> str:
    """A JSON object, compact."""
    return json.dumps(dict(value), separators=(",", ":"))


def decode_json(text: str, *, what: str) -> dict[str, Json]:
    """A JSON object. Raises: InvalidInput when it is anything else."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise InvalidInput(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} is not a JSON object")
    return value


def encode_spans(spans: Iterable[Span]) -> list[pb.Span]:
    """Spans -> messages."""
    return [pb.Span(length=span.length, model_version=span.version) for span in spans]


def decode_spans(messages: Iterable[pb.Span]) -> tuple[Span, ...]:
    """Messages -> spans."""
    return tuple(
        [
            _span(message.length, message.model_version if message.HasField("model_version") else None)
            for message in messages
        ]
    )


@lru_cache(maxsize=4096)
def _span(length: int, version: int | None) -> Span:
    """Most trajectories of a run share their few shapes."""
    if version is None:
        return Span(author=Author.CONTEXT, length=length)
    return Span(author=Author.MODEL, length=length, version=Version(version))


def encode_facts(facts: NodeFacts) -> pb.NodeFacts:
    """Node facts -> message."""
    return pb.NodeFacts(
        name=facts.name,
        pool=facts.pool,
        region=facts.region,
        engine=facts.engine,
        is_simulated=facts.is_simulated,
        hardware=facts.hardware,
        capacity=facts.capacity,
        price_per_hour=facts.price_per_hour,
        software=facts.software,
        running=facts.running,
    )


def decode_facts(message: pb.NodeFacts) -> NodeFacts:
    """Message -> node facts."""
    return NodeFacts(
        name=message.name,
        pool=PoolId(message.pool),
        region=message.region,
        engine=message.engine,
        is_simulated=message.is_simulated,
        hardware=message.hardware,
        capacity=message.capacity,
        price_per_hour=message.price_per_hour,
        software=message.software,
        running=tuple(TaskId(task) for task in message.running),
    )


def encode_link(link: LinkReport) -> pb.LinkReport:
    """Link report -> message."""
    return pb.LinkReport(**taken(link, _LINK_FIELDS))


def decode_link(message: pb.LinkReport) -> LinkReport:
    """Message -> link report."""
    return LinkReport(**taken(message, _LINK_FIELDS))


def decode_versions(versions: Mapping[str, int]) -> dict[PolicyId, Version]:
    """A proto map of policy -> version."""
    return {_policy(policy): _version(version) for policy, version in versions.items()}


# A run has few of each, and a report of thousands of nodes names them again and again.
_policy = lru_cache(maxsize=256)(PolicyId)
_version = lru_cache(maxsize=4096)(Version)


def plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A proto map without its message, keys sorted so that equal reports read equal.

    Thousands of nodes count the same things: each name is there once, not once a node.
    """
    return {sys.intern(key): mapping[key] for key in sorted(mapping)}


def known(mapping: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    """The entries of a proto map that have these names, in the order of the names sorted."""
    return {name: mapping[name] for name in sorted(names) if name in mapping}


def taken(source: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    """Fields that have the same name and type in dataclass and message."""
    return {name: getattr(source, name) for name in fields}


def given(message: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    """Optional fields of a message, None for those that are absent."""
    return {name: getattr(message, name) if message.HasField(name) else None for name in fields}
