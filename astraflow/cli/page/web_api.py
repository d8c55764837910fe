"""Calls of the page's REST API from the command line, as the user who created the token."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.errors import (
    CODE,
    AstraFlowError,
    Conflict,
    InvalidInput,
    NotAuthenticated,
    NotPermitted,
    Unavailable,
)

WEB, WEB_TOKEN = "ASTRAFLOW_WEB", "ASTRAFLOW_WEB_TOKEN"
TIMEOUT_S = 120.0
"""Long enough for a launch, which checks the recipe first."""

_ERRORS_BY_STATUS: dict[int, type[AstraFlowError]] = {
    401: NotAuthenticated,
    403: NotPermitted,
    404: InvalidInput,
    409: Conflict,
    413: InvalidInput,
    422: InvalidInput,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebEndpoint:
    """Address and API token of a page."""

    url: str
    token: str = field(repr=False)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the token to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def find_web(url: str) -> WebEndpoint:
    """Returns the page at `url` or at the address in the environment; the token comes only from the environment.

    Raises: InvalidInput when one of them is missing, or the token would be sent unencrypted.
    """
    url, token = (url or os.environ.get(WEB, "")).rstrip("/"), os.environ.get(WEB_TOKEN, "").strip()
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(
            f"cannot call the page at {url[:80]!r}: it is not a web address; give --web URL, or set {WEB} to the "
            "address that the page printed at its start",
            code="cli.invalid_web_address",
        )
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise InvalidInput(
            f"cannot send the token to {parts.hostname!r}: http is not encrypted; use the https:// address of the page",
            code="cli.unencrypted_token",
        )
    if not token.isascii() or not token.isprintable() or not token:
        raise InvalidInput(
            f"cannot call the page: the variable {WEB_TOKEN} has no token; create one on the page, under Settings",
            code="cli.no_token",
        )
    path = parts.path.removesuffix("/login")  # of a login link
    return WebEndpoint(url=f"{parts.scheme}://{parts.netloc}{path}", token=token)


def get(endpoint: WebEndpoint, path: str, **query: object) -> Any:
    """Returns the JSON at a path of the API. Raises: the AstraFlowError of the page's error response; Unavailable."""
    parameters = {name: value for name, value in query.items() if value is not None}
    return _answer(endpoint, "GET", f"{path}?{urllib.parse.urlencode(parameters)}" if parameters else path, None, {})


def post(endpoint: WebEndpoint, path: str, body: Mapping[str, object], *, key: str = "") -> Any:
    """Posts a change, which is applied once per key.

    Raises: the AstraFlowError of the page's error response; Unavailable.
    """
    headers = {"Idempotency-Key": key or f"cli:{uuid.uuid4()}", "Content-Type": "application/json"}
    return _answer(endpoint, "POST", path, json.dumps(body).encode(), headers)


def path_segment(name: str) -> str:
    """Returns a name quoted for a URL path."""
    return urllib.parse.quote(name, safe="")


def _answer(endpoint: WebEndpoint, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(  # noqa: S310 (http and https only, see find_web)
        f"{endpoint.url}/api/v1{path}",
        data=body,
        method=method,
        headers={"Authorization": f"Bearer {endpoint.token}", "Accept": "application/json", **headers},
    )
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as response:
        raise _error_of(endpoint, response) from None
    except OSError as problem:
        raise Unavailable(
            f"cannot reach the page at {endpoint.url!r}: {getattr(problem, 'reason', problem)}; check that it runs and "
            "the address",
            code="page.unreachable",
        ) from None
    except ValueError:
        raise Unavailable(
            f"cannot use the API at {endpoint.url!r}: the answer is not JSON; check that an AstraFlow page runs there",
            code="api.unexpected_answer",
        ) from None


def _error_of(endpoint: WebEndpoint, response: urllib.error.HTTPError) -> AstraFlowError:
    """Converts an error response of the page to an AstraFlow error."""
    kind = _ERRORS_BY_STATUS.get(response.code, Unavailable)
    try:
        problem = json.load(response)
        detail, code = str(problem.get("detail") or problem.get("title")), str(problem.get("code") or "")
    except (ValueError, AttributeError):
        return kind(
            f"cannot use the API at {endpoint.url!r}: HTTP {response.code} without a problem document; check the "
            "address",
            code="api.unexpected_answer",
        )
    return kind(detail, code=code if CODE.fullmatch(code) else "")
