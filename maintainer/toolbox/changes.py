"""The tools that change something: they plan, apply, hold and escalate, as far as people let this maintainer go."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from astraflow.contract.errors import Conflict, NotPermitted, PlanRefused
from astraflow.contract.fleet import Actor, Applied, Decision, LaunchId, Plan, PlanId, PlanRequest, Verdict
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import MaintainerMode, MaintainerOrders
from astraflow.runtime.aio import retry
from astraflow.runtime.clock import Clock
from maintainer.fleet.evidence import Evidence
from maintainer.fleet.guard import verdict
from maintainer.names import Names
from maintainer.toolbox.answers import Refused, named
from maintainer.toolbox.ports import ChangePort, Record
from maintainer.tools import inputs, outputs
from maintainer.transcript import Kind

T = TypeVar("T")

AGAIN_S = 20.0
"""A change whose answer did not come is sent again, under its key, for so long."""

KEPT_PLANS = 100
"""A session of MCP may last for days; a plan is good for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One thing that was done, or would have been: for notes, verification and counting."""

    what: str
    """`plan`, `hold`, `escalate`."""
    outcome: outputs.Outcome
    pool: str
    message: str
    """For people."""
    plan: Plan | None = None
    decision: int | None = None
    is_news: bool = True
    """False for what people have before them already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of applying a plan."""

    outcome: outputs.Outcome
    message: str
    """For people."""
    applied: Applied | None = None
    guard_json: str = ""
    """What the guard was told then; empty where it was not asked."""
    proposal: str = ""
    """The plan that waits for a person: this one, or an earlier one that asks for the same."""


class Changes:
    """Those of one wake, or of one session."""

    def __init__(
        self,
        *,
        fleet: ChangePort,
        names: Names,
        actor: Actor,
        orders: Callable[[], MaintainerOrders],
        clock: Clock,
        scope: str,
        record: Record,
        one_plan_each: bool,
    ) -> None:
        """As `Toolbox` is told."""
        self._fleet = fleet
        self._names = names
        self._actor = actor
        self._orders = orders
        self._clock = clock
        self._scope = scope
        self._record = record
        self._one_plan_each = one_plan_each
        self._plans: dict[PlanId, Plan] = {}
        self._planned: set[str] = set()
        """Pools that have had their plan."""
        self._steps = 0
        self.done: list[Done] = []
        """What came of it all, in order."""

    async def plan(self, asked: inputs.PlanInput) -> Plan:
        """`fleet_plan`. Raises: Refused; what the fleet service raises."""
        if (asked.target is None) == (not asked.retire):
            raise Refused("bad_arguments", "either target or retire, and the other null")
        pool = PoolId(named(lambda: self._names.name("pool", asked.pool)))
        if self._one_plan_each and pool in self._planned:
            raise Refused("one_plan")
        retire = named(lambda: tuple(LaunchId(self._names.name("node", node)) for node in asked.retire or ()))
        reason = self._names.reveal(asked.reason) or "no reason was given"
        request = PlanRequest(pool=pool, actor=self._actor, reason=reason, target=asked.target, retire=retire)
        plan = await self._fleet.plan(request)
        self._planned.add(pool)
        self._plans[plan.id] = plan
        for old in list(self._plans)[:-KEPT_PLANS]:
            del self._plans[old]
        await self._record(Kind.VERDICT, verdict_body(plan, "plan"))
        return plan

    async def apply(self, asked: inputs.ApplyInput) -> outputs.ApplyOutput:
        """`fleet_apply`. Raises: Refused; what the fleet service raises."""
        plan = self._plans.get(PlanId.known(asked.plan_id))
        if plan is None:
            raise Refused("unknown_plan")
        key = f"{self._scope}:{asked.idempotency_key}"
        came = await self._came_of(plan, key, self._orders().mode)
        applied = came.applied
        return outputs.ApplyOutput(
            plan_id=plan.id,
            outcome=came.outcome,
            launched=len(applied.launched) if applied is not None else 0,
            retired=len(applied.retired) if applied is not None else 0,
            decision=applied.decision if applied is not None else None,
            held_s=round(plan.hold_s, 1) if applied is not None and applied.hold_until is not None else 0.0,
            verify_after_s=round(plan.eta_s, 1) if applied is not None else None,
        )

    async def hold(self, asked: inputs.HoldInput) -> outputs.DoneOutput:
        """`fleet_hold`. Raises: Refused; what the fleet service raises."""
        pool = PoolId(named(lambda: self._names.name("pool", asked.pool)))
        reason = self._names.reveal(asked.reason) or "no reason was given"
        key = self._key("hold")
        decision = None
        if self._orders().mode is not MaintainerMode.SHADOW:
            holding = self._fleet.hold
            decision = await self._sent(
                "hold",
                lambda: holding(pool, minutes=float(asked.minutes), actor=self._actor, key=key, reason=reason),
            )
        return await self._told("hold", decision, pool=pool, message=f"held for {asked.minutes} minutes: {reason}")

    async def escalate(self, asked: inputs.EscalateInput) -> outputs.DoneOutput:
        """`fleet_escalate`. Raises: what the fleet service raises."""
        text = self._names.reveal(asked.text) or "no text was given"
        key = self._key("escalate")
        decision = None
        if self._orders().mode is not MaintainerMode.SHADOW:
            telling = self._fleet.escalate
            decision = await self._sent(
                "escalate", lambda: telling(asked.severity, actor=self._actor, key=key, reason=text)
            )
        return await self._told("escalate", decision, pool="", message=f"{asked.severity}: {text}")

    async def _came_of(self, plan: Plan, key: str, mode: MaintainerMode) -> Outcome:
        """Carry it out as far as it may be, and write down what came of it."""
        findings = "; ".join(finding.message for finding in plan.findings)
        try:
            if mode is MaintainerMode.SHADOW:
                came = Outcome(outcome="recorded", message=findings)
            elif plan.verdict is Verdict.REFUSED:
                came = Outcome(outcome="refused", message=findings)
            else:
                came = await self._carried_out(plan, key, mode, findings)
        except PlanRefused as problem:
            came = Outcome(outcome="refused", message=str(problem), guard_json=problem.guard_json)
        except NotPermitted as problem:
            came = Outcome(outcome="refused", message=str(problem))
        except Conflict as problem:
            came = Outcome(outcome="conflict", message=str(problem))
        await self._note_action(plan, came, key=key)
        return came

    async def _carried_out(self, plan: Plan, key: str, mode: MaintainerMode, findings: str) -> Outcome:
        """Apply what may be applied, and put the rest before people."""
        if mode is MaintainerMode.AUTO and plan.verdict is Verdict.ALLOWED:
            applied = await self._sent("apply", lambda: self._fleet.apply(plan.id, key=key))
            return Outcome(outcome="applied", applied=applied, message=applied.message, guard_json=applied.guard_json)
        proposing = self._fleet.propose
        key = f"{self._scope}:propose:{plan.id}"  # twice is once, whatever the model calls it
        proposal = await self._sent(
            "propose", lambda: proposing(plan.id, actor=self._actor, key=key, reason=plan.request.reason)
        )
        waits = proposal.plan.id
        message = findings if waits == plan.id else f"the same waits for a person already, as plan {waits}"
        return Outcome(outcome="proposed", message=message, proposal=waits)

    async def _note_action(self, plan: Plan, came: Outcome, *, key: str) -> None:
        if came.guard_json:
            await self._record(Kind.VERDICT, verdict_body(plan, "apply", guard_json=came.guard_json))
        applied = came.applied
        body = {
            "plan": plan.id,
            "pool": plan.request.pool,
            "nodes": plan.nodes,
            "target": plan.target,
            "launches": plan.launches,
            "eta_s": plan.eta_s,
            "outcome": came.outcome,
            "key": key,
            "message": came.message,
            "decision": applied.decision if applied is not None else None,
            "launched": list(applied.launched) if applied is not None else [],
            "retired": list(applied.retired) if applied is not None else [],
            "proposal": came.proposal,
        }
        await self._record(Kind.ACTION, body)
        already = any(
            one.plan is not None and one.plan.id == plan.id and one.outcome == came.outcome for one in self.done
        )
        if not already:
            self.done.append(
                Done(
                    what="plan",
                    outcome=came.outcome,
                    pool=plan.request.pool,
                    message=came.message or f"from {plan.nodes} to {plan.target} nodes",
                    plan=plan,
                    decision=applied.decision if applied is not None else None,
                    is_news=came.proposal in ("", plan.id),
                )
            )

    async def _told(self, what: str, decision: Decision | None, *, pool: str, message: str) -> outputs.DoneOutput:
        outcome: outputs.Outcome = "applied" if decision is not None else "recorded"
        number = decision.ordinal if decision is not None else None
        body = {"what": what, "pool": pool, "outcome": outcome, "message": message, "decision": number}
        await self._record(Kind.ACTION, body)
        self.done.append(Done(what=what, outcome=outcome, pool=pool, message=message, decision=number))
        return outputs.DoneOutput(outcome=outcome, decision=number)

    async def _sent(self, what: str, change: Callable[[], Awaitable[T]]) -> T:
        """A change, until its answer has come: it is made once, however often it is sent."""
        return await retry(change, what=what, give_up_after_s=AGAIN_S, clock=self._clock)

    def _key(self, what: str) -> str:
        self._steps += 1
        return f"{self._scope}:{what}:{self._steps}"


def verdict_body(plan: Plan, phase: str, *, guard_json: str = "") -> dict[str, Any]:
    """What `replay` needs, and what was said. phase: `plan`, or `apply` with what the guard was told then."""
    told = Evidence.parse(guard_json or plan.guard_json)
    findings = plan.findings if phase == "plan" else told.findings()
    return {
        "phase": phase,
        "plan": plan.id,
        "pool": plan.request.pool,
        "target": plan.target,
        "retire": list(plan.request.retire),
        "guard": json.loads(told.to_json()),
        "findings": [[one.code, one.verdict.value, one.message] for one in findings],
        "verdict": (plan.verdict if phase == "plan" else verdict(findings)).value,
    }
