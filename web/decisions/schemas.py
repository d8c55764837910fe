"""API schemas of decisions."""

from pydantic import Field

from astraflow.contract.fleet.plans import Violation
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.record_kinds import RecordKind
from web.decisions.queries import DecisionEntry
from web.rest.common import ItemList, ResponseModel
from web.rest.contract_models import fields_of


@fields_of(DecisionEntry, without=("ordinal",))
class DecisionResponse(ResponseModel):
    """Entry of the decision journals."""

    id: str = Field(description="Id of the entry.", examples=["fleet-12"])
    kind: RecordKind = Field(description="Kind of decision.", examples=["apply"])
    message: str = Field(description="Decision in one sentence.")
    findings: list[Violation] = Field(description="Guard findings on the plan that was applied or refused.")


class DecisionList(ItemList[DecisionResponse]):
    """Page of decisions, newest first."""

    older: str | None = Field(description="`before` of the next page; null on the last.")
    problems: list[str] = Field(description="Why a journal could not be read; empty if both were.")


class FaultInjectionResponse(ResponseModel):
    """Result of a simulated fault."""

    lost: list[str] = Field(description="Launch ids of the terminated instances.")
    decision: DecisionResponse = Field(description="Entry in the journal.")


class DecisionDetail(DecisionResponse):
    """Entry of a journal with the sizing rule's recommendation at that time."""

    recommendation: PoolRecommendation | None = Field(
        description="Null if the measurements of that time are not stored."
    )
