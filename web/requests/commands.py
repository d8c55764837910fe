"""Commands on behalf of a viewer, audited whether they succeed or fail.

Used by pages and the API. An idempotency key makes a change happen once; it is scoped to the viewer, so no other user
can reuse it.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet.decisions import Decision, InjectedFault
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest
from astraflow.contract.fleet.plans import Role as ActorRole
from astraflow.contract.fleet.pools import KillScope, Pool, PoolSpec
from astraflow.contract.fleet.preflight import PreflightResult
from astraflow.contract.ids import NodeId, PoolId
from web.accounts.viewer import Viewer
from web.history.run_summary import RunSummary
from web.live.followed_run import FollowedRun
from web.security.audit_log import AuditedCommand, AuditLog, Facts
from web.security.roles import Resource, Role

K = TypeVar("K")
V = TypeVar("V")

MAX_ENTRIES = 2000


class BoundedCache(Generic[K, V]):
    """Latest `MAX_ENTRIES` values by key."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()

    def put(self, key: K, value: V) -> None:
        """Stores a value; drops the oldest beyond the limit."""
        self._values[key] = value
        while len(self._values) > MAX_ENTRIES:
            self._values.popitem(last=False)

    def get(self, key: K) -> V | None:
        """Value of the key; None if it is unknown or was dropped."""
        return self._values.get(key)


class KeyLocks(Generic[K]):
    """One lock per key. A lock is dropped when no request holds it or waits for it, which bounds the memory."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        """Number of keys in use."""
        return len(self._locks)

    def lock_of(self, key: K) -> asyncio.Lock:
        """Lock of the key; the caller keeps a reference while it holds it or waits for it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReply:
    """Reply to a launch, stop or resume request."""

    request: str
    """Request, as JSON."""
    run: str
    """Name of the run."""


class ProcessCache:
    """Caches of one process."""

    def __init__(self) -> None:
        self.plans: BoundedCache[tuple[str, PlanId], Plan] = BoundedCache()
        """Plan by run and plan id."""
        self.previous_specs: BoundedCache[tuple[str, str, int], PoolSpec] = BoundedCache()
        """Spec before the change, by run, pool and new version; restored by undo."""
        self.answers: BoundedCache[tuple[str, str], tuple[object, str]] = BoundedCache()
        """Request and answer, by run and idempotency key."""
        self.answer_locks: KeyLocks[tuple[str, str]] = KeyLocks()
        """Lock by run and idempotency key, so that concurrent requests with one key act once."""
        self.launches: BoundedCache[str, LaunchReply] = BoundedCache()
        """Reply by idempotency key. The database also stores the key of a launch."""
        self.summaries: BoundedCache[tuple[int, int], RunSummary] = BoundedCache()
        """Summary by run record and sequence of its last report."""
        self.shared: BoundedCache[Hashable, asyncio.Future[Any]] = BoundedCache()
        """Results that all viewers of a run share for some seconds, by what they are and their time."""
        self.settings: BoundedCache[tuple[str, object], dict[str, Any]] = BoundedCache()
        """Settings by the snapshot of a run and the time of its change."""
        self.launch_lock = asyncio.Lock()
        """Serializes launching, stopping and resuming runs, so that two requests with one key act once."""


T = TypeVar("T")

