"""Tree of the rows of a group by the tokens with which they begin, and the order in which a pack computes them.

    rows, sorted     a b c d e │ a b c x │ a y          LCP 3, 1
    tree             a ─┬─ b c ─┬─ d e                   nodes end after 1 and 3 tokens
                        │       └─ x
                        └─ y

A node is a stretch of tokens that several rows share. In depth-first order a row shares most with the row before it, so
a pack needs only the order and the number of shared tokens. A node is kept if it saves more than its calls cost;
otherwise each row computes its tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.rollouts.trajectories import common_length


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """Tokens `begin` to `end` of the rows below the node, which share them."""

    end: int
    begin: int = 0
    rows: int = 0
    """Rows below the node. Count."""
    parts: list["Node | int"] = field(default_factory=list)
    """Nodes that continue this one, and rows that no other row continues with."""


Branch: TypeAlias = tuple[int, int]
"""A row, and the number of its first tokens that it shares with the row before it; 0: it begins a tree."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Tree of rows by their tokens."""

    nodes: tuple[Node, ...]
    """Children before their parents; the last one is the root, which has no tokens."""
    lengths: Mapping[int, int]
    """Tokens of each row."""

    @classmethod
    def of(cls, tokens: Mapping[int, npt.NDArray[np.integer]]) -> Self:
        """Returns the tree of these rows by their tokens, or keys in place of them. The time is linear in the tokens,
        but for the sorting of rows."""
        ordered = sorted(tokens, key=lambda row: (tokens[row].tobytes(), row))
        path = [Node(end=0)]
        nodes: list[Node] = []
        for row, following in zip(ordered, [*ordered[1:], None], strict=True):
            shared = 0 if following is None else common_length(tokens[row], tokens[following])
            if shared > path[-1].end:
                path.append(Node(end=shared))
            path[-1].parts.append(row)
            path[-1].rows += 1
            while path[-1].end > shared:
                node = path.pop()
                if path[-1].end < shared:
                    path.append(Node(end=shared))
                node.begin = path[-1].end
                path[-1].parts.append(node)
                path[-1].rows += node.rows
                nodes.append(node)
        return cls((*nodes, path[0]), {row: len(part) for row, part in tokens.items()})

    def order(self, is_kept: Callable[[Node, int], bool]) -> list[Branch]:
        """Returns the rows in depth-first order, with what each shares with the one before it through kept nodes.

        is_kept: of a node and the number of its parts, without those of nodes that are not kept. The part of a node
        with the most rows comes first, so that few rows continue rows that continue others; the shortest comes last,
        which ends where the node ends.
        """
        parts: dict[Node, list[Node | int]] = {}
        dissolved: dict[Node, list[Node | int]] = {}
        for node in self.nodes:
            own: list[Node | int] = []
            for part in node.parts:
                own += dissolved.pop(part, [part]) if isinstance(part, Node) else [part]
            target = parts if node.end == 0 or is_kept(node, len(own)) else dissolved
            target[node] = sorted(own, key=self._rank)
        branches: list[Branch] = []
        waiting: list[tuple[Node | int, int]] = [(self.nodes[-1], 0)]
        while waiting:
            part, shared = waiting.pop()
            if isinstance(part, Node):
                first, *others = parts[part]
                waiting += [(other, part.end) for other in reversed(others)]
                waiting.append((first, shared))
            else:
                branches.append((part, shared))
        return branches

    def _rank(self, part: Node | int) -> tuple[int, int]:
        return (-part.rows, 0) if isinstance(part, Node) else (-1, -self.lengths[part])
