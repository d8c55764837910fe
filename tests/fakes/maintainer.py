"""A maintainer as the fleet service sees it: its status, wakes in its transcript, and plans that wait for approval."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.fleet.maintainer import (
    Budget,
    GroupScore,
    LiveScore,
    MaintainerMode,
    MaintainerScore,
    MaintainerState,
    MaintainerStatus,
    Proposal,
    TranscriptEntry,
)
from astraflow.contract.fleet.plans import Actor, PlanRequest, Role
from astraflow.contract.fleet.transcript_chain import GENESIS_HASH, digest
from astraflow.contract.ids import PoolId

AGENT = Actor(name="maintainer", role=Role.AGENT)

BUDGETS = (
    Budget(scope="wake", unit="tool_calls", used=4, limit=20),
    Budget(scope="wake", unit="tokens", used=33_000, limit=40_000),
    Budget(scope="wake", unit="seconds", used=12.5, limit=120),
    Budget(scope="wake", unit="usd", used=0.02, limit=0.5),
    Budget(scope="day", unit="wakes", used=3, limit=200),
    Budget(scope="day", unit="tool_calls", used=31, limit=1000),
    Budget(scope="day", unit="tokens", used=1_000_000, limit=1_000_000),
    Budget(scope="day", unit="seconds", used=1800.0, limit=7200),
    Budget(scope="day", unit="usd", used=0.4, limit=5),
)


EVALUATION = MaintainerScore(
    source="/srv/run/leaderboard.json",
    at=1_790_000_000.0,
    is_current=True,
    groups=(
        GroupScore(group="right", cases=12, passed=12, ratio=1.0003),
        GroupScore(group="blind", cases=6, passed=4, ratio=0.952),
        GroupScore(group="hostile", cases=6, passed=6),
    ),
    violations=0,
    out_of_scope=0,
    objections=("quota-gone: J is 1.004 of the rule's: not better",),
)
"""Score of a good maintainer."""


def live(**changes: Any) -> LiveScore:
    """Returns half an hour in which its nodes cost a little and saved some waiting."""
    now = time.time()
    usual = LiveScore(
        began_at=now - 1800,
        ended_at=now - 5,
        changes=2,
        reports=30,
        is_priced=True,
        cost=5.6,
        rule_cost=7.0,
        node_hours=4.0,
        rule_node_hours=3.8,
        wait_hours=0.05,
        rule_wait_hours=0.1,
    )
    return replace(usual, **changes)


def status(**changes: Any) -> MaintainerStatus:
    """Returns the status of a maintainer that sleeps after one wake."""
    now = time.time()
    usual = MaintainerStatus(
        run="run-1",
        model="scripted good",
        is_simulated=True,
        state=MaintainerState.SLEEPING,
        mode=MaintainerMode.PROPOSE,
        at=now,
        started_at=now - 3600,
        last_wake_at=now - 95,
        last_wake="w-00000001",
        last_signals=("launch_failures",),
        next_wake_at=now + 505,
        budgets=BUDGETS,
        counters={"wakes": 3.0, "plans": 2.0, "proposed": 2.0, "tokens": 61_000.0, "usd": 0.4},
        prompt_hash="ab" * 32,
        tools_hash="cd" * 32,
    )
    return replace(usual, **changes)


@dataclass(kw_only=True)
class TranscriptBuilder:
    """Entries of a transcript, each with the hash of the previous one."""

    entries: list[TranscriptEntry] = field(default_factory=list)
    at: float = field(default_factory=lambda: time.time() - 120)

    def add(self, kind: str, body: Mapping[str, Any], *, wake: str = "w-00000001") -> None:
        """Appends an entry."""
        previous = self.entries[-1].hash if self.entries else GENESIS_HASH
        ordinal, at = len(self.entries), self.at + len(self.entries)
        hash_ = digest(ordinal, at, wake, kind, body, previous)
        self.entries.append(
            TranscriptEntry(ordinal=ordinal, at=at, wake=wake, kind=kind, body=body, previous=previous, hash=hash_)
        )

    def add_wake(self, wake: str, *, text: str = "two nodes here instead") -> None:
        """Appends a wake from the signal to the sleep."""
        arguments = {"pool": "pool-1", "target": 4, "retire": None, "reason": text}
        findings = [["distance", "needs_approval", "4 nodes are more than 2 away from what the rule wants"]]
        signals = [{"name": "launch_failures", "pool": "us", "value": 3.0}]
        steps: list[tuple[str, dict[str, Any]]] = [
            ("wake", {"signals": signals, "mode": "propose"}),
            ("request", {"turn": 1, "messages": [{"role": "user", "parts": [{"said": text}]}], "max_tokens": 2000}),
            ("response", {"turn": 1, "parts": [{"call": "c1", "name": "fleet_plan", "arguments": arguments}]}),
            (
                "verdict",
                {"phase": "plan", "plan": "p1", "pool": "eu", "verdict": "needs_approval", "findings": findings},
            ),
            ("tool", {"turn": 1, "call": "c1", "name": "fleet_plan", "arguments": arguments, "is_error": False}),
            ("action", {"plan": "p1", "pool": "eu", "outcome": "proposed", "message": text}),
            ("note", {"pool": "eu", "text": "plan proposed", "words": text, "decision": 3}),
            ("sleep", {"tool_calls": 4, "tokens": 33_000, "usd": 0.02, "duration_s": 12.5, "outcome": "done"}),
        ]
        for kind, body in steps:
            self.add(kind, body, wake=wake)


def transcript(wakes: int = 1, *, text: str = "two nodes here instead") -> tuple[TranscriptEntry, ...]:
    """Returns a complete transcript."""
    transcript = TranscriptBuilder()
    transcript.add("opened", {"run": "run-1", "model": "scripted good", "is_simulated": True, "system": "x"}, wake="")
    transcript.add("orders", {"mode": "propose", "kill": "none"}, wake="")
    for number in range(wakes):
        transcript.add_wake(f"w-{number + 1:08d}", text=text)
    return tuple(transcript.entries)


async def keep(fleet: FleetPlaneClient, entries: tuple[TranscriptEntry, ...]) -> str:
    """Stores a copy; returns the name of the chain."""
    await fleet.append_transcript(entries[0].hash, entries)
    return entries[0].hash


async def propose(
    fleet: FleetPlaneClient, pool: PoolId, target: int, *, reason: str = "launches fail in us: two nodes here instead"
) -> Proposal:
    """Proposes a plan that waits for approval."""
    plan = await fleet.plan(PlanRequest(pool=pool, actor=AGENT, reason=reason, target=target))
    return await fleet.propose(plan.id, actor=AGENT, key=f"propose-{plan.id}", reason=reason)
