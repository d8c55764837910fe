"""Staleness gates: how many groups a stream may have open, and when a flow issues one."""

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
    version: int,
    lag: int,
    max_staleness: int,
    batch_groups: int,
    fresh_groups: tuple[int, int],
    issued: int,
    dropped: int,
    replayed: int,
) -> int:
    """Returns how many more groups may be issued for a policy; zero or less means wait.

    A stream at version v may have at most `(v + max_staleness + 1) * batch_groups` groups issued since version 0,
    without the dropped groups. All open groups then fit into the batches up to version `v + max_staleness`, so that no
    group is issued that must become too stale, and the trainer never lacks a batch because of the gate.
    Source: the staleness gate of AReaL, arXiv:2505.24298.

    Batches with replayed groups take fewer fresh groups: past batches took `v * batch_groups - replayed`, and future
    batches take `fresh_groups`: (the one that is open or next, each after it).

    lag: versions that the node is behind; its groups have as many versions less time.

    >>> gate = dict(max_staleness=2, batch_groups=32, fresh_groups=(32, 32), replayed=0)
    >>> issue_headroom(version=0, lag=0, issued=0, dropped=0, **gate)
    96
    >>> issue_headroom(version=3, lag=0, issued=200, dropped=8, **gate)
    0
    >>> issue_headroom(version=3, lag=1, issued=200, dropped=8, **gate)
    -32
    >>> half = dict(max_staleness=2, batch_groups=32, fresh_groups=(16, 16))
    >>> issue_headroom(version=4, lag=0, issued=80, dropped=0, replayed=48, **half)
    48
    """
    next_batch, each_after = fresh_groups
    to_come = next_batch + (max_staleness - lag) * each_after
    return version * batch_groups - replayed + to_come - (issued - dropped)
