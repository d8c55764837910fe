"""`/api/v1/providers`: configured providers, and their preflight checks."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.preflight import PreflightResult, ProviderFacts
from web.requests.dependencies import CommandsDep, FleetDep
from web.rest.common import NAME, ApiRouter, ItemList, ResponseModel
from web.rest.contract_models import fields_of
from web.security.roles import Permission, ResourceKind, needs

router = ApiRouter(tags=["fleet"])

ProviderName = Annotated[
    str, Path(pattern=NAME, description="Name of the provider in the fleet service's file.", examples=["here"])
]


@fields_of(PreflightResult)
class PreflightResponse(ResponseModel):
    """Result of a provider's preflight checks."""

    is_ok: bool = Field(description="Whether all checks passed.")


@fields_of(ProviderFacts)
class ProviderResponse(ResponseModel):
    """Provider in the fleet service's configuration. Credentials are never included."""

    last_preflight: PreflightResponse | None = Field(
        description="Latest preflight result since the fleet service started."
    )


class ProviderList(ItemList[ProviderResponse]):
    """All providers."""


@router.get("/providers", response_model=ProviderList)
@needs(Permission.READ)
async def providers(fleet: FleetDep) -> dict[str, Any]:
    """Lists configured providers with kind, pools, simulated parts, and latest preflight result."""
    return {"items": await fleet.require_client().providers()}


@router.post("/providers/{provider:path}/preflight", response_model=PreflightResponse)
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def preflight(commands: CommandsDep, provider: ProviderName) -> PreflightResult:
    """Runs a provider's preflight checks: listing, dry runs, prices. Starts nothing and costs nothing.

    A failed check is a normal response, with a remedy: check `is_ok`. Takes as long as the provider needs, up to 40
    seconds.
    """
    try:
        return await commands.run_preflight(provider)
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem
