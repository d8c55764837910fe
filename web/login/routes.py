"""`/login` by link, by name and password, or through an OpenID provider; `/logout`; `/theme`."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError, NotAuthenticated, Unavailable
from web.accounts.accounts import Accounts, TooManyAttempts
from web.accounts.openid_provider import PROVIDER_PATH
from web.accounts.sign_on import FLOW_S
from web.components.rendering import THEME_COOKIE, THEMES, PageRenderer
from web.process_settings import SESSION_S, Settings
from web.requests.dependencies import AccountsDep, PagesDep, SettingsDep, ViewerDep
from web.security.addresses import local_path
from web.security.roles import Permission, needs

router = APIRouter()

Next = Annotated[str, Query(alias="next")]
FormNext = Annotated[str, Form(alias="next")]

THEME_S = 365 * 86400


@router.get("/login")
@needs(Permission.NOTHING)
async def log_in(
    request: Request,
    pages: PagesDep,
    accounts: AccountsDep,
    settings: SettingsDep,
    token: str = "",
    next_path: Next = "/",
) -> Response:
    """Logs in with the token in the address, or shows the form for a name and a password.

    The token is consumed only when a browser opens the address as a page: a prefetch and a load as an image by
    another site's page are refused.
    """
    target = local_path(next_path)
    if request.state.viewer is not None:
        return RedirectResponse(target, 303)
    if not token:
        return _page(request, pages, accounts, target=target)
    if request.headers.get("sec-fetch-dest", "document") not in ("document", "empty") or _is_prefetch(request):
        return Response(status_code=403)
    came_from: str = request.state.came_from
    try:
        accounts.attempts.begin(came_from)
        cookie = await accounts.sessions.log_in(token, came_from=came_from, browser=_browser(request))
    except NotAuthenticated as problem:
        return _page(request, pages, accounts, target=target, link_problem=problem, status=_status(problem))
    return _logged_in_response(accounts, settings, came_from, cookie, target)


@router.post("/login")
@needs(Permission.NOTHING)
async def log_in_by_password(
    request: Request,
    pages: PagesDep,
    accounts: AccountsDep,
    settings: SettingsDep,
    name: str = Form(""),
    password: str = Form(""),
    next_path: FormNext = "/",
) -> Response:
    """Logs in with a name and a password."""
    target, came_from = local_path(next_path), str(request.state.came_from)
    try:
        accounts.attempts.begin(came_from)
        cookie = await accounts.users.log_in(name, password, came_from=came_from, browser=_browser(request))
    except NotAuthenticated as problem:
        return _page(request, pages, accounts, target=target, problem=problem, name=name, status=_status(problem))
    return _logged_in_response(accounts, settings, came_from, cookie, target)


@router.get("/login/provider")
@needs(Permission.NOTHING)
async def begin_at_provider(
    request: Request, pages: PagesDep, accounts: AccountsDep, settings: SettingsDep, next_path: Next = "/"
) -> Response:
    """Redirects the browser to the provider and stores the login's state in a cookie of the browser."""
    sign_on = accounts.sign_on
    if sign_on is None:
        return RedirectResponse("/login", 303)
    try:
        address, login_state = await sign_on.begin(target=local_path(next_path))
    except Unavailable as problem:
        return _page(request, pages, accounts, target=local_path(next_path), problem=problem, status=503)
    response = RedirectResponse(address, 303)
    response.set_cookie(
        sign_on.cookie_name,
        login_state,
        max_age=int(FLOW_S),
        httponly=True,
        samesite="lax",
        secure=settings.is_https,
        path=PROVIDER_PATH,
    )
    return response


@router.get(PROVIDER_PATH)
@needs(Permission.NOTHING)
async def return_from_provider(
    request: Request,
    pages: PagesDep,
    accounts: AccountsDep,
    settings: SettingsDep,
    code: str = "",
    state: str = "",
    iss: str | None = None,
    error: str = "",
) -> Response:
    """Completes the login with the code and the state that the provider passed to the browser."""
    sign_on, came_from = accounts.sign_on, str(request.state.came_from)
    if sign_on is None:
        return RedirectResponse("/login", 303)
    login_state = request.cookies.get(sign_on.cookie_name)
    response: Response
    try:
        accounts.attempts.begin(came_from)
        if error or not code:
            raise NotAuthenticated(
                f"cannot log in: the provider answered {error[:100] or 'without a code'!r}; try again",
                code="login.provider_refused",
            )
        cookie, target = await sign_on.finish(
            login_state, code=code, state=state, issuer=iss, came_from=came_from, browser=_browser(request)
        )
        response = _logged_in_response(accounts, settings, came_from, cookie, target)
    except (NotAuthenticated, Unavailable) as problem:
        response = _page(request, pages, accounts, target="/", problem=problem, status=_status(problem))
    response.delete_cookie(sign_on.cookie_name, path=PROVIDER_PATH)
    return response


@router.post("/logout")
@needs(Permission.OWN)
async def log_out(accounts: AccountsDep, viewer: ViewerDep) -> Response:
    """Ends this browser's session."""
    await accounts.sessions.revoke(viewer.session, by=viewer)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(accounts.sessions.cookie_name, path="/")
    return response


@router.post("/theme")
@needs(Permission.OWN)
async def choose_theme(theme: str = Form(), next_path: FormNext = "/") -> Response:
    """Stores the theme (light, dark or the system's) in a cookie of this browser."""
    response = RedirectResponse(local_path(next_path), 303)
    if theme in THEMES:
        response.set_cookie(THEME_COOKIE, theme, max_age=THEME_S, samesite="lax", path="/")
    return response


def _page(
    request: Request,
    pages: PageRenderer,
    accounts: Accounts,
    *,
    target: str,
    problem: AstraFlowError | None = None,
    link_problem: AstraFlowError | None = None,
    name: str = "",
    status: int = 200,
) -> Response:
    sign_on = accounts.sign_on
    return pages.page(
        request,
        "login/page.html",
        problem=problem or link_problem,
        is_link_problem=link_problem is not None,
        name=name[:64],
        target=target,
        provider=sign_on.provider.config.label if sign_on else "",
        provider_href=f"/login/provider?{urlencode({'next': target})}",
        status=status,
    )


def _logged_in_response(accounts: Accounts, settings: Settings, came_from: str, cookie: str, target: str) -> Response:
    accounts.attempts.succeed(came_from)
    response = RedirectResponse(target, 303)
    response.set_cookie(
        accounts.sessions.cookie_name,
        cookie,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="lax",
        secure=settings.is_https,
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
