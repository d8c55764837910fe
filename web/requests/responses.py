"""Responses of pages: redirects with a message, and conditional answers (ETag) for page regions that browsers poll.

`static/js/polling.js` sends the tag of the shown region. A tag has two halves: the digest of the data that a region is
rendered from, where that is cheaper than rendering, and the digest of the region itself.
"""

import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.redaction import SECRET_PATTERN
from web.accounts.viewer import Viewer
from web.security.flash import Flash

_TIME_TEXT = re.compile(rb'(<time data-behavior="[a-z]+"[^>]*>)[^<]*')
"""Relative times change by themselves, in the browser too, so their text is not part of the digest."""

_TAG = re.compile(r'^W/"([0-9a-f]*)\.([0-9a-f]*)"$')


def source_tag(run: str, viewer: Viewer, *what: object) -> str:
    """Returns the first half of a tag; it is equal while the same viewer's region has the same source data."""
    return _digest(repr((run, viewer.user_id, viewer.role, viewer.scope, viewer.grants, what)).encode())


def not_modified(request: Request, source: str) -> Response | None:
    """Returns the 304 response for a browser that shows a region of the same source; None otherwise."""
    tag = request.headers.get("if-none-match", "")
    return _not_modified(tag) if source and _tag_halves(tag)[0] == source else None


def with_etag(request: Request, part: Response, *, source: str = "") -> Response:
    """Returns the region with its tag, or the 304 response when the browser already has it."""
    body = _digest(_TIME_TEXT.sub(rb"\1", bytes(part.body)))
    tag = f'W/"{source}.{body}"'
    if part.status_code != 200:
        return part
    if _tag_halves(request.headers.get("if-none-match", ""))[1] == body:
        return _not_modified(tag)
    part.headers["etag"] = tag
    return part


def _not_modified(tag: str) -> Response:
    return Response(status_code=304, headers={"etag": tag})


def _tag_halves(tag: str) -> tuple[str, str]:
    match = _TAG.match(tag)
    return (match[1], match[2]) if match else ("-", "-")


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=9).hexdigest()


DEFAULT_REASON = "requested on the dashboard"
"""Reason in the run's journal if the viewer gave none."""


def reason_of(text: str) -> str:
    """Reason for the journal; secrets are redacted as in the audit log."""
    return SECRET_PATTERN.sub("[secret]", text) or DEFAULT_REASON


P = ParamSpec("P")


def redirects(
    page: str, *, failed: str
) -> Callable[[Callable[P, Awaitable[str | Flash | Response]]], Callable[P, Awaitable[Response]]]:
    """Makes a route of a command: it redirects with the command's sentence, or with its error after `failed`.

    Each `{name}` in `page` and `failed` is a parameter of the route. A response of the command is returned as it is.
    """

    def decorate(command: Callable[P, Awaitable[str | Flash | Response]]) -> Callable[P, Awaitable[Response]]:
        @wraps(command)
        async def route(*args: P.args, **kwargs: P.kwargs) -> Response:
            try:
                result = await command(*args, **kwargs)
            except AstraFlowError as problem:
                what = failed.format_map({name: str(value)[:80] for name, value in kwargs.items()})
                result = Flash.failure(what, problem)
            if isinstance(result, Response):
                return result
            flash = Flash(text=result, tone="good") if isinstance(result, str) else result
            address = page.format_map({name: quote(str(value)) for name, value in kwargs.items()})
            return redirect_with_flash(flash, page=address)

        signature = inspect.signature(command).replace(return_annotation=Response)
        route.__signature__ = signature  # type: ignore[attr-defined]  # FastAPI reads the parameters of the route there
        return route

    return decorate


async def redirect_with_result(command: Awaitable[str], *, failed: str, page: str) -> Response:
    """Awaits the command, which audits itself, and redirects with its sentence, or with its error after `failed`."""
    try:
        flash = Flash(text=await command, tone="good")
    except AstraFlowError as problem:
        flash = Flash.failure(failed, problem)
    return redirect_with_flash(flash, page=page)


def redirect_with_flash(flash: Flash, *, page: str) -> Response:
    """Redirects to a page with a message."""
    response = RedirectResponse(page, 303)
    flash.put(response)
    return response
