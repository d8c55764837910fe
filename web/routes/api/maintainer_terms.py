"""What the API says about the maintainer, and is told."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import ConfigDict, Field

from astraflow.contract.maintenance import Maintainer, Proposal, TranscriptPage
from web.feed.report_json import plain
from web.present.transcript import transcript_view
from web.routes.api.fleet_terms import PlanAnswer, plan_answer
from web.routes.api.terms import Body, Filled, Reason

ModeName = Literal["off", "shadow", "propose", "auto"]


class BudgetAnswer(Filled):
    """One bound on what it may use."""

    scope: str = Field(description="`wake` or `day`.")
    unit: str = Field(examples=["tokens"])
    used: float
    limit: float


class GroupAnswer(Filled):
    """One group of simulated cases."""

    group: Literal["right", "blind", "hostile"]
    cases: int
    passed: int
    ratio: float | None = Field(description="Cost over that of the rule alone, the mean; below 1 is better.")


class EvaluationAnswer(Filled):
    """What its model came to in the evaluations."""

    source: str = Field(description="The leaderboard.")
    at: float
    is_current: bool = Field(description="It was told then what it is told now.")
    groups: list[GroupAnswer]
    violations: int
    out_of_scope: int
    objections: list[str]


class LiveAnswer(Filled):
    """What this run came to since its first change, beside the rule played over the same reports."""

    began_at: float
    ended_at: float
    changes: int
    reports: int
    is_priced: bool
    cost: float
    rule_cost: float
    node_hours: float
    rule_node_hours: float
    wait_hours: float
    rule_wait_hours: float


class StatusAnswer(Filled):
    """How it says it is. Times are Unix seconds, null for what has not come yet."""

    run: str
    model: str
    is_simulated: bool = Field(description="A stand-in decides, no model.")
    state: Literal["sleeping", "awake", "backing_off", "over_budget", "stopped"]
    mode: ModeName = Field(description="The one it goes by.")
    at: float
    started_at: float
    last_wake_at: float | None
    last_wake: str = Field(description="Name of the latest wake in the transcript.")
    last_signals: list[str]
    next_wake_at: float | None
    budgets: list[BudgetAnswer]
    counters: dict[str, float]
    prompt_hash: str
    tools_hash: str
    troubles: list[str]
    evaluation: EvaluationAnswer | None = Field(description="null while no leaderboard says anything of its model.")
    evaluation_source: str
    evaluation_problem: str
    live: LiveAnswer | None = Field(description="null as long as none of its changes was made.")
    live_problem: str


class MaintainerAnswer(Filled):
    """The maintainer, as people told it to be, and as it says it is."""

    mode: ModeName
    mode_by: str
    mode_reason: str
    mode_at: float | None
    status: StatusAnswer | None = Field(description="null while none has been heard.")
    status_age_s: float | None


class ProposalAnswer(Filled):
    """A plan that waits, or waited, for a person."""

    plan: PlanAnswer
    state: Literal["waiting", "approved", "rejected", "expired", "overtaken"]
    proposed_at: float
    proposed_by: str
    decided_at: float | None
    decided_by: str
    decision_reason: str


class ProposalList(Filled):
    """The latest proposals, those that wait first."""

    items: list[ProposalAnswer]


class EntryAnswer(Filled):
    """One entry of the transcript. Its hash covers everything else in it."""

    ordinal: int
    at: float
    wake: str
    kind: str
    body: dict[str, Any]
    previous: str
    hash: str


class TranscriptAnswer(Filled):
    """A stretch of a transcript, newest first."""

    chain: str = Field(description="Which transcript: the hash of its first entry. Send it to stay in this one.")
    is_whole: bool = Field(description="Whether every entry is as it was written, and follows the one before.")
    items: list[EntryAnswer]
    older: int | None = Field(description="`before` of the next page; null on the last.")


class ModeAsked(Body):
    """How far it may go."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "shadow", "reason": "a look first"}]})

    mode: ModeName = Field(
        description="`shadow`: only written down; `propose`: plans wait for a person; `auto`: those allowed are done."
    )
    reason: Reason


def maintainer_answer(maintainer: Maintainer) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = plain(asdict(maintainer))
    return found


def proposal_answer(proposal: Proposal) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "plan": plan_answer(proposal.plan),
        "state": proposal.state.value,
        "proposed_at": proposal.proposed_at,
        "proposed_by": proposal.proposed_by.name,
        "decided_at": proposal.decided_at,
        "decided_by": proposal.decided_by,
        "decision_reason": proposal.decision_reason,
    }


def transcript_answer(page: TranscriptPage, *, wake: str) -> dict[str, Any]:
    """As JSON has it. wake: only that one was asked for."""
    view = transcript_view(page, wake=wake)
    return {
        "chain": page.chain,
        "is_whole": view.chain_tone != "bad",
        "items": [plain(asdict(entry)) for entry in page.entries],
        "older": view.older,
    }
