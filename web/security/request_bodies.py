"""Request bodies: read completely before authorization, and replayed unchanged to the application."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

MAX_BODY_BYTES = 1024 * 1024
MAX_FIELDS = 600

Fields = Mapping[str, Sequence[str]]
"""Values of a form, by field."""


_NUL, _REPLACEMENT = re.compile(rb"%00|\0"), b"%EF%BF%BD"

READ_METHODS = ("GET", "HEAD", "OPTIONS")


async def read_body(receive: Receive) -> bytes | None:
    """Whole body; None if it is too long."""
    body, is_more = bytearray(), True
    while is_more:
        message = await receive()
        if message["type"] != "http.request":  # the client disconnected
            break
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Receive function that returns the same body again."""
    parts = [body]

    async def replay() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return replay


def without_nul(scope: Scope) -> None:
    """Replaces NUL in the path and the query, as decoding replaces bytes that are no text: no database stores it, and
    no name contains the replacement."""
    scope["path"] = scope["path"].replace("\0", "\N{REPLACEMENT CHARACTER}")
    scope["query_string"] = _NUL.sub(_REPLACEMENT, scope["query_string"])


def form_without_nul(scope: Scope, body: bytes) -> bytes:
    """Replaces NUL in the body of a form; returns any other body unchanged."""
    return _NUL.sub(_REPLACEMENT, body) if _is_form(scope) else body


def form_fields(scope: Scope, body: bytes) -> dict[str, list[str]]:
    """Fields of a form; empty for any other body."""
    if not _is_form(scope):
        return {}
    try:
        return parse_qs(body.decode("latin-1"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}


def _is_form(scope: Scope) -> bool:
    return Headers(scope=scope).get("content-type", "").startswith("application/x-www-form-urlencoded")
