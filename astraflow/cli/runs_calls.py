"""Calls of the page's API from the command line: as whoever made the token."""

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
"""Launching looks at the recipe first."""

_REFUSALS: dict[int, type[AstraFlowError]] = {
    401: NotAuthenticated,
    403: NotPermitted,
    404: InvalidInput,
    409: Conflict,
    413: InvalidInput,
    422: InvalidInput,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDoor:
    """Where a page is, and what opens its API."""

    url: str
    token: str = field(repr=False)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def find_web(url: str) -> WebDoor:
    """The page at `url`, or at the address in the environment; its token is in the environment only.

    Raises: InvalidInput when one of them is missing, or the token would travel unencrypted.
    """
    url, token = (url or os.environ.get(WEB, "")).rstrip("/"), os.environ.get(WEB_TOKEN, "").strip()
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(
            f"no page is at {url[:80]!r}: give --web URL, or set {WEB}; whoever started the page was told its address"
        )
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise InvalidInput(f"the token would travel unencrypted to {parts.hostname}: use its https:// address")
    if not token.isascii() or not token.isprintable() or not token:
        raise InvalidInput(f"the variable {WEB_TOKEN} holds no token: make one on the page, under Settings")
    return WebDoor(url=f"{parts.scheme}://{parts.netloc}", token=token)


def get(door: WebDoor, path: str, **query: object) -> Any:
    """What is at an address of the API. Raises: AstraFlowError as the page refuses, Unavailable."""
    known = {name: value for name, value in query.items() if value is not None}
    return _answer(door, "GET", f"{path}?{urllib.parse.urlencode(known)}" if known else path, None, {})


def post(door: WebDoor, path: str, body: Mapping[str, object], *, key: str = "") -> Any:
    """Change something, once for each key. Raises: AstraFlowError as the page refuses, Unavailable."""
    headers = {"Idempotency-Key": key or f"cli:{uuid.uuid4()}", "Content-Type": "application/json"}
    return _answer(door, "POST", path, json.dumps(body).encode(), headers)


def part(name: str) -> str:
    """A name as part of an address."""
    return urllib.parse.quote(name, safe="")


def _answer(door: WebDoor, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(  # noqa: S310 (http and https only, see find_web)
        f"{door.url}/api/v1{path}",
        data=body,
        method=method,
        headers={"Authorization": f"Bearer {door.token}", "Accept": "application/json", **headers},
    )
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        raise _refusal(door, refused) from None
    except OSError as problem:
        raise Unavailable(f"the page at {door.url} does not answer: {getattr(problem, 'reason', problem)}") from None
    except ValueError:
        raise Unavailable(f"what is at {door.url} does not answer as a page of AstraFlow") from None


def _refusal(door: WebDoor, refused: urllib.error.HTTPError) -> AstraFlowError:
    """What the page said, as an error people can act on."""
    kind = _REFUSALS.get(refused.code, Unavailable)
    try:
        problem = json.load(refused)
        detail, code = str(problem.get("detail") or problem.get("title")), str(problem.get("code") or "")
    except (ValueError, AttributeError):
        return kind(
            f"cannot use the API at {door.url}: HTTP {refused.code} without a problem document; check the address",
            code="api.unexpected_answer",
        )
    return kind(detail, code=code if CODE.fullmatch(code) else "")
