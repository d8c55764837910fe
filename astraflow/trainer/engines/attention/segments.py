"""Pairs of segments and prefixes of a pack between which attention is computed, whole or in a window."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.trainer.engines.base import Segment


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Adjacent segments with the same prefix."""

    members: tuple[int, int]
    """Begin of the first and end of the last."""
    prefix: tuple[int, int]


def prefix_groups(segments: Sequence[Segment]) -> list[PrefixGroup]:
    """Returns the runs of segments with the same prefix."""
    groups: list[PrefixGroup] = []
    for segment in segments:
        prefix = (segment.prefix_begin, segment.prefix_end)
        if prefix[0] == prefix[1]:
            continue
        if groups and groups[-1].prefix == prefix and groups[-1].members[1] == segment.begin:
            groups[-1] = PrefixGroup((groups[-1].members[0], segment.end), prefix)
        else:
            groups.append(PrefixGroup((segment.begin, segment.end), prefix))
    return groups


def longest_trajectory(segments: Sequence[Segment]) -> int:
    """Returns the length of the longest segment with its prefix."""
    return max(segment.end - segment.begin + segment.prefix_end - segment.prefix_begin for segment in segments)


@dataclass(frozen=True, slots=True)
class WindowedPrefix:
    """Part of a segment, and the end of its prefix, between which there are pairs closer than a window."""

    queries: tuple[int, int]
    keys: tuple[int, int]


def windowed_prefixes(segments: Sequence[Segment], window: int) -> list[WindowedPrefix]:
    """Returns the pairs of queries and prefixes in a window: the first `window - 1` tokens of a segment have any."""
    reach = window - 1
    pairs = []
    for segment in segments:
        if reach and segment.prefix_end > segment.prefix_begin:
            queries = (segment.begin, min(segment.end, segment.begin + reach))
            keys = (max(segment.prefix_begin, segment.prefix_end - reach), segment.prefix_end)
            pairs.append(WindowedPrefix(queries, keys))
    return pairs
