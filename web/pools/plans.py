"""Plan of a pool change, for review before it is applied."""

from dataclasses import dataclass

from astraflow.contract.fleet.plans import Plan
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.fleet.run_changes import RunAction, RunChange
from web.components import formats
from web.components.formats import usd
from web.decisions.views import VERDICT_TEXTS, VERDICT_TONES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """Effects of applying a plan."""

    plan: Plan
    summary: str
    """The change in a few words."""
    title: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    verdict: str
    tone: str
    is_empty: bool
    """Whether it changes nothing."""
    requires_pool_name: bool
    """Whether applying it requires typing the pool's name: it empties the pool, or ends instances without a drain."""


def plan_view(plan: Plan, pool: Pool | None) -> PlanView:
    """Builds the view of a plan."""
    request, change = plan.request, plan.usd_per_hour_change
    if request.run is not None:
        return _run_plan_view(plan, request.run)
    before = pool.usd_per_hour if pool else 0.0
    is_empty = not plan.launches and not plan.victims
    facts = [
        ("Nodes", f"{plan.nodes} → {plan.target}"),
        ("Launches", formats.count(plan.launches)),
        ("Instances removed", formats.count(len(plan.victims))),
        ("Estimated time", formats.duration(plan.eta_s)),
        ("Cost", f"{usd(before)} → {usd(max(0.0, before + change))} an hour"),
        *_hold_fact(plan),
    ]
    return PlanView(
        plan=plan,
        summary=f"{plan.nodes} → {plan.target} nodes",
        title=f"{'Terminate' if request.is_kill else 'Resize'} {request.pool}: {plan.nodes} to {plan.target} nodes?",
        sentence=_plan_sentence(plan, pool, is_empty=is_empty),
        facts=tuple(facts),
        verdict=VERDICT_TEXTS[plan.verdict],
        tone=VERDICT_TONES[plan.verdict],
        is_empty=is_empty,
        requires_pool_name=request.is_kill or (plan.target == 0 and plan.nodes > 0),
    )


def _run_plan_view(plan: Plan, change: RunChange) -> PlanView:
    """Builds the view of a change of the run."""
    cost = f"{plan.usd_per_hour_change:+.2f} $ an hour" if plan.usd_per_hour_change else "unchanged"
    return PlanView(
        plan=plan,
        summary=change.sentence,
        title=f"{change.sentence[0].upper()}{change.sentence[1:]}?",
        sentence=_RUN_EFFECTS[change.action],
        facts=(("Change", change.sentence), ("Cost", cost)),
        verdict=VERDICT_TEXTS[plan.verdict],
        tone=VERDICT_TONES[plan.verdict],
        is_empty=False,
        requires_pool_name=False,
    )


_RUN_EFFECTS = {
    RunAction.PAUSE: "The flow issues no new groups; those at work are finished. Resume it when its cause is mended.",
    RunAction.RESUME: "The flow issues groups again.",
    RunAction.PLUGIN: "The plugin takes effect with the next version, with its default options.",
    RunAction.EVALUATE: "Nodes evaluate the newest versions; training goes on.",
    RunAction.STOP: "All processes of the run end as with Ctrl-C. The run can be resumed.",
    RunAction.FORK: "A new run starts in the newest kept checkpoint, beside this run, which goes on.",
}


def _hold_fact(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Returns the hold that the plan sets, with the target of the sizing rule."""
    if not plan.hold_s:
        return ()
    return (("Hold", f"{formats.duration(plan.hold_s)}; the rule's target is {plan.rule_target}"),)


def _plan_sentence(plan: Plan, pool: Pool | None, *, is_empty: bool) -> str:
    if is_empty:
        return "No changes: the pool already has this size."
    parts = []
    if plan.launches:
        parts.append(f"{formats.several(plan.launches, 'instance')} would be started.")
    if plan.victims and plan.request.is_kill:
        parts.append("Instances end at once; their tasks go to other nodes when the leases expire.")
    elif plan.victims:
        parts.append("Instances drain first: they finish or return their tasks, so no work is lost.")
    if plan.victims and pool is not None and _is_reverted_by_rule(plan, pool):
        parts.append(
            f"The rule's target is {plan.rule_target} nodes; at its next tick it starts instances again. For a lasting "
            "size, change the pool's bounds or its mode."
        )
    return " ".join(parts)


def _is_reverted_by_rule(plan: Plan, pool: Pool) -> bool:
    """Returns whether the sizing rule would raise the pool above the plan's target by itself."""
    rule = min(max(plan.rule_target or 0, pool.spec.min_nodes), pool.spec.max_nodes)
    return pool.spec.mode in (Mode.ON, Mode.UP_ONLY) and plan.target < rule
