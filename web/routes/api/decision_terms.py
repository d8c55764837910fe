"""What the API says about decisions."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.fleet import Decision
from web.feed.report_json import plain
from web.reading.decisions import Entry
from web.routes.api.fleet_terms import FindingAnswer
from web.routes.api.terms import Filled


class DecisionAnswer(Filled):
    """One entry of the journals."""

    id: str = Field(examples=["fleet-12"])
    source: Literal["fleet", "rule"] = Field(description="The fleet service's journal, or the rule's targets.")
    at: float = Field(description="Unix seconds.")
    kind: str = Field(examples=["apply"])
    pool: str = Field(description="Empty for what concerns no single pool.")
    actor: str
    role: str
    message: str = Field(description="What was decided.")
    reason: str
    key: str = Field(description="Idempotency key, where the caller gave one.")
    findings: list[FindingAnswer] = Field(description="What the guard said of a plan that was applied or refused.")


class DecisionList(Filled):
    """A page of decisions, newest first."""

    items: list[DecisionAnswer]
    older: str | None = Field(description="`before` of the next page; null on the last.")
    problems: list[str] = Field(description="Why a journal is not part of it.")


class AdviceAnswer(Filled):
    """What the rule said at that tick, and from which figures."""

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
    capped_by: list[str]
    victims: list[str]
    inputs: dict[str, float | None] = Field(description="See `ADVICE_INPUTS` in the contract.")
    input_hash: str


class LossAnswer(Filled):
    """A simulated fault: the machines that end."""

    lost: list[str]
    decision: DecisionAnswer


class DecisionDetail(DecisionAnswer):
    """One entry, with the rule's figures at that moment."""

    advice: AdviceAnswer | None = Field(description="Null when what was measured then is not kept (any more).")


def decision_answer(entry: Entry) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = plain(asdict(entry))
    found.pop("ordinal")
    return {"id": entry.id, **found}


def fleet_decision_answer(decision: Decision) -> dict[str, Any]:
    """What the fleet service answered a change with, as JSON has it."""
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
        "findings": plain([asdict(finding) for finding in decision.findings]),
    }


def advice_answer(advice: PoolAdvice | None) -> dict[str, Any] | None:
    """As JSON has it."""
    return None if advice is None else dict(plain(asdict(advice)))
