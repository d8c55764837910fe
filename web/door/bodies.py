"""Bodies of requests: read whole before anybody acts on them, and handed on as they came."""

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

BODY_BYTES = 1024 * 1024
MOST_FIELDS = 600

Fields = Mapping[str, Sequence[str]]
"""Of a form."""


async def body_of(receive: Receive) -> bytes | None:
    """The whole body; None when it is too long."""
    body, is_more = bytearray(), True
    while is_more:
        message = await receive()
        if message["type"] != "http.request":  # the sender went away
            break
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
        if len(body) > BODY_BYTES:
            return None
    return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """The same body, for who reads it after us."""
    parts = [body]

    async def replay() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return replay


def form_fields(scope: Scope, body: bytes) -> dict[str, list[str]]:
    """The fields of a form; none for any other body."""
    if not Headers(scope=scope).get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    try:
        return parse_qs(body.decode("latin-1"), max_num_fields=MOST_FIELDS)
    except ValueError:
        return {}
