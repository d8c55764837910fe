"""The door of every request: is it small, is the host ours, may this origin ask, who is it, do they ask too much, and
may they do that there.

What a route needs and on what, the route itself declares (`web.door.roles`); nobody gets to one that needs more than
they have there. Whatever is not a reading method, and every WebSocket, must come from our own pages: browsers send
`Origin` or `Sec-Fetch-Site` on those, and pages of others cannot forge either. What a session sends must also carry
the session's form token. Programs show a token of their own instead of a cookie; nothing sends that for them, so
nothing can be forged.
"""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from web.accounts.accounts import Accounts
from web.accounts.viewer import Viewer
from web.door.addresses import came_from, hostname, is_own_origin
from web.door.bodies import BODY_BYTES, Fields, body_of, form_fields, replayed
from web.door.limits import Limits, TooMuch
from web.door.places import Place
from web.door.problems import problem_answer
from web.door.roles import RANKS, Asked, Need, Needs
from web.files import FILES
from web.settings import Settings

READING = ("GET", "HEAD", "OPTIONS")

CLOSED_FOR_LOGIN = 4401
"""WebSocket close code: the session is over, reconnecting will not help."""

CLOSED_FOR_ROLE = 4403

CLOSED_FOR_NOW = 1013
"""Try again later: the browser does so, ever less often."""

FORM_TOKEN = "form_token"  # noqa: S105 (a field's name)
FORM_TOKEN_HEADER = "x-form-token"  # noqa: S105 (a header's name)

RUN_FIELD = "run"
"""The run that a form is about: see `web.parts.parts_of`."""

MOST_HEADERS = 100
HEADER_BYTES = 16 * 1024

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all, browsers hide the origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

Refuse = Callable[[Request, Need, Place], Awaitable[Response]]
"""Makes the answer for who lacks the role there."""

PlacesOf = Callable[[Scope, Asked, Fields], Awaitable[Sequence[Place]]]
"""What a request is about: at each of these it needs the role."""


LOOKING = (Need.NOTHING, Need.READ, Need.OWN)
"""What is left on a page that only shows what was recorded."""


class Guard:
    """ASGI middleware around the whole application.

    Puts the viewer (None for nobody) into `scope["state"]["viewer"]` and the address of who asks into `came_from`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        accounts: Accounts,
        needs: Needs,
        settings: Settings,
        limits: Limits,
        places_of: PlacesOf,
        refuse: Refuse,
    ) -> None:
        self._app = app
        self._accounts = accounts
        self._needs = needs
        self._settings = settings
        self._limits = limits
        self._places_of = places_of
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = self._with_headers(send)
        headers = Headers(scope=scope)
        refusal = self._stranger(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        if _reads(scope) and scope["path"].startswith(FILES):
            await self._app(scope, receive, answer)  # the same for everybody: it does not matter who asks
            return
        viewer = await self._viewer(scope, headers)
        try:
            self._limits.take(scope, viewer, came_from=scope["state"]["came_from"])
            if scope["type"] == "websocket" and viewer is not None:
                with self._limits.socket(viewer):
                    await self._hand_on(scope, receive, answer, viewer)
                return
        except TooMuch as problem:
            await _slow_down(scope, receive, answer, problem)
            return
        await self._hand_on(scope, receive, answer, viewer)

    async def _hand_on(self, scope: Scope, receive: Receive, answer: Send, viewer: Viewer | None) -> None:
        headers, asked = Headers(scope=scope), self._needs.of(scope)
        if asked.need is not Need.NOTHING and viewer is None:
            await _ask_to_log_in(scope, receive, answer)
        elif self._settings.is_read_only and asked.need not in LOOKING:
            text = "This page only shows what was recorded: nothing can be launched or changed from it."
            await _refused(scope, headers, 403, text)(scope, receive, answer)
        elif _reads(scope) or scope["type"] == "websocket":
            await self._let_in(scope, receive, answer, asked, viewer, {})
        else:
            await self._act(scope, receive, answer, asked, viewer)

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """The refusal of what is too large, asks for another host, or comes from another site's page."""
        if len(headers.raw) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers.raw) > HEADER_BYTES:
            return _refused(scope, headers, 431, "Refused: too many or too long headers.")
        if hostname(headers.get("host", "")) not in self._settings.hosts:
            text = "This address is not one of this page's names. Use the one that it printed when it started."
            return _refused(scope, headers, 421, text)
        if _reads(scope):
            return None
        if is_for_programs(scope, headers) and not _comes_from_a_browser(headers):
            return None  # nobody yet: what follows asks for a token
        if not _is_own_page(scope, headers, self._settings):
            return _refused(scope, headers, 403, "Refused: this did not come from a page of this site.")
        return None

    async def _viewer(self, scope: Scope, headers: Headers) -> Viewer | None:
        state = scope.setdefault("state", {})
        state["came_from"] = came_from(scope, headers, is_proxied=bool(self._settings.behind_proxy))
        cookie = cookie_of(headers, self._accounts.sessions.cookie_name)
        viewer = await self._accounts.viewer(headers, cookie=cookie, came_from=state["came_from"])
        state["viewer"] = viewer
        return viewer

    async def _act(self, scope: Scope, receive: Receive, send: Send, asked: Asked, viewer: Viewer | None) -> None:
        """Look at what may change something: whole, and not endless."""
        body = await body_of(receive)
        if body is None:
            refusal = _refused(scope, Headers(scope=scope), 413, f"Refused: more than {BODY_BYTES} bytes.")
            await refusal(scope, receive, send)
            return
        fields = form_fields(scope, body)
        scope["state"]["run"] = fields.get(RUN_FIELD, [""])[0]
        await self._let_in(scope, replayed(body, receive), send, asked, viewer, fields)

    async def _let_in(
        self, scope: Scope, receive: Receive, send: Send, asked: Asked, viewer: Viewer | None, fields: Fields
    ) -> None:
        """Hand on what the viewer may do at all that it is about, with the form token if a session sent it."""
        if viewer is not None and asked.need is not Need.NOTHING:
            places = await self._places_of(scope, asked, fields)
            least = min(places, key=lambda place: RANKS.index(viewer.role_at(place)))
            if not viewer.may(asked.need, run=least.run, pool=least.pool):
                await self._turn_away(scope, receive, send, asked.need, least)
                return
            if not _has_form_token(scope, viewer, fields):
                text = "Refused: the form is of another session. Load the page again, then send it."
                await _refused(scope, Headers(scope=scope), 403, text)(scope, receive, send)
                return
            scope["state"]["viewer"] = replace(viewer, at=least)
        await self._app(scope, receive, send)

    async def _turn_away(self, scope: Scope, receive: Receive, send: Send, need: Need, place: Place) -> None:
        if scope["type"] == "websocket":
            await _close(receive, send, CLOSED_FOR_ROLE, "this needs another role")
            return
        response = await self._refuse(Request(scope, receive), need, place)
        await response(scope, receive, send)

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
    """The value of one cookie of a request."""
    return cookie_parser(headers.get("cookie", "")).get(name)


