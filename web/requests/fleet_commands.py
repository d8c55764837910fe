"""Commands for the fleet on behalf of a viewer, audited whether they succeed or fail.

Used by pages and the API. An idempotency key makes a change happen once; it is scoped to the viewer, so no other user
can reuse it.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted, Unavailable
from astraflow.contract.fleet.decisions import Decision, InjectedFault
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest
from astraflow.contract.fleet.plans import Role as ActorRole
from astraflow.contract.fleet.pools import KillScope, Pool, PoolSpec
from astraflow.contract.fleet.preflight import PreflightResult
from astraflow.contract.ids import NodeId, PoolId
from web.accounts.viewer import Viewer
from web.requests.context import RequestContext
from web.security.audit_log import AuditedCommand, Facts
from web.security.resources import Resource
from web.security.roles import Role

T = TypeVar("T")

_ROLES = {Role.AGENT: ActorRole.AGENT, Role.OPERATOR: ActorRole.OPERATOR, Role.ADMIN: ActorRole.ADMIN}


def actor_of(context: RequestContext, viewer: Viewer, *, pool: str = "") -> Actor:
    """Actor for a viewer on the shown run, for a change of this pool, or of the whole fleet.

    A role on a single pool yields an actor limited to that pool, which the fleet service enforces.
    Raises: NotPermitted if the viewer may only view.
    """
    run = context.run
    role = viewer.effective_role(Resource(run=run, pool=pool))
    if role not in _ROLES:
        scope = Resource(run=run, pool=pool).description or "here"
        raise NotPermitted(
            f"cannot change the fleet: {viewer.name} may only view {scope}; ask an admin for a role",
            code="fleet.role_missing",
        )
    is_limited_to_pool = pool and role is not viewer.effective_role(Resource(run=run))
    return Actor(name=viewer.name, role=_ROLES[role], pool=pool if is_limited_to_pool else "")


def fleet_of(context: RequestContext) -> FleetPlaneClient:
    """Client of the fleet plane. Raises: Unavailable for a run without a fleet service."""
    if context.fleet is None:
        raise Unavailable(
            "cannot reach a fleet service: none is configured; start one, and the page with --fleet HOST:PORT",
            code="fleet.not_configured",
        )
    return context.fleet


async def plan_change(context: RequestContext, request: PlanRequest) -> Plan:
    """Plans a change without applying it; caches the plan so that it can be shown and applied."""
    plan = await fleet_of(context).plan(request)
    context.cache.plans.put((context.run, plan.id), plan)
    return plan


async def apply_plan(
    context: RequestContext, viewer: Viewer, plan_id: PlanId, *, key: str, reason: str, action: str = "pool.apply"
) -> AppliedPlan:
    """Applies a plan, with the viewer as approver. action: name in the audit log. Raises: as the plane's `apply`."""
    plan = context.cache.plans.get((context.run, plan_id))
    actor = actor_of(context, viewer, pool=plan.request.pool if plan else "")
    command = AuditedCommand(
        action=action, target=plan.request.pool if plan else plan_id, reason=reason, after=_plan_facts(plan)
    )

    async def apply() -> AppliedPlan:
        return await fleet_of(context).apply(plan_id, key=own_key(viewer, key), approver=actor)

    return await run_audited(context, viewer, command, apply)


async def put_pool(
    context: RequestContext, viewer: Viewer, spec: PoolSpec, *, observed_version: int, key: str, reason: str
) -> Pool:
    """Creates a pool or changes its spec. Raises: as the fleet plane's `put_pool`."""
    current = context.fleet_state.pool(spec.id)
    before = current.spec if current else None
    command = AuditedCommand(action="pool.change", target=spec.id, reason=reason, **_spec_changes(before, spec))

    async def put() -> Pool:
        pool = await fleet_of(context).put_pool(
            spec,
            observed_version=observed_version,
            actor=actor_of(context, viewer, pool=spec.id),
            key=own_key(viewer, key),
            reason=reason,
        )
        if before is not None and before != spec:
            context.cache.previous_specs.put((context.run, spec.id, pool.version), before)
        return pool

    return await run_audited(context, viewer, command, put)


async def set_pool_override(
    context: RequestContext, viewer: Viewer, pool: PoolId, *, minutes: float, key: str, reason: str
) -> Decision:
    """Sets a manual override for `minutes`; 0 ends it."""
    command = AuditedCommand(action="pool.override", target=pool, reason=reason, after={"minutes": minutes})

    async def override() -> Decision:
        return await fleet_of(context).set_override(
            pool,
            minutes=minutes,
            actor=actor_of(context, viewer, pool=pool),
            key=own_key(viewer, key),
            reason=reason,
        )

    return await run_audited(context, viewer, command, override)


async def set_kill_switch(
    context: RequestContext, viewer: Viewer, scope: KillScope, *, key: str, reason: str
) -> Decision:
    """Sets the scope of the kill switch: none, agents or all."""
    before = context.fleet_state.status
    command = AuditedCommand(
        action="fleet.kill_switch",
        target="fleet",
        reason=reason,
        before={"scope": before.kill.value} if before else {},
        after={"scope": scope.value},
    )

    async def switch() -> Decision:
        actor = actor_of(context, viewer)
        return await fleet_of(context).kill_switch(scope, actor=actor, key=own_key(viewer, key), reason=reason)

    return await run_audited(context, viewer, command, switch)


