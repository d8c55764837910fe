"""Changing the fleet on behalf of a viewer: who acts is who is logged in, and the audit has it, whichever way it went.

Pages and the API both come through here. A key makes a change happen once; it is the viewer's own, so that nobody can
take another's.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract import fleet
from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput, NotPermitted, Unavailable
from astraflow.contract.fleet import (
    Actor,
    Applied,
    Decision,
    KillScope,
    Loss,
    Plan,
    PlanId,
    PlanRequest,
    Pool,
    PoolSpec,
)
from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.rehearsals import Rehearsal
from web.accounts.viewer import Viewer
from web.audit.entries import Deed, Facts
from web.door.places import Place
from web.door.roles import Role
from web.parts import Parts

T = TypeVar("T")

_ROLES = {Role.AGENT: fleet.Role.AGENT, Role.OPERATOR: fleet.Role.OPERATOR, Role.ADMIN: fleet.Role.ADMIN}


def actor_of(parts: Parts, viewer: Viewer, *, pool: str = "") -> Actor:
    """A viewer as the fleet of the run that is shown names them, for a change of this pool, or of all of it.

    Whose role is for this pool alone comes as somebody of that pool: the fleet service lets them touch no other.
    Raises: NotPermitted for who may only look there.
    """
    run = parts.run
    role = viewer.role_at(Place(run=run, pool=pool))
    if role not in _ROLES:
        where = Place(run=run, pool=pool).words or "here"
        raise NotPermitted(f"{viewer.name} may only look {where}, and changes nothing")
    is_of_pool = pool and role is not viewer.role_at(Place(run=run))
    return Actor(name=viewer.name, role=_ROLES[role], pool=pool if is_of_pool else "")


def fleet_of(parts: Parts) -> FleetPlaneClient:
    """The client. Raises: Unavailable for a run without a fleet service."""
    if parts.fleet is None:
        raise Unavailable("this page was told of no fleet service: start one, and the page with --fleet HOST:PORT")
    return parts.fleet


async def plan_change(parts: Parts, request: PlanRequest) -> Plan:
    """What a change would do; nothing happens. Kept, so that it can be shown and applied."""
    plan = await fleet_of(parts).plan(request)
    parts.shelf.plans.put((parts.run, plan.id), plan)
    return plan


async def apply_plan(
    parts: Parts, viewer: Viewer, plan_id: PlanId, *, key: str, reason: str, action: str = "pool.apply"
) -> Applied:
    """Carry a plan out; applying is agreeing to it. action: as the audit names it. Raises: as the plane's `apply`."""
    plan = parts.shelf.plans.get((parts.run, plan_id))
    actor = actor_of(parts, viewer, pool=plan.request.pool if plan else "")
    deed = Deed(action=action, target=plan.request.pool if plan else plan_id, reason=reason, after=_facts(plan))

    async def asked() -> Applied:
        return await fleet_of(parts).apply(plan_id, key=own_key(viewer, key), approver=actor)

    return await acted(parts, viewer, deed, asked())


async def put_pool(
    parts: Parts, viewer: Viewer, spec: PoolSpec, *, observed_version: int, key: str, reason: str
) -> Pool:
    """Make a pool, or change its spec. Raises: as the fleet plane's `put_pool`."""
    known = parts.fleet_state.pool(spec.id)
    before = known.spec if known else None
    deed = Deed(action="pool.change", target=spec.id, reason=reason, **_change(before, spec))

    async def asked() -> Pool:
        pool = await fleet_of(parts).put_pool(
            spec,
            observed_version=observed_version,
            actor=actor_of(parts, viewer, pool=spec.id),
            key=own_key(viewer, key),
            reason=reason,
        )
        if before is not None and before != spec:
            parts.shelf.specs.put((parts.run, spec.id, pool.version), before)
        return pool

    return await acted(parts, viewer, deed, asked())


async def hold_pool(parts: Parts, viewer: Viewer, pool: PoolId, *, minutes: float, key: str, reason: str) -> Decision:
    """Take no node away for so long; 0 ends it."""
    deed = Deed(action="pool.hold", target=pool, reason=reason, after={"minutes": minutes})

    async def asked() -> Decision:
        return await fleet_of(parts).hold(
            pool,
            minutes=minutes,
            actor=actor_of(parts, viewer, pool=pool),
            key=own_key(viewer, key),
            reason=reason,
        )

    return await acted(parts, viewer, deed, asked())


async def set_kill(parts: Parts, viewer: Viewer, scope: KillScope, *, key: str, reason: str) -> Decision:
    """Stop agents or everybody, or let them go on."""
    before = parts.fleet_state.status
    deed = Deed(
        action="fleet.kill_switch",
        target="fleet",
        reason=reason,
        before={"scope": before.kill.value} if before else {},
        after={"scope": scope.value},
    )

    async def asked() -> Decision:
        actor = actor_of(parts, viewer)
        return await fleet_of(parts).kill_switch(scope, actor=actor, key=own_key(viewer, key), reason=reason)

    return await acted(parts, viewer, deed, asked())


