"""Security middleware of every request: size, host, origin, authentication, rate limit and permission.

Each route declares its permission and resource (`web.security.roles`); a viewer without it is refused. Writes and
WebSockets must come from this site's pages: browsers send `Origin` or `Sec-Fetch-Site`, which other sites cannot forge.
Writes of a session must also contain its form token. Programs send a token instead of a cookie; browsers never send one
by themselves, so it cannot be abused by other sites.
"""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, NotPermitted, Unavailable
from web.accounts.accounts import Accounts
from web.accounts.viewer import Viewer
from web.middleware.rate_limits import RateExceeded, RateLimiter
from web.process_settings import Settings
from web.security.addresses import came_from, hostname, is_own_origin, local_path
from web.security.problems import CODE_HEADER, problem_response
from web.security.request_bodies import (
    MAX_BODY_BYTES,
    READ_METHODS,
    Fields,
    form_fields,
    form_without_nul,
    read_body,
    replay_body,
    without_nul,
)
from web.security.roles import ROLES_BY_RANK, Permission, RequiredPermission, Resource, RoutePermissions
from web.static_files import FILES

CLOSED_FOR_LOGIN = 4401
"""WebSocket close code: the session has ended, reconnecting does not help."""

CLOSED_FOR_ROLE = 4403

CLOSED_FOR_NOW = 1013
"""WebSocket close code: try again later; the browser does, with growing delays."""

FORM_TOKEN = "form_token"  # noqa: S105 (name of a field)
FORM_TOKEN_HEADER = "x-form-token"  # noqa: S105 (a header's name)

TYPED_COOKIE, TYPED_S = "astraflow_typed", 3600
"""Cookie for `typed.js`: a form was refused because its session has ended. Seconds."""

RUN_FIELD = "run"
"""Form field with the run: see `web.requests.dependencies.get_run`."""

MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with `no-referrer`, browsers hide the origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

AskToLogIn = Callable[[Request, AstraFlowError, str], Response]
"""Builds the answer to a form that its session cannot send, with the way back to a path."""

Refuse = Callable[[Request, Permission, Resource], Awaitable[Response]]
"""Builds the answer for a viewer without the required role."""

ResourcesOf = Callable[[Scope, RequiredPermission, Fields], Awaitable[Sequence[Resource]]]
"""Resources of a request; the viewer needs the role on each."""


READ_ONLY_PERMISSIONS = (Permission.NOTHING, Permission.READ, Permission.OWN)
"""Permissions on a read-only page."""


