"""A sentence carried over one redirect: what the last action did."""

import base64
import binascii
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response

COOKIE = "astraflow_flash"
LONGEST = 600


class Undo(Enum):
    """What takes back what was just done."""

    RESUME = "resume"
    """A flow that was paused."""
    RELEASE = "release"
    """A pool that is held."""


_ADDRESSES: Mapping[Undo, Callable[[str], str]] = {
    Undo.RESUME: lambda flow: f"/flows/{quote(flow)}/resume?back=dataflow",
    Undo.RELEASE: lambda pool: f"/pools/{quote(pool)}/hold",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """What to tell, and how it went: `good` or `bad`. What can be taken back says how, and of what."""

    text: str
    tone: str
    undo: Undo | None = None
    of: str = ""
    """The flow or pool that `undo` is about."""
    key: str = ""
    """Of the form that takes it back: sent twice, it acts once."""

    @property
    def action(self) -> str:
        """Where that form goes."""
        return _ADDRESSES[self.undo](self.of) if self.undo else ""

    def put(self, response: Response) -> None:
        """Send it along with a redirect."""
        undo = [self.undo.value, self.of, f"undo-{time.time_ns()}"] if self.undo else []
        content = json.dumps([self.text[:LONGEST], self.tone, *undo]).encode()
        response.set_cookie(
            COOKIE, base64.urlsafe_b64encode(content).decode(), max_age=60, httponly=True, samesite="lax", path="/"
        )

    def clear(self, response: Response) -> None:
        """It was shown."""
        response.delete_cookie(COOKIE, path="/")


def taken_flash(request: Request) -> Flash | None:
    """The sentence that this request brought along, if it is one of ours."""
    try:
        text, tone, *undo = json.loads(base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")))
        if not all(isinstance(one, str) for one in (text, *undo)) or tone not in ("good", "bad"):
            return None
        if not undo:
            return Flash(text=text, tone=tone)
        kind, of, key = undo
        return Flash(text=text, tone=tone, undo=Undo(kind), of=of, key=key)
    except (ValueError, TypeError, binascii.Error):
        return None
