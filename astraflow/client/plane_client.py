"""Base of the clients of planes: calls whose requests and replies are contract types."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from astraflow.wire.channel import ServiceChannel
from astraflow.wire.codecs.converter import from_message

T = TypeVar("T")

TIMEOUT_S = 10.0
"""Time limit of a call that has no other. Seconds."""


class PlaneClient:
    """Makes calls to one plane."""

    def __init__(self, link: ServiceChannel) -> None:
        self._link = link

    async def _ask(
        self, method: Callable[..., Awaitable[Any]], request: Message, kind: type[T], *, timeout_s: float = TIMEOUT_S
    ) -> T:
        """Returns the reply to a request as a contract type. Raises: the errors of the service."""
        return from_message(await self._link.call(method, request, timeout_s=timeout_s), kind)
