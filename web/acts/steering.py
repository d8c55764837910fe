"""Asking dataflow for something on behalf of a viewer: carried out, entered in the audit, and told."""

from collections.abc import Awaitable
from dataclasses import replace

from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError
from web.accounts.viewer import Viewer
from web.audit.entries import SECRET_SHAPES, Deed
from web.door.flash import Flash
from web.parts import Parts

NO_REASON = "asked on the web page"
"""What the run's journal gets when the viewer gave no reason."""


def reason_of(text: str) -> str:
    """A reason as others may read it: what looks like a secret is left out, as in the audit."""
    return SECRET_SHAPES.sub("[secret]", text) or NO_REASON


async def steered(
    parts: Parts, viewer: Viewer, deed: Deed, asked: Awaitable[str], *, if_failed: str, back: str
) -> Response:
    """Await what was asked, enter it in the audit whichever way it went, and say so on the page `back`.

    A refused or failed request is told there too, after `if_failed`.
    """
    try:
        flash = Flash(text=await asked, tone="good")
    except AstraFlowError as problem:
        flash = Flash(text=f"{if_failed}: {problem}", tone="bad")
        deed = replace(deed, result="failed", after={"problem": str(problem)})
    await parts.trail.note(viewer.author, deed)
    return told(flash, back=back)


def told(flash: Flash, *, back: str) -> Response:
    """Go to a page, and say this there."""
    response = RedirectResponse(back, 303)
    flash.put(response)
    return response
