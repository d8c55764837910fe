"""`/login`: exchanging a one-time link for a session; logging out; the theme."""

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import NotAuthenticated
from web.guard import local_path
from web.parts import PartsOf
from web.rendering import THEME_COOKIE, THEMES
from web.settings import SESSION_S

router = APIRouter()

THEME_S = 365 * 86400


@router.get("/login")
async def log_in(request: Request, parts: PartsOf, token: str = "", next: str = "/") -> Response:  # noqa: A002 (the name in the address)
    """Log in with the token in the address, or say where to get one.

    Only a browser that opens the address as a page uses the token up: not one that prefetches it, and not a page of
    others that loads it as an image.
    """
    target = local_path(next)
    if request.state.viewer is not None:
        return RedirectResponse(target, 303)
    if not token:
        return parts.pages.page(request, "login.html", problem="")
    if request.headers.get("sec-fetch-dest", "document") not in ("document", "empty") or _is_prefetch(request):
        return Response(status_code=403)
    try:
        cookie = await parts.accounts.log_in(token)
    except NotAuthenticated as problem:
        return parts.pages.page(request, "login.html", problem=str(problem), status=403)
    response = RedirectResponse(target, 303)
    response.set_cookie(
        parts.accounts.cookie_name,
        cookie,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="lax",
        secure=parts.settings.is_https,
        path="/",
    )
    return response


@router.post("/logout")
async def log_out(request: Request, parts: PartsOf) -> Response:
    """End this browser's session."""
    await parts.accounts.log_out(request.cookies.get(parts.accounts.cookie_name))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(parts.accounts.cookie_name, path="/")
    return response


@router.post("/theme")
async def choose_theme(theme: str = Form(), next: str = Form("/")) -> Response:  # noqa: A002 (the name in the form)
    """Remember light, dark, or as the system has it."""
    response = RedirectResponse(local_path(next), 303)
    if theme in THEMES:
        response.set_cookie(THEME_COOKIE, theme, max_age=THEME_S, samesite="lax", path="/")
    return response


def _is_prefetch(request: Request) -> bool:
    return "prefetch" in request.headers.get("sec-purpose", "") or request.headers.get("purpose") == "prefetch"