async def drain_node(parts: Parts, viewer: Viewer, node: NodeId, *, deadline_s: float, key: str, reason: str) -> str:
    """Ask a node to finish and leave; returns a sentence. The same key is answered with the first answer."""
    deed = Deed(action="node.drain", target=node, reason=reason)

    async def asked() -> str:
        return await parts.control.drain_node(node, actor=viewer.name, reason=reason, deadline_s=deadline_s)

    return await acted_once(parts, viewer, deed, asked, key=key, asked_for=f"drain {node} {deadline_s} {reason}")


async def lose_nodes(parts: Parts, viewer: Viewer, pool: PoolId, *, share: float, key: str, reason: str) -> Loss:
    """Simulate a fault: that share of a pool's nodes ends at once. Raises: as the fleet plane's `lose`."""
    deed = Deed(action="pool.lose", target=pool, reason=reason, after={"share": share})

    async def asked() -> Loss:
        return await fleet_of(parts).lose(
            pool,
            share=share,
            actor=actor_of(parts, viewer, pool=pool),
            key=own_key(viewer, key),
            reason=reason,
        )

    return await acted(parts, viewer, deed, asked())


async def rehearse_provider(parts: Parts, viewer: Viewer, provider: str) -> Rehearsal:
    """Ask a provider whether it would do its part; nothing is started. Raises: as the fleet plane's `rehearse`."""

    async def asked() -> Rehearsal:
        return await fleet_of(parts).rehearse(provider, actor=actor_of(parts, viewer))

    def found(rehearsal: Rehearsal) -> Facts:
        failed = sum(1 for check in rehearsal.checks if not check.is_ok)
        return {"checks": len(rehearsal.checks), "failed": failed}

    return await acted(parts, viewer, Deed(action="provider.test", target=provider), asked(), found=found)


async def acted_once(
    parts: Parts, viewer: Viewer, deed: Deed, asked: Callable[[], Awaitable[str]], *, key: str, asked_for: str
) -> str:
    """Ask for something that knows no keys itself, as `acted` does: once for each key, as `answered_once` says."""

    async def do() -> str:
        return await acted(parts, viewer, deed, asked())

    return await answered_once(parts, viewer, do, key=key, asked_for=asked_for)


async def answered_once(
    parts: Parts, viewer: Viewer, asked: Callable[[], Awaitable[str]], *, key: str, asked_for: str
) -> str:
    """Await it: the same key is answered with the first answer.

    asked_for: what distinguishes it. Raises: Conflict for a key that was used for something else.
    """
    own = (parts.run, own_key(viewer, key))
    known = parts.shelf.answers.get(own)
    if known is not None and known[0] != asked_for:
        raise Conflict(f"the idempotency key {key!r} was used for another change: take a new one for each change")
    if known is not None:
        return known[1]
    answer = await asked()
    parts.shelf.answers.put(own, (asked_for, answer))
    return answer


def own_key(viewer: Viewer, key: str) -> str:
    """A key of this viewer's own, as the journal shows it. Raises: InvalidInput for one that cannot be."""
    if not 1 <= len(key) <= 100 or not key.isascii() or not key.isprintable():
        raise InvalidInput("an idempotency key is 1 to 100 printable ASCII characters, a new one for each change")
    return f"web{viewer.user_id}:{key}"


def form_key(*parts: object) -> str:
    """The key of a form that was shown once: sending it twice acts once."""
    return hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=12).hexdigest()


async def acted(
    parts: Parts, viewer: Viewer, deed: Deed, asked: Awaitable[T], *, found: Callable[[T], Facts] | None = None
) -> T:
    """Await it, enter it in the audit, and look at the fleet again at once.

    found: what the audit keeps of the answer, where that is known only then.
    """
    try:
        answer = await asked
    except AstraFlowError as problem:
        result = "refused" if isinstance(problem, NotPermitted) else "failed"
        await parts.trail.note(viewer.author, replace(deed, result=result, after={"problem": str(problem)}))
        raise
    await parts.trail.note(viewer.author, replace(deed, after=found(answer)) if found is not None else deed)
    if parts.fleet_poller is not None:
        await parts.fleet_poller.look()
    return answer


def _facts(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    facts = {"from": plan.nodes, "to": plan.target, "launches": plan.launches, "victims": len(plan.victims)}
    return facts | {"planned_by": plan.request.actor.name}


def _change(before: PoolSpec | None, spec: PoolSpec) -> dict[str, Any]:
    """What differs, as facts of the audit."""
    was, now = (asdict(before) if before else {}), asdict(spec)
    names = [name for name in now if was.get(name) != now[name]]
    return {
        "before": {name: _fact(was[name]) for name in names if name in was},
        "after": {name: _fact(now[name]) for name in names},
    }


def _fact(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
