"""Fault injection: terminates nodes as if their machines had failed, to test a run."""

import random
from typing import Any

from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.fleet.decisions import InjectedFault
from astraflow.contract.fleet.instances import InstanceState, LaunchId
from astraflow.contract.fleet.plans import Actor, Role
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.providers.base import FaultInjectable
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.fleet_records import FleetRecords
from maintainer.fleet.state.idempotency import (
    IdempotentReplies,
    check_reason,
    decision_reply,
    hash_request,
    require_pool_access,
    require_role,
    stored_decision,
)


class FaultInjector:
    """Injects faults. The audit log records them with the actor; the ledger does not, as for real faults."""

    def __init__(self, fleet: FleetState, replies: IdempotentReplies) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._replies = replies

    async def inject(self, pool: PoolId, *, share: float, actor: Actor, key: str, reason: str) -> InjectedFault:
        """Terminates a share of the ready nodes, at least one. The same key terminates the same nodes.

        Raises: NotPermitted for roles other than admin, and while the kill switch is on for all; InvalidInput when the
        provider does not support fault injection or no node is ready; Conflict; ProviderError.
        """
        require_role(actor, Role.ADMIN, "inject faults")
        require_pool_access(actor, pool)
        check_reason(reason)
        provider = self._fleet.provider(self._fleet.pool(pool).spec.provider)
        if not isinstance(provider, FaultInjectable):
            kind = provider.capabilities().kind
            raise InvalidInput(
                f"cannot inject a fault into pool {pool}: the provider {kind} does not support fault injection; "
                "use a pool of another provider",
                code="fleet.fault_injection_unsupported",
            )
        request_hash = hash_request("lose", pool, share)
        async with self._replies.lock:
            earlier_reply = await self._replies.find(key, request_hash)
            fault = (
                _injected_fault(earlier_reply)
                if earlier_reply is not None
                else await self._choose_and_record(pool, share, actor, key, reason)
            )
        for launch in fault.lost:
            await provider.inject_fault(launch)
        return fault

    async def _choose_and_record(
        self, pool: PoolId, share: float, actor: Actor, key: str, reason: str
    ) -> InjectedFault:
        """Chooses nodes, and records them before any of them ends."""
        if not 0 < share <= 1:
            raise InvalidInput(
                f"cannot inject a fault: the share {share:g} is out of range; use a value above 0 and at most 1",
                code="fleet.invalid_share",
            )
        if self._fleet.kill is KillScope.ALL:
            raise NotPermitted(
                "cannot inject a fault: the kill switch is on for all changes; an admin can turn it off",
                code="fleet.kill_switch",
            )

        def decide(_: Ledger) -> tuple[Changes, InjectedFault]:
            ready = sorted(
                instance.id for instance in self._fleet.instances(pool) if instance.state is InstanceState.READY
            )
            if not ready:
                raise InvalidInput(
                    f"cannot inject a fault into pool {pool}: no node is ready; retry when a node is ready",
                    code="fleet.no_ready_node",
                )
            victims = tuple(random.Random(key).sample(ready, max(1, round(share * len(ready)))))
            values = {"lost": len(victims), "nodes": len(ready)}
            decision = self._records.decision(RecordKind.FAULT, values, pool=pool, actor=actor, reason=reason, key=key)
            answer = {"decision": decision_reply(decision), "lost": victims}
            reply = self._replies.make_reply(key, hash_request("lose", pool, share), answer)
            return Changes(decisions=(decision,), reply=reply), InjectedFault(decision=decision, lost=victims)

        return await self._fleet.ledger.change(decide)


def _injected_fault(answer: dict[str, Any]) -> InjectedFault:
    lost = tuple(LaunchId(launch) for launch in answer["lost"])
    return InjectedFault(decision=stored_decision(answer["decision"]), lost=lost)
