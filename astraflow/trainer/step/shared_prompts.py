"""Rows of a group whose prompts begin alike, divided so that as few prompt tokens as possible are computed twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.rollouts.trajectories import Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCluster:
    """Rows that share the computation of their first tokens."""

    rows: tuple[int, ...]
    """Indices of the rows in the batch, in order."""
    prefix_length: int
    """Leading context tokens that are the same in all rows."""


MAX_LEVELS = 32
"""Levels of the tree of prompts; prompts that are nested deeper share fewer tokens than they could."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Node:
    """Node of the tree of prompts."""

    depth: int
    """Tokens that all prompts below the node share."""
    parts: list["_Node | int"] = field(default_factory=list)
    """Nodes, and rows whose prompt is not shared further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """Division of the rows below a node, some of which join a cluster of a node above it."""

    saved: int = 0
    """Tokens that are not computed, compared with each row alone, including those of the joining rows."""
    joining: tuple[int, ...] = ()
    clusters: tuple[PromptCluster, ...] = ()


def prompt_clusters(prompts: Mapping[int, Int32Array]) -> list[PromptCluster]:
    """Divides rows into clusters; rows with equal prompts are in one cluster, those of other prompts may be.

    prompts: context before the first model-written token, by row, which are ascending. Sorted, they form a tree by
    common beginnings. Each row joins the cluster of one node above it, or that of its own prompt, so that the sum of
    saved tokens is the largest possible.
    """
    keys = {row: prompt.tobytes() for row, prompt in prompts.items()}
    if len({*keys.values()}) == 1:
        return [PromptCluster(rows=tuple(keys), prefix_length=len(next(iter(prompts.values()))))]
    ordered = sorted(keys, key=lambda row: (keys[row], row))
    root = _Node(depth=0)
    path = [root]
    for index, row in enumerate(ordered):
        shared = _common_length(prompts[row], prompts[ordered[index + 1]]) if index + 1 < len(ordered) else 0
        if shared > path[-1].depth and len(path) < MAX_LEVELS:
            path.append(_Node(depth=shared))
            path[-2].parts.append(path[-1])
        path[-1].parts.append(row)
        _ascend(path, shared)
    division = _best_division(root, 0, {})
    alone = [PromptCluster(rows=(row,), prefix_length=len(prompts[row])) for row in division.joining]
    return sorted([*division.clusters, *alone], key=lambda cluster: cluster.rows)


def _ascend(path: list[_Node], depth: int) -> None:
    """Ends the nodes deeper than `depth`, and inserts a node of that depth above the last of them if there is none."""
    last: _Node | None = None
    while path[-1].depth > depth:
        last = path.pop()
    if last is not None and path[-1].depth < depth:
        path[-1].parts[-1] = node = _Node(depth=depth, parts=[last])
        path.append(node)


def _best_division(part: _Node | int, depth: int, divisions: dict[tuple[_Node, int], _Division]) -> _Division:
    """Returns the division that saves most when joining rows save `depth` tokens each, in a cluster further up.
    divisions: earlier results, without which the time would double with each level."""
    if isinstance(part, int):
        return _Division(saved=depth, joining=(part,))
    if (part, depth) not in divisions:
        divisions[part, depth] = _division_of_node(part, depth, divisions)
    return divisions[part, depth]


def _division_of_node(node: _Node, depth: int, divisions: dict[tuple[_Node, int], _Division]) -> _Division:
    apart = _united([_best_division(part, depth, divisions) for part in node.parts])
    if depth == node.depth:
        return apart
    here = _united([_best_division(part, node.depth, divisions) for part in node.parts])
    saved = here.saved - node.depth  # the first row of a cluster is computed
    if not here.joining or saved <= apart.saved:
        return apart
    cluster = PromptCluster(rows=tuple(sorted(here.joining)), prefix_length=node.depth)
    return _Division(saved=saved, clusters=(*here.clusters, cluster))


def _united(divisions: Sequence[_Division]) -> _Division:
    return _Division(
        saved=sum(division.saved for division in divisions),
        joining=tuple(row for division in divisions for row in division.joining),
        clusters=tuple(cluster for division in divisions for cluster in division.clusters),
    )


def _common_length(first: Int32Array, second: Int32Array) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length
