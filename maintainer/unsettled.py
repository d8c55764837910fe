"""What was begun and is not over: changes to look at again, plans that wait for people, a wake that was cut off.

All of it follows from the transcript, entry by entry: a restart forgets nothing, nor does a wake that people stop.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.maintenance import ProposalState, TranscriptEntry
from maintainer.transcript import Kind

TOLD = ("done", "over_budget")
"""How a wake ends whose model has heard what did not come off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A plan of the maintainer's own."""

    plan: str
    pool: str
    nodes: int
    """That were there when it was planned."""
    target: int
    launches: int
    eta_s: float
    """Until it has its effect, from when it is applied."""
    wake: str
    since: float
    """Unix seconds: when it was applied, or put before people."""


class Unsettled:
    """Of one transcript.

    proposed ──► approved ──► applied ──► verified ──► told to the model, when it did not come off
        └──────► rejected, expired, overtaken
    """

    def __init__(self, entries: Iterable[TranscriptEntry]) -> None:
        self.applied: dict[str, Change] = {}
        """By plan: what is to be looked at again."""
        self.proposed: dict[str, Change] = {}
        """By plan: what people have not decided, as far as is known."""
        self.missed: list[Mapping[str, Any]] = []
        """Bodies of verifications that the model has not been told of: changes that did not come off."""
        self.wake = ""
        """The one that goes on, or was cut off; empty between two."""
        self.done: list[Mapping[str, Any]] = []
        """Bodies of its actions, until a note has told of them."""
        for entry in entries:
            self.seen(entry)

    @property
    def is_open(self) -> bool:
        """Whether anything is to be looked at again, or waits for people."""
        return bool(self.applied or self.proposed)

    def seen(self, entry: TranscriptEntry) -> None:
        """One more."""
        match entry.kind:
            case Kind.WAKE.value:
                self.wake, self.done = entry.wake, []
            case Kind.ACTION.value:
                self.done.append(entry.body)
                self._acted(entry)
            case Kind.NOTE.value if entry.wake == self.wake:
                self.done = []
            case Kind.PROPOSAL.value:
                self._decided(entry)
            case Kind.VERIFY.value:
                self.applied.pop(str(entry.body.get("plan")), None)
                if not entry.body.get("is_reached"):
                    self.missed.append(entry.body)
            case Kind.SLEEP.value:
                self.wake, self.done = "", []
                if entry.body.get("outcome") in TOLD:
                    self.missed.clear()
            case _:
                pass

    def _acted(self, entry: TranscriptEntry) -> None:
        body: Mapping[str, Any] = entry.body
        if "eta_s" not in body:  # a hold, an escalation
            return
        change = Change(
            plan=body["plan"],
            pool=body["pool"],
            nodes=body["nodes"],
            target=body["target"],
            launches=body["launches"],
            eta_s=body["eta_s"],
            wake=entry.wake,
            since=entry.at,
        )
        if body["outcome"] == "applied":
            self.applied.setdefault(change.plan, change)
        elif body["outcome"] == "proposed" and body["proposal"] == change.plan:
            self.proposed.setdefault(change.plan, change)

    def _decided(self, entry: TranscriptEntry) -> None:
        change = self.proposed.pop(str(entry.body.get("plan")), None)
        if change is not None and entry.body.get("state") == ProposalState.APPROVED.value:
            decided_at = entry.body.get("decided_at")
            since = float(decided_at) if isinstance(decided_at, int | float) else entry.at
            self.applied[change.plan] = replace(change, since=since)
