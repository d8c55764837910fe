"""Carries out calls of tools: checks what came, reads, plans through the fleet service, and does what the mode allows.

There is one for each wake (and for each session of MCP): what one has planned only it applies. Whatever a model says,
errors come back as a word and a fixed sentence, and nothing here knows how to do anything that is not a tool.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet import Actor, Applied, Decision, LaunchId, Plan, PlanId, PlanRequest, Verdict
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import MaintainerMode, MaintainerOrders, Proposal
from astraflow.runtime.aio import TRANSIENT, retry
from astraflow.runtime.clock import Clock
from maintainer.fleet.evidence import Evidence
from maintainer.fleet.guard import verdict
from maintainer.names import Names
from maintainer.observation import Signal
from maintainer.sight import Sight
from maintainer.tools import inputs, outputs
from maintainer.tools.base import Kind as ToolKind
from maintainer.tools.base import Typed
from maintainer.tools.registry import TOOLS
from maintainer.transcript import Kind
from maintainer.views import Views

T = TypeVar("T")

AGAIN_S = 20.0
"""A change whose answer did not come is sent again, under its key, for so long."""

KEPT_PLANS = 100
"""A session of MCP may last for days; a plan is good for minutes."""

ADVICE: Mapping[str, str] = {
    "unknown_tool": "there is no such tool here: not pre-approved, do not retry; use those that are listed",
    "bad_arguments": "the arguments do not fit the tool's schema",
    "unknown_name": "there is no such pool, node or decision: take tokens and numbers from a report",
    "unknown_plan": "only a plan of this wake can be applied: plan first",
    "one_plan": "this pool has had its plan in this wake: do not plan again, end the wake or hold or escalate",
    "kill_switch": "the kill switch is on, or people have turned you off: not pre-approved, do not retry, end the wake",
    "not_possible": "the fleet service does not take this: not pre-approved, do not retry",
    "not_reachable": "the fleet service does not answer: do not retry in this wake",
}
"""What a model is told by each error."""

Record = Callable[[Kind, Mapping[str, Any]], Awaitable[object]]
"""Writes to the transcript."""


class FleetPort(Protocol):
    """What is asked of the fleet service: the fleet plane's client is one."""

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

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """The journal, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call came to."""

    content: str
    """JSON, as a model or a client of MCP gets it."""
    output: Typed | None = None
    """The same, typed; None for an error."""
    error: str = ""
    """A word of `ADVICE`."""

    @property
    def is_error(self) -> bool:
        """Whether nothing came of it."""
        return bool(self.error)


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


class Refused(Exception):  # an answer to the model, raised and caught within a call
    """A word of `ADVICE`."""

    def __init__(self, error: str, details: str = "") -> None:
        super().__init__(error)
        self.error = error
        self.details = details


async def unrecorded(kind: Kind, body: Mapping[str, Any]) -> None:
    """For who keeps no transcript."""


