"""Request bodies: read completely before authorization, and replayed unchanged to the application."""

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

MAX_BODY_BYTES = 1024 * 1024
MAX_FIELDS = 600

Fields = Mapping[str, Sequence[str]]
"""Values of a form, by field."""


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


def form_fields(scope: Scope, body: bytes) -> dict[str, list[str]]:
    """Fields of a form; empty for any other body."""
    if not Headers(scope=scope).get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    try:
        return parse_qs(body.decode("latin-1"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}
