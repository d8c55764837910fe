"""A sentence carried over one redirect: what the last action did."""

import base64
import binascii
import json
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

COOKIE = "astraflow_flash"
LONGEST = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """What to tell, and how it went: `good` or `bad`."""

    text: str
    tone: str

    def put(self, response: Response) -> None:
        """Send it along with a redirect."""
        content = json.dumps([self.text[:LONGEST], self.tone]).encode()
        response.set_cookie(
            COOKIE, base64.urlsafe_b64encode(content).decode(), max_age=60, httponly=True, samesite="lax", path="/"
        )

    def clear(self, response: Response) -> None:
        """It was shown."""
        response.delete_cookie(COOKIE, path="/")


def taken_flash(request: Request) -> Flash | None:
    """The sentence that this request brought along, if it is one of ours."""
    try:
        text, tone = json.loads(base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")))
    except (ValueError, TypeError, binascii.Error):
        return None
    if not isinstance(text, str) or tone not in ("good", "bad"):
        return None
    return Flash(text=text, tone=tone)