def is_for_programs(scope: Scope, headers: Headers) -> bool:
    """Whether the answer is read by a program rather than shown by a browser."""
    return str(scope["path"]).startswith("/api/") or "authorization" in headers


def _refused(scope: Scope, headers: Headers, status: int, text: str) -> Response:
    return problem_answer(status, text) if is_for_programs(scope, headers) else PlainTextResponse(text, status)


def _comes_from_a_browser(headers: Headers) -> bool:
    return any(name in headers for name in ("cookie", "origin", "sec-fetch-site"))


def _reads(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in READING


def _is_own_page(scope: Scope, headers: Headers, settings: Settings) -> bool:
    """Whether the browser vouches that one of our pages asks, or it is a program that shows a token of its own."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None:
        return is_own_origin(origin, host=headers.get("host", ""), settings=settings)
    if "authorization" in headers:
        return True
    return site == "same-origin" and scope["type"] == "http"


def _has_form_token(scope: Scope, viewer: Viewer, fields: Fields) -> bool:
    """Whether a session vouches for what may change something; tokens and readers need not."""
    if not viewer.form_token or scope["type"] == "websocket" or _reads(scope):
        return True
    found = Headers(scope=scope).get(FORM_TOKEN_HEADER, "") or fields.get(FORM_TOKEN, [""])[0]
    return hmac.compare_digest(found.encode(), viewer.form_token.encode())


async def _close(receive: Receive, send: Send, code: int, reason: str) -> None:
    """Accept a WebSocket only to say why it is closed: browsers hide the cause of a refused one."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": code, "reason": reason})


async def _slow_down(scope: Scope, receive: Receive, send: Send, problem: TooMuch) -> None:
    if scope["type"] == "websocket":
        await _close(receive, send, CLOSED_FOR_NOW, str(problem))
        return
    response = _refused(scope, Headers(scope=scope), 429, f"Refused: {problem}.")
    response.headers["retry-after"] = str(problem.wait_s)
    await response(scope, receive, send)


async def _ask_to_log_in(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await _close(receive, send, CLOSED_FOR_LOGIN, "log in")
        return
    response: Response
    headers = Headers(scope=scope)
    if is_for_programs(scope, headers):
        response = problem_answer(
            401, "log in first, or show a token that is good", headers={"www-authenticate": "Bearer"}
        )
    elif scope["method"] == "GET" and "hx-request" not in headers:
        query = scope["query_string"].decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        response = RedirectResponse(f"/login?next={quote(wanted, safe='/')}", 303)
    else:
        response = PlainTextResponse("Your session is over: log in again.", 401)
    await response(scope, receive, send)