_ROLES = {Role.AGENT: ActorRole.AGENT, Role.OPERATOR: ActorRole.OPERATOR, Role.ADMIN: ActorRole.ADMIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Commands of one request on the run that it shows."""

    viewer: Viewer
    run: FollowedRun
    audit_log: AuditLog
    cache: ProcessCache

    def actor(self, *, pool: str = "") -> Actor:
        """Actor for the viewer on the run, for a change of this pool, or of the whole fleet.

        A role on a single pool yields an actor limited to that pool, which the fleet service enforces.
        Raises: NotPermitted if the viewer may only view.
        """
        role = self.viewer.effective_role(Resource(run=self.run.name, pool=pool))
        if role not in _ROLES:
            scope = Resource(run=self.run.name, pool=pool).description or "here"
            raise NotPermitted(
                f"cannot change the fleet: {self.viewer.name} may only view {scope}; ask an admin for a role",
                code="fleet.role_missing",
            )
        is_limited_to_pool = pool and role is not self.viewer.effective_role(Resource(run=self.run.name))
        return Actor(name=self.viewer.name, role=_ROLES[role], pool=pool if is_limited_to_pool else "")

    def check_kill_switch(self) -> None:
        """Checks that the kill switch does not stop the viewer, a program of the role agent. Raises: NotPermitted.

        The fleet service checks changes of the fleet itself; this is for changes that never reach it.
        """
        kill = self.run.fleet.kill
        if kill is not KillScope.NONE and self.viewer.effective_role(self.viewer.at) is Role.AGENT:
            raise NotPermitted(
                f"cannot change the run: the kill switch is on for {kill.value}; do not retry until a person turns it "
                "off",
                code="run.kill_switch",
            )

    def own_key(self, key: str) -> str:
        """Key scoped to the viewer, as the journal shows it. Raises: InvalidInput."""
        if not 1 <= len(key) <= 100 or not key.isascii() or not key.isprintable():
            raise InvalidInput(
                f"cannot use the idempotency key {key[:120]!r}: invalid; send 1 to 100 printable ASCII characters",
                code="request.invalid_key",
            )
        return f"web{self.viewer.user_id}:{key}"

    def known_plan(self, plan: PlanId) -> Plan | None:
        """Plan that was shown; None for an unknown or an old one."""
        return self.cache.plans.get((self.run.name, plan))

    def cache_plan(self, plan: Plan) -> None:
        """Keeps a plan, so that it can be shown and applied."""
        self.cache.plans.put((self.run.name, plan.id), plan)

    def previous_spec(self, pool: str, version: int) -> PoolSpec | None:
        """Spec of a pool before the change that made this version; None for an unknown or an old one."""
        return self.cache.previous_specs.get((self.run.name, pool, version))

    async def plan_change(self, request: PlanRequest) -> Plan:
        """Plans a change without applying it, and caches the plan."""
        plan = await self.run.fleet.require_client().plan(request)
        self.cache_plan(plan)
        return plan

    async def apply_plan(self, plan_id: PlanId, *, key: str, reason: str, action: str = "pool.apply") -> AppliedPlan:
        """Applies a plan, approved by the viewer. action: name in the audit log. Raises: as the plane's `apply`."""
        plan = self.known_plan(plan_id)
        actor = self.actor(pool=plan.request.pool if plan else "")
        command = AuditedCommand(
            action=action, target=plan.request.pool if plan else plan_id, reason=reason, after=_plan_facts(plan)
        )

        async def apply() -> AppliedPlan:
            return await self.run.fleet.require_client().apply(plan_id, key=self.own_key(key), approver=actor)

        return await self.audited(command, apply)

    async def put_pool(self, spec: PoolSpec, *, observed_version: int, key: str, reason: str) -> Pool:
        """Creates a pool or changes its spec. Raises: as the fleet plane's `put_pool`."""
        current = self.run.fleet.state.pool(spec.id)
        before = current.spec if current else None
        command = AuditedCommand(action="pool.change", target=spec.id, reason=reason, **_spec_changes(before, spec))

        async def put() -> Pool:
            actor, own_key = self.actor(pool=spec.id), self.own_key(key)
            pool = await self.run.fleet.require_client().put_pool(
                spec, observed_version=observed_version, actor=actor, key=own_key, reason=reason
            )
            if before is not None and before != spec:
                self.cache.previous_specs.put((self.run.name, spec.id, pool.version), before)
            return pool

        return await self.audited(command, put)

    async def set_pool_hold(self, pool: PoolId, *, minutes: float, key: str, reason: str) -> Decision:
        """Sets a hold for `minutes`; 0 ends it."""
        command = AuditedCommand(action="pool.hold", target=pool, reason=reason, after={"minutes": minutes})

        async def hold() -> Decision:
            return await self.run.fleet.require_client().set_hold(
                pool, minutes=minutes, actor=self.actor(pool=pool), key=self.own_key(key), reason=reason
            )

        return await self.audited(command, hold)

    async def set_kill_switch(self, scope: KillScope, *, key: str, reason: str) -> Decision:
        """Sets the scope of the kill switch: none, agents or all."""
        status = self.run.fleet.state.status
        before, after = {"scope": status.kill.value} if status else {}, {"scope": scope.value}
        command = AuditedCommand(action="fleet.kill_switch", target="fleet", reason=reason, before=before, after=after)

        async def switch() -> Decision:
            actor = self.actor()
            return await self.run.fleet.require_client().kill_switch(
                scope, actor=actor, key=self.own_key(key), reason=reason
            )

        return await self.audited(command, switch)

    async def inject_fault(self, pool: PoolId, *, share: float, key: str, reason: str) -> InjectedFault:
        """Injects a fault: terminates this share of a pool's nodes. Raises: as the fleet plane's `inject_fault`."""
        command = AuditedCommand(action="pool.inject_fault", target=pool, reason=reason, after={"share": share})

        async def inject() -> InjectedFault:
            return await self.run.fleet.require_client().inject_fault(
                pool, share=share, actor=self.actor(pool=pool), key=self.own_key(key), reason=reason
            )

        return await self.audited(command, inject)

    async def run_preflight(self, provider: str) -> PreflightResult:
        """Runs a provider's preflight check; starts nothing. Raises: as the fleet plane's `run_preflight`."""

        async def check() -> PreflightResult:
            return await self.run.fleet.require_client().run_preflight(provider, actor=self.actor())

        def facts_of(result: PreflightResult) -> Facts:
            failed = sum(1 for step in result.checks if not step.is_ok)
            return {"checks": len(result.checks), "failed": failed}

        command = AuditedCommand(action="provider.preflight", target=provider)
        return await self.audited(command, check, result_facts=facts_of)

    async def drain_node(self, node: NodeId, *, reason: str, deadline_s: float = 0.0) -> str:
        """Drains a node; returns a sentence. Not audited."""
        return await self.run.control.drain_node(node, actor=self.viewer.name, reason=reason, deadline_s=deadline_s)

    async def audited(
        self,
        command: AuditedCommand,
        operation: Callable[[], Awaitable[T]],
        *,
        result_facts: Callable[[T], Facts] | None = None,
    ) -> T:
        """Runs and audits the operation (`AuditLog.record`), and polls the fleet."""
        answer = await self.audit_log.record(self.viewer.author, command, operation, result_facts=result_facts)
        if self.run.fleet.poller is not None:
            await self.run.fleet.poller.poll()
        return answer

    async def audited_once(
        self, command: AuditedCommand, operation: Callable[[], Awaitable[str]], *, key: str, request: object
    ) -> str:
        """Runs an operation once per key and audits it."""
        return await self.once(lambda: self.audited(command, operation), key=key, request=request)

    async def once(self, operation: Callable[[], Awaitable[str]], *, key: str, request: object) -> str:
        """Awaits the operation once per key; repeats return the first answer, concurrent ones after it is known.

        request: equal for equal requests. Raises: Conflict for a key of another request.
        """
        cache_key = (self.run.name, self.own_key(key))
        lock = self.cache.answer_locks.lock_of(cache_key)
        async with lock:
            cached = self.cache.answers.get(cache_key)
            if cached is not None and cached[0] != request:
                raise Conflict(
                    f"cannot reuse the idempotency key {key!r}: another change used it; send a new key for each change",
                    code="request.key_reused",
                )
            if cached is not None:
                return cached[1]
            answer = await operation()
            self.cache.answers.put(cache_key, (request, answer))
            return answer


def form_key(*fields: object) -> str:
    """Key of a form, derived from its content: submitting it twice acts once."""
    return hashlib.blake2b(" ".join(map(str, fields)).encode(), digest_size=12).hexdigest()


def _plan_facts(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    if plan.request.run is not None:
        return {"change": plan.request.run.sentence, "planned_by": plan.request.actor.name}
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
