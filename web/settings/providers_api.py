"""`/api/v1/providers`: configured providers, and their preflight checks."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from astraflow.contract.preflight import PreflightResult, ProviderFacts
from web.history.report_json import json_value
from web.requests import fleet_commands
from web.requests.context import RequestContextDep, ViewerDep
from web.rest.common import NAME, PREFIX, ResponseModel, error_responses
from web.rest.fleet_schemas import CheckResponse
from web.security.roles import Permission, ResourceKind, needs

router = APIRouter(prefix=PREFIX, tags=["fleet"])

ProviderName = Annotated[
    str, Path(pattern=NAME, description="Name of the provider in the fleet service's file.", examples=["here"])
]


class PreflightResponse(ResponseModel):
    """Result of a provider's preflight checks."""

    provider: str
    is_ok: bool = Field(description="Whether all checks passed.")
    began_at: float = Field(description="Unix seconds.")
    duration_s: float
    requested_by: str = Field(description="Actor who requested it.")
    checks: list[CheckResponse]


class ProviderResponse(ResponseModel):
    """Provider in the fleet service's configuration. Credentials are never included."""

    name: str
    kind: str = Field(examples=["ec2"])
    pools: list[str] = Field(description="Pools that use it.")
    simulated: list[str] = Field(description="Simulated parts.")
    has_spot: bool
    last_preflight: PreflightResponse | None = Field(
        description="Latest preflight result since the fleet service started."
    )


class ProviderList(ResponseModel):
    """All providers."""

    items: list[ProviderResponse]


@router.get("/providers", response_model=ProviderList, responses=error_responses())
@needs(Permission.READ)
async def providers(context: RequestContextDep) -> dict[str, Any]:
    """Lists configured providers with kind, pools, simulated parts, and latest preflight result."""
    return {"items": [provider_response(provider) for provider in await fleet_commands.fleet_of(context).providers()]}


@router.post(
    "/providers/{provider:path}/preflight", response_model=PreflightResponse, responses=error_responses(404, 409, 413)
)
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def preflight(context: RequestContextDep, viewer: ViewerDep, provider: ProviderName) -> dict[str, Any]:
    """Runs a provider's preflight checks: listing, dry runs, prices. Starts nothing and costs nothing.

    A failed check is a normal response, with a remedy: check `is_ok`. Takes as long as the provider needs, up to 40
    seconds.
    """
    try:
        return preflight_response(await fleet_commands.run_preflight(context, viewer, provider))
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem


def provider_response(provider: ProviderFacts) -> dict[str, Any]:
    """Converts to the API schema."""
    values: dict[str, Any] = json_value(asdict(provider))
    return values | {
        "last_preflight": preflight_response(provider.last_preflight) if provider.last_preflight is not None else None
    }


def preflight_response(preflight: PreflightResult) -> dict[str, Any]:
    """Converts to the API schema."""
    values: dict[str, Any] = json_value(asdict(preflight))
    return values | {"is_ok": preflight.is_ok}
