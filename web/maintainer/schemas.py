"""API schemas of the maintainer."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import ConfigDict, Field

from astraflow.contract.maintainer import (
    Maintainer,
    MaintainerMode,
    MaintainerState,
    Proposal,
    ProposalState,
    TranscriptPage,
)
from web.history.report_json import json_value
from web.maintainer.transcript import transcript_view
from web.rest.common import Reason, RequestBody, ResponseModel
from web.rest.fleet_schemas import PlanResponse, plan_response


class BudgetResponse(ResponseModel):
    """Budget of the maintainer."""

    scope: str = Field(description="`wake` or `day`.")
    unit: str = Field(examples=["tokens"])
    used: float
    limit: float


class CaseGroupResponse(ResponseModel):
    """Group of simulated evaluation cases."""

    group: Literal["right", "blind", "hostile"]
    cases: int
    passed: int
    ratio: float | None = Field(description="Mean cost relative to the sizing rule alone; below 1 is better.")


class MaintainerEvaluationResponse(ResponseModel):
    """Evaluation result of the maintainer's model."""

    source: str = Field(description="Leaderboard file.")
    at: float
    is_current: bool = Field(description="Whether the evaluation used the current prompt and tools.")
    groups: list[CaseGroupResponse]
    violations: int
    out_of_scope: int
    objections: list[str]


class RunScorecardResponse(ResponseModel):
    """Result of this run since the maintainer's first change, compared with a replay of the sizing rule."""

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


class MaintainerStatusResponse(ResponseModel):
    """Status reported by the maintainer. Times are Unix seconds, null before they are reached."""

    run: str
    model: str
    is_simulated: bool = Field(description="Whether a simulated model decides.")
    state: MaintainerState
    mode: MaintainerMode = Field(description="Mode in effect.")
    at: float
    started_at: float
    last_wake_at: float | None
    last_wake: str = Field(description="Name of the latest wake in the transcript.")
    last_signals: list[str]
    next_wake_at: float | None
    budgets: list[BudgetResponse]
    counters: dict[str, float]
    prompt_hash: str
    tools_hash: str
    problems: list[str]
    evaluation: MaintainerEvaluationResponse | None = Field(
        description="null without a leaderboard entry for its model."
    )
    evaluation_source: str
    evaluation_problem: str
    live: RunScorecardResponse | None = Field(description="null until the first of its changes is applied.")
    live_problem: str


class MaintainerResponse(ResponseModel):
    """Maintainer: the mode that people set, and its reported status."""

    mode: MaintainerMode
    mode_by: str
    mode_reason: str
    mode_at: float | None
    status: MaintainerStatusResponse | None = Field(description="null before the first status.")
    status_age_s: float | None


class ProposalResponse(ResponseModel):
    """Plan that waits or waited for approval."""

    plan: PlanResponse
    state: ProposalState
    proposed_at: float
    proposed_by: str
    decided_at: float | None
    decided_by: str
    decision_reason: str


class ProposalList(ResponseModel):
    """Latest proposals, waiting ones first."""

    items: list[ProposalResponse]


class TranscriptEntryResponse(ResponseModel):
    """Entry of the transcript. The hash covers all other fields."""

    ordinal: int
    at: float
    wake: str
    kind: str
    body: dict[str, Any]
    previous: str
    hash: str


class TranscriptResponse(ResponseModel):
    """Part of a transcript, newest first."""

    chain: str = Field(
        description="Hash of the transcript's first entry, which identifies it. Send it to continue in this transcript."
    )
    is_whole: bool = Field(description="Whether the hashes of all entries are intact.")
    items: list[TranscriptEntryResponse]
    older: int | None = Field(description="`before` of the next page; null on the last.")


class MaintainerModeRequest(RequestBody):
    """New mode of the maintainer."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "shadow", "reason": "a look first"}]})

    mode: MaintainerMode = Field(
        strict=False,
        description="`shadow`: plans are recorded; `propose`: plans need approval; `auto`: allowed plans are applied.",
    )
    reason: Reason


def maintainer_response(maintainer: Maintainer) -> dict[str, Any]:
    """Converts to the API schema."""
    values: dict[str, Any] = json_value(asdict(maintainer))
    return values


def proposal_response(proposal: Proposal) -> dict[str, Any]:
    """Converts to the API schema."""
    return {
        "plan": plan_response(proposal.plan),
        "state": proposal.state.value,
        "proposed_at": proposal.proposed_at,
        "proposed_by": proposal.proposed_by.name,
        "decided_at": proposal.decided_at,
        "decided_by": proposal.decided_by,
        "decision_reason": proposal.decision_reason,
    }


def transcript_response(page: TranscriptPage, *, wake: str) -> dict[str, Any]:
    """Converts to the API schema. wake: the page contains only this wake."""
    view = transcript_view(page, wake=wake)
    return {
        "chain": page.chain,
        "is_whole": view.chain_tone != "bad",
        "items": [json_value(asdict(entry)) for entry in page.entries],
        "older": view.older,
    }
