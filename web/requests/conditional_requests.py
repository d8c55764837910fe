"""Conditional requests (ETag) for page regions that browsers poll: 304 without a body while nothing changed.

`static/js/polling.js` sends the tag of the shown region. A tag has two halves: the digest of the data that a region is
rendered from, where that is cheaper than rendering, and the digest of the region itself.
"""

import hashlib
import re

from fastapi import Request
from fastapi.responses import Response

from web.accounts.viewer import Viewer

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
