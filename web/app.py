"""The application: routes, static files, error pages, and the guard around all of it."""

import mimetypes
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from starlette.types import ASGIApp, Scope

from astraflow.contract.errors import (
    AstraFlowError,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotAuthenticated,
    Unavailable,
    UnknownNode,
    UnknownPolicy,
)
from astraflow.runtime.logs import get_logger
from web.accounts.viewer import Viewer
from web.audit import Deed
from web.guard import READING, Guard
from web.parts import Parts, parts_of
from web.rendering import STATIC
from web.roles import Need, Needs, least_role
from web.routes import (
    api,
    audit,
    charts,
    flows,
    kill,
    live,
    login,
    nodes,
    overview,
    palette,
    runs,
    settings,
    views,
    weights,
)

ROUTERS = tuple(
    module.router
    for module in (
        overview,
        runs,
        nodes,
        weights,
        flows,
        charts,
        audit,
        settings,
        views,
        palette,
        kill,
        login,
        api,
        live,
    )
)

log = get_logger()

_STATUS: dict[type[AstraFlowError], int] = {
    InvalidInput: 422,
    UnknownNode: 404,
    UnknownPolicy: 404,
    Conflict: 409,
    NotAuthenticated: 403,
    Unavailable: 503,
    DeadlineExceeded: 504,
}

_TITLES = {
    403: "Your role does not have this",
    404: "There is no such page",
    405: "This address cannot be used like that",
    422: "The request cannot be understood",
    500: "This page has a defect",
    503: "Dataflow cannot be reached",
    504: "Dataflow did not answer in time",
}


def create_app(parts: Parts) -> ASGIApp:
    """The ASGI application over these parts. The guard is outermost: no answer leaves without its headers."""
    app = FastAPI(title="AstraFlow", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.parts = parts
    for router in ROUTERS:
        app.include_router(router)
    mimetypes.add_type("text/javascript", ".js")
    files = Mount(f"/static/{parts.pages.build}", _KeptFiles(directory=STATIC), name="static")
    app.router.routes.append(files)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(AstraFlowError, _on_astraflow_error)
    app.add_exception_handler(Exception, _on_defect)

    async def refuse(request: Request, need: Need) -> Response:
        return await _refusal(parts, request, need)

    needs = Needs([*(route for router in ROUTERS for route in router.routes), files])
    return Guard(app, accounts=parts.accounts, needs=needs, settings=parts.settings, refuse=refuse)


class _KeptFiles(StaticFiles):
    """Files whose address names their content: browsers need not ask again."""

    def file_response(self, full_path: object, stat_result: object, scope: Scope, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)  # type: ignore[arg-type] # as given
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


async def _on_http_error(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    detail = str(problem.detail) if isinstance(problem, HTTPException) and status != 404 else ""
    return _error(request, status, detail)


async def _on_bad_request(request: Request, problem: Exception) -> Response:
    errors = problem.errors() if isinstance(problem, RequestValidationError) else []
    return _error(request, 422, "; ".join(f"{error['loc'][-1]}: {error['msg']}" for error in errors))


async def _on_astraflow_error(request: Request, problem: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(problem, kind)), 502)
    return _error(request, status, str(problem))


async def _on_defect(request: Request, problem: Exception) -> Response:
    log.error("request_failed", method=request.method, path=request.url.path, exc_info=problem)
    return _error(request, 500, "Its log has the details. The run is not affected.")


async def _refusal(parts: Parts, request: Request, need: Need) -> Response:
    """Say which role it takes and who can grant it. What would have changed something is entered in the audit."""
    viewer: Viewer = request.state.viewer
    if request.method not in READING:
        deed = Deed(
            action="refused", target=f"{request.method} {request.url.path}", result="refused", reason=need.value
        )
        await parts.trail.note(viewer.author, deed)
    admins = await parts.accounts.users.admins()
    return _error(request, 403, refusal_sentence(viewer, need, admins=admins), parts=parts)


def refusal_sentence(viewer: Viewer, need: Need, *, admins: Sequence[str]) -> str:
    """Why somebody was refused, and what they can do."""
    role = least_role(need).value
    if viewer.scope is not None and viewer.role.may(need):
        if need is Need.OWN:
            return "This needs a login in a browser: tokens do not look after accounts."
        return f"This needs role {role}, and {viewer.via} has the scope {viewer.scope.value}. Make one with more scope."
    return (
        f"This needs role {role}, to {need.value}; you are {viewer.role.value}. Who can grant it: {', '.join(admins)}."
    )


def _error(request: Request, status: int, detail: str, *, parts: Parts | None = None) -> Response:
    parts = parts or parts_of(request)
    title = _TITLES.get(status, "That did not work")
    if request.url.path.startswith("/api/") or "authorization" in request.headers:
        return JSONResponse({"error": detail or title}, status)
    return parts.pages.page(request, "error.html", status=status, title=title, detail=detail, page="error")