async def drain_node(
    context: RequestContext, viewer: Viewer, node: NodeId, *, deadline_s: float, key: str, reason: str
) -> str:
    """Drains a node; returns a sentence. The same key returns the first answer."""
    command = AuditedCommand(action="node.drain", target=node, reason=reason)

    async def drain() -> str:
        return await context.control.drain_node(node, actor=viewer.name, reason=reason, deadline_s=deadline_s)

    return await run_audited_once(
        context, viewer, command, drain, key=key, request_text=f"drain {node} {deadline_s} {reason}"
    )


async def inject_fault(
    context: RequestContext, viewer: Viewer, pool: PoolId, *, share: float, key: str, reason: str
) -> InjectedFault:
    """Injects a fault: terminates this share of a pool's nodes. Raises: as the fleet plane's `inject_fault`."""
    command = AuditedCommand(action="pool.inject_fault", target=pool, reason=reason, after={"share": share})

    async def inject() -> InjectedFault:
        return await fleet_of(context).inject_fault(
            pool,
            share=share,
            actor=actor_of(context, viewer, pool=pool),
            key=own_key(viewer, key),
            reason=reason,
        )

    return await run_audited(context, viewer, command, inject)


async def run_preflight(context: RequestContext, viewer: Viewer, provider: str) -> PreflightResult:
    """Runs a provider's preflight check; starts nothing. Raises: as the fleet plane's `run_preflight`."""

    async def check() -> PreflightResult:
        return await fleet_of(context).run_preflight(provider, actor=actor_of(context, viewer))

    def facts_of(result: PreflightResult) -> Facts:
        failed = sum(1 for step in result.checks if not step.is_ok)
        return {"checks": len(result.checks), "failed": failed}

    return await run_audited(
        context, viewer, AuditedCommand(action="provider.preflight", target=provider), check, result_facts=facts_of
    )


async def run_audited_once(
    context: RequestContext,
    viewer: Viewer,
    command: AuditedCommand,
    operation: Callable[[], Awaitable[str]],
    *,
    key: str,
    request_text: str,
) -> str:
    """Runs an operation once per key (`run_once_per_key`) and audits it (`run_audited`)."""

    async def do() -> str:
        return await run_audited(context, viewer, command, operation)

    return await run_once_per_key(context, viewer, do, key=key, request_text=request_text)


async def run_once_per_key(
    context: RequestContext, viewer: Viewer, operation: Callable[[], Awaitable[str]], *, key: str, request_text: str
) -> str:
    """Awaits the operation once per key; repeats return the first answer, concurrent ones after it is known.

    request_text: identifies the request. Raises: Conflict for a key of another request.
    """
    cache_key = (context.run, own_key(viewer, key))
    lock = context.cache.answer_locks.lock_of(cache_key)
    async with lock:
        cached = context.cache.answers.get(cache_key)
        if cached is not None and cached[0] != request_text:
            raise Conflict(
                f"cannot reuse the idempotency key {key!r}: another change used it; send a new key for each change",
                code="request.key_reused",
            )
        if cached is not None:
            return cached[1]
        answer = await operation()
        context.cache.answers.put(cache_key, (request_text, answer))
        return answer


def own_key(viewer: Viewer, key: str) -> str:
    """Key scoped to the viewer, as the journal shows it. Raises: InvalidInput."""
    if not 1 <= len(key) <= 100 or not key.isascii() or not key.isprintable():
        raise InvalidInput(
            f"cannot use the idempotency key {key[:120]!r}: invalid; send 1 to 100 printable ASCII characters",
            code="request.invalid_key",
        )
    return f"web{viewer.user_id}:{key}"


def form_key(*fields: object) -> str:
    """Key of a form, derived from its content: submitting it twice acts once."""
    return hashlib.blake2b(" ".join(map(str, fields)).encode(), digest_size=12).hexdigest()


async def run_audited(
    context: RequestContext,
    viewer: Viewer,
    command: AuditedCommand,
    operation: Callable[[], Awaitable[T]],
    *,
    result_facts: Callable[[T], Facts] | None = None,
) -> T:
    """Runs and audits the operation (`AuditLog.record`), and polls the fleet."""
    answer = await context.audit_log.record(viewer.author, command, operation, result_facts=result_facts)
    if context.fleet_poller is not None:
        await context.fleet_poller.poll()
    return answer


def _plan_facts(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    facts = {"from": plan.nodes, "to": plan.target, "launches": plan.launches, "victims": len(plan.victims)}
    return facts | {"planned_by": plan.request.actor.name}


def _spec_changes(before: PoolSpec | None, spec: PoolSpec) -> dict[str, Any]:
    """Changed fields, as facts of the audit log."""
    old, new = (asdict(before) if before else {}), asdict(spec)
    names = [name for name in new if old.get(name) != new[name]]
    return {
        "before": {name: _fact_value(old[name]) for name in names if name in old},
        "after": {name: _fact_value(new[name]) for name in names},
    }


def _fact_value(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
