"""API schemas of the maintainer."""

from typing import Any

from pydantic import ConfigDict, Field

from astraflow.contract.fleet.maintainer import Maintainer, MaintainerMode, Proposal, TranscriptEntry, TranscriptPage
from web.maintainer.transcript import transcript_view
from web.rest.common import ItemList, Reason, RequestBody, ResponseModel
from web.rest.contract_models import fields_of
from web.rest.fleet_schemas import PlanResponse, plan_response


@fields_of(Maintainer)
class MaintainerResponse(ResponseModel):
    """Maintainer: the mode that people set, and its reported status."""


@fields_of(Proposal)
class ProposalResponse(ResponseModel):
    """Plan that waits or waited for approval."""

    plan: PlanResponse
    proposed_by: str = Field(description="Name of the actor.")


class ProposalList(ItemList[ProposalResponse]):
    """Latest proposals, waiting ones first."""


class TranscriptResponse(ResponseModel):
    """Part of a transcript, newest first."""

    chain: str = Field(
        description="Hash of the transcript's first entry, which identifies it. Send it to continue in this transcript."
    )
    is_whole: bool = Field(description="Whether the hashes of all entries are intact.")
    items: list[TranscriptEntry] = Field(description="Entries of the transcript.")
    older: int | None = Field(description="`before` of the next page; null on the last.")


class MaintainerModeRequest(RequestBody):
    """New mode of the maintainer."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "shadow", "reason": "a look first"}]})

    mode: MaintainerMode = Field(
        strict=False,
        description="`shadow`: plans are recorded; `propose`: plans need approval; `auto`: allowed plans are applied.",
    )
    reason: Reason


def proposal_response(proposal: Proposal) -> dict[str, Any]:
    """Converts to the API schema."""
    return ProposalResponse.values_of(
        proposal, plan=plan_response(proposal.plan), proposed_by=proposal.proposed_by.name
    )


def transcript_response(page: TranscriptPage, *, wake: str) -> dict[str, Any]:
    """Converts to the API schema. wake: the page contains only this wake."""
    view = transcript_view(page, wake=wake)
    return {
        "chain": page.chain,
        "is_whole": view.chain_tone != "bad",
        "items": page.entries,
        "older": view.older,
    }
