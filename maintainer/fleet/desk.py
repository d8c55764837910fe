"""Where changes are made: apply, hold, escalate, the kill switch, pool specs.

A change is one transaction: the check that the pool is as it was planned for, the intents, the journal and the reply
under the caller's key. What the intents mean is carried out later, by the actuator, however often the service dies in
between.
"""

from collections.abc import Callable
from dataclasses import asdict, replace

from astraflow.contract.errors import Conflict, InvalidInput, PlanRefused
from astraflow.contract.fleet import (
    Actor,
    Applied,
    Decision,
    Finding,
    KillScope,
    Plan,
    PlanId,
    Pool,
    PoolSpec,
    Role,
    Verdict,
)
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import Proposal
from maintainer.fleet.applying import Applying, applied
from maintainer.fleet.consent import Application, may_approve
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.guard import LONGEST_HOLD_S, verdict
from maintainer.fleet.ledger import Changes, Ledger
from maintainer.fleet.plans import Plans
from maintainer.fleet.providers.base import Quote
from maintainer.fleet.records import MaintainerOrder, PoolRecord, Switch
from maintainer.fleet.replies import Replies, asked_for, check_reason, needs, within

MAX_HOLD_MINUTES = LONGEST_HOLD_S / 60
SEVERITIES = ("info", "warning", "critical")


