"""Changes that requests of the API ask for: once per idempotency key."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from web.accounts.viewer import Viewer
from web.requests.commands import Commands
from web.requests.dependencies import CommandsDep
from web.rest.common import Key
from web.security.audit_log import AuditedCommand, Author


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of one request."""

    commands: Commands
    key: str
    request: object
    """Method, path and body, by which a repeated request is recognized."""

    @property
    def viewer(self) -> Viewer:
        """User of the request."""
        return self.commands.viewer

    @property
    def by(self) -> Author:
        """Author for the audit log."""
        return self.viewer.author

    async def once(self, command: Callable[[], Awaitable[object]]) -> str:
        """Awaits the command once per key and returns its result as text; repeated requests return the first result."""

        async def text() -> str:
            return str(await command())

        return await self.commands.once(text, key=self.key, request=self.request)

    async def message(self, command: Callable[[], Awaitable[object]]) -> dict[str, str]:
        """As `once`, for a response with the command's sentence."""
        return {"message": await self.once(command)}

    async def audited(self, command: AuditedCommand, operation: Callable[[], Awaitable[str]]) -> dict[str, str]:
        """As `message`, for an operation that does not audit itself."""
        return await self.message(lambda: self.commands.audited(command, operation))

    async def once_with_secret(self, command: Callable[[], Awaitable[tuple[object, str]]]) -> tuple[str, str | None]:
        """As `once`, for a command that returns an id and a secret; None for the secret of a repeated request."""
        secret: str | None = None

        async def first() -> object:
            nonlocal secret
            result, secret = await command()
            return result

        return await self.once(first), secret


async def get_change(request: Request, commands: CommandsDep, key: Key) -> Change:
    """Returns the change that a request asks for."""
    return Change(commands=commands, key=key, request=(request.method, request.url.path, await request.body()))


ChangeDep = Annotated[Change, Depends(get_change)]
