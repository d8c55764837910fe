"""Tools that change something: plan, apply, hold and escalate, within the mode of the maintainer."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted, PlanRefused
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.maintainer import MaintainerControlState, MaintainerMode
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest, Verdict
from astraflow.contract.fleet.run_changes import RUN, RunAction, RunChange
from astraflow.contract.ids import PoolId
from astraflow.runtime.clock import Clock
from astraflow.runtime.retries import retry
from maintainer.agent.observation.names import Names
from maintainer.agent.tools import inputs, outputs
from maintainer.agent.tools.interfaces import FleetClient, Record
from maintainer.agent.tools.outputs import ActionOutcome
from maintainer.agent.tools.results import ToolRefused, resolve
from maintainer.agent.transcript.transcript import Kind
from maintainer.fleet.guard.rules import verdict
from maintainer.fleet.guard.run_changes import parse_inputs

T = TypeVar("T")

RESEND_S = 20.0
"""Time for which a change without an answer is resent under its key, seconds."""

_SIZES = ("nodes", "target", "launches", "eta_s", "launched", "retired")
"""Fields of an action on a pool."""

MAX_PLANS = 100
"""Plans per session: an MCP session may last for days, a plan is valid for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedAction:
    """Action that was taken or recorded, for notes, verification and counters."""

    kind: str
    """`plan`, `hold` or `escalate`."""
    outcome: ActionOutcome
    pool: str
    message: str
    """Text for people."""
    plan: Plan | None = None
    decision: int | None = None
    needs_note: bool = True
    """False if people already have a note about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedOutcome:
    """Result of applying a plan."""

    outcome: ActionOutcome
    message: str
    """Text for people."""
    applied: AppliedPlan | None = None
    guard_json: str = ""
    """Input of the guard at that time; empty if it was not called."""
    proposal: str = ""
    """Plan that waits for a person: this one, or an earlier equal one."""


class Changes:
    """Changes of one wake or session."""

    def __init__(
        self,
        *,
        fleet: FleetClient,
        names: Names,
        actor: Actor,
        control_state: Callable[[], MaintainerControlState],
        clock: Clock,
        scope: str,
        record: Record,
        is_one_plan_per_pool: bool,
        is_non_destructive: bool,
    ) -> None:
        """Arguments as in `Toolbox`."""
        self._fleet = fleet
        self._names = names
        self._actor = actor
        self._control_state = control_state
        self._clock = clock
        self._scope = scope
        self._record = record
        self._is_one_plan_per_pool = is_one_plan_per_pool
        self._is_non_destructive = is_non_destructive
        self._plans: dict[PlanId, Plan] = {}
        self._planned_pools: set[str] = set()
        """Pools that already have a plan in this wake."""
        self._steps = 0
        self.done: list[CompletedAction] = []
        """Results, in order."""

    async def plan(self, arguments: inputs.PlanInput) -> Plan:
        """`fleet_plan`. Raises: ToolRefused; errors of the fleet service."""
        if (arguments.target is None) == (not arguments.retire):
            raise ToolRefused("bad_arguments", "either target or retire, and the other null")
        pool = PoolId(resolve(lambda: self._names.name("pool", arguments.pool)))
        if self._is_one_plan_per_pool and pool in self._planned_pools:
            raise ToolRefused("one_plan")
        retire = resolve(lambda: tuple(LaunchId(self._names.name("node", node)) for node in arguments.retire or ()))
        reason = self._names.reveal(arguments.reason) or "no reason was given"
        request = PlanRequest(pool=pool, actor=self._actor, reason=reason, target=arguments.target, retire=retire)
        return await self._plan(request)

    async def plan_run(self, arguments: inputs.RunChangeInput) -> Plan:
        """`run_change`. Raises: ToolRefused; errors of the fleet service."""
        if self._is_one_plan_per_pool and RUN in self._planned_pools:
            raise ToolRefused("one_plan")
        subjects = [("flow", arguments.flow), ("policy", arguments.policy)]
        names = resolve(lambda: [self._names.name(kind, token) for kind, token in subjects if token is not None])
        if len(names) > 1:
            raise ToolRefused("bad_arguments", "either flow or policy, and the other null")
        try:
            change = RunChange(
                action=arguments.action,
                subject=names[0] if names else "",
                slot=arguments.slot,
                kind=arguments.kind or "",
                learning_rate=arguments.learning_rate,
            )
        except InvalidInput as problem:
            raise ToolRefused("bad_arguments", str(problem)) from None
        reason = self._names.reveal(arguments.reason) or "no reason was given"
        return await self._plan(PlanRequest(pool=RUN, actor=self._actor, reason=reason, run=change))

    async def _plan(self, request: PlanRequest) -> Plan:
        is_stop = request.run is not None and request.run.action is RunAction.STOP
        if self._is_non_destructive and (request.retire or is_stop):
            raise ToolRefused("not_destructive")
        plan = await self._fleet.plan(request)
        if self._is_non_destructive and (plan.victims or plan.target < plan.nodes):
            raise ToolRefused("not_destructive")
        self._planned_pools.add(request.pool)
        self._plans[plan.id] = plan
        for old in list(self._plans)[:-MAX_PLANS]:
            del self._plans[old]
        await self._record(Kind.VERDICT, verdict_body(plan, "plan"))
        return plan

    async def apply(self, arguments: inputs.ApplyInput) -> outputs.ApplyOutput:
        """`fleet_apply`. Raises: ToolRefused; errors of the fleet service."""
        plan = self._plans.get(PlanId.unchecked(arguments.plan_id))
        if plan is None:
            raise ToolRefused("unknown_plan")
        key = f"{self._scope}:{arguments.idempotency_key}"
        result = await self._apply_and_record(plan, key, self._control_state().mode)
        applied = result.applied
        return outputs.ApplyOutput(
            plan_id=plan.id,
            outcome=result.outcome,
            launched=len(applied.launched) if applied is not None else 0,
            retired=len(applied.retired) if applied is not None else 0,
            decision=applied.decision if applied is not None else None,
            applied_hold_s=round(plan.hold_s, 1) if applied is not None and applied.hold_until_at is not None else 0.0,
            verify_after_s=round(plan.eta_s, 1) if applied is not None else None,
        )

    async def hold(self, arguments: inputs.HoldInput) -> outputs.DoneOutput:
        """`fleet_hold`. Raises: ToolRefused; errors of the fleet service."""
        pool = PoolId(resolve(lambda: self._names.name("pool", arguments.pool)))
        reason = self._names.reveal(arguments.reason) or "no reason was given"
        key = self._key("hold")
        decision = None
        if self._control_state().mode is not MaintainerMode.SHADOW:
            set_hold = self._fleet.set_hold
            decision = await self._send_until_answered(
                "hold",
                lambda: set_hold(pool, minutes=float(arguments.minutes), actor=self._actor, key=key, reason=reason),
            )
        return await self._done_output(
            "hold", decision, pool=pool, message=f"hold for {arguments.minutes} minutes: {reason}"
        )

    async def escalate(self, arguments: inputs.EscalateInput) -> outputs.DoneOutput:
        """`fleet_escalate`. Raises: errors of the fleet service."""
        text = self._names.reveal(arguments.text) or "no text was given"
        key = self._key("escalate")
        decision = None
        if self._control_state().mode is not MaintainerMode.SHADOW:
            escalate = self._fleet.escalate
            decision = await self._send_until_answered(
                "escalate", lambda: escalate(arguments.severity, actor=self._actor, key=key, reason=text)
            )
        return await self._done_output("escalate", decision, pool="", message=f"{arguments.severity.value}: {text}")

    async def _apply_and_record(self, plan: Plan, key: str, mode: MaintainerMode) -> AppliedOutcome:
        """Applies, proposes or records a plan as the mode allows; records the result."""
        findings = "; ".join(finding.message for finding in plan.findings)
        try:
            if mode is MaintainerMode.SHADOW:
                result = AppliedOutcome(outcome=ActionOutcome.RECORDED, message=findings)
            elif plan.verdict is Verdict.REFUSED:
                result = AppliedOutcome(outcome=ActionOutcome.REFUSED, message=findings)
            else:
                result = await self._apply_or_propose(plan, key, mode, findings)
        except PlanRefused as problem:
            result = AppliedOutcome(outcome=ActionOutcome.REFUSED, message=str(problem), guard_json=problem.guard_json)
        except NotPermitted as problem:
            result = AppliedOutcome(outcome=ActionOutcome.REFUSED, message=str(problem))
        except Conflict as problem:
            result = AppliedOutcome(outcome=ActionOutcome.CONFLICT, message=str(problem))
        await self._note_action(plan, result, key=key)
        return result

    async def _apply_or_propose(self, plan: Plan, key: str, mode: MaintainerMode, findings: str) -> AppliedOutcome:
        """Applies a plan that needs no approval; proposes any other."""
        if mode is MaintainerMode.AUTO and plan.verdict is Verdict.ALLOWED:
            applied = await self._send_until_answered("apply", lambda: self._fleet.apply(plan.id, key=key))
            return AppliedOutcome(
                outcome=ActionOutcome.APPLIED, applied=applied, message=applied.message, guard_json=applied.guard_json
            )
        propose = self._fleet.propose
        key = f"{self._scope}:propose:{plan.id}"  # one proposal per plan, whatever key the model chose
        proposal = await self._send_until_answered(
            "propose", lambda: propose(plan.id, actor=self._actor, key=key, reason=plan.request.reason)
        )
        waiting_id = proposal.plan.id
        message = findings if waiting_id == plan.id else f"an equal plan already waits for a person: {waiting_id}"
        return AppliedOutcome(outcome=ActionOutcome.PROPOSED, message=message, proposal=waiting_id)

    async def _note_action(self, plan: Plan, result: AppliedOutcome, *, key: str) -> None:
        if result.guard_json:
            await self._record(Kind.VERDICT, verdict_body(plan, "apply", guard_json=result.guard_json))
        applied = result.applied
        body = {
            "plan": plan.id,
            "pool": plan.request.pool,
            "nodes": plan.nodes,
            "target": plan.target,
            "launches": plan.launches,
            "eta_s": plan.eta_s,
            "outcome": result.outcome.value,
            "key": key,
            "message": result.message,
            "decision": applied.decision if applied is not None else None,
            "launched": list(applied.launched) if applied is not None else [],
            "retired": list(applied.retired) if applied is not None else [],
            "proposal": result.proposal,
        }
        if plan.request.run is not None:  # a state is set at once: nothing is verified later
            body = {name: value for name, value in body.items() if name not in _SIZES}
            body["change"] = plan.request.run.sentence
        await self._record(Kind.ACTION, body)
        is_recorded = any(
            action.plan is not None and action.plan.id == plan.id and action.outcome is result.outcome
            for action in self.done
        )
        if not is_recorded:
            self.done.append(
                CompletedAction(
                    kind="plan",
                    outcome=result.outcome,
                    pool=plan.request.pool,
                    message=_sentence(plan, result.message),
                    plan=plan,
                    decision=applied.decision if applied is not None else None,
                    needs_note=result.proposal in ("", plan.id),
                )
            )

    async def _done_output(
        self, what: str, decision: Decision | None, *, pool: str, message: str
    ) -> outputs.DoneOutput:
        outcome = ActionOutcome.APPLIED if decision is not None else ActionOutcome.RECORDED
        number = decision.ordinal if decision is not None else None
        body = {"what": what, "pool": pool, "outcome": outcome.value, "message": message, "decision": number}
        await self._record(Kind.ACTION, body)
        self.done.append(CompletedAction(kind=what, outcome=outcome, pool=pool, message=message, decision=number))
        return outputs.DoneOutput(outcome=outcome, decision=number)

    async def _send_until_answered(self, what: str, change: Callable[[], Awaitable[T]]) -> T:
        """Sends a change until it is answered; its key makes repeats harmless."""
        return await retry(change, what=what, give_up_after_s=RESEND_S, clock=self._clock)

    def _key(self, what: str) -> str:
        self._steps += 1
        return f"{self._scope}:{what}:{self._steps}"


def _sentence(plan: Plan, message: str) -> str:
    """Returns the result of a plan for people. message: of the guard or the fleet service; empty without one."""
    run = plan.request.run
    if run is not None:
        return f"{run.sentence} ({message})" if message else run.sentence
    return message or f"from {plan.nodes} to {plan.target} nodes"


def verdict_body(plan: Plan, phase: str, *, guard_json: str = "") -> dict[str, Any]:
    """Body of a verdict: input of `replay`, findings and verdict. phase: `plan`, or `apply` with the guard's input at
    that time."""
    guard_inputs = parse_inputs(guard_json or plan.guard_json)
    findings = plan.findings if phase == "plan" else guard_inputs.violations()
    return {
        "phase": phase,
        "plan": plan.id,
        "pool": plan.request.pool,
        "target": plan.target,
        "retire": list(plan.request.retire),
        "guard": json.loads(guard_inputs.to_json()),
        "findings": [[finding.code.value, finding.verdict.value, finding.message] for finding in findings],
        "verdict": (plan.verdict if phase == "plan" else verdict(findings)).value,
    }
