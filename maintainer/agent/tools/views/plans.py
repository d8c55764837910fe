"""Views of plans, with the envelope that needs no approval."""

import math

from astraflow.contract.fleet.plans import Plan
from maintainer.agent.tools import outputs
from maintainer.agent.tools.views.view_context import ViewContext, rounded
from maintainer.fleet.guard.inputs import GuardInputs


def plan_view(view_context: ViewContext, plan: Plan) -> outputs.PlanOutput:
    """`fleet_plan`."""
    low, high = envelope(GuardInputs.parse(plan.guard_json))
    return outputs.PlanOutput(
        plan_id=plan.id,
        pool=view_context.names.token("pool", plan.request.pool),
        nodes_now=plan.nodes,
        target=plan.target,
        launches=plan.launches,
        victims=[view_context.names.token("node", victim) for victim in plan.victims],
        eta_s=rounded(plan.eta_s),
        usd_per_hour_change=rounded(plan.usd_per_hour_change),
        verdict=plan.verdict,
        needs_approval=plan.needs_approval,
        findings=[outputs.FindingView(code=finding.code, verdict=finding.verdict) for finding in plan.findings],
        override_s=rounded(plan.override_s),
        envelope_low=low,
        envelope_high=high,
        expires_in_s=rounded(max(0.0, plan.expires_at - view_context.snapshot.at)),
    )


def envelope(guard_inputs: GuardInputs) -> tuple[int, int]:
    """Targets that need no approval, from the distance to the rule and the bounds of the pool."""
    situation, limits = guard_inputs.situation, guard_inputs.limits
    rule = situation.rule_target if situation.rule_target is not None else situation.size
    margin = max(limits.envelope_nodes, limits.envelope_share * rule)
    low, high = (
        max(situation.spec.min_nodes, math.ceil(rule - margin)),
        min(situation.spec.max_nodes, math.floor(rule + margin)),
    )
    return low, max(low, high)
