"""Web application: routes, static files, error pages, and the security middleware around them."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from astraflow.contract.errors import (
    AstraFlowError,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotAuthenticated,
    NotPermitted,
    RateLimited,
    Unavailable,
    UnknownNode,
    UnknownPolicy,
)
from astraflow.runtime.logs import get_logger
from astraflow.runtime.redaction import SECRET_PATTERN
from web import (
    alerts,
    api_docs,
    audit,
    comparison,
    dataflow,
    decisions,
    events,
    launches,
    login,
    maintainer,
    nodes,
    overview,
    pools,
    runs,
    search,
    service_routes,
    settings,
    trajectories,
    weights,
)
from web.accounts.viewer import Viewer
from web.components.rendering import build_stamp
from web.live.followed_run import FollowedRun
from web.middleware.middleware import SecurityMiddleware, is_for_programs
from web.middleware.rate_limits import RateLimiter
from web.middleware.request_resources import RequestResources
from web.requests.dependencies import ProcessParts, get_followed_run
from web.rest.common import PREFIX
from web.security.audit_log import AuditedCommand
from web.security.path_prefix import PathPrefixMiddleware
from web.security.problems import CODE_HEADER, FieldProblem, NotFound, problem_response
from web.security.request_bodies import READ_METHODS
from web.security.roles import LOGIN_ONLY, Permission, Resource, RoutePermissions, least_role_with

FEATURES = (
    *(overview, events, launches, comparison, runs, trajectories, pools, nodes, dataflow, weights, decisions),
    *(alerts, maintainer, audit, settings, search, login, api_docs),
)
"""Packages of pages and endpoints, in the order in which their routes are matched."""

ROUTES = (
    *service_routes.router.routes,
    *(route for feature in FEATURES for router in feature.ROUTERS for route in router.routes),
)

log = get_logger()

_STATUS: dict[type[AstraFlowError], int] = {
    NotFound: 404,
    InvalidInput: 422,
    UnknownNode: 404,
    UnknownPolicy: 404,
    Conflict: 409,
    NotAuthenticated: 403,
    NotPermitted: 403,
    RateLimited: 429,
    Unavailable: 503,
    DeadlineExceeded: 504,
}

_NOT_FOUND = "Not Found"
"""Default detail of the router for an unknown path."""

_TITLES = {
    401: "Log in again",
    403: "Not permitted",
    404: "Page not found",
    405: "Method not allowed",
    422: "Invalid request",
    500: "Internal error",
    409: "Conflict",
    429: "Too many requests",
    502: "A service of the run failed",
    503: "A service of the run is unreachable",
    504: "A service of the run did not answer in time",
}


def create_app(parts: ProcessParts) -> ASGIApp:
    """Builds the ASGI application. Every answer gets the headers of the security middleware."""
    app = FastAPI(title="AstraFlow", routes=list(ROUTES), docs_url=None, redoc_url=None, openapi_url=None)
    app.state.parts = parts
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(AstraFlowError, _on_astraflow_error)
    app.add_exception_handler(Exception, _on_defect)

    async def refuse(request: Request, permission: Permission, resource: Resource) -> Response:
        return await _refusal(parts, request, permission, resource)

    def ask_to_log_in(request: Request, problem: AstraFlowError, login_path: str) -> Response:
        status, run = 401 if isinstance(problem, NotAuthenticated) else 403, parts.followed.by_name("")
        return _error(request, status, str(problem), code=problem.code, run=run, login_path=login_path)

    needs = RoutePermissions(ROUTES)
    resources_of = RequestResources(parts).resources_of
    secured = SecurityMiddleware(
        app,
        accounts=parts.accounts,
        needs=needs,
        settings=parts.settings,
        limits=RateLimiter(parts.settings, parts.clock),
        resources_of=resources_of,
        refuse=refuse,
        ask_to_log_in=ask_to_log_in,
    )
    return PathPrefixMiddleware(secured, parts.settings.path_prefix)


async def _on_http_error(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    detail = str(problem.detail) if isinstance(problem, HTTPException) and problem.detail != _NOT_FOUND else ""
    cause = problem.__cause__
    response = _error(request, status, detail, code=cause.code if isinstance(cause, AstraFlowError) else "")
    if isinstance(problem, HTTPException) and problem.headers:
        response.headers.update(problem.headers)
    if status == 405:
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Methods of a path over all routes; the router reports those of one route only."""
    routes = [route for route in ROUTES if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in matching for method in route.methods or ()}


async def _on_bad_request(request: Request, problem: Exception) -> Response:
    errors = problem.errors() if isinstance(problem, RequestValidationError) else []
    fields = [FieldProblem(field=".".join(map(str, error["loc"])), message=error["msg"]) for error in errors]
    return _error(
        request,
        422,
        "; ".join(f"{field.field}: {field.message}" for field in fields),
        fields=fields,
    )


