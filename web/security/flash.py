"""Flash message: result of the last action, carried over one redirect."""

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

from astraflow.contract.errors import AstraFlowError, DeadlineExceeded, Unavailable

COOKIE = "astraflow_flash"
MAX_LETTERS = 600


class Undo(Enum):
    """Action that undoes the last one."""

    RESUME = "resume"
    """Resumes a paused flow."""
    RELEASE = "release"
    """Ends the hold of a pool."""


_ADDRESSES: Mapping[Undo, Callable[[str], str]] = {
    Undo.RESUME: lambda flow: f"/flows/{quote(flow)}/resume?back=dataflow",
    Undo.RELEASE: lambda pool: f"/pools/{quote(pool)}/hold",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """Message with its tone (`good` or `bad`), and optionally an undo action."""

    text: str
    tone: str
    undo: Undo | None = None
    of: str = ""
    """Flow or pool of the undo action."""
    key: str = ""
    """Idempotency key of the undo form."""
    code: str = ""
    """Code of the error; empty if the action succeeded."""

    @classmethod
    def failure(cls, prefix: str, problem: AstraFlowError) -> "Flash":
        """Message of a failed action: the prefix, the problem and its code, and whether its result is uncertain."""
        is_uncertain = isinstance(problem, Unavailable | DeadlineExceeded)
        hint = ". The change may have been made all the same: look here before you repeat it." if is_uncertain else ""
        return cls(text=f"{prefix}: {problem}{hint}", tone="bad", code=problem.code)

    @property
    def action(self) -> str:
        """URL of the undo form."""
        return _ADDRESSES[self.undo](self.of) if self.undo else ""

    def put(self, response: Response) -> None:
        """Adds the message to a redirect."""
        undo = [self.undo.value, self.of, f"undo-{time.time_ns()}"] if self.undo else []
        content = json.dumps([self.text[:MAX_LETTERS], self.tone, self.code, *undo]).encode()
        response.set_cookie(
            COOKIE, base64.urlsafe_b64encode(content).decode(), max_age=60, httponly=True, samesite="lax", path="/"
        )

    def clear(self, response: Response) -> None:
        """Removes the message after it was shown."""
        response.delete_cookie(COOKIE, path="/")


def read_flash(request: Request) -> Flash | None:
    """Message of this request; None without a valid one."""
    try:
        text, tone, code, *undo = json.loads(base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")))
        if not all(isinstance(value, str) for value in (text, code, *undo)) or tone not in ("good", "bad"):
            return None
        if not undo:
            return Flash(text=text, tone=tone, code=code)
        kind, of, key = undo
        return Flash(text=text, tone=tone, code=code, undo=Undo(kind), of=of, key=key)
    except (ValueError, TypeError, binascii.Error):
        return None
