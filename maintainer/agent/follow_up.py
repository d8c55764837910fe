"""Follow-up of a wake: journal notes, verification of changes, alarms and the daily digest."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.maintainer import Proposal, ProposalState
from astraflow.contract.fleet.plans import Actor, PlanId
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import Severity
from astraflow.runtime.clock import DAY_S, Clock
from astraflow.runtime.logs import get_logger
from maintainer.agent.config import MaintainerConfig
from maintainer.agent.notifications.notice_queue import Notice
from maintainer.agent.notifications.webhook import Notifier
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.signals import Signal
from maintainer.agent.observation.snapshot import Snapshot
from maintainer.agent.tools.changes import CompletedAction
from maintainer.agent.tools.outputs import ActionOutcome
from maintainer.agent.transcript.counters import Counters
from maintainer.agent.transcript.pending_actions import Change, PendingActions
from maintainer.agent.transcript.transcript import Kind

log = get_logger()

_EFFECTIVE = (ActionOutcome.APPLIED, ActionOutcome.PROPOSED)
"""Outcomes of which people get a note."""
PROCESS_ENDED = "the process ended during this wake"
_PROPOSAL_OUTCOMES = {
    ProposalState.APPROVED: "approved",
    ProposalState.REJECTED: "rejected",
    ProposalState.EXPIRED: "not decided before it expired",
    ProposalState.SUPERSEDED: "superseded: the pool changed, or a later plan replaced it",
}
_DEFAULT_REASONS = {
    ProposalState.APPROVED: "approved without a reason",
    ProposalState.REJECTED: "rejected without a reason",
    ProposalState.EXPIRED: "no change was made",
    ProposalState.SUPERSEDED: "no change was made",
}
"""Reasons of decisions for which no person gave one."""

Record = Callable[[Kind, Mapping[str, Any], str], Awaitable[None]]
"""Writes to the transcript: kind, body, name of the wake."""


class JournalWriter(Protocol):
    """Interface of the fleet service that is written to; implemented by the client of the fleet plane."""

    async def hand_over(
        self, message: str, *, pool: PoolId | None = None, actor: Actor, key: str, reason: str
    ) -> Decision:
        """Writes a note to the journal."""

    async def escalate(self, severity: Severity, *, actor: Actor, key: str, reason: str) -> Decision:
        """Writes an escalation to the journal."""


class FollowUp:
    """Follow-up of all wakes of a process."""

    def __init__(
        self,
        config: MaintainerConfig,
        *,
        fleet: JournalWriter,
        names: Names,
        actor: Actor,
        notifier: Notifier,
        counters: Counters,
        pending_actions: PendingActions,
        record: Record,
        clock: Clock,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._names = names
        self._actor = actor
        self._notifier = notifier
        self._counters = counters
        self._pending_actions = pending_actions
        self._record = record
        self._clock = clock
        self._active_alarms: set[str] = set()
        self._digest_day = counters.digest_day

    def clear_alarm(self, key: str) -> None:
        """Marks the cause of an alarm as over: the next one is reported again."""
        self._active_alarms.discard(key)

    @property
    def failed_changes(self) -> tuple[Mapping[str, Any], ...]:
        """Changes that missed their target, for the model's next wake."""
        return tuple(
            {
                "pool": self._names.token("pool", missed["pool"]),
                "target": missed["target"],
                "ready": missed["ready"],
                "after_s": missed["after_s"],
            }
            for missed in self._pending_actions.missed
        )

    async def write_note(
        self, done: Sequence[CompletedAction], *, wake: str, model_note: str, fallback: str = "the model wrote no note"
    ) -> None:
        """Writes one note with everything that was done. fallback: reason used if the model wrote no note."""
        model_note = self._names.reveal(model_note)[:1500]
        pools = {action.pool for action in done if action.pool}
        pool = pools.pop() if len(pools) == 1 else ""
        text = "; ".join(_sentence(action) for action in done)[:1500] or "nothing was done"
        decision = None
        if any(action.outcome in _EFFECTIVE and action.needs_note for action in done):
            key = f"{self._actor.name}:{wake}:note"
            decision = await self._add_note(text, pool=pool, key=key, reason=model_note or fallback)
        await self._record(Kind.NOTE, {"pool": pool, "text": text, "words": model_note, "decision": decision}, wake)

    async def note_interrupted_wake(self, wake: str, done: Sequence[Mapping[str, Any]]) -> None:
        """Notes what a wake had done that ended with its process. done: bodies of its actions."""
        changes = [action for action in done if action.get("outcome") in {outcome.value for outcome in _EFFECTIVE}]
        if not changes:
            return
        text = "; ".join(
            f"{action.get('what', 'plan')} {action['outcome']}: {action['message']}" for action in changes
        )[:1500]
        pools = {str(action["pool"]) for action in changes if action["pool"]}
        pool = pools.pop() if len(pools) == 1 else ""
        key = f"{self._actor.name}:{wake}:note"
        decision = await self._add_note(text, pool=pool, key=key, reason=PROCESS_ENDED)
        await self._record(Kind.NOTE, {"pool": pool, "text": text, "words": "", "decision": decision}, wake)

    async def verify_pending(self, snapshot: Snapshot) -> None:
        """Records decisions on proposals, then verifies applied changes."""
        proposals = {proposal.plan.id: proposal for proposal in snapshot.proposals}
        for change in tuple(self._pending_actions.proposed.values()):
            proposal = proposals.get(PlanId.unchecked(change.plan))
            if proposal is not None and proposal.state is not ProposalState.WAITING:
                await self._record_proposal_outcome(change, proposal)
            elif proposal is None and self._clock.wall() - change.applied_at > DAY_S:  # its ledger was replaced
                body = {"plan": change.plan, "pool": change.pool, "state": "unknown", "decided_at": None}
                await self._record(Kind.PROPOSAL, body, change.wake)
        for change in tuple(self._pending_actions.applied.values()):
            if change.applied_at + change.eta_s + self._config.watch.observe_interval_s <= self._clock.wall():
                await self._verify(change, snapshot)

    async def _record_proposal_outcome(self, change: Change, proposal: Proposal) -> None:
        """Records the decision on a proposal and notes it in the journal."""
        state = proposal.state
        body = {"plan": change.plan, "pool": change.pool, "state": state.value, "decided_at": proposal.decided_at}
        await self._record(Kind.PROPOSAL, body, change.wake)
        decided_by = f" by {proposal.decided_by}" if proposal.decided_by else ""
        outcome = f"the plan from {change.nodes} to {change.target} nodes was {_PROPOSAL_OUTCOMES[state]}{decided_by}"
        if state is ProposalState.APPROVED:
            outcome += f"; it is verified {change.eta_s:.0f} s later"
        await self._add_note(
            f"proposal {change.plan}: {outcome}",
            pool=change.pool,
            key=f"{self._actor.name}:{change.wake}:decided:{change.plan}",
            reason=proposal.decision_reason or _DEFAULT_REASONS[state],
        )

    async def _verify(self, change: Change, snapshot: Snapshot) -> None:
        """Verifies that a change reached its target; a missed one is sent to the model at its next wake."""
        pool = snapshot.pool(PoolId(change.pool))
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
        finding = (
            f"{ready} of {change.target} nodes are ready"
            if change.launches
            else f"{size} nodes, target {change.target}"
        )
        await self._add_note(
            f"{change.eta_s:.0f} s after plan {change.plan}: {finding}",
            pool=change.pool,
            key=f"{self._actor.name}:{change.wake}:verify:{change.plan}",
            reason="as planned" if is_reached else "the target was not reached",
        )

    async def send_daily_digest(self, signals: Sequence[Signal]) -> None:
        """Writes and sends the daily digest: what was done, and which signals are active."""
        hour, now = self._config.notify.digest_hour, self._clock.wall()
        day = int(now // DAY_S)
        if hour is None or now % DAY_S < 3600.0 * hour:
            return
        if self._digest_day is not None and 0 <= self._digest_day - day <= 1:  # 1: the clock stepped back over midnight
            return
        is_first = self._digest_day is None
        self._digest_day = day
        if is_first and not self._counters.has_any:
            return
        active_signals = ", ".join(sorted({signal.kind.value for signal in signals})) or "none"
        text = f"{self._counters.sentence()} Active signals: {active_signals}."
        decision = await self._add_note(text, pool="", key=f"{self._actor.name}:digest:{day}", reason="daily digest")
        await self._record(Kind.NOTE, {"pool": "", "text": text, "words": "", "decision": decision, "digest": day}, "")
        await self._notify("digest", Severity.INFO, "daily digest of the maintainer", text)

    async def raise_alarm(self, key: str, severity: Severity, text: str) -> None:
        """Escalates a problem of the maintainer once: through the journal, or by a notice if it cannot be reached."""
        if key in self._active_alarms:
            return
        self._active_alarms.add(key)
        try:
            alarm_key = f"{self._actor.name}:alarm:{key}:{int(self._clock.wall())}"
            await self._fleet.escalate(severity, actor=self._actor, key=alarm_key, reason=text)
        except AstraFlowError as problem:
            log.warning("escalation_failed", problem=str(problem))
            await self._notify("escalation", severity, "the maintainer has a problem", text)

    async def _add_note(self, text: str, *, pool: str, key: str, reason: str) -> int | None:
        """Writes a note to the journal; returns its ordinal, None on failure. The transcript has the note in any
        case."""
        try:
            pool_id = PoolId(pool) if pool else None
            decision = await self._fleet.hand_over(text, pool=pool_id, actor=self._actor, key=key, reason=reason)
        except AstraFlowError as problem:
            log.warning("note_failed", problem=str(problem))
            return None
        return decision.ordinal

    async def _notify(self, kind: str, severity: Severity, title: str, text: str) -> None:
        await self._notifier.enqueue(
            Notice(kind=kind, severity=severity.value, title=title, text=text, at=self._clock.wall())
        )


def _sentence(done: CompletedAction) -> str:
    """Sentence for people about one action."""
    if done.kind == "escalate":
        return f"escalation {'sent' if done.outcome is ActionOutcome.APPLIED else 'recorded'}: {done.message}"
    return f"{done.kind} {done.outcome.value}: {done.message}"
