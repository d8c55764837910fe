"""Pairs of segments and prefixes of a pack between which attention is computed, whole or in a window."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.trainer.engines.base import Segment, prefixes_of


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Adjacent segments with the same prefix, and all segments that continue them."""

    members: tuple[int, int]
    """Begin of the first and end of the last."""
    prefix: tuple[int, int]


def prefix_levels(segments: Sequence[Segment]) -> list[list[PrefixGroup]]:
    """Returns the groups of segments with the same prefix, by the number of groups that they are in. The members of a
    level do not overlap."""
    levels: list[list[PrefixGroup]] = []
    begun: list[PrefixGroup] = []  # each within the one before it
    for segment in segments:
        prefix = (segment.prefix_begin, segment.prefix_end)
        while begun and begun[-1].prefix != prefix and segment.prefix_begin < begun[-1].members[0]:
            _end_last(begun, segment.begin, levels)
        if prefix[0] < prefix[1] and not (begun and begun[-1].prefix == prefix):
            begun.append(PrefixGroup((segment.begin, segment.end), prefix))
    while begun:
        _end_last(begun, segments[-1].end, levels)
    return levels


def _end_last(begun: list[PrefixGroup], end: int, levels: list[list[PrefixGroup]]) -> None:
    group = begun.pop()
    levels += [[] for _ in range(len(begun) + 1 - len(levels))]
    levels[len(begun)].append(PrefixGroup((group.members[0], end), group.prefix))


def small_trees(segments: Sequence[Segment], *, largest: int) -> list[tuple[int, int]]:
    """Returns the ranges of the trees with several segments and at most `largest` tokens."""
    begins = [segment.begin for segment in segments if segment.prefix_begin == segment.prefix_end]
    sizes = zip(begins, [*begins[1:], segments[-1].end], strict=True)
    roots = {segment.begin: segment.end for segment in segments}
    return [(begin, end) for begin, end in sizes if end - begin <= largest and roots[begin] < end]


def ends_of_readers(segments: Sequence[Segment], levels: Sequence[Sequence[PrefixGroup]]) -> Tensor:
    """Returns for each position the end of those that attend to it, int64 `[width]`: they follow it without a gap."""
    lengths = torch.tensor([segment.end - segment.begin for segment in segments])
    ends = torch.tensor([segment.end for segment in segments]).repeat_interleave(lengths)
    for level in levels:
        for group in level:  # of the groups of one segment, that after the fewest of its tokens is the last
            ends[group.prefix[0] : group.prefix[1]] = group.members[1]
    return ends


def longest_trajectory(segments: Sequence[Segment]) -> int:
    """Returns the length of the longest segment with its prefixes."""
    return max(
        segment.end - segment.begin + sum(end - begin for begin, end in prefixes)
        for segment, prefixes in zip(segments, prefixes_of(segments), strict=True)
    )


@dataclass(frozen=True, slots=True)
class WindowedPrefix:
    """Part of a segment, and the end of one of its prefixes, between which there are pairs closer than a window."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    gap: int
    """Tokens of the trajectory between the keys and the queries."""


def windowed_prefixes(segments: Sequence[Segment], window: int) -> list[WindowedPrefix]:
    """Returns the pairs of queries and prefixes in a window: the first `window - 1` tokens of a segment have any."""
    pairs = []
    for segment, prefixes in zip(segments, prefixes_of(segments), strict=True):
        gap = 0
        for begin, end in prefixes:
            if (reach := window - 1 - gap) <= 0:
                break
            queries = (segment.begin, min(segment.end, segment.begin + reach))
            pairs.append(WindowedPrefix(queries, (max(begin, end - reach), end), gap))
            gap += end - begin
    return pairs
