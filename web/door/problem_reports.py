"""What somebody who reports a failed page hands on: enough to find it in the log, and nothing that is secret."""

import re
import secrets
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Request

from web.audit.entries import SECRET_SHAPES
from web.rendering import build_stamp

REQUEST_HEADER = "x-request-id"

_SECRET_NAME = re.compile(r"token|key|secret|password|code|state|next", re.IGNORECASE)
"""Fields of an address that are, or may hold, what lets somebody in."""

MOST_ADDRESS = 400


def request_id(request: Request) -> str:
    """Names the request, in the log and in the answer; the same however often it is asked for."""
    state = request.scope.setdefault("state", {})
    name: str = state.setdefault("request_id", secrets.token_hex(6))
    return name


def problem_report(request: Request, *, status: int, title: str, detail: str, at: float) -> str:
    """The report as text. at: Unix seconds."""
    lines = {
        "status": f"{status} {title}",
        "request": request_id(request),
        "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
        "address": f"{request.method} {bare_address(request.url.path, request.url.query)}",
        "release": build_stamp(),
        "detail": SECRET_SHAPES.sub("[secret]", detail) or "none",
    }
    return "\n".join(f"{name}: {' '.join(text.split())}" for name, text in lines.items())


def bare_address(path: str, query: str) -> str:
    """An address without what lets somebody in.

    >>> bare_address("/runs", "sort=reward&token=abc")
    '/runs?sort=reward&token=...'
    """
    given = parse_qsl(query, keep_blank_values=True)
    fields = [(name, "..." if _SECRET_NAME.search(name) else value) for name, value in given]
    address = quote(path) + (f"?{urlencode(fields)}" if fields else "")
    return SECRET_SHAPES.sub("[secret]", address)[:MOST_ADDRESS]