class Toolbox:
    """The tools of one wake, or of one session."""

    def __init__(
        self,
        *,
        look: Callable[[], Awaitable[tuple[Sight, tuple[Signal, ...]]]],
        fleet: FleetPort,
        names: Names,
        actor: Actor,
        orders: Callable[[], MaintainerOrders],
        clock: Clock,
        scope: str,
        record: Record = unrecorded,
        one_plan_each: bool = True,
        is_read_only: bool = False,
    ) -> None:
        """look: what is seen now. orders: what people told it, asked for at every call.

        scope: begins the keys of all changes; no other wake or session has it. one_plan_each: at most one plan for
        each pool. is_read_only: no tool that writes is there.
        """
        self._look = look
        self._fleet = fleet
        self._names = names
        self._actor = actor
        self._orders = orders
        self._clock = clock
        self._scope = scope
        self._record = record
        self._one_plan_each = one_plan_each
        self.tools = {name: tool for name, tool in TOOLS.items() if not is_read_only or tool.kind is ToolKind.READ}
        self._plans: dict[PlanId, Plan] = {}
        self._planned: set[str] = set()
        """Pools that have had their plan."""
        self._steps = 0
        self.done: list[Done] = []
        """What came of it all, in order."""

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> ToolResult:
        """One call. Whatever is wrong with it is an answer; only a transcript that cannot be written raises."""
        try:
            output = await self._answer(name, arguments)
        except Refused as refusal:
            return _error(refusal.error, refusal.details)
        except (Conflict, NotPermitted, InvalidInput):
            return _error("not_possible")
        except TRANSIENT:
            return _error("not_reachable")
        return ToolResult(content=output.model_dump_json(), output=output)

    async def _answer(self, name: str, arguments: Mapping[str, Any] | None) -> Typed:
        tool = self.tools.get(name)
        if tool is None:
            raise Refused("unknown_tool", ", ".join(self.tools))
        try:
            asked = tool.input.model_validate({} if arguments is None and tool.kind is ToolKind.READ else arguments)
        except ValidationError as problem:
            raise Refused("bad_arguments", _explained(problem)) from None
        self._check_orders(tool.kind)
        match asked:
            case inputs.ReportInput():
                return await self._report(asked)
            case inputs.NodesInput():
                views = await self._views()
                return _named(lambda: views.nodes(asked))
            case inputs.EventsInput():
                return (await self._views()).events(asked)
            case inputs.ExplainInput():
                return await self._explain(asked)
            case inputs.PlanInput():
                return await self._plan(asked)
            case inputs.ApplyInput():
                return await self._apply(asked)
            case inputs.HoldInput():
                return await self._hold(asked)
            case inputs.EscalateInput():
                return await self._escalate(asked)
            case _:
                raise Refused("unknown_tool")

    def _check_orders(self, kind: ToolKind) -> None:
        """People are heard before every step: reading is always free."""
        orders = self._orders()
        if kind is not ToolKind.READ and (not orders.may_act or orders.mode is MaintainerMode.OFF):
            raise Refused("kill_switch")

    async def _views(self) -> Views:
        sight, signals = await self._look()
        return Views(sight, signals, self._names, mode=self._orders().mode)

    async def _report(self, asked: inputs.ReportInput) -> Typed:
        views = await self._views()
        return _named(lambda: views.report(asked))

    async def _explain(self, asked: inputs.ExplainInput) -> Typed:
        found = await self._fleet.decisions(before=asked.decision + 1, limit=1)
        if not found or found[0].ordinal != asked.decision:
            raise Refused("unknown_name")
        return (await self._views()).explain(found[0])

    async def _plan(self, asked: inputs.PlanInput) -> Typed:
        if (asked.target is None) == (not asked.retire):
            raise Refused("bad_arguments", "either target or retire, and the other null")
        pool = PoolId(_named(lambda: self._names.name("pool", asked.pool)))
        if self._one_plan_each and pool in self._planned:
            raise Refused("one_plan")
        retire = _named(lambda: tuple(LaunchId(self._names.name("node", node)) for node in asked.retire or ()))
        reason = self._names.reveal(asked.reason) or "no reason was given"
        request = PlanRequest(pool=pool, actor=self._actor, reason=reason, target=asked.target, retire=retire)
        plan = await self._fleet.plan(request)
        self._planned.add(pool)
        self._plans[plan.id] = plan
        for old in list(self._plans)[:-KEPT_PLANS]:
            del self._plans[old]
        await self._record(Kind.VERDICT, verdict_body(plan, "plan"))
        return (await self._views()).plan(plan)

    async def _apply(self, asked: inputs.ApplyInput) -> Typed:
        plan = self._plans.get(PlanId.known(asked.plan_id))
        if plan is None:
            raise Refused("unknown_plan")
        mode, key = self._orders().mode, f"{self._scope}:{asked.idempotency_key}"
        outcome: outputs.Outcome = "refused"
        applied: Applied | None = None
        message = "; ".join(finding.message for finding in plan.findings)
        try:
            if mode is MaintainerMode.SHADOW:
                outcome = "recorded"
            elif plan.verdict is not Verdict.REFUSED:
                outcome, applied = await self._carry_out(plan, key, mode)
        except NotPermitted as problem:
            message = str(problem)
        except Conflict as problem:
            outcome, message = "conflict", str(problem)
        await self._note_action(plan, outcome, applied, key=key, message=message)
        return outputs.ApplyOutput(
            plan_id=plan.id,
            outcome=outcome,
            launched=len(applied.launched) if applied is not None else 0,
            retired=len(applied.retired) if applied is not None else 0,
            decision=applied.decision if applied is not None else None,
            verify_after_s=round(plan.eta_s, 1) if applied is not None else None,
        )

    async def _carry_out(self, plan: Plan, key: str, mode: MaintainerMode) -> tuple[outputs.Outcome, Applied | None]:
        """Apply what may be applied, and put the rest before people."""
        if mode is MaintainerMode.AUTO and plan.verdict is Verdict.ALLOWED:
            return "applied", await self._sent("apply", lambda: self._fleet.apply(plan.id, key=key))
        proposing = self._fleet.propose
        key = f"{self._scope}:propose:{plan.id}"  # twice is once, whatever the model calls it
        await self._sent("propose", lambda: proposing(plan.id, actor=self._actor, key=key, reason=plan.request.reason))
        return "proposed", None

    async def _note_action(
        self, plan: Plan, outcome: outputs.Outcome, applied: Applied | None, *, key: str, message: str
    ) -> None:
        if applied is not None:
            message = applied.message
            await self._record(Kind.VERDICT, verdict_body(plan, "apply", guard_json=applied.guard_json))
        body = {
            "plan": plan.id,
            "pool": plan.request.pool,
            "outcome": outcome,
            "key": key,
            "message": message,
            "decision": applied.decision if applied is not None else None,
            "launched": list(applied.launched) if applied is not None else [],
            "retired": list(applied.retired) if applied is not None else [],
        }
        await self._record(Kind.ACTION, body)
        already = any(one.plan is not None and one.plan.id == plan.id and one.outcome == outcome for one in self.done)
        if not already:
            decision = applied.decision if applied is not None else None
            self.done.append(
                Done(
                    what="plan",
                    outcome=outcome,
                    pool=plan.request.pool,
                    message=message or f"from {plan.nodes} to {plan.target} nodes",
                    plan=plan,
                    decision=decision,
                )
            )

    async def _hold(self, asked: inputs.HoldInput) -> Typed:
        pool = PoolId(_named(lambda: self._names.name("pool", asked.pool)))
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

    async def _escalate(self, asked: inputs.EscalateInput) -> Typed:
        text = self._names.reveal(asked.text) or "no text was given"
        key = self._key("escalate")
        decision = None
        if self._orders().mode is not MaintainerMode.SHADOW:
            telling = self._fleet.escalate
            decision = await self._sent(
                "escalate", lambda: telling(asked.severity, actor=self._actor, key=key, reason=text)
            )
        return await self._told("escalate", decision, pool="", message=f"{asked.severity}: {text}")

    async def _told(self, what: str, decision: Decision | None, *, pool: str, message: str) -> Typed:
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


def _named(work: Callable[[], T]) -> T:
    """What a token that was never given out becomes."""
    try:
        return work()
    except InvalidInput:
        raise Refused("unknown_name") from None


def _explained(problem: ValidationError) -> str:
    """Where, and what is wrong there; nothing of what was sent."""
    told = [
        f"{'.'.join(str(part) for part in error['loc'])[:60] or 'arguments'}: {error['msg'][:80]}"
        for error in problem.errors(include_url=False, include_input=False)
    ]
    return "; ".join(told[:4])


def _error(error: str, details: str = "") -> ToolResult:
    said = {"error": error, "advice": ADVICE[error]} | ({"details": details} if details else {})
    return ToolResult(content=json.dumps(said), error=error)
