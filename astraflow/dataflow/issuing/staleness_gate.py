"""Staleness gates: how many groups a stream may have open, and when a flow issues one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.ids import PolicyId


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessGate:
    """Headroom of one policy of a flow for another group on some node."""

    headroom: int
    """Groups that the staleness gate still admits for that node. Count."""
    must_wait_for_policy: bool
    """True if the flow's other policies wait for this one while it has no headroom."""


def find_surplus_policies(gates: Mapping[PolicyId, StalenessGate]) -> frozenset[PolicyId] | None:
    """Returns the policies whose share of another group would be dropped; None when no group may be issued now.

    A group is issued for the policies with headroom. It is surplus for a policy that has none and that the flow does
    not wait for.

    >>> solver, verifier = PolicyId("solver"), PolicyId("verifier")
    >>> def gate(headroom, must_wait): return StalenessGate(headroom=headroom, must_wait_for_policy=must_wait)
    >>> find_surplus_policies({solver: gate(2, True), verifier: gate(1, True)})
    frozenset()
    >>> find_surplus_policies({solver: gate(2, True), verifier: gate(0, True)}) is None
    True
    >>> find_surplus_policies({solver: gate(2, True), verifier: gate(0, False)})
    frozenset({'verifier'})
    """
    full = frozenset(policy for policy, gate in gates.items() if gate.headroom <= 0)
    must_wait = len(full) == len(gates) or any(gates[policy].must_wait_for_policy for policy in full)
    return None if must_wait else full


def issue_headroom(
    *,
    lag: int,
    max_staleness: int,
    fresh: tuple[float, float],
    held: float,
    open_groups: int,
    group_size: float = 1.0,
) -> int:
    """Returns how many more groups may be issued for a policy; zero or less means wait.

    All groups that are held or open must fit into the next `max_staleness + 1` batches: none is issued that must become
    too stale, and the trainer never lacks a batch because of the gate. Where tokens size batches, the size of an open
    group is expected, so that some may become stale. Source: the staleness gate of AReaL, arXiv:2505.24298.

    lag: versions that the node is behind; its groups have as many versions less time. fresh: size of the fresh groups
    of the next batch, and of each after it; less than a batch where groups are replayed. held: size of the complete
    groups that no step has trained. open_groups: issued groups that are not complete. group_size: mean size of a group.

    >>> gate = dict(max_staleness=2, fresh=(32, 32))
    >>> issue_headroom(lag=0, held=0, open_groups=0, **gate)
    96
    >>> issue_headroom(lag=0, held=64, open_groups=32, **gate)
    0
    >>> issue_headroom(lag=1, held=64, open_groups=32, **gate)
    -32
    >>> issue_headroom(lag=0, max_staleness=0, fresh=(4096, 4096), held=3000, open_groups=1, group_size=500.0)
    2
    """
    next_batch, each_after = fresh
    return math.ceil((next_batch + (max_staleness - lag) * each_after - held) / group_size) - open_groups
