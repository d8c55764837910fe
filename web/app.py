"""The application: routes, static files, error pages, and the guard around all of it."""

from collections.abc import Sequence
from dataclasses import replace

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
from web.accounts.viewer import Viewer
from web.audit.entries import Deed
from web.door.guard import READING, Guard, is_for_programs
from web.door.limits import Limits
from web.door.places import Place
from web.door.problem_reports import REQUEST_HEADER, problem_report, request_id
from web.door.problems import FieldProblem, problem_answer
from web.door.roles import Need, Needs, least_role
from web.door.subjects import Subjects
from web.launching.launcher import UnknownRun
from web.parts import House, Parts, parts_for_problems
from web.routes import (
    api,
    audit,
    charts,
    comparing,
    dataflow,
    decisions,
    events,
    files,
    flows,
    grants,
    health,
    kill,
    launches,
    live,
    login,
    maintainer,
    nodes,
    overview,
    palette,
    pool_charts,
    pools,
    providers,
    run_charts,
    runs,
    settings,
    trajectories,
    views,
    weights,
)

_OF_RUNS = (launches, comparing, runs, run_charts, trajectories)
_PAGES = (overview, events, *_OF_RUNS, pool_charts, pools, nodes, dataflow, weights, decisions, maintainer)
_MORE_PAGES = (flows, charts, audit, settings, grants, providers)
_BESIDE = (kill, views, palette, login, live, health)
ROUTERS = (files.router, *(module.router for module in (*_PAGES, *_MORE_PAGES, *_BESIDE)), *api.ROUTERS)

log = get_logger()

_STATUS: dict[type[AstraFlowError], int] = {
    UnknownRun: 404,
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
"""What the router says of an address that it does not know."""

_TITLES = {
    403: "This is refused",
    404: "There is no such page",
    405: "This address cannot be used like that",
    422: "The request cannot be understood",
    500: "This page has a defect",
    409: "Somebody else was first",
    429: "That was asked too often",
    502: "A service of the run failed",
    503: "A service of the run cannot be reached",
    504: "A service of the run did not answer in time",
}


def create_app(house: House) -> ASGIApp:
    """The ASGI application over these parts. The guard is outermost: no answer leaves without its headers."""
    # The routes themselves: a router that is included makes a second of each of its routes when it is first asked for.
    routes = [route for router in ROUTERS for route in router.routes]
    app = FastAPI(title="AstraFlow", routes=routes, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.house = house
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(AstraFlowError, _on_astraflow_error)
    app.add_exception_handler(Exception, _on_defect)

    async def refuse(request: Request, need: Need, place: Place) -> Response:
        return await _refusal(house.showing(house.followed.named("")), request, need, place)

    needs = Needs(routes)
    places_of = Subjects(house).places_of
    return Guard(
        app,
        accounts=house.accounts,
        needs=needs,
        settings=house.settings,
        limits=Limits(house.settings, house.clock),
        places_of=places_of,
        refuse=refuse,
    )


async def _on_http_error(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    detail = str(problem.detail) if isinstance(problem, HTTPException) and problem.detail != _NOT_FOUND else ""
    response = _error(request, status, detail)
    if isinstance(problem, HTTPException) and problem.headers:
        response.headers.update(problem.headers)
    if status == 405:
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """What an address can be used with: the router itself names those of one of its routes only."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in matching for method in route.methods or ()}


async def _on_bad_request(request: Request, problem: Exception) -> Response:
    errors = problem.errors() if isinstance(problem, RequestValidationError) else []
    fields = [FieldProblem(field=".".join(map(str, error["loc"])), message=error["msg"]) for error in errors]
    return _error(request, 422, "; ".join(f"{one.field}: {one.message}" for one in fields), fields=fields)


async def _on_astraflow_error(request: Request, problem: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(problem, kind)), 502)
    return _error(request, status, str(problem), code=problem.code if isinstance(problem, AstraFlowError) else "")


async def _on_defect(request: Request, problem: Exception) -> Response:
    name = request_id(request)
    log.error("request_failed", request=name, method=request.method, path=request.url.path, exc_info=problem)
    return _error(request, 500, "Its log has the details. The run is not affected.")


async def _refusal(parts: Parts, request: Request, need: Need, place: Place) -> Response:
    """Say which role it takes where, and who can grant it. What would have changed something is in the audit."""
    viewer: Viewer = request.state.viewer
    if request.method not in READING:
        deed = Deed(
            action="refused", target=f"{request.method} {request.url.path}", result="refused", reason=need.value
        )
        await parts.trail.note(replace(viewer, at=place).author, deed)
    admins = await parts.accounts.users.admins()
    return _error(request, 403, refusal_sentence(viewer, need, place, admins=admins), parts=parts)


def refusal_sentence(viewer: Viewer, need: Need, place: Place, *, admins: Sequence[str]) -> str:
    """Why somebody was refused, and what they can do."""
    role = " ".join(filter(None, (least_role(need).value, place.words)))
    there, own = " there" if place.run else "", viewer.own_role(place)
    if viewer.scope is not None and own.may(need):
        if need is Need.OWN:
            return "This needs a login in a browser: tokens do not look after accounts."
        has = viewer.role_at(place).value
        return f"This needs role {role}, and {viewer.via} has the scope {has}{there}. Make one with more scope."
    return (
        f"This needs role {role}, to {need.value}; you are {own.value}{there}. Who can grant it: {', '.join(admins)}."
    )


def _error(
    request: Request,
    status: int,
    detail: str,
    *,
    code: str = "",
    parts: Parts | None = None,
    fields: Sequence[FieldProblem] = (),
) -> Response:
    parts, name = parts or parts_for_problems(request), request_id(request)
    title = _TITLES.get(status, "That did not work")
    log.info("request_not_answered", request=name, status=status, method=request.method, path=request.url.path)
    if is_for_programs(request.scope, request.headers):
        response: Response = problem_answer(status, detail, code=code, fields=fields)
    else:
        report = problem_report(request, status=status, title=title, detail=detail, at=parts.clock.wall())
        response = parts.pages.page(
            request, "error.html", status=status, title=title, detail=detail, report=report, page="error"
        )
    response.headers[REQUEST_HEADER] = name
    return response
