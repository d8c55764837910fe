"""Codecs shared by several planes: spans, node facts, JSON fields. No arrays."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.spans import Ending, Span, cached_span
from astraflow.contract.values import Json
from astraflow.wire.pb import common_pb2 as pb


def encode_json(value: Mapping[str, Json]) -> str:
    """Returns the mapping as compact JSON."""
    return json.dumps(dict(value), separators=(",", ":"))


def decode_json(text: str, *, what: str) -> dict[str, Json]:
    """Parses a JSON object. Raises: InvalidInput for anything else."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise InvalidInput(
            f"cannot decode {what}: it is not valid JSON; send a JSON object", code="message.invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(f"cannot decode {what}: it is not a JSON object; send one", code="message.invalid_json")
    return value


def encode_spans(spans: Iterable[Span]) -> list[pb.Span]:
    """Spans -> messages."""
    return [pb.Span(length=span.length, model_version=span.version, speaker=span.speaker) for span in spans]


def decode_spans(messages: Iterable[pb.Span]) -> tuple[Span, ...]:
    """Messages -> spans."""
    return tuple(
        [
            cached_span(
                message.length, message.model_version if message.HasField("model_version") else None, message.speaker
            )
            for message in messages
        ]
    )


def decode_ending(name: str) -> Ending | None:
    """Returns the ending of a message; None when it names none. Raises: InvalidInput for an unknown name."""
    if not name:
        return None
    try:
        return Ending(name)
    except ValueError:
        raise InvalidInput(
            f"cannot decode a trajectory: unknown ending {name!r}; use one of {', '.join(e.value for e in Ending)}",
            code="trajectory.invalid",
        ) from None


def decode_versions(versions: Mapping[str, int]) -> dict[PolicyId, Version]:
    """Proto map -> version of each policy."""
    return {_policy(policy): _version(version) for policy, version in versions.items()}


# Cached: a run has few policies and versions, and a report of thousands of nodes repeats them.
_policy = lru_cache(maxsize=256)(PolicyId)
_version = lru_cache(maxsize=4096)(Version)


def select_entries(mapping: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Returns the entries of a proto map with these names, sorted by name."""
    return {name: mapping[name] for name in sorted(names) if name in mapping}
