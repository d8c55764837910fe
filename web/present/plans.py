"""A plan as it is shown before it is applied."""

from dataclasses import dataclass

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import Finding, Plan, Pool, Verdict
from web.present import formats
from web.present.pools import usd

VERDICT_TONES = {Verdict.ALLOWED: "good", Verdict.NEEDS_APPROVAL: "warn", Verdict.REFUSED: "bad"}
VERDICT_TEXTS = {
    Verdict.ALLOWED: "the guard allows it",
    Verdict.NEEDS_APPROVAL: "it needs approval",
    Verdict.REFUSED: "the guard refuses it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A rule of the guard."""

    code: str
    tone: str
    verdict: str
    message: str
    numbers: str
    """Names and values, as programs get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What applying a plan would do."""

    id: str
    pool: str
    title: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    victims: tuple[str, ...]
    findings: tuple[FindingRow, ...]
    verdict: str
    tone: str
    reason: str
    planner: str
    expires_at: float
    is_refused: bool
    is_empty: bool
    """It would change nothing."""
    asks_name: bool
    """Whoever applies it types the pool's name: nothing of it is left, or nothing is drained."""


def plan_view(plan: Plan, pool: Pool | None) -> PlanView:
    """A plan, as it is shown before it is applied."""
    request, change = plan.request, plan.usd_per_hour_change
    before = pool.usd_per_hour if pool else 0.0
    is_empty = not plan.launches and not plan.victims
    facts = [
        ("Nodes", f"{plan.nodes} → {plan.target}"),
        ("Launches", formats.count(plan.launches)),
        ("Machines that go", formats.count(len(plan.victims))),
        ("Done in about", formats.duration(plan.eta_s)),
        ("Cost", f"{usd(before)} → {usd(max(0.0, before + change))} an hour"),
        *_hold_fact(plan),
    ]
    return PlanView(
        id=plan.id,
        pool=request.pool,
        title=f"{'End' if request.is_kill else 'Resize'} {request.pool}: {plan.nodes} to {plan.target} nodes?",
        sentence=_plan_sentence(plan, pool, is_empty=is_empty),
        facts=tuple(facts),
        victims=tuple(map(str, plan.victims)),
        findings=tuple(finding_row(finding) for finding in plan.findings),
        verdict=VERDICT_TEXTS[plan.verdict],
        tone=VERDICT_TONES[plan.verdict],
        reason=request.reason,
        planner=f"{request.actor.name} ({request.actor.role.value})",
        expires_at=plan.expires_at,
        is_refused=plan.verdict is Verdict.REFUSED,
        is_empty=is_empty,
        asks_name=request.is_kill or (plan.target == 0 and plan.nodes > 0),
    )


def _hold_fact(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The hold that it sets, and why."""
    if not plan.hold_s:
        return ()
    return (("Nodes are kept for", f"{formats.duration(plan.hold_s)}: the rule wants {plan.rule_target}"),)


def _plan_sentence(plan: Plan, pool: Pool | None, *, is_empty: bool) -> str:
    if is_empty:
        return "Nothing would change: the pool has that size already."
    parts = []
    if plan.launches:
        parts.append(f"{formats.several(plan.launches, 'machine')} would be started.")
    if plan.victims and plan.request.is_kill:
        parts.append("Machines would end at once: what they work on is handed to others when its lease expires.")
    elif plan.victims:
        parts.append("Machines that go finish or hand back what they have first: nothing is lost.")
    if plan.victims and pool is not None and _is_undone(plan, pool):
        parts.append(
            f"The rule wants {plan.rule_target} nodes, and orders what is missing again at its next look: for a size "
            "that lasts, change the pool's bounds or its mode."
        )
    return " ".join(parts)


def _is_undone(plan: Plan, pool: Pool) -> bool:
    """Whether the rule would have more nodes than the plan leaves, and follows by itself."""
    rule = min(max(plan.rule_target or 0, pool.spec.min_nodes), pool.spec.max_nodes)
    return pool.spec.mode in (Mode.ON, Mode.UP_ONLY) and plan.target < rule


def finding_row(finding: Finding) -> FindingRow:
    """What the guard said, with its numbers apart."""
    return FindingRow(
        code=finding.code,
        tone=VERDICT_TONES[finding.verdict],
        verdict=VERDICT_TEXTS[finding.verdict],
        message=finding.message[:1].upper() + finding.message[1:],
        numbers=", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in sorted(finding.numbers.items())),
    )
