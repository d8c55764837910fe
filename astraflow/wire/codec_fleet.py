"""Codec of the fleet plane's pools, plans, instances and audit log."""

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from astraflow.contract.causes import Cause
from astraflow.contract.errors import InvalidInput, PlanRefused
from astraflow.contract.fleet import (
    Actor,
    AppliedChange,
    AppliedPlan,
    Decision,
    Finding,
    FleetStatus,
    InjectedFault,
    Instance,
    InstanceState,
    KillScope,
    LaunchId,
    Plan,
    PlanId,
    PlanRequest,
    Pool,
    PoolSpec,
    Role,
    Verdict,
)
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.recommendations import Mode
from astraflow.wire.codec_common import decode_json, encode_json, matching_fields, optional_fields
from astraflow.wire.pb import fleet_plane_pb2 as pb

Choice = TypeVar("Choice", bound=Enum)

_SPEC = ("provider", "min_nodes", "max_nodes", "type", "region", "is_spot", "engine", "drain_s")
_SPEC_OPTIONAL = ("usd_per_hour_max", "usd_per_day_max", "capacity")
_POOL = ("version", "target", "usd_per_hour", "usd_today", "launch_delay_s", "override_reason", "can_inject_fault")
_POOL_OPTIONAL = ("rule_target", "override_until_at", "breaker_until", "last_change_at")
_INSTANCE = (
    *("provider", "handle", "type", "region", "is_spot", "usd_per_hour"),
    *("actor", "reason", "intended_at", "expires_at", "message"),
)
_INSTANCE_OPTIONAL = ("launched_at", "ready_at", "draining_at", "retiring_at", "gone_at")
_STATUS = ("cluster", "at", "kill_reason", "usd_per_hour", "usd_today", "orphans", "waiting")
_PLAN = (
    "observed_version",
    "nodes",
    "target",
    "launches",
    "eta_s",
    "usd_per_hour_change",
    "created_at",
    "expires_at",
    "override_s",
    "guard_json",
)
_DECISION = ("ordinal", "at", "kind", "pool", "reason", "message", "key")
_CHANGE = ("nodes_before", "nodes_after", "launched", "retired", "override_s", "is_approved")


def choice(kind: type[Choice], text: str) -> Choice:
    """Returns the enum member with this value. Raises: InvalidInput that names all values."""
    try:
        return kind(text)
    except ValueError:
        values = ", ".join(str(member.value) for member in kind)
        raise InvalidInput(
            f"cannot decode {kind.__name__}: unknown value {text[:80]!r}; use one of {values}",
            code="message.unknown_value",
        ) from None


def encode_actor(actor: Actor) -> pb.FleetActor:
    """Actor -> message."""
    return pb.FleetActor(name=actor.name, role=actor.role.value, pool=actor.pool)


def decode_actor(message: pb.FleetActor) -> Actor:
    """Message -> actor. Raises: InvalidInput."""
    return Actor(name=message.name, role=choice(Role, message.role), pool=message.pool)


def encode_spec(spec: PoolSpec) -> pb.FleetPoolSpec:
    """Pool spec -> message."""
    return pb.FleetPoolSpec(
        id=spec.id,
        mode=spec.mode.value,
        policies=spec.policies,
        options_json=encode_json(spec.options),
        **matching_fields(spec, _SPEC + _SPEC_OPTIONAL),
    )


def decode_spec(message: pb.FleetPoolSpec) -> PoolSpec:
    """Message -> pool spec. Raises: InvalidInput."""
    return PoolSpec(
        id=PoolId(message.id),
        mode=choice(Mode, message.mode),
        policies=tuple(map(PolicyId, message.policies)),
        options=decode_json(message.options_json, what=f"the options of pool {message.id}"),
        **matching_fields(message, _SPEC),
        **optional_fields(message, _SPEC_OPTIONAL),
    )


def encode_pool(pool: Pool) -> pb.FleetPool:
    """Pool -> message."""
    return pb.FleetPool(
        spec=encode_spec(pool.spec),
        nodes={state.value: nodes for state, nodes in pool.nodes.items()},
        terminating={cause.value: nodes for cause, nodes in pool.terminating.items()},
        losses={cause.value: nodes for cause, nodes in pool.losses.items()},
        simulated=pool.simulated,
        **matching_fields(pool, _POOL + _POOL_OPTIONAL),
    )


def decode_pool(message: pb.FleetPool) -> Pool:
    """Message -> pool."""
    return Pool(
        spec=decode_spec(message.spec),
        nodes={choice(InstanceState, state): message.nodes[state] for state in sorted(message.nodes)},
        terminating={choice(Cause, cause): message.terminating[cause] for cause in sorted(message.terminating)},
        losses={choice(Cause, cause): message.losses[cause] for cause in sorted(message.losses)},
        simulated=tuple(message.simulated),
        **matching_fields(message, _POOL),
        **optional_fields(message, _POOL_OPTIONAL),
    )


def encode_instance(instance: Instance) -> pb.FleetInstance:
    """Instance -> message."""
    return pb.FleetInstance(
        id=instance.id,
        pool=instance.pool,
        state=instance.state.value,
        cause=instance.cause.value if instance.cause is not None else "",
        **matching_fields(instance, _INSTANCE + _INSTANCE_OPTIONAL),
    )


