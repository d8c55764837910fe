"""Interfaces that a toolbox uses: the fleet service and the transcript."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import Proposal
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import Severity
from maintainer.agent.observation.snapshot import JournalReader
from maintainer.agent.transcript.transcript import Kind

Record = Callable[[Kind, Mapping[str, Any]], Awaitable[object]]
"""Writes to the transcript: kind and body."""


async def skip_record(kind: Kind, body: Mapping[str, Any]) -> None:
    """Discards the entry; for callers without a transcript."""


class FleetClient(JournalReader, Protocol):
    """Interface for changes of the fleet service; implemented by the client of the fleet plane."""

    async def plan(self, request: PlanRequest) -> Plan:
        """Plans a change without applying it."""

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> AppliedPlan:
        """Applies a plan."""

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Proposes a plan to people."""

    async def set_hold(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Sets a hold: no node of the pool is removed for `minutes`."""

    async def escalate(self, severity: Severity, *, actor: Actor, key: str, reason: str) -> Decision:
        """Writes an escalation for people."""
