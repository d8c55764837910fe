"""Report of a failed page for its support: enough to find it in the log, without secrets."""

import re
import secrets
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Request

from web.components.rendering import build_stamp
from web.security.audit_log import SECRET_PATTERN

REQUEST_HEADER = "x-request-id"

_SECRET_NAME = re.compile(r"token|key|secret|password|code|state|next", re.IGNORECASE)
"""Query fields that are or may contain credentials."""

MAX_ADDRESS_LETTERS = 400


def request_id(request: Request) -> str:
    """Id of the request in the log and the answer; constant for a request."""
    state = request.scope.setdefault("state", {})
    name: str = state.setdefault("request_id", secrets.token_hex(6))
    return name


def problem_report(request: Request, *, status: int, title: str, detail: str, at: float) -> str:
    """Report as text. at: Unix seconds."""
    lines = {
        "status": f"{status} {title}",
        "request": request_id(request),
        "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
        "address": f"{request.method} {address_without_secrets(request.url.path, request.url.query)}",
        "release": build_stamp(),
        "detail": SECRET_PATTERN.sub("[secret]", detail) or "none",
    }
    return "\n".join(f"{name}: {' '.join(text.split())}" for name, text in lines.items())


def address_without_secrets(path: str, query: str) -> str:
    """URL without credentials.

    >>> address_without_secrets("/runs", "sort=reward&token=abc")
    '/runs?sort=reward&token=...'
    """
    query_fields = parse_qsl(query, keep_blank_values=True)
    fields = [(name, "..." if _SECRET_NAME.search(name) else value) for name, value in query_fields]
    address = quote(path) + (f"?{urlencode(fields)}" if fields else "")
    return SECRET_PATTERN.sub("[secret]", address)[:MAX_ADDRESS_LETTERS]
