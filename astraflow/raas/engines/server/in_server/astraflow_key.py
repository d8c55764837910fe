"""Key of a server, demanded on every route.

Their own keys leave open: SGLang `/health` and `/metrics`, vLLM all that is not below `/v1` and `/inference`, such as
`/pause` and `/collective_rpc`, with which any user of the host could stop or alter it.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY = "ASTRAFLOW_SERVER_KEY"
"""Environment variable with the key, since all users of a machine see command lines."""


class RequiresKey:
    """ASGI middleware that answers requests and WebSockets without the key with 401, whatever their path."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ[KEY]}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        """Passes on what has the key, and events that are not of a connection."""
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: answered with 403
        else:
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"cannot use the server: the key is missing or wrong\n"})

    def _has_key(self, scope: dict[str, Any]) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(sent) == 1 and hmac.compare_digest(sent[0], self._expected)
