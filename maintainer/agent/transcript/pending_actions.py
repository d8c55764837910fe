"""Pending actions: changes to verify, proposals without a decision, and an interrupted wake.

The state is derived from the transcript entry by entry, so it survives restarts and stopped wakes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.fleet.maintainer import ProposalState, TranscriptEntry
from maintainer.agent.transcript.transcript import Kind

REPORTING_ENDINGS = ("done", "over_budget")
"""Outcomes of wakes in which the model received the changes that missed their target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Plan that the maintainer made."""

    plan: str
    pool: str
    nodes: int
    """Nodes at the time of planning. Count."""
    target: int
    launches: int
    eta_s: float
    """Seconds from the application to the expected effect."""
    wake: str
    applied_at: float
    """Unix seconds of the application, or of the proposal."""


class PendingActions:
    """Pending actions of one transcript.

    proposed ──► approved ──► applied ──► verified ──► reported to the model if the target was missed
        └──────► rejected, expired, superseded
    """

    def __init__(self, entries: Iterable[TranscriptEntry]) -> None:
        self.applied: dict[str, Change] = {}
        """Changes to verify, by plan."""
        self.proposed: dict[str, Change] = {}
        """Proposals without a known decision, by plan."""
        self.missed: list[Mapping[str, Any]] = []
        """Bodies of verifications with a missed target that the model has not received."""
        self.wake = ""
        """Wake that is running or was interrupted; empty between wakes."""
        self.done: list[Mapping[str, Any]] = []
        """Bodies of its actions that no note contains yet."""
        for entry in entries:
            self.add(entry)

    @property
    def is_open(self) -> bool:
        """True while there are changes to verify or proposals without a decision."""
        return bool(self.applied or self.proposed)

    def add(self, entry: TranscriptEntry) -> None:
        """Applies one entry."""
        match entry.kind:
            case Kind.WAKE.value:
                self.wake, self.done = entry.wake, []
            case Kind.ACTION.value:
                self.done.append(entry.body)
                self._add_action(entry)
            case Kind.NOTE.value if entry.wake == self.wake:
                self.done = []
            case Kind.PROPOSAL.value:
                self._add_proposal_outcome(entry)
            case Kind.VERIFY.value:
                self.applied.pop(str(entry.body.get("plan")), None)
                if not entry.body.get("is_reached"):
                    self.missed.append(entry.body)
            case Kind.SLEEP.value:
                self.wake, self.done = "", []
                if entry.body.get("outcome") in REPORTING_ENDINGS:
                    self.missed.clear()
            case _:
                pass

    def _add_action(self, entry: TranscriptEntry) -> None:
        body: Mapping[str, Any] = entry.body
        if "eta_s" not in body:  # a hold or an escalation
            return
        change = Change(
            plan=body["plan"],
            pool=body["pool"],
            nodes=body["nodes"],
            target=body["target"],
            launches=body["launches"],
            eta_s=body["eta_s"],
            wake=entry.wake,
            applied_at=entry.at,
        )
        if body["outcome"] == "applied":
            self.applied.setdefault(change.plan, change)
        elif body["outcome"] == "proposed" and body["proposal"] == change.plan:
            self.proposed.setdefault(change.plan, change)

    def _add_proposal_outcome(self, entry: TranscriptEntry) -> None:
        change = self.proposed.pop(str(entry.body.get("plan")), None)
        if change is not None and entry.body.get("state") == ProposalState.APPROVED.value:
            decided_at = entry.body.get("decided_at")
            since = float(decided_at) if isinstance(decided_at, int | float) else entry.at
            self.applied[change.plan] = replace(change, applied_at=since)
