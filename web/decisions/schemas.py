"""API schemas of decisions."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from astraflow.contract.fleet import Decision
from astraflow.contract.recommendations import PoolRecommendation
from web.decisions.queries import DecisionEntry
from web.history.report_json import json_value
from web.rest.common import ResponseModel
from web.rest.fleet_schemas import FindingResponse


class DecisionResponse(ResponseModel):
    """Entry of the decision journals."""

    id: str = Field(examples=["fleet-12"])
    source: Literal["fleet", "rule"] = Field(
        description="Journal: the fleet service's decisions, or target changes of the sizing rule."
    )
    at: float = Field(description="Unix seconds.")
    kind: str = Field(examples=["apply"])
    pool: str = Field(description="Empty for decisions that concern no single pool.")
    actor: str
    role: str
    message: str = Field(description="The decision in one sentence.")
    reason: str
    key: str = Field(description="Idempotency key of the request; empty without one.")
    findings: list[FindingResponse] = Field(description="Guard findings on the plan that was applied or refused.")


class DecisionList(ResponseModel):
    """Page of decisions, newest first."""

    items: list[DecisionResponse]
    older: str | None = Field(description="`before` of the next page; null on the last.")
    problems: list[str] = Field(description="Why a journal could not be read; empty if both were.")


class RecommendationResponse(ResponseModel):
    """Recommendation of the sizing rule at one tick, with its input figures."""

    pool: str
    at: float
    mode: str
    policy: str
    present: int
    pending: int
    target: int
    band_low: float
    band_high: float
    reasons: list[str]
    sentence: str
    limited_by: list[str]
    victims: list[str]
    inputs: dict[str, float | None] = Field(description="See `RECOMMENDATION_INPUTS` in the contract.")
    input_hash: str


class FaultInjectionResponse(ResponseModel):
    """Result of a simulated fault: launch ids of the terminated instances."""

    lost: list[str]
    decision: DecisionResponse


class DecisionDetail(DecisionResponse):
    """Entry of a journal with the sizing rule's recommendation at that time."""

    recommendation: RecommendationResponse | None = Field(
        description="Null if the measurements of that time are not stored."
    )


def decision_response(entry: DecisionEntry) -> dict[str, Any]:
    """Converts to the API schema."""
    values: dict[str, Any] = json_value(asdict(entry))
    values.pop("ordinal")
    return {"id": entry.id, **values}


def fleet_decision_response(decision: Decision) -> dict[str, Any]:
    """Converts the fleet service's decision to the API schema."""
    return {
        "id": f"fleet-{decision.ordinal}",
        "source": "fleet",
        "at": decision.at,
        "kind": decision.kind,
        "pool": decision.pool,
        "actor": decision.actor.name,
        "role": decision.actor.role.value,
        "message": decision.message,
        "reason": decision.reason,
        "key": decision.key,
        "findings": json_value([asdict(finding) for finding in decision.findings]),
    }


def recommendation_response(recommendation: PoolRecommendation | None) -> dict[str, Any] | None:
    """Converts to the API schema."""
    return None if recommendation is None else dict(json_value(asdict(recommendation)))
