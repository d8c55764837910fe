"""`/api/v1/openapi.json` and `/api/v1/docs`: documentation of the API, for programs and for people."""

from collections.abc import Iterable
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from web.api_docs.examples import add_examples
from web.api_docs.views import api_view
from web.requests.dependencies import PagesDep, SettingsDep
from web.rest.common import PREFIX
from web.rest.contract_models import add_meanings
from web.security.problems import Problem
from web.security.roles import Permission, least_role_with, needs, permission_of_route

router = APIRouter(prefix=PREFIX, include_in_schema=False)

DESCRIPTION = (
    "The API has every query and command of the pages. Authenticate with a token (`Authorization: Bearer TOKEN`, "
    "created under Settings) or a session. Every change needs a reason and a new `Idempotency-Key`; the actor is "
    "always the token's user. All errors have the schema `Problem`, with the cause and what to do."
)


async def _document(request: Request) -> dict[str, Any]:
    request.app.openapi_schema = request.app.openapi_schema or document(request.app.routes)
    return cast("dict[str, Any]", request.app.openapi_schema)


DocumentDep = Annotated[dict[str, Any], Depends(_document)]


@router.get("/openapi.json")
@needs(Permission.READ)
async def openapi(described: DocumentDep, settings: SettingsDep) -> Response:
    """Returns the OpenAPI document."""
    return JSONResponse(described | {"servers": [{"url": settings.path_prefix or "/"}]})


@router.get("/docs")
@needs(Permission.READ)
async def docs(request: Request, pages: PagesDep, described: DocumentDep) -> Response:
    """Shows the API documentation page."""
    return pages.page(request, "api_docs/page.html", page="settings", view=api_view(described))


def document(all_routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Generates the OpenAPI document of the endpoints among the routes."""
    routes = [route for route in all_routes if isinstance(route, APIRoute) and route.path.startswith(f"{PREFIX}/")]
    routes = [route for route in routes if route.include_in_schema]
    openapi_document = get_openapi(
        title="AstraFlow", version="1", summary="Monitor and control a run.", description=DESCRIPTION, routes=routes
    )
    schemas = openapi_document["components"]["schemas"]
    schemas |= Problem.model_json_schema(ref_template="#/components/schemas/{model}").pop("$defs", {})
    schemas["Problem"] = _without_defs(Problem.model_json_schema(ref_template="#/components/schemas/{model}"))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    openapi_document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "Access token with a scope."}
    }
    openapi_document["security"] = [{"token": []}]
    for route in routes:
        _add_role(openapi_document["paths"][route.path_format], route)
    add_meanings(schemas)
    add_examples(openapi_document)
    return openapi_document


def _add_role(path: dict[str, Any], route: APIRoute) -> None:
    declared = permission_of_route(route)
    role = least_role_with(declared.permission).value
    where = f" {declared.on.value}" if declared.on.value else ""
    for method in route.methods or ():
        operation = path[method.lower()]
        operation["x-role"] = role
        operation["description"] = f"{operation.get('description', '')}\n\nRequires role {role}{where}.".strip()


def _without_defs(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$defs"}
