"""After a wake: notes for whoever comes next, whether changes came off, alarms, and the day's digest."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Actor, Decision, InstanceState, PlanId
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import Proposal, ProposalState
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
from maintainer.unsettled import Change, Unsettled

log = get_logger()

DAY_S = 86400.0
_DECIDED = {
    ProposalState.APPROVED: "approved",
    ProposalState.REJECTED: "rejected",
    ProposalState.EXPIRED: "decided by nobody in time",
    ProposalState.OVERTAKEN: "overtaken: the pool changed, or a later plan took its place",
}
_WHY = {
    ProposalState.APPROVED: "a person agreed",
    ProposalState.REJECTED: "a person said no",
    ProposalState.EXPIRED: "nothing was done",
    ProposalState.OVERTAKEN: "nothing was done",
}
"""Where nobody gave a reason."""

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
        unsettled: Unsettled,
        record: Record,
        clock: Clock,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._names = names
        self._actor = actor
        self._notifier = notifier
        self._counters = counters
        self._unsettled = unsettled
        self._record = record
        self._clock = clock
        self._alarmed: set[str] = set()
        self._digest_day = counters.digest_day

    def is_well(self, key: str) -> None:
        """What an alarm was about is over: the next one is told again."""
        self._alarmed.discard(key)

    @property
    def outcomes(self) -> tuple[Mapping[str, Any], ...]:
        """What the model is told next: changes that did not come off."""
        return tuple(
            {
                "pool": self._names.token("pool", missed["pool"]),
                "target": missed["target"],
                "ready": missed["ready"],
                "after_s": missed["after_s"],
            }
            for missed in self._unsettled.missed
        )

    async def note(
        self, done: Sequence[Done], *, wake: str, words: str, otherwise: str = "the model said nothing"
    ) -> None:
        """One note for whoever comes next, of all that was done. otherwise: why it has no words of the model."""
        words = self._names.reveal(words)[:1500]
        pools = {one.pool for one in done if one.pool}
        pool = pools.pop() if len(pools) == 1 else ""
        text = "; ".join(_sentence(one) for one in done)[:1500] or "nothing was done"
        decision = None
        if any(one.outcome in ("applied", "proposed") and one.is_news for one in done):
            key = f"{self._actor.name}:{wake}:note"
            decision = await self._handed_over(text, pool=pool, key=key, reason=words or otherwise)
        await self._record(Kind.NOTE, {"pool": pool, "text": text, "words": words, "decision": decision}, wake)

    async def resume(self, wake: str, done: Sequence[Mapping[str, Any]]) -> None:
        """Say what a wake had done that was cut off with its process. done: bodies of its actions."""
        changes = [body for body in done if body.get("outcome") in ("applied", "proposed")]
        if not changes:
            return
        text = "; ".join(f"{body.get('what', 'plan')} {body['outcome']}: {body['message']}" for body in changes)[:1500]
        pools = {str(body["pool"]) for body in changes if body["pool"]}
        pool = pools.pop() if len(pools) == 1 else ""
        reason = "its process ended in the middle of this wake"
        key = f"{self._actor.name}:{wake}:note"
        decision = await self._handed_over(text, pool=pool, key=key, reason=reason)
        await self._record(Kind.NOTE, {"pool": pool, "text": text, "words": "", "decision": decision}, wake)

    async def settle(self, sight: Sight) -> None:
        """What people made of its proposals, then whether changes came off."""
        found = {proposal.plan.id: proposal for proposal in sight.proposals}
        for change in tuple(self._unsettled.proposed.values()):
            proposal = found.get(PlanId.known(change.plan))
            if proposal is not None and proposal.state is not ProposalState.WAITING:
                await self._decided(change, proposal)
            elif proposal is None and self._clock.wall() - change.since > DAY_S:  # of a ledger that is no more
                body = {"plan": change.plan, "pool": change.pool, "state": "unknown", "decided_at": None}
                await self._record(Kind.PROPOSAL, body, change.wake)
        for change in tuple(self._unsettled.applied.values()):
            if change.since + change.eta_s + self._config.watch.observe_s <= self._clock.wall():
                await self._verify(change, sight)

    async def _decided(self, change: Change, proposal: Proposal) -> None:
        """People approved or rejected, or nobody did in time: whoever comes next is told."""
        state = proposal.state
        body = {"plan": change.plan, "pool": change.pool, "state": state.value, "decided_at": proposal.decided_at}
        await self._record(Kind.PROPOSAL, body, change.wake)
        by = f" by {proposal.decided_by}" if proposal.decided_by else ""
        what = f"the plan from {change.nodes} to {change.target} nodes was {_DECIDED[state]}{by}"
        if state is ProposalState.APPROVED:
            what += f"; it is looked at again {change.eta_s:.0f} s later"
        await self._handed_over(
            f"proposal {change.plan}: {what}",
            pool=change.pool,
            key=f"{self._actor.name}:{change.wake}:decided:{change.plan}",
            reason=proposal.decision_reason or _WHY[state],
        )

    async def _verify(self, change: Change, sight: Sight) -> None:
        """What it was to do is there, or the model is told that it is not."""
        pool = sight.pool(PoolId(change.pool))
        ready = pool.nodes.get(InstanceState.READY, 0) if pool is not None else 0
        size = sum(pool.nodes.values()) if pool is not None else 0
        is_reached = ready >= change.target if change.launches else size <= change.target
        body = {
            "plan": change.plan,
            "pool": change.pool,
            "target": change.target,
            "ready": ready,
            "nodes": size,
            "after_s": round(change.eta_s, 1),
            "is_reached": is_reached,
        }
        await self._record(Kind.VERIFY, body, change.wake)
        what = (
            f"{ready} of {change.target} nodes work"
            if change.launches
            else f"{size} nodes, {change.target} were wanted"
        )
        await self._handed_over(
            f"{change.eta_s:.0f} s after plan {change.plan}: {what}",
            pool=change.pool,
            key=f"{self._actor.name}:{change.wake}:verify:{change.plan}",
            reason="as planned" if is_reached else "it did not come off as planned",
        )

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
