"""Pools, in short and in detail."""

from collections import Counter
from statistics import median
from typing import Any

from astraflow.contract.fleet import Pool, Role
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import ProposalState
from astraflow.contract.reports import NodeState
from maintainer.observation import SignalKind, launch_failures
from maintainer.sight import Sight
from maintainer.texts import cause_of
from maintainer.tools import outputs
from maintainer.views.figures import figure, left, rounded
from maintainer.views.moment import Moment

FAILURES_S = 3600.0
PROPOSALS_S = 3600.0
REJECTED_S = 86400.0


def pool_view(moment: Moment, pool: Pool) -> outputs.PoolView:
    """One pool: what a decision needs."""
    sight, spec, names = moment.sight, pool.spec, moment.names
    advice = sight.advice(spec.id)
    failed = [
        one
        for one in sight.decisions
        if one.kind == "launch_failed" and one.pool == spec.id and sight.at - one.at <= FAILURES_S
    ]
    mine = [signal for signal in moment.signals if signal.pool == spec.id]
    return outputs.PoolView(
        pool=names.token("pool", spec.id),
        mode=spec.mode.value,
        provider=names.token("provider", spec.provider),
        type=names.token("type", spec.type),
        region=names.token("region", spec.region),
        is_spot=spec.is_spot,
        nodes={state.value: number for state, number in pool.nodes.items()},
        target=pool.target,
        rule_target=pool.rule_target,
        rule_reasons=[reason.value for reason in advice.reasons] if advice is not None else [],
        capped_by=[cap.value for cap in advice.capped_by] if advice is not None else [],
        band_low=figure(advice.band_low) if advice is not None else None,
        band_high=figure(advice.band_high) if advice is not None else None,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        usd_per_hour=rounded(pool.usd_per_hour),
        usd_per_node_hour=_price(moment, pool),
        launch_delay_s=rounded(pool.launch_delay_s),
        hold_left_s=left(pool.hold_until, sight.at),
        breaker_left_s=left(pool.breaker_until, sight.at),
        launch_failures_1h=launch_failures(sight, spec.id, within_s=FAILURES_S),
        failure_causes=dict(Counter(cause_of(one.reason) for one in failed)),
        lost_nodes=sum(1 for one in moment.nodes.values() if one.facts.pool == spec.id and one.state is NodeState.LOST),
        losses_1h={cause.value: number for cause, number in pool.losses.items()},
        stragglers=sum(1 for signal in mine if signal.kind is SignalKind.STRAGGLER),
        node_episodes_per_s=figure(sight.median_speed(spec.id)),
        node_speed_share=figure(_speed_share(moment, spec.id)),
        **_proposals(sight, spec.id),
        signals=sorted({signal.kind.value for signal in mine}),
    )


def pool_details(moment: Moment, pool: Pool) -> outputs.PoolDetails:
    """Of one pool: demand, capacity, prices and bounds."""
    sight, spec = moment.sight, pool.spec
    advice = sight.advice(spec.id)
    reported = sight.report.pools if sight.report is not None else ()
    seen = next((one for one in reported if one.id == spec.id), None)
    return outputs.PoolDetails(
        pool=moment.names.token("pool", spec.id),
        version=pool.version,
        usd_today=rounded(pool.usd_today),
        usd_per_hour_max=spec.usd_per_hour_max,
        usd_per_day_max=spec.usd_per_day_max,
        episodes_per_s=rounded(seen.episodes_per_s if seen is not None else 0.0),
        tokens_per_s=rounded(seen.tokens_per_s if seen is not None else 0.0),
        inputs={name: rounded(value) for name, value in sorted(advice.inputs.items())} if advice else {},
        node_speed_median=figure(sight.median_speed(spec.id)),
        last_change_age_s=figure(sight.at - pool.last_change_at if pool.last_change_at is not None else None),
    )


def _speed_share(moment: Moment, pool: PoolId) -> float | None:
    """Of its nodes that work, the one in the middle."""
    found = [moment.speed_share(moment.nodes[name]) for name in moment.speeds if moment.nodes[name].facts.pool == pool]
    shares = [share for share in found if share is not None]
    return median(shares) if shares else None


def _proposals(sight: Sight, pool: PoolId) -> dict[str, Any]:
    """What people made of agents' plans for it: states and figures, none of their words."""
    mine = [one for one in sight.proposals if one.plan.request.pool == pool and one.proposed_by.role is Role.AGENT]
    latest = next((one for one in mine if sight.at - (one.decided_at or one.proposed_at) <= PROPOSALS_S), None)
    refusals = [one.decided_at for one in mine if one.state is ProposalState.REJECTED and one.decided_at is not None]
    refused_s = sight.at - max(refusals) if refusals else None
    is_waiting = latest is not None and latest.state is ProposalState.WAITING
    return {
        "proposal_state": latest.state.value if latest is not None else "none",
        "proposal_target": latest.plan.target if latest is not None else None,
        "proposal_left_s": left(latest.plan.expires_at, sight.at) if latest is not None and is_waiting else 0.0,
        "rejected_age_s": figure(refused_s) if refused_s is not None and refused_s <= REJECTED_S else None,
    }


def _price(moment: Moment, pool: Pool) -> float | None:
    instances = moment.sight.instances
    paid = [one.usd_per_hour for one in instances if one.pool == pool.spec.id and one.gone_at is None]
    if paid:
        return rounded(max(paid))
    advice = moment.sight.advice(pool.spec.id)
    return figure(advice.inputs.get("price_per_hour")) if advice is not None else None