async def _on_astraflow_error(request: Request, problem: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(problem, kind)), 502)
    if status == 422 and request.url.path.startswith(PREFIX) and request.method not in READ_METHODS:
        status = 409  # the request matches the API's schema; the state of the run refuses it
    return _error(request, status, str(problem), code=problem.code if isinstance(problem, AstraFlowError) else "")


async def _on_defect(request: Request, problem: Exception) -> Response:
    id_ = request_id(request)
    log.error("request_failed", request=id_, method=request.method, path=request.url.path, exc_info=problem)
    return _error(request, 500, "The log of the web process has the details.")


async def _refusal(parts: ProcessParts, request: Request, permission: Permission, resource: Resource) -> Response:
    """Refusal with the required role and the admins that can grant it. Refused changes are audited."""
    viewer: Viewer = request.state.viewer
    if request.method not in READ_METHODS:
        command = AuditedCommand(
            action="refused", target=f"{request.method} {request.url.path}", result="refused", reason=permission.value
        )
        await parts.audit_log.write(replace(viewer, at=resource).author, command)
    problem = refusal(viewer, permission, resource, admins=await parts.accounts.users.admins())
    return _error(request, 403, str(problem), code=problem.code, run=parts.followed.by_name(""))


def refusal(viewer: Viewer, permission: Permission, resource: Resource, *, admins: Sequence[str]) -> NotPermitted:
    """Returns the reason of a refusal and how to get the permission."""
    role = " ".join(filter(None, (least_role_with(permission).value, resource.description)))
    on_resource, own = " there" if resource.run else "", viewer.own_role(resource)
    if viewer.scope is not None and own.may(permission):
        if permission in LOGIN_ONLY:
            return NotPermitted(
                "A login in a browser is required: tokens cannot administer accounts.", code="token.login_required"
            )
        scope = viewer.effective_role(resource).value
        return NotPermitted(
            f"Role {role} is required, but {viewer.via} has the scope {scope}{on_resource}. "
            "Use a token with a wider scope.",
            code="token.scope_too_low",
        )
    return NotPermitted(
        f"Role {role} is required to {permission.value}; your role is {own.value}{on_resource}. "
        f"Admins who can grant it: {', '.join(admins)}.",
        code="role.missing",
    )


def _error(
    request: Request,
    status: int,
    detail: str,
    *,
    code: str = "",
    run: FollowedRun | None = None,
    fields: Sequence[FieldProblem] = (),
    login_path: str = "",
) -> Response:
    run, name = run or get_followed_run(request.app.state.parts, request)[1], request_id(request)
    title = _TITLES.get(status, "Request failed")
    log.info("request_not_answered", request=name, status=status, method=request.method, path=request.url.path)
    if is_for_programs(request.scope, request.headers):
        response: Response = problem_response(status, detail, code=code, fields=fields)
    else:
        report = problem_report(request, status=status, title=title, detail=detail, at=run.state.clock.wall())
        response = run.pages.page(
            request,
            "error.html",
            status=status,
            code=code,
            title=title,
            detail=detail,
            report=report,
            login_path=login_path,
            is_uncertain=status >= 500 and request.method not in READ_METHODS,
            page="error",
        )
        response.headers[CODE_HEADER] = code or f"http.{status}"
    response.headers[REQUEST_HEADER] = name
    return response


REQUEST_HEADER = "x-request-id"

_SECRET_NAME = re.compile(r"token|key|secret|password|code|state|next", re.IGNORECASE)
"""Query fields that are or may contain credentials."""

MAX_ADDRESS_LETTERS = 400


def request_id(request: Request) -> str:
    """Id of the request in the log and the answer; constant for a request."""
    state = request.scope.setdefault("state", {})
    name: str = state.setdefault("request_id", secrets.token_hex(6))
    return name


def problem_report(request: Request, *, status: int, title: str, detail: str, at: float) -> str:
    """Report as text. at: Unix seconds."""
    lines = {
        "status": f"{status} {title}",
        "request": request_id(request),
        "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
        "address": f"{request.method} {address_without_secrets(request.url.path, request.url.query)}",
        "release": build_stamp(),
        "detail": SECRET_PATTERN.sub("[secret]", detail) or "none",
    }
    return "\n".join(f"{name}: {' '.join(text.split())}" for name, text in lines.items())


def address_without_secrets(path: str, query: str) -> str:
    """URL without credentials.

    >>> address_without_secrets("/runs", "sort=reward&token=abc")
    '/runs?sort=reward&token=...'
    """
    query_fields = parse_qsl(query, keep_blank_values=True)
    fields = [(name, "..." if _SECRET_NAME.search(name) else value) for name, value in query_fields]
    address = quote(path) + (f"?{urlencode(fields)}" if fields else "")
    return SECRET_PATTERN.sub("[secret]", address)[:MAX_ADDRESS_LETTERS]