class Desk:
    """One for the service. Every call is answered after what it changed is durable."""

    def __init__(self, fleet: Fleet, replies: Replies) -> None:
        self.plans = Plans(fleet)
        self._fleet = fleet
        self._replies = replies
        self._applying = Applying(fleet, self.plans, replies)

    async def apply(
        self, plan_id: PlanId, *, key: str, approver: Actor | None = None, applier: Actor | None = None
    ) -> Applied:
        """Write down what the plan says, for the actuator to carry out.

        approver: who agrees, where the plan needs that. applier: who applies it; the approver when not said, else
        whoever made it.
        Raises: PlanRefused with what the guard says, or for somebody else's plan; Conflict when the pool has changed
        since, the plan expired or is not known (any more), or the key was used for something else.
        """
        async with self._replies.turn:
            asked = asked_for("apply", plan_id)
            known = await self._replies.known(key, asked)
            if known is not None:
                return applied(known)
            plan, quote = self.plans.found(plan_id)
            applier = applier or approver or plan.request.actor
            return await self._apply(plan, quote, key=key, asked=asked, approver=approver, applier=applier)

    async def put_pool(self, spec: PoolSpec, *, observed_version: int, actor: Actor, key: str, reason: str) -> Pool:
        """Make a pool, or change its spec. Raises: NotPermitted, Conflict, InvalidInput."""
        needs(actor, Role.ADMIN, "changing a pool's spec")
        within(actor, spec.id)
        check_reason(reason)
        self._fleet.provider(spec.provider)
        asked = asked_for("put_pool", asdict(spec), observed_version)
        async with self._replies.turn:
            if await self._replies.known(key, asked) is None:
                await self._put_pool(spec, observed_version, actor=actor, reason=reason, key=key, asked=asked)
        return self._fleet.view(self._fleet.pool(spec.id))

    async def hold(self, pool_id: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Take no node away for so long; 0 ends it. Raises: InvalidInput for more than an hour."""
        if not 0 <= minutes <= MAX_HOLD_MINUTES:
            raise InvalidInput(f"a hold lasts up to {MAX_HOLD_MINUTES:g} minutes, not {minutes:g}: hold again later")

        def changes(pool: PoolRecord) -> PoolRecord:
            until = self._fleet.clock.wall() + 60 * minutes if minutes else None
            return replace(pool, version=pool.version + 1, hold_until=until, hold_reason=reason if minutes else "")

        what = f"no node of pool {pool_id} is taken away for {minutes:g} minutes" if minutes else f"{pool_id} is free"
        return await self.noted("hold", what, actor, key, reason, pool=pool_id, of_pool=changes)

    async def escalate(self, severity: str, *, actor: Actor, key: str, reason: str) -> Decision:
        """Tell people something. Raises: InvalidInput for an unknown severity."""
        if severity not in SEVERITIES:
            raise InvalidInput(f"{severity[:40]!r} is no severity: {', '.join(SEVERITIES)}")
        return await self.noted("escalate", f"{severity}: {reason}", actor, key, reason)

    async def kill_switch(self, scope: KillScope, *, actor: Actor, key: str, reason: str) -> Decision:
        """Stop agents, or everybody; anybody may, and only an admin lets more happen again. Raises: NotPermitted."""
        order = list(KillScope)
        if order.index(scope) < order.index(self._fleet.ledger.switch.scope):
            needs(actor, Role.ADMIN, "turning the kill switch back")
        what = {
            KillScope.NONE: "the kill switch is off",
            KillScope.AGENTS: "agents change nothing any more",
            KillScope.ALL: "nothing is launched or retired any more",
        }[scope]
        switch = Switch(scope=scope, reason=reason if scope is not KillScope.NONE else "")
        return await self.noted("kill_switch", what, actor, key, reason, switch=switch)

    async def _apply(
        self, plan: Plan, quote: Quote, *, key: str, asked: str, approver: Actor | None, applier: Actor
    ) -> Applied:

        def decide(ledger: Ledger) -> tuple[Changes, Applied | PlanRefused]:
            pool = self._fleet.pool(plan.request.pool)
            if pool.version != plan.observed_version:
                raise Conflict(
                    f"pool {pool.spec.id} has changed since plan {plan.id} was made (version {pool.version}, "
                    f"planned for {plan.observed_version}): plan again"
                )
            application = Application(
                applier=applier, mode=self._fleet.agents_mode, is_proposed=plan.id in ledger.waiting
            )
            judged = self.plans.judged(plan.request, pool, quote)
            evidence = replace(judged.evidence, application=application)
            findings = evidence.findings()
            objection = _objection(plan, findings, approver)
            if objection:
                refused = PlanRefused(objection, guard_json=evidence.to_json())
                return self._refusal(plan, objection, applier, findings, key), refused
            judged = replace(judged, evidence=evidence)
            return self._applying.changes(
                plan, pool, judged, quote, key=key, asked=asked, approver=approver, applier=applier
            )

        result = await self._fleet.ledger.change(decide)
        if isinstance(result, PlanRefused):
            raise result
        return result

    async def _put_pool(
        self, spec: PoolSpec, observed_version: int, *, actor: Actor, reason: str, key: str, asked: str
    ) -> None:

        def decide(ledger: Ledger) -> tuple[Changes, None]:
            known = ledger.pools.get(spec.id)
            version = known.version if known is not None else 0
            if version != observed_version:
                raise Conflict(f"pool {spec.id} has version {version}, not {observed_version}: read it again")
            target = spec.min_nodes if known is None else min(max(known.target, spec.min_nodes), spec.max_nodes)
            pool = (
                PoolRecord(spec=spec, version=1, target=target)
                if known is None
                else replace(known, spec=spec, version=version + 1, target=target)
            )
            made = "made" if known is None else "changed"
            message = f"pool {spec.id} {made}: {spec.min_nodes} to {spec.max_nodes} nodes, mode {spec.mode.value}"
            decision = self._fleet.decision("spec", pool=spec.id, actor=actor, reason=reason, message=message, key=key)
            return Changes(pools=(pool,), decisions=(decision,), reply=self._replies.kept(key, asked, {})), None

        await self._fleet.ledger.change(decide)

    def _refusal(self, plan: Plan, objection: str, applier: Actor, findings: tuple[Finding, ...], key: str) -> Changes:
        request = plan.request
        decision = self._fleet.decision(
            "refuse",
            pool=request.pool,
            actor=applier,
            reason=request.reason,
            message=objection,
            key=key,
            findings=findings,
        )
        return Changes(decisions=(decision,))

    async def noted(
        self,
        kind: str,
        message: str,
        actor: Actor,
        key: str,
        reason: str,
        *,
        pool: PoolId | None = None,
        of_pool: Callable[[PoolRecord], PoolRecord] | None = None,
        switch: Switch | None = None,
        order: MaintainerOrder | None = None,
        proposals: Callable[[], tuple[Proposal, ...]] = tuple,
    ) -> Decision:
        """A change that is little more than its entry in the journal.

        of_pool, proposals: asked for what becomes of the pool and of proposals, when nobody else writes any more.
        """
        check_reason(reason)
        within(actor, pool or "")
        asked = asked_for(kind, message, actor.name)

        def decide(ledger: Ledger) -> tuple[Changes, Decision]:
            decision = self._fleet.decision(kind, pool=pool or "", actor=actor, reason=reason, message=message, key=key)
            pools = (of_pool(self._fleet.pool(pool)),) if of_pool is not None and pool is not None else ()
            reply = self._replies.kept(key, asked, asdict(decision) | {"actor": None})
            changes = Changes(
                pools=pools,
                switch=switch,
                order=order,
                proposals=proposals(),
                decisions=(decision,),
                reply=reply,
            )
            return changes, decision

        async with self._replies.turn:
            known = await self._replies.known(key, asked)
            if known is not None:
                return Decision(**known | {"actor": actor, "findings": ()})
            return await self._fleet.ledger.change(decide)


def _objection(plan: Plan, findings: tuple[Finding, ...], approver: Actor | None) -> str:
    """Why the plan may not be applied; empty when it may."""
    said = verdict(findings)
    hardest = "; ".join(finding.message for finding in findings if finding.verdict is said)
    if said is Verdict.REFUSED:
        return hardest
    if said is Verdict.NEEDS_APPROVAL and approver is None:
        return f"not pre-approved, do not retry: {hardest}"
    if said is Verdict.NEEDS_APPROVAL and approver is not None and not _may_approve(plan, approver):
        return (
            f"{approver.name} ({approver.role.value}) may not approve what {plan.request.actor.name} plans: {hardest}"
        )
    return ""


def _may_approve(plan: Plan, approver: Actor) -> bool:
    return may_approve(plan.request.actor, approver, pool=plan.request.pool)
