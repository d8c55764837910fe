"""The application: routes, static files, error pages, and the guard around all of it."""

import mimetypes

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Scope

from astraflow.contract.errors import (
    AstraFlowError,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    Unavailable,
    UnknownNode,
    UnknownPolicy,
)
from astraflow.runtime.logs import get_logger
from web.guard import Guard
from web.parts import Parts, parts_of
from web.rendering import STATIC
from web.routes import api, charts, flows, live, login, nodes, overview, runs, weights

log = get_logger()

_STATUS: dict[type[AstraFlowError], int] = {
    InvalidInput: 422,
    UnknownNode: 404,
    UnknownPolicy: 404,
    Conflict: 409,
    Unavailable: 503,
    DeadlineExceeded: 504,
}

_TITLES = {
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
    for module in (overview, runs, nodes, weights, flows, charts, login, api, live):
        app.include_router(module.router)
    mimetypes.add_type("text/javascript", ".js")
    app.mount(f"/static/{parts.pages.build}", _KeptFiles(directory=STATIC), name="static")
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(AstraFlowError, _on_astraflow_error)
    app.add_exception_handler(Exception, _on_defect)
    return Guard(app, accounts=parts.accounts, hosts=parts.settings.hosts, is_https=parts.settings.is_https)


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


def _error(request: Request, status: int, detail: str) -> Response:
    title = _TITLES.get(status, "That did not work")
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": detail or title}, status)
    return parts_of(request).pages.page(request, "error.html", status=status, title=title, detail=detail, page="error")
