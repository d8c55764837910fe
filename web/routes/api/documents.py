"""`/api/v1/openapi.json` and `/api/v1/docs`: what the API is, for programs and for people."""

from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from web.door.problems import Problem
from web.door.roles import Need, declared_of, least_role, needs
from web.parts import PartsOf
from web.present.api import api_view
from web.present.shell import shell
from web.routes.api import (
    audit,
    comparing,
    decisions,
    flows,
    grants,
    instances,
    launches,
    logins,
    maintainer,
    nodes,
    pools,
    providers,
    reports,
    runs,
    trajectories,
    users,
    views,
    weights,
)
from web.routes.api.examples import give_examples
from web.routes.api.terms import PREFIX

router = APIRouter(prefix=PREFIX)

_OF_FLEETS = (pools, providers, instances, nodes, flows, decisions, maintainer)
_OF_RUNS = (reports, weights, comparing, runs, trajectories, launches)
_OF_PEOPLE = (grants, users, logins, views, audit)
_DOCUMENTED = (*_OF_FLEETS, *_OF_RUNS, *_OF_PEOPLE)

DESCRIPTION = (
    "Everything that the pages show and do. Show a token (`Authorization: Bearer TOKEN`, made under Settings) or a "
    "session. Every change needs a reason and a new `Idempotency-Key`; who acts is who holds the token, whatever is "
    "sent. Refusals and failures have one shape (`Problem`) and say what to do."
)


@router.get("/openapi.json")
@needs(Need.READ)
async def openapi() -> Response:
    """The document."""
    return JSONResponse(document())


@router.get("/docs")
@needs(Need.READ)
async def docs(request: Request, parts: PartsOf) -> Response:
    """The same for people."""
    return parts.pages.page(
        request,
        "api/page.html",
        page="settings",
        shell=shell(parts.state, parts.settings),
        view=api_view(document()),
    )


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document: made from the routes, so that it cannot say something else."""
    routes = [route for module in _DOCUMENTED for route in module.router.routes]
    made = get_openapi(
        title="AstraFlow", version="1", summary="Watch and steer a run.", description=DESCRIPTION, routes=routes
    )
    schemas = made["components"]["schemas"]
    schemas |= Problem.model_json_schema(ref_template="#/components/schemas/{model}").pop("$defs", {})
    schemas["Problem"] = _without_defs(Problem.model_json_schema(ref_template="#/components/schemas/{model}"))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    made["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token of yours, with a scope."}
    }
    made["security"] = [{"token": []}]
    for route in routes:
        if isinstance(route, APIRoute):
            _say_role(made["paths"][route.path_format], route)
    give_examples(made)
    return made


def _say_role(path: dict[str, Any], route: APIRoute) -> None:
    declared = declared_of(route)
    role = least_role(declared.need).value
    where = f" {declared.on.value}" if declared.on.value else ""
    for method in route.methods or ():
        operation = path[method.lower()]
        operation["x-role"] = role
        operation["description"] = f"{operation.get('description', '')}\n\nNeeds role {role}{where}.".strip()


def _without_defs(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$defs"}
