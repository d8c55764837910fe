"""`/login`: by link, by name and password, or through a provider; logging out; the theme."""

from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError, NotAuthenticated, Unavailable
from web.accounts.attempts import TooManyAttempts
from web.accounts.provider import PROVIDER_PATH
from web.accounts.sign_on import FLOW_S
from web.door.addresses import local_path
from web.door.roles import Need, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.rendering import THEME_COOKIE, THEMES
from web.settings import SESSION_S

router = APIRouter()

THEME_S = 365 * 86400


@router.get("/login")
@needs(Need.NOTHING)
async def log_in(request: Request, parts: PartsOf, token: str = "", next: str = "/") -> Response:  # noqa: A002 (the name in the address)
    """Log in with the token in the address, or ask for a name and password.

    Only a browser that opens the address as a page uses the token up: not one that prefetches it, and not a page of
    others that loads it as an image.
    """
    target = local_path(next)
    if request.state.viewer is not None:
        return RedirectResponse(target, 303)
    if not token:
        return _page(request, parts, target=target)
    if request.headers.get("sec-fetch-dest", "document") not in ("document", "empty") or _is_prefetch(request):
        return Response(status_code=403)
    came_from: str = request.state.came_from
    try:
        parts.accounts.attempts.begin(came_from)
        cookie = await parts.accounts.sessions.log_in(token, came_from=came_from, browser=_browser(request))
    except NotAuthenticated as problem:
        return _page(request, parts, target=target, link_problem=str(problem), status=_status(problem))
    return _let_in(parts, came_from, cookie, target)


@router.post("/login")
@needs(Need.NOTHING)
async def log_in_by_password(
    request: Request,
    parts: PartsOf,
    name: str = Form(""),
    password: str = Form(""),
    next: str = Form("/"),  # noqa: A002 (the name in the form)
) -> Response:
    """Log in with a name and password."""
    target, came_from = local_path(next), str(request.state.came_from)
    try:
        parts.accounts.attempts.begin(came_from)
        cookie = await parts.accounts.users.log_in(name, password, came_from=came_from, browser=_browser(request))
    except NotAuthenticated as problem:
        return _page(request, parts, target=target, problem=str(problem), name=name, status=_status(problem))
    return _let_in(parts, came_from, cookie, target)


@router.get("/login/provider")
@needs(Need.NOTHING)
async def begin_at_provider(request: Request, parts: PartsOf, next: str = "/") -> Response:  # noqa: A002 (the name in the address)
    """Send the browser to the provider; it keeps what the login needs to remember."""
    sign_on = parts.accounts.sign_on
    if sign_on is None:
        return RedirectResponse("/login", 303)
    try:
        address, kept = await sign_on.begin(target=local_path(next))
    except Unavailable as problem:
        return _page(request, parts, target=local_path(next), problem=str(problem), status=503)
    response = RedirectResponse(address, 303)
    response.set_cookie(
        sign_on.cookie_name,
        kept,
        max_age=int(FLOW_S),
        httponly=True,
        samesite="lax",
        secure=parts.settings.is_https,
        path=PROVIDER_PATH,
    )
    return response


@router.get(PROVIDER_PATH)
@needs(Need.NOTHING)
async def return_from_provider(
    request: Request,
    parts: PartsOf,
    code: str = "",
    state: str = "",
    iss: str | None = None,
    error: str = "",
) -> Response:
    """Finish what was begun, with what the provider sent the browser back with."""
    sign_on, came_from = parts.accounts.sign_on, str(request.state.came_from)
    if sign_on is None:
        return RedirectResponse("/login", 303)
    kept = request.cookies.get(sign_on.cookie_name)
    response: Response
    try:
        parts.accounts.attempts.begin(came_from)
        if error or not code:
            raise NotAuthenticated(f"the provider did not log you in: {error[:100] or 'it sent no code'}")
        cookie, target = await sign_on.finish(
            kept, code=code, state=state, issuer=iss, came_from=came_from, browser=_browser(request)
        )
        response = _let_in(parts, came_from, cookie, target)
    except (NotAuthenticated, Unavailable) as problem:
        response = _page(request, parts, target="/", problem=str(problem), status=_status(problem))
    response.delete_cookie(sign_on.cookie_name, path=PROVIDER_PATH)
    return response


@router.post("/logout")
@needs(Need.OWN)
async def log_out(parts: PartsOf, viewer: ViewerOf) -> Response:
    """End this browser's session."""
    await parts.accounts.sessions.revoke(viewer.session, by=viewer, of_all=False)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(parts.accounts.sessions.cookie_name, path="/")
    return response


@router.post("/theme")
@needs(Need.OWN)
async def choose_theme(theme: str = Form(), next: str = Form("/")) -> Response:  # noqa: A002 (the name in the form)
    """Remember light, dark, or as the system has it, in this browser only."""
    response = RedirectResponse(local_path(next), 303)
    if theme in THEMES:
        response.set_cookie(THEME_COOKIE, theme, max_age=THEME_S, samesite="lax", path="/")
    return response


def _page(
    request: Request,
    parts: Parts,
    *,
    target: str,
    problem: str = "",
    link_problem: str = "",
    name: str = "",
    status: int = 200,
) -> Response:
    sign_on = parts.accounts.sign_on
    return parts.pages.page(
        request,
        "login.html",
        problem=problem,
        link_problem=link_problem,
        name=name[:64],
        target=target,
        provider=sign_on.provider.config.label if sign_on else "",
        provider_href=f"/login/provider?{urlencode({'next': target})}",
        status=status,
    )


def _let_in(parts: Parts, came_from: str, cookie: str, target: str) -> Response:
    parts.accounts.attempts.succeed(came_from)
    response = RedirectResponse(target, 303)
    response.set_cookie(
        parts.accounts.sessions.cookie_name,
        cookie,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="lax",
        secure=parts.settings.is_https,
        path="/",
    )
    return response


def _status(problem: AstraFlowError) -> int:
    if isinstance(problem, TooManyAttempts):
        return 429
    return 503 if isinstance(problem, Unavailable) else 403


def _browser(request: Request) -> str:
    return request.headers.get("user-agent", "")


def _is_prefetch(request: Request) -> bool:
    return "prefetch" in request.headers.get("sec-purpose", "") or request.headers.get("purpose") == "prefetch"
