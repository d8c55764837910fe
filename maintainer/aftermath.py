"""After a wake: notes for whoever comes next, whether changes came off, alarms, and the day's digest."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Actor, Decision, InstanceState, Plan
from astraflow.contract.ids import PoolId
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.config import MaintainerConfig
from maintainer.counting import Counters
from maintainer.names import Names
from maintainer.notifying import Notifier
from maintainer.observation import Signal
from maintainer.outbox import Notice
from maintainer.sight import Sight
from maintainer.toolbox.changes import Done
from maintainer.transcript import Kind

log = get_logger()

DAY_S = 86400.0

Record = Callable[[Kind, Mapping[str, Any], str], Awaitable[None]]
"""Writes to the transcript, with the name of the wake."""


class NotePort(Protocol):
    """What is told to the fleet service: the fleet plane's client is one."""

    async def hand_over(
        self, message: str, *, pool: PoolId | None = None, actor: Actor, key: str, reason: str
    ) -> Decision:
        """A note in the journal."""

    async def escalate(self, severity: str, *, actor: Actor, key: str, reason: str) -> Decision:
        """Tell people something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A change that is to be looked at again."""

    due_at: float
    """On the clock."""
    plan: Plan
    wake: str


class Aftermath:
    """One for the process."""

    def __init__(
        self,
        config: MaintainerConfig,
        *,
        fleet: NotePort,
        names: Names,
        actor: Actor,
        notifier: Notifier,
        counters: Counters,
        record: Record,
        clock: Clock,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._names = names
        self._actor = actor
        self._notifier = notifier
        self._counters = counters
        self._record = record
        self._clock = clock
        self._to_verify: list[Verification] = []
        self.outcomes: list[Mapping[str, Any]] = []
        """What the model is told next of changes that did not come off."""
        self._alarmed: set[str] = set()
        self._digest_day = counters.digest_day

    def is_well(self, key: str) -> None:
        """What an alarm was about is over: the next one is told again."""
        self._alarmed.discard(key)

    async def note(self, done: Sequence[Done], *, wake: str, words: str) -> None:
        """One note for whoever comes next, of all that was done; what is to be verified is remembered."""
        words = self._names.reveal(words)[:1500]
        for one in done:
            if one.what == "plan" and one.outcome == "applied" and one.plan is not None:
                due_at = self._clock.now() + one.plan.eta_s + self._config.watch.observe_s
                self._to_verify.append(Verification(due_at=due_at, plan=one.plan, wake=wake))
        pools = {one.pool for one in done if one.pool}
        pool = pools.pop() if len(pools) == 1 else ""
        text = "; ".join(_sentence(one) for one in done)[:1500] or "nothing was done"
        decision = None
        if any(one.outcome in ("applied", "proposed") for one in done):
            key = f"{self._actor.name}:{wake}:note"
            decision = await self._handed_over(text, pool=pool, key=key, reason=words or "the model said nothing")
        await self._record(Kind.NOTE, {"pool": pool, "text": text, "words": words, "decision": decision}, wake)

    async def verify(self, sight: Sight) -> None:
        """Changes whose time has come: what they were to do is there, or the model is told that it is not."""
        due = [one for one in self._to_verify if one.due_at <= self._clock.now()]
        self._to_verify = [one for one in self._to_verify if one not in due]
        for one in due:
            plan = one.plan
            pool = sight.pool(plan.request.pool)
            ready = pool.nodes.get(InstanceState.READY, 0) if pool is not None else 0
            size = sum(pool.nodes.values()) if pool is not None else 0
            is_reached = ready >= plan.target if plan.launches else size <= plan.target
            body = {
                "plan": plan.id,
                "pool": plan.request.pool,
                "target": plan.target,
                "ready": ready,
                "nodes": size,
                "is_reached": is_reached,
            }
            await self._record(Kind.VERIFY, body, one.wake)
            what = (
                f"{ready} of {plan.target} nodes work" if plan.launches else f"{size} nodes, {plan.target} were wanted"
            )
            reason = "as planned" if is_reached else "it did not come off as planned"
            await self._handed_over(
                f"{plan.eta_s:.0f} s after plan {plan.id}: {what}",
                pool=plan.request.pool,
                key=f"{self._actor.name}:{one.wake}:verify:{plan.id}",
                reason=reason,
            )
            if not is_reached:
                told = {"pool": self._names.token("pool", plan.request.pool), "target": plan.target, "ready": ready}
                self.outcomes.append(told | {"after_s": round(plan.eta_s, 1)})

    async def digest(self, signals: Sequence[Signal]) -> None:
        """Once a day: what it has done, and what is the matter."""
        hour, now = self._config.notify.digest_hour, self._clock.wall()
        day = int(now // DAY_S)
        if hour is None or self._digest_day == day or now % DAY_S < 3600.0 * hour:
            return
        is_first = self._digest_day is None
        self._digest_day = day
        if is_first and not self._counters.has_any:
            return
        matters = ", ".join(sorted({signal.kind.value for signal in signals})) or "nothing"
        text = f"{self._counters.sentence()} Now the matter: {matters}."
        decision = await self._handed_over(text, pool="", key=f"{self._actor.name}:digest:{day}", reason="daily digest")
        await self._record(Kind.NOTE, {"pool": "", "text": text, "words": "", "decision": decision, "digest": day}, "")
        await self._tell("digest", "info", "the maintainer's day", text)

    async def alarm(self, key: str, severity: str, text: str) -> None:
        """Tell people something of one's own, once: by the journal, or straight away when that cannot be reached."""
        if key in self._alarmed:
            return
        self._alarmed.add(key)
        try:
            at = f"{self._actor.name}:alarm:{key}:{int(self._clock.wall())}"
            await self._fleet.escalate(severity, actor=self._actor, key=at, reason=text)
        except AstraFlowError as problem:
            log.warning("not_escalated", problem=str(problem))
            await self._tell("escalation", severity, "the maintainer has a trouble", text)

    async def _handed_over(self, text: str, *, pool: str, key: str, reason: str) -> int | None:
        """A note in the journal; the transcript has it in any case."""
        try:
            where = PoolId(pool) if pool else None
            decision = await self._fleet.hand_over(text, pool=where, actor=self._actor, key=key, reason=reason)
        except AstraFlowError as problem:
            log.warning("not_noted", problem=str(problem))
            return None
        return decision.ordinal

    async def _tell(self, kind: str, severity: str, title: str, text: str) -> None:
        await self._notifier.tell(Notice(kind=kind, severity=severity, title=title, text=text, at=self._clock.wall()))


def _sentence(done: Done) -> str:
    """For people."""
    if done.what == "escalate":
        return f"people {'were' if done.outcome == 'applied' else 'would be'} told: {done.message}"
    return f"{done.what} {done.outcome}: {done.message}"
