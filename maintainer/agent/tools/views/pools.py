"""Views of pools, concise and detailed."""

import math
from collections import Counter
from statistics import median
from typing import Any

from astraflow.contract.fleet.maintainer import ProposalState
from astraflow.contract.fleet.plans import Plan, Role
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.report import NodeState
from maintainer.agent.observation.signals import SignalKind, launch_failures
from maintainer.agent.observation.snapshot import Snapshot
from maintainer.agent.tools import outputs
from maintainer.agent.tools.views.redacted_texts import category_of
from maintainer.agent.tools.views.view_context import ViewContext, rounded, rounded_or_none, seconds_left
from maintainer.fleet.guard.inputs import GuardInputs

FAILURES_S = 3600.0
PROPOSALS_S = 3600.0
REJECTED_S = 86400.0


def pool_view(view_context: ViewContext, pool: Pool) -> outputs.PoolView:
    """Concise view of one pool."""
    snapshot, spec, names = view_context.snapshot, pool.spec, view_context.names
    recommendation = snapshot.recommendation(spec.id)
    failed = [
        decision
        for decision in snapshot.decisions
        if decision.kind is RecordKind.LAUNCH_FAILED
        and decision.subject == spec.id
        and snapshot.at - decision.at <= FAILURES_S
    ]
    pool_signals = [signal for signal in view_context.signals if signal.pool == spec.id]
    return outputs.PoolView(
        pool=names.token("pool", spec.id),
        mode=spec.mode,
        provider=names.token("provider", spec.provider),
        type=names.token("type", spec.type),
        region=names.token("region", spec.region),
        is_spot=spec.is_spot,
        nodes=dict(pool.nodes),
        target=pool.target,
        rule_target=pool.rule_target,
        rule_reasons=list(recommendation.reasons) if recommendation is not None else [],
        limited_by=list(recommendation.limited_by) if recommendation is not None else [],
        band_low=rounded_or_none(recommendation.band_low) if recommendation is not None else None,
        band_high=rounded_or_none(recommendation.band_high) if recommendation is not None else None,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        usd_per_hour=rounded(pool.usd_per_hour),
        usd_per_node_hour=_price(view_context, pool),
        launch_delay_s=rounded(pool.launch_delay_s),
        hold_left_s=seconds_left(pool.hold_until_at, snapshot.at),
        breaker_left_s=seconds_left(pool.breaker_until, snapshot.at),
        launch_failures_1h=launch_failures(snapshot, spec.id, within_s=FAILURES_S),
        failure_causes=dict(
            Counter(category_of(str(decision.values.get("error", decision.reason))) for decision in failed)
        ),
        lost_nodes=sum(
            1 for node in view_context.nodes.values() if node.facts.pool == spec.id and node.state is NodeState.LOST
        ),
        losses_1h=dict(pool.losses),
        stragglers=sum(1 for signal in pool_signals if signal.kind is SignalKind.STRAGGLER),
        node_episodes_per_s=rounded_or_none(snapshot.median_speed(spec.id)),
        node_speed_share=rounded_or_none(_speed_share(view_context, spec.id)),
        **proposal_fields(snapshot, spec.id),
        signals=sorted({signal.kind for signal in pool_signals}, key=lambda kind: kind.value),
    )


def pool_details(view_context: ViewContext, pool: Pool) -> outputs.PoolDetails:
    """Details of one pool: demand, capacity, prices and bounds."""
    snapshot, spec = view_context.snapshot, pool.spec
    recommendation = snapshot.recommendation(spec.id)
    reported = snapshot.report.pools if snapshot.report is not None else ()
    pool_report = next((candidate for candidate in reported if candidate.id == spec.id), None)
    return outputs.PoolDetails(
        pool=view_context.names.token("pool", spec.id),
        version=pool.version,
        usd_today=rounded(pool.usd_today),
        usd_per_hour_max=spec.usd_per_hour_max,
        usd_per_day_max=spec.usd_per_day_max,
        episodes_per_s=rounded(pool_report.episodes_per_s if pool_report is not None else 0.0),
        tokens_per_s=rounded(pool_report.tokens_per_s if pool_report is not None else 0.0),
        inputs={name: rounded(value) for name, value in sorted(recommendation.inputs.items())}
        if recommendation
        else {},
        node_speed_median=rounded_or_none(snapshot.median_speed(spec.id)),
        last_change_age_s=rounded_or_none(
            snapshot.at - pool.last_change_at if pool.last_change_at is not None else None
        ),
    )


