"""`/api/v1/providers`: where machines come from, and whether each would give one."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rehearsals import ProviderFacts, Rehearsal
from web.acts import fleet as fleet_acts
from web.door.roles import Need, On, needs
from web.feed.report_json import plain
from web.parts import PartsOf, ViewerOf
from web.routes.api.terms import NAME, PREFIX, Filled, refusals

router = APIRouter(prefix=PREFIX, tags=["fleet"])

ProviderName = Annotated[
    str, Path(pattern=NAME, description="Name of the provider, as the fleet service's file has it.", examples=["here"])
]


class CheckAnswer(Filled):
    """One question, and what came of it."""

    kind: Literal["list", "launch", "price"] = Field(
        description="`list`: what it has can be listed; `launch`: a machine would be let through; `price`: what it "
        "would cost."
    )
    pool: str | None = Field(description="Whose spec it was asked with; null for what concerns no single pool.")
    is_ok: bool
    message: str = Field(description="What was found.")
    to_do: str = Field(description="What would help; empty when nothing has to.")


class RehearsalAnswer(Filled):
    """A test of a provider."""

    provider: str
    is_ok: bool = Field(description="Whether all checks passed.")
    began_at: float = Field(description="Unix seconds.")
    took_s: float
    by: str = Field(description="Who wanted to know.")
    checks: list[CheckAnswer]


class ProviderAnswer(Filled):
    """A provider that the fleet service is configured with. Its credentials are nowhere to be read."""

    name: str
    kind: str = Field(examples=["ec2"])
    pools: list[str] = Field(description="Those that take their machines from it.")
    simulated: list[str] = Field(description="What of it is a stand-in.")
    has_spot: bool
    last: RehearsalAnswer | None = Field(description="Its latest test since the fleet service began.")


class ProviderList(Filled):
    """Every provider."""

    items: list[ProviderAnswer]


@router.get("/providers", response_model=ProviderList, responses=refusals())
@needs(Need.READ)
async def providers(parts: PartsOf) -> dict[str, Any]:
    """Those that the fleet service is configured with: kind, pools, stand-ins, and the latest test of each."""
    return {"items": [provider_answer(provider) for provider in await fleet_acts.fleet_of(parts).providers()]}


@router.post("/providers/{provider:path}/test", response_model=RehearsalAnswer, responses=refusals(404, 409, 413))
@needs(Need.OPERATE, on=On.RUN)
async def test(parts: PartsOf, viewer: ViewerOf, provider: ProviderName) -> dict[str, Any]:
    """Ask a provider whether it would do its part: lists, dry runs, prices. Nothing is started, nothing costs.

    A check that fails is an answer too, with what would help: look at `is_ok`. It takes as long as the provider does,
    up to 40 seconds.
    """
    try:
        return rehearsal_answer(await fleet_acts.rehearse_provider(parts, viewer, provider))
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem


def provider_answer(provider: ProviderFacts) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = plain(asdict(provider))
    return found | {"last": rehearsal_answer(provider.last) if provider.last is not None else None}


def rehearsal_answer(rehearsal: Rehearsal) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = plain(asdict(rehearsal))
    return found | {"is_ok": rehearsal.is_ok}
