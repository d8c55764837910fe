"""Changes that requests of the API ask for: once per idempotency key, and what a command refuses is a conflict."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from astraflow.contract.errors import Conflict, InvalidInput
from web.accounts.viewer import Viewer
from web.requests.commands import Commands
from web.requests.dependencies import CommandsDep
from web.rest.common import Key
from web.security.audit_log import Author
from web.security.problems import NotFound

T = TypeVar("T")


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
        """Awaits the command once per key and returns its result as text; a repeated request returns the first result.

        Raises: Conflict also where the command raises InvalidInput: the request itself was valid.
        """

        async def text() -> str:
            return str(await refused_as_conflict(command))

        return await self.commands.once(text, key=self.key, request=self.request)

    async def message(self, command: Callable[[], Awaitable[object]]) -> dict[str, str]:
        """As `once`, for a response with the command's sentence."""
        return {"message": await self.once(command)}

    async def once_with_secret(self, command: Callable[[], Awaitable[tuple[object, str]]]) -> tuple[str, str | None]:
        """As `once`, for a command that returns an id and a secret; None for the secret of a repeated request."""
        secret: str | None = None

        async def first() -> object:
            nonlocal secret
            result, secret = await command()
            return result

        return await self.once(first), secret


async def refused_as_conflict(command: Callable[[], Awaitable[T]]) -> T:
    """Awaits a command on a valid request. Raises: Conflict where it raises InvalidInput, except for NotFound."""
    try:
        return await command()
    except NotFound:
        raise
    except InvalidInput as problem:
        raise Conflict(str(problem), code=problem.code) from problem


async def get_change(request: Request, commands: CommandsDep, key: Key) -> Change:
    """Returns the change that a request asks for."""
    return Change(commands=commands, key=key, request=(request.method, request.url.path, await request.body()))


ChangeDep = Annotated[Change, Depends(get_change)]
