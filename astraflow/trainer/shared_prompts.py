"""Rows of a group whose prompts begin alike, divided so that as few prompt tokens as possible are computed twice."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.spans import Author
from astraflow.contract.trajectories import Int32Array, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCluster:
    """Rows that share the computation of their first tokens."""

    rows: tuple[int, ...]
    """Indices of the rows in the batch, in order."""
    prefix_length: int
    """Leading context tokens that are the same in all rows."""


@dataclass(slots=True, kw_only=True)
class _Division:
    """Best division of the rows below a node of the tree of prompts."""

    rows: list[int]
    saved: int
    """Tokens that are not computed, compared with each row alone."""
    clusters: list[PromptCluster]


@dataclass(slots=True, kw_only=True)
class _Node:
    depth: int
    """Tokens that all prompts below the node share."""
    parts: list[_Division] = field(default_factory=list)


def prompt_clusters(trajectories: Sequence[Trajectory], rows: Sequence[int]) -> list[PromptCluster]:
    """Divides rows into clusters; rows with equal prompts are in one cluster, those of other prompts may be.

    The sorted prompts form a tree by common beginnings. From its leaves upwards, each node either keeps the clusters of
    a part below it, or adds the rows of the part to a cluster that shares the node's own tokens, whichever saves more.
    Raises: InvalidInput when a trajectory begins with a model-written token, which no context predicts.
    """
    prompts = {row: trajectories[row].tokens[: _first_model_token(trajectories[row])] for row in rows}
    ordered = sorted(rows, key=lambda row: (prompts[row].tobytes(), row))
    nodes: list[_Node] = []
    part = _Division(rows=[], saved=0, clusters=[])
    for index, row in enumerate(ordered):
        part = _Division(rows=[row], saved=0, clusters=[PromptCluster(rows=(row,), prefix_length=len(prompts[row]))])
        shared = _common_length(prompts[row], prompts[ordered[index + 1]]) if index + 1 < len(ordered) else -1
        while nodes and nodes[-1].depth > shared:
            node = nodes.pop()
            part = _divided(node.depth, [*node.parts, part])
        if nodes and nodes[-1].depth == shared:
            nodes[-1].parts.append(part)
        else:
            nodes.append(_Node(depth=shared, parts=[part]))
    return sorted(part.clusters, key=lambda cluster: cluster.rows)


def _divided(depth: int, parts: Sequence[_Division]) -> _Division:
    joining = [part for part in parts if depth * len(part.rows) >= part.saved]
    others = [part for part in parts if depth * len(part.rows) < part.saved]
    joined = tuple(sorted(row for part in joining for row in part.rows))
    saved_if_joined = depth * (len(joined) - 1) + sum(part.saved for part in others)
    saved_apart = sum(part.saved for part in parts)
    rows = [row for part in parts for row in part.rows]
    if not joined or saved_if_joined < saved_apart:
        return _Division(
            rows=rows, saved=saved_apart, clusters=[cluster for part in parts for cluster in part.clusters]
        )
    clusters = [cluster for part in others for cluster in part.clusters]
    clusters.append(PromptCluster(rows=joined, prefix_length=depth))
    return _Division(rows=rows, saved=saved_if_joined, clusters=clusters)


def _common_length(first: Int32Array, second: Int32Array) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def _first_model_token(trajectory: Trajectory) -> int:
    """Returns the position of the first model-written token. Raises: InvalidInput when it is the first token of all."""
    length = 0
    for span in trajectory.spans:
        if span.author is Author.MODEL:
            break
        length += span.length
    if length == 0:
        raise InvalidInput(
            f"cannot train a trajectory of {trajectory.policy!r}: its first token is model-written and has no context "
            "that predicts it; give the workflow's prompt at least one token",
            code="trainer.no_context",
        )
    return length
