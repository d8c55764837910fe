"""Runs a command on dataflow for a viewer: audited, and answered with a redirect and a message."""

from collections.abc import Awaitable, Callable

from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError
from web.requests.commands import Commands
from web.security.audit_log import SECRET_PATTERN, AuditedCommand
from web.security.flash import Flash

DEFAULT_REASON = "requested on the dashboard"
"""Reason in the run's journal if the viewer gave none."""


def reason_of(text: str) -> str:
    """Reason for the journal; secrets are redacted as in the audit log."""
    return SECRET_PATTERN.sub("[secret]", text) or DEFAULT_REASON


async def run_and_redirect(
    commands: Commands,
    command: AuditedCommand,
    operation: Callable[[], Awaitable[str]],
    *,
    failure_prefix: str,
    page: str,
) -> Response:
    """Runs and audits the operation, and redirects to `page` with a message.

    A failure is shown there after `failure_prefix`.
    """
    try:
        flash = Flash(text=await commands.audited(command, operation), tone="good")
    except AstraFlowError as problem:
        flash = Flash.failure(failure_prefix, problem)
    return redirect_with_flash(flash, page=page)


def redirect_with_flash(flash: Flash, *, page: str) -> Response:
    """Redirects to a page with a message."""
    response = RedirectResponse(page, 303)
    flash.put(response)
    return response
