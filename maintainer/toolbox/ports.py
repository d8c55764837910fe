"""What a toolbox is given: the fleet service, and somewhere to write."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from astraflow.contract.fleet import Actor, Applied, Decision, Plan, PlanId, PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import Proposal
from maintainer.transcript import Kind

Record = Callable[[Kind, Mapping[str, Any]], Awaitable[object]]
"""Writes to the transcript."""


async def unrecorded(kind: Kind, body: Mapping[str, Any]) -> None:
    """For who keeps no transcript."""


class ChangePort(Protocol):
    """What changes are asked of the fleet service: the fleet plane's client is one."""

    async def plan(self, request: PlanRequest) -> Plan:
        """What a change would do."""

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> Applied:
        """Do it."""

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Put it before people."""

    async def hold(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Take no node away for so long."""

    async def escalate(self, severity: str, *, actor: Actor, key: str, reason: str) -> Decision:
        """Tell people something."""


class FleetPort(ChangePort, Protocol):
    """And what is read there."""

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """The journal, newest first."""