class SecurityMiddleware:
    """ASGI middleware around the whole application.

    Puts the viewer (None if not authenticated) into `scope["state"]["viewer"]` and the client address into `came_from`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        accounts: Accounts,
        needs: RoutePermissions,
        settings: Settings,
        limits: RateLimiter,
        resources_of: ResourcesOf,
        refuse: Refuse,
        ask_to_log_in: AskToLogIn,
    ) -> None:
        self._app = app
        self._accounts = accounts
        self._needs = needs
        self._settings = settings
        self._limits = limits
        self._resources_of = resources_of
        self._refuse = refuse
        self._ask_to_log_in = ask_to_log_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        without_nul(scope)
        answer = self._with_headers(send)
        headers = Headers(scope=scope)
        refusal = self._reject_foreign(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        if _is_read(scope) and scope["path"].startswith(FILES):
            await self._app(scope, receive, answer)  # static files need no authentication
            return
        try:
            viewer = await self._viewer(scope, headers)
            self._limits.take(scope, viewer, came_from=scope["state"]["came_from"])
            if scope["type"] == "websocket" and viewer is not None:
                with self._limits.socket(viewer):
                    await self._forward(scope, receive, answer, viewer)
            else:
                await self._forward(scope, receive, answer, viewer)
        except Unavailable as problem:  # the database, here: the application's own handlers are further inside
            await _refused(scope, headers, 503, problem)(scope, receive, answer)
        except RateExceeded as problem:
            await _answer_rate_limited(scope, receive, answer, problem)

    async def _forward(self, scope: Scope, receive: Receive, answer: Send, viewer: Viewer | None) -> None:
        headers, required = Headers(scope=scope), self._needs.required_by(scope)
        if required.permission is not Permission.NOTHING and viewer is None:
            await self._answer_login_required(scope, receive, answer)
        elif self._settings.is_read_only and required.permission not in READ_ONLY_PERMISSIONS:
            problem = NotPermitted(
                "This page is read-only: it shows recorded runs and cannot launch or change anything.",
                code="page.read_only",
            )
            await _refused(scope, headers, 403, problem)(scope, receive, answer)
        elif _is_read(scope) or scope["type"] == "websocket":
            await self._authorize(scope, receive, answer, required, viewer, {})
        else:
            await self._check_change(scope, receive, answer, required, viewer)

    def _reject_foreign(self, scope: Scope, headers: Headers) -> Response | None:
        """Refusal of a request that is too large, for another host, or from another site's page."""
        if (
            len(headers.raw) > MAX_HEADERS
            or sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES
        ):
            problem: AstraFlowError = InvalidInput(
                "Refused: too many or too long headers.", code="request.headers_too_large"
            )
            return _refused(scope, headers, 431, problem)
        if hostname(headers.get("host", "")) not in self._settings.hosts:
            problem = InvalidInput(
                "This host name is unknown to the page. Use the address that it printed at the start.",
                code="request.unknown_host",
            )
            return _refused(scope, headers, 421, problem)
        if _is_read(scope):
            return None
        if is_for_programs(scope, headers) and not _is_from_browser(headers):
            return None  # not authenticated yet: the next steps require a token
        if not _is_own_page(scope, headers, self._settings):
            problem = NotPermitted(
                "Refused: the request did not come from a page of this site.", code="request.foreign_site"
            )
            return _refused(scope, headers, 403, problem)
        return None

    async def _viewer(self, scope: Scope, headers: Headers) -> Viewer | None:
        state = scope.setdefault("state", {})
        state["came_from"] = came_from(scope, headers, is_proxied=bool(self._settings.behind_proxy))
        cookie = cookie_of(headers, self._accounts.sessions.cookie_name)
        viewer = await self._accounts.viewer(headers, cookie=cookie, came_from=state["came_from"])
        state["viewer"] = viewer
        return viewer

    async def _check_change(
        self, scope: Scope, receive: Receive, send: Send, required: RequiredPermission, viewer: Viewer | None
    ) -> None:
        """Reads the body of a write completely, up to the limit, and authorizes it."""
        body = await read_body(receive)
        if body is None:
            problem = InvalidInput(f"Refused: more than {MAX_BODY_BYTES} bytes.", code="request.too_large")
            await _refused(scope, Headers(scope=scope), 413, problem)(scope, receive, send)
            return
        body = form_without_nul(scope, body)
        fields = form_fields(scope, body)
        scope["state"]["run"] = fields.get(RUN_FIELD, [""])[0]
        await self._authorize(scope, replay_body(body, receive), send, required, viewer, fields)

    async def _authorize(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        required: RequiredPermission,
        viewer: Viewer | None,
        fields: Fields,
    ) -> None:
        """Forwards the request if the viewer has the permission on all its resources, and a session sent its form
        token."""
        if viewer is not None and required.permission is not Permission.NOTHING:
            resources = await self._resources_of(scope, required, fields)
            least = min(resources, key=lambda resource: ROLES_BY_RANK.index(viewer.effective_role(resource)))
            if not viewer.may(required.permission, run=least.run, pool=least.pool):
                await self._refuse_role(scope, receive, send, required.permission, least)
                return
            if not _has_form_token(scope, viewer, fields):
                problem = NotPermitted(
                    "Refused: the form belongs to another session. Reload the page, then submit it again.",
                    code="request.wrong_form_token",
                )
                await self._refuse_form(scope, problem, status=403)(scope, receive, send)
                return
            scope["state"]["viewer"] = replace(viewer, at=least)
        await self._app(scope, receive, send)

    async def _refuse_role(
        self, scope: Scope, receive: Receive, send: Send, permission: Permission, resource: Resource
    ) -> None:
        if scope["type"] == "websocket":
            await _close(receive, send, CLOSED_FOR_ROLE, "another role is required")
            return
        response = await self._refuse(Request(scope, receive), permission, resource)
        await response(scope, receive, send)

    async def _answer_login_required(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _close(receive, send, CLOSED_FOR_LOGIN, "log in")
            return
        response: Response
        headers = Headers(scope=scope)
        if is_for_programs(scope, headers):
            response = problem_response(401, "log in, or send a valid token", headers={"www-authenticate": "Bearer"})
        elif scope["method"] == "GET" and "hx-request" not in headers:
            query = scope["query_string"].decode("latin-1")
            wanted = scope["path"] + (f"?{query}" if query else "")
            response = RedirectResponse(f"/login?next={quote(wanted, safe='/')}", 303)
        elif _is_read(scope):
            response = PlainTextResponse("Your session has ended: log in again.", 401)
        else:
            problem = NotAuthenticated("Your session has ended: log in again.", code="login.session_ended")
            response = self._refuse_form(scope, problem, status=401)
        await response(scope, receive, send)

    def _refuse_form(self, scope: Scope, problem: AstraFlowError, *, status: int) -> Response:
        """Refuses a form of an ended session. A browser returns to it after a login, and shows what was typed again."""
        headers = Headers(scope=scope)
        if is_for_programs(scope, headers):
            return _refused(scope, headers, status, problem)
        page = "/" + headers.get("referer", "").partition("://")[2].partition("/")[2].partition("#")[0]
        back = local_path(page.removeprefix(self._settings.path_prefix))
        login = f"/login?next={quote(back, safe='/')}"
        if "hx-request" in headers:
            response: Response = PlainTextResponse(str(problem), status, headers={"hx-redirect": login})
        else:
            response = self._ask_to_log_in(Request(scope), problem, login)
        response.headers[CODE_HEADER] = problem.code
        response.set_cookie(TYPED_COOKIE, "1", max_age=TYPED_S, samesite="lax", secure=self._settings.is_https)
        return response

    def _with_headers(self, send: Send) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if self._settings.is_https:
                    headers.setdefault("strict-transport-security", "max-age=31536000")
                headers.setdefault("cache-control", "no-store")
            await send(message)

        return answer


def cookie_of(headers: Headers, name: str) -> str | None:
    """Value of a cookie of the request."""
    return cookie_parser(headers.get("cookie", "")).get(name)


def is_for_programs(scope: Scope, headers: Headers) -> bool:
    """True if a program reads the answer, false if a browser shows it."""
    return str(scope["path"]).startswith("/api/") or "authorization" in headers


def _refused(scope: Scope, headers: Headers, status: int, problem: AstraFlowError, *, text: str = "") -> Response:
    """Refusal with the text, or else the problem's message, and the problem's code."""
    text = text or str(problem)
    if is_for_programs(scope, headers):
        return problem_response(status, text, code=problem.code)
    return PlainTextResponse(text, status, headers={CODE_HEADER: problem.code})


def _is_from_browser(headers: Headers) -> bool:
    return any(name in headers for name in ("cookie", "origin", "sec-fetch-site"))


def _is_read(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in READ_METHODS


def _is_own_page(scope: Scope, headers: Headers, settings: Settings) -> bool:
    """True if the browser states that one of our pages sent the request, or a program sent it with a token."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None:
        return is_own_origin(origin, host=headers.get("host", ""), settings=settings)
    if "authorization" in headers:
        return True
    return site == "same-origin" and scope["type"] == "http"


def _has_form_token(scope: Scope, viewer: Viewer, fields: Fields) -> bool:
    """True if a write of a session has its form token; tokens and reads need none."""
    if not viewer.form_token or scope["type"] == "websocket" or _is_read(scope):
        return True
    sent_token = Headers(scope=scope).get(FORM_TOKEN_HEADER, "") or fields.get(FORM_TOKEN, [""])[0]
    return hmac.compare_digest(sent_token.encode(), viewer.form_token.encode())


async def _close(receive: Receive, send: Send, code: int, reason: str) -> None:
    """Accepts a WebSocket only to close it with a reason: browsers hide the cause of a refused one."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": code, "reason": reason})


async def _answer_rate_limited(scope: Scope, receive: Receive, send: Send, problem: RateExceeded) -> None:
    if scope["type"] == "websocket":
        await _close(receive, send, CLOSED_FOR_NOW, str(problem))
        return
    response = _refused(scope, Headers(scope=scope), 429, problem, text=f"Refused: {problem}.")
    response.headers["retry-after"] = str(problem.wait_s)
    await response(scope, receive, send)
