"""Plans, and how far one may go without a person."""

import math
from typing import get_args

from astraflow.contract.fleet import Plan
from maintainer.fleet.evidence import Evidence
from maintainer.tools import outputs
from maintainer.views.figures import rounded
from maintainer.views.moment import Moment


def plan_view(moment: Moment, plan: Plan) -> outputs.PlanOutput:
    """`fleet_plan`."""
    low, high = envelope(Evidence.parse(plan.guard_json))
    known = get_args(outputs.FindingCode)
    return outputs.PlanOutput(
        plan_id=plan.id,
        pool=moment.names.token("pool", plan.request.pool),
        nodes_now=plan.nodes,
        target=plan.target,
        launches=plan.launches,
        victims=[moment.names.token("node", victim) for victim in plan.victims],
        eta_s=rounded(plan.eta_s),
        usd_per_hour_change=rounded(plan.usd_per_hour_change),
        verdict=plan.verdict.value,
        needs_approval=plan.needs_approval,
        findings=[
            outputs.FindingView(code=one.code if one.code in known else "other", verdict=one.verdict.value)  # type: ignore[arg-type]  # it is one of them
            for one in plan.findings
        ],
        hold_s=rounded(plan.hold_s),
        envelope_low=low,
        envelope_high=high,
        expires_in_s=rounded(max(0.0, plan.expires_at - moment.sight.at)),
    )


def envelope(told: Evidence) -> tuple[int, int]:
    """Targets that need nobody's approval, as far as the distance from the rule's and the pool's bounds go."""
    situation, limits = told.situation, told.limits
    rule = situation.rule_target if situation.rule_target is not None else situation.size
    room = max(limits.envelope_nodes, limits.envelope_share * rule)
    low, high = (
        max(situation.spec.min_nodes, math.ceil(rule - room)),
        min(situation.spec.max_nodes, math.floor(rule + room)),
    )
    return low, max(low, high)
