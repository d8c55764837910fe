"""Parts of pages that browsers read again and again, and an answer of nothing while there is nothing new.

`static/js/again.js` sends the tag of what a region shows; a tag has two halves: of what the part was made from, where
that is cheaper to look at than making it, and of the part itself.
"""

import hashlib
import re

from fastapi import Request
from fastapi.responses import Response

from web.accounts.viewer import Viewer
from web.parts import Parts

_MOMENT = re.compile(rb'(<time data-behavior="[a-z]+"[^>]*>)[^<]*')
"""A moment's text grows older by itself, in the browser too: that is nothing new."""

_TAG = re.compile(r'^W/"([0-9a-f]*)\.([0-9a-f]*)"$')


def made_from(parts: Parts, viewer: Viewer, *what: object) -> str:
    """The first half of a tag: equal as long as the same viewer's part of the same run is made from equal things."""
    return _digest(repr((parts.run, viewer.user_id, viewer.role, viewer.scope, viewer.grants, what)).encode())


def nothing_new(request: Request, made: str) -> Response | None:
    """The answer to a browser that shows what is made from just that; None for any other."""
    tag = request.headers.get("if-none-match", "")
    return _same(tag) if made and _halves(tag)[0] == made else None


def answered(request: Request, part: Response, *, made: str = "") -> Response:
    """The part with its tag, or that the browser has it already."""
    body = _digest(_MOMENT.sub(rb"\1", bytes(part.body)))
    tag = f'W/"{made}.{body}"'
    if part.status_code != 200:
        return part
    if _halves(request.headers.get("if-none-match", ""))[1] == body:
        return _same(tag)
    part.headers["etag"] = tag
    return part


def _same(tag: str) -> Response:
    return Response(status_code=304, headers={"etag": tag})


def _halves(tag: str) -> tuple[str, str]:
    found = _TAG.match(tag)
    return (found[1], found[2]) if found else ("-", "-")


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=9).hexdigest()