def decode_instance(message: pb.FleetInstance) -> Instance:
    """Message -> instance."""
    return Instance(
        id=LaunchId(message.id),
        pool=PoolId(message.pool),
        state=choice(InstanceState, message.state),
        cause=choice(Cause, message.cause) if message.cause else None,
        **matching_fields(message, _INSTANCE),
        **optional_fields(message, _INSTANCE_OPTIONAL),
    )


def encode_status(status: FleetStatus) -> pb.FleetStatus:
    """Status -> message."""
    return pb.FleetStatus(
        pools=[encode_pool(pool) for pool in status.pools],
        kill=status.kill.value,
        problems=status.problems,
        last_sweep_at=status.last_sweep_at,
        **matching_fields(status, _STATUS),
    )


def decode_status(message: pb.FleetStatus) -> FleetStatus:
    """Message -> status."""
    return FleetStatus(
        pools=tuple(decode_pool(pool) for pool in message.pools),
        kill=choice(KillScope, message.kill),
        problems=tuple(message.problems),
        **matching_fields(message, _STATUS),
        **optional_fields(message, ("last_sweep_at",)),
    )


def encode_request(request: PlanRequest) -> pb.PlanChangeRequest:
    """Plan request -> message."""
    return pb.PlanChangeRequest(
        pool=request.pool,
        actor=encode_actor(request.actor),
        reason=request.reason,
        target=request.target,
        retire=request.retire,
        is_kill=request.is_kill,
    )


def decode_request(message: pb.PlanChangeRequest) -> PlanRequest:
    """Message -> plan request. Raises: InvalidInput."""
    return PlanRequest(
        pool=PoolId(message.pool),
        actor=decode_actor(message.actor),
        reason=message.reason,
        target=message.target if message.HasField("target") else None,
        retire=tuple(LaunchId(launch) for launch in message.retire),
        is_kill=message.is_kill,
    )


def encode_plan(plan: Plan) -> pb.FleetPlan:
    """Plan -> message."""
    return pb.FleetPlan(
        id=plan.id,
        request=encode_request(plan.request),
        victims=plan.victims,
        verdict=plan.verdict.value,
        findings=_encode_findings(plan.findings),
        rule_target=plan.rule_target,
        **matching_fields(plan, _PLAN),
    )


def decode_plan(message: pb.FleetPlan) -> Plan:
    """Message -> plan."""
    return Plan(
        id=PlanId(message.id),
        request=decode_request(message.request),
        victims=tuple(LaunchId(victim) for victim in message.victims),
        verdict=choice(Verdict, message.verdict),
        findings=_decode_findings(message.findings),
        **optional_fields(message, ("rule_target",)),
        **matching_fields(message, _PLAN),
    )


def encode_applied(applied: AppliedPlan) -> pb.AppliedPlan:
    """Result of a plan -> message."""
    return pb.AppliedPlan(
        plan=applied.plan,
        decision=applied.decision,
        launched=applied.launched,
        retired=applied.retired,
        message=applied.message,
        guard_json=applied.guard_json,
        override_until_at=applied.override_until_at,
    )


def encode_refused(plan: str, problem: PlanRefused) -> pb.AppliedPlan:
    """Refused plan -> message."""
    return pb.AppliedPlan(plan=plan, refusal=str(problem), guard_json=problem.guard_json)


def decode_applied(message: pb.AppliedPlan) -> AppliedPlan:
    """Message -> result of a plan. Raises: PlanRefused when the guard refused it."""
    if message.refusal:
        raise PlanRefused(message.refusal, guard_json=message.guard_json, code="fleet.plan_refused")
    return AppliedPlan(
        plan=PlanId(message.plan),
        decision=message.decision,
        launched=tuple(LaunchId(launch) for launch in message.launched),
        retired=tuple(LaunchId(launch) for launch in message.retired),
        message=message.message,
        guard_json=message.guard_json,
        **optional_fields(message, ("override_until_at",)),
    )


def encode_decision(decision: Decision) -> pb.FleetDecision:
    """Audit log entry -> message."""
    return pb.FleetDecision(
        actor=encode_actor(decision.actor),
        findings=_encode_findings(decision.findings),
        change=pb.AppliedChange(**matching_fields(decision.change, _CHANGE)) if decision.change is not None else None,
        **matching_fields(decision, _DECISION),
    )


def decode_decision(message: pb.FleetDecision) -> Decision:
    """Message -> audit log entry."""
    return Decision(
        actor=decode_actor(message.actor),
        findings=_decode_findings(message.findings),
        change=AppliedChange(**matching_fields(message.change, _CHANGE)) if message.HasField("change") else None,
        **matching_fields(message, _DECISION),
    )


def encode_injected_fault(fault: InjectedFault) -> pb.InjectedFault:
    """Injected fault -> message."""
    return pb.InjectedFault(decision=encode_decision(fault.decision), lost=fault.lost)


def decode_injected_fault(message: pb.InjectedFault) -> InjectedFault:
    """Message -> injected fault."""
    return InjectedFault(
        decision=decode_decision(message.decision), lost=tuple(LaunchId(launch) for launch in message.lost)
    )


def _encode_findings(findings: Iterable[Finding]) -> list[pb.FleetFinding]:
    return [
        pb.FleetFinding(
            code=finding.code, verdict=finding.verdict.value, message=finding.message, numbers=finding.numbers
        )
        for finding in findings
    ]


def _decode_findings(messages: Iterable[pb.FleetFinding]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            code=finding.code,
            verdict=choice(Verdict, finding.verdict),
            message=finding.message,
            numbers=dict(finding.numbers),
        )
        for finding in messages
    )
