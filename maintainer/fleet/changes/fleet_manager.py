"""Makes changes to the fleet: plans, holds, escalations, kill switch and pool specs.

A change is one transaction: the check that the pool is unchanged since the plan, the intents, the audit log and the
reply under the caller's idempotency key. The actuator carries out the intents later, even after crashes.
"""

from collections.abc import Callable
from dataclasses import asdict, replace

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted, PlanRefused
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import MaintainerMode, Proposal
from astraflow.contract.fleet.plans import Actor, AppliedPlan, PlanId, Role
from astraflow.contract.fleet.pools import KillScope, Pool, PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.values import Values
from maintainer.fleet.changes.plan_application import PlanApplier, applied
from maintainer.fleet.changes.plans import DraftedPlan, Plans
from maintainer.fleet.changes.run_changes import RunChanges
from maintainer.fleet.guard.approval import ApplyAttempt, refusal_message
from maintainer.fleet.guard.guard import MAX_HOLD_S
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.ledger.records import KillSwitch, MaintainerSetting, PoolRecord
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

MAX_HOLD_MINUTES = MAX_HOLD_S / 60


class FleetManager:
    """Makes changes to the fleet. Every call returns after its change is durable. One instance per service."""

    def __init__(self, fleet: FleetState, replies: IdempotentReplies, run_changes: RunChanges) -> None:
        self.plans = Plans(fleet, run_changes)
        self._run_changes = run_changes
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._replies = replies
        self._applying = PlanApplier(fleet, self.plans, replies)

    async def apply(
        self, plan: DraftedPlan | PlanId, *, key: str, approver: Actor | None = None, applier: Actor | None = None
    ) -> AppliedPlan:
        """Records the plan's changes for the actuator. plan: a draft, or the id of a stored plan.

        approver: person who approves a plan that needs it. applier: actor who applies the plan; by default the
        approver, else the planner.
        Raises: PlanRefused with the guard's findings, or for another actor's plan; Conflict when the pool has changed
        since, the plan is expired or unknown, or the key was used for another request.
        """
        async with self._replies.lock:
            request_hash = hash_request("apply", plan.plan.id if isinstance(plan, DraftedPlan) else plan)
            stored_reply = await self._replies.find(key, request_hash)
            if stored_reply is not None:
                return applied(stored_reply)
            drafted = plan if isinstance(plan, DraftedPlan) else self.plans.get(plan)
            applier = applier or approver or drafted.plan.request.actor
            if drafted.plan.request.run is not None:
                result = await self._run_changes.apply(
                    drafted.plan, key=key, request_hash=request_hash, approver=approver, applier=applier
                )
                self.plans.discard(drafted.plan.id)  # the run has no version that a second approval would miss
                return result
            return await self._apply(drafted, key=key, request_hash=request_hash, approver=approver, applier=applier)

    async def put_pool(self, spec: PoolSpec, *, observed_version: int, actor: Actor, key: str, reason: str) -> Pool:
        """Creates a pool, or changes its spec. Raises: NotPermitted, Conflict, InvalidInput."""
        require_role(actor, Role.ADMIN, "change a pool's spec")
        require_pool_access(actor, spec.id)
        check_reason(reason)
        self._fleet.provider(spec.provider)
        request_hash = hash_request("put_pool", asdict(spec), observed_version)
        async with self._replies.lock:
            if await self._replies.find(key, request_hash) is None:
                await self._put_pool(
                    spec, observed_version, actor=actor, reason=reason, key=key, request_hash=request_hash
                )
        return self._fleet.view(self._fleet.pool(spec.id))

    async def set_hold(self, pool_id: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Sets a hold: no node is retired for `minutes`; 0 ends it.

        Raises: InvalidInput above an hour; NotPermitted for an agent that must not act, or would shorten a hold.
        """
        if not 0 <= minutes <= MAX_HOLD_MINUTES:
            raise InvalidInput(
                f"cannot set the hold: {minutes:g} minutes are outside 0 to {MAX_HOLD_MINUTES:g} minutes; "
                "set it again later",
                code="fleet.hold_too_long",
            )

        def changes(pool: PoolRecord) -> PoolRecord:
            until = self._fleet.clock.wall() + 60 * minutes if minutes else None
            if actor.role is Role.AGENT:
                self._check_agent_hold(pool, until)
            return replace(pool, version=pool.version + 1, hold_until_at=until, hold_reason=reason if minutes else "")

        values: Values = {"minutes": minutes} if minutes else {"state": "ended"}
        return await self.record_decision(RecordKind.HOLD, values, actor, key, reason, pool=pool_id, of_pool=changes)

    async def escalate(self, severity: Severity, *, actor: Actor, key: str, reason: str) -> Decision:
        """Notifies people."""
        return await self.record_decision(
            RecordKind.ESCALATE, {}, actor, key, reason, severity=severity, subject=f"{severity.value}: {reason}"
        )

    async def kill_switch(self, scope: KillScope, *, actor: Actor, key: str, reason: str) -> Decision:
        """Sets the kill switch. Every actor may extend its scope, only an admin may reduce it. Raises: NotPermitted."""

        def check(ledger: Ledger) -> None:
            order = list(KillScope)
            if order.index(scope) < order.index(ledger.switch.scope):
                require_role(actor, Role.ADMIN, "reduce the scope of the kill switch")

        switch = KillSwitch(scope=scope, reason=reason if scope is not KillScope.NONE else "")
        return await self.record_decision(
            RecordKind.KILL_SWITCH, {}, actor, key, reason, cause=scope.value, switch=switch, check=check
        )

    def _check_agent_hold(self, pool: PoolRecord, until: float | None) -> None:
        """Checks a hold that an agent sets until this time; None: ends. Raises: NotPermitted."""
        fleet, name = self._fleet, pool.spec.id
        if fleet.kill is not KillScope.NONE:
            cause, code = "the kill switch is on; do not retry until a person turns it off", "fleet.kill_switch"
        elif pool.spec.mode is Mode.OFF:
            cause, code = f"pool {name} is in mode off; ask an operator", "fleet.pool_off"
        elif fleet.agents_mode in (MaintainerMode.OFF, MaintainerMode.SHADOW):
            cause, code = f"agents are in mode {fleet.agents_mode.value}; ask an operator", "fleet.agents_off"
        elif (pool.hold_until_at or 0.0) > max(fleet.clock.wall(), until or 0.0):
            cause, code = "agents cannot shorten a hold; ask an operator", "fleet.hold_shortened"
        else:
            return
        raise NotPermitted(f"cannot set the hold of pool {name}: {cause}", code=code)

    async def _apply(
        self, drafted: DraftedPlan, *, key: str, request_hash: str, approver: Actor | None, applier: Actor
    ) -> AppliedPlan:
        plan, quote = drafted.plan, drafted.quote

        def decide(ledger: Ledger) -> tuple[Changes, AppliedPlan | PlanRefused]:
            pool = self._fleet.pool(plan.request.pool)
            if pool.version != plan.observed_version:
                raise Conflict(
                    f"cannot apply plan {plan.id}: pool {pool.spec.id} has changed since it was made (version "
                    f"{pool.version}, planned for {plan.observed_version}); plan again",
                    code="fleet.pool_changed",
                )
            application = ApplyAttempt(
                applier=applier, mode=self._fleet.agents_mode, is_proposed=plan.id in ledger.waiting_proposals
            )
            assessment = self.plans.assess(plan.request, pool, quote)
            evidence = replace(assessment.evidence, application=application)
            findings = evidence.violations()
            objection = refusal_message(plan, findings, approver)
            if objection:
                refused = PlanRefused(objection, guard_json=evidence.to_json(), code="fleet.plan_refused")
                return self._records.refusal(plan, objection, applier, findings, key), refused
            assessment = replace(assessment, evidence=evidence)
            return self._applying.changes(
                plan, pool, assessment, quote, key=key, request_hash=request_hash, approver=approver, applier=applier
            )

        result = await self._fleet.ledger.change(decide)
        if isinstance(result, PlanRefused):
            raise result
        return result

    async def _put_pool(
        self, spec: PoolSpec, observed_version: int, *, actor: Actor, reason: str, key: str, request_hash: str
    ) -> None:

        def decide(ledger: Ledger) -> tuple[Changes, None]:
            stored_pool = ledger.pools.get(spec.id)
            version = stored_pool.version if stored_pool is not None else 0
            if version != observed_version:
                raise Conflict(
                    f"cannot change pool {spec.id}: it has version {version}, not {observed_version}; read it again",
                    code="fleet.pool_changed",
                )
            target = (
                spec.min_nodes if stored_pool is None else min(max(stored_pool.target, spec.min_nodes), spec.max_nodes)
            )
            pool = (
                PoolRecord(spec=spec, version=1, target=target)
                if stored_pool is None
                else replace(stored_pool, spec=spec, version=version + 1, target=target)
            )
            values: Values = {
                "change": "created" if stored_pool is None else "changed",
                "min_nodes": spec.min_nodes,
                "max_nodes": spec.max_nodes,
                "mode": spec.mode.value,
            }
            decision = self._records.decision(
                RecordKind.SPEC, values, pool=spec.id, actor=actor, reason=reason, key=key
            )
            return Changes(
                pools=(pool,), decisions=(decision,), reply=self._replies.make_reply(key, request_hash, {})
            ), None

        await self._fleet.ledger.change(decide)

    async def record_decision(
        self,
        kind: RecordKind,
        values: Values,
        actor: Actor,
        key: str,
        reason: str,
        *,
        cause: str = "",
        severity: Severity | None = None,
        pool: PoolId | None = None,
        of_pool: Callable[[PoolRecord], PoolRecord] | None = None,
        switch: KillSwitch | None = None,
        setting: MaintainerSetting | None = None,
        proposals: Callable[[], tuple[Proposal, ...]] = tuple,
        check: Callable[[Ledger], None] = lambda _: None,
        subject: str = "",
    ) -> Decision:
        """Records a decision in the audit log, with small changes.

        of_pool, proposals: return the changed pool and proposals; called inside the transaction. check: raises for a
        change that is not permitted, inside the transaction. subject: id of the changed object, part of the request.
        """
        check_reason(reason)
        require_pool_access(actor, pool or "")
        # A note's pool is not part of the request: a repetition may no longer know it.
        changed_pool = (pool or "") if of_pool is not None else ""
        request_hash = hash_request(kind.value, cause, dict(values), actor.name, changed_pool, subject)

        def decide(ledger: Ledger) -> tuple[Changes, Decision]:
            check(ledger)
            decision = self._records.decision(
                kind, values, pool=pool or "", actor=actor, reason=reason, cause=cause, severity=severity, key=key
            )
            pools = (of_pool(self._fleet.pool(pool)),) if of_pool is not None and pool is not None else ()
            reply = self._replies.make_reply(key, request_hash, decision_reply(decision))
            changes = Changes(
                pools=pools,
                switch=switch,
                maintainer_setting=setting,
                proposals=proposals(),
                decisions=(decision,),
                reply=reply,
            )
            return changes, decision

        async with self._replies.lock:
            earlier_reply = await self._replies.find(key, request_hash)
            if earlier_reply is not None:
                return stored_decision(earlier_reply)
            return await self._fleet.ledger.change(decide)