def _speed_share(view_context: ViewContext, pool: PoolId) -> float | None:
    """Median speed share of the pool's ready nodes."""
    node_shares = [
        view_context.speed_share(view_context.nodes[name])
        for name in view_context.speeds
        if view_context.nodes[name].facts.pool == pool
    ]
    shares = [share for share in node_shares if share is not None]
    return median(shares) if shares else None


def proposal_fields(snapshot: Snapshot, pool: PoolId) -> dict[str, Any]:
    """Decisions on agents' proposals for the pool: states and figures, never the words of people."""
    proposals = [
        proposal
        for proposal in snapshot.proposals
        if proposal.plan.request.pool == pool and proposal.proposed_by.role is Role.AGENT
    ]
    latest = next(
        (
            proposal
            for proposal in proposals
            if snapshot.at - (proposal.decided_at or proposal.proposed_at) <= PROPOSALS_S
        ),
        None,
    )
    refusals = [
        proposal.decided_at
        for proposal in proposals
        if proposal.state is ProposalState.REJECTED and proposal.decided_at is not None
    ]
    refused_s = snapshot.at - max(refusals) if refusals else None
    is_waiting = latest is not None and latest.state is ProposalState.WAITING
    return {
        "proposal_state": latest.state if latest is not None else None,
        "proposal_target": latest.plan.target if latest is not None else None,
        "proposal_left_s": seconds_left(latest.plan.expires_at, snapshot.at)
        if latest is not None and is_waiting
        else 0.0,
        "rejected_age_s": rounded_or_none(refused_s) if refused_s is not None and refused_s <= REJECTED_S else None,
    }


def _price(view_context: ViewContext, pool: Pool) -> float | None:
    instances = view_context.snapshot.instances
    prices = [
        instance.usd_per_hour for instance in instances if instance.pool == pool.spec.id and instance.gone_at is None
    ]
    if prices:
        return rounded(max(prices))
    recommendation = view_context.snapshot.recommendation(pool.spec.id)
    return rounded_or_none(recommendation.inputs.get("price_per_hour")) if recommendation is not None else None


def plan_view(view_context: ViewContext, plan: Plan) -> outputs.PlanOutput:
    """`fleet_plan`."""
    low, high = unapproved_sizes(GuardInputs.parse(plan.guard_json))
    return outputs.PlanOutput(
        pool=view_context.names.token("pool", plan.request.pool),
        nodes_now=plan.nodes,
        target=plan.target,
        launches=plan.launches,
        victims=[view_context.names.token("node", victim) for victim in plan.victims],
        eta_s=rounded(plan.eta_s),
        hold_s=rounded(plan.hold_s),
        unapproved_low=low,
        unapproved_high=high,
        **judged_fields(view_context, plan),
    )


def judged_fields(view_context: ViewContext, plan: Plan) -> dict[str, Any]:
    """Fields of a plan of a pool or of the run."""
    return {
        "plan_id": plan.id,
        "usd_per_hour_change": rounded(plan.usd_per_hour_change),
        "verdict": plan.verdict,
        "needs_approval": plan.needs_approval,
        "findings": [outputs.ViolationView(code=finding.code, verdict=finding.verdict) for finding in plan.findings],
        "expires_in_s": seconds_left(plan.expires_at, view_context.snapshot.at),
    }


def unapproved_sizes(guard_inputs: GuardInputs) -> tuple[int, int]:
    """Targets that need no approval, from the distance to the rule and the bounds of the pool."""
    situation, limits = guard_inputs.situation, guard_inputs.limits
    rule = situation.rule_target if situation.rule_target is not None else situation.size
    margin = max(limits.unapproved_nodes, limits.unapproved_share * rule)
    low, high = (
        max(situation.spec.min_nodes, math.ceil(rule - margin)),
        min(situation.spec.max_nodes, math.floor(rule + margin)),
    )
    return low, max(low, high)
