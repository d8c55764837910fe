"""Dialling a service: channel options, credentials, deadlines, and errors turned back into what the server raised."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.wire.diagnosis import tls_trouble
from astraflow.wire.errors import from_status, is_from_service
from astraflow.wire.pem import authorities, pair

if TYPE_CHECKING:
    from astraflow.access.authority import Authority

PROTOCOL = "2"
"""Version of the planes. A peer that speaks another one is refused by name instead of misunderstood."""

PROTOCOL_KEY = "astraflow-protocol"

MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest single message; whatever may be larger is streamed in pieces."""

OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # how long an attempt may take, far away or on a busy machine
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", 64 * 2**20),  # high-latency links need large windows
)

_OWN_CONNECTION = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_permit_without_calls", 1),  # idle between two versions, it must not be forgotten on the way
)

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """How to check the server, and (mutual TLS) what to show it. PEM."""

    ca: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(cls, ca: Path, certificate: Path | None = None, key: Path | None = None) -> Self:
        """From files. Raises: InvalidInput naming the one that does not do."""
        if (certificate is None) != (key is None):
            raise InvalidInput("TLS: a client's certificate and its key come together")
        private, chain = pair(certificate, key) if certificate and key else (None, None)
        return cls(ca=authorities(ca), certificate=chain, key=private)


def authority_client_tls(authority: "Authority") -> ClientTls:
    """Mutual TLS for a process beside the run's authority that holds the run token."""
    own = authority.for_run_token()
    return ClientTls(ca=authority.pem, certificate=own.certificate, key=own.key)


def folder_client_tls(folder: Path) -> ClientTls:
    """The same, with the authority in a folder. Raises: InvalidInput for a folder without one."""
    from astraflow.access.authority import Authority  # X.509 takes 7 MB, which only runs that speak TLS need

    return authority_client_tls(Authority.opened(folder))


class Link:
    """A channel to one service with the token it wants; calls through it raise contract errors.

    An `async with`; dialling is lazy and reconnects by itself.
    """

    def __init__(
        self, address: str, *, token: str, tls: ClientTls | None = None, has_own_connection: bool = False
    ) -> None:
        _check_address(address)
        self.address = address
        self._tls = tls
        self._metadata = _metadata(token)
        self._options = (*OPTIONS, *_OWN_CONNECTION) if has_own_connection else OPTIONS
        self._methods = _Methods(_channel(address, tls, self._options))
        self._left: list[grpc.aio.Channel] = []
        """Channels that go on only for the calls that began on them."""
        self._endless: dict[Any, bool] = {}
        """Streams without an end of their own that are open; True for those that were ended to begin anew."""
        self._has_answered = False
        self._is_closed = False

    @property
    def channel(self) -> grpc.aio.Channel:
        """What stubs are built on; they stay good when `change` is called."""
        return cast("grpc.aio.Channel", self._methods)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        self._is_closed = True
        for channel in (*self._left, self._methods.channel):
            await channel.close()

    async def change(self, *, token: str, tls: ClientTls | None) -> None:
        """Show something else from now on. Calls in flight end as they began; streams without an end begin anew."""
        self._metadata, self._tls = _metadata(token), tls
        earlier, self._left = self._left, [self._methods.channel]
        self._methods.channel = _channel(self.address, tls, self._options)
        for call in self._endless:
            self._endless[call] = True
            call.cancel()
        for channel in earlier:  # changes are hours apart: what began on these has ended
            await channel.close()

    async def call(self, method: Callable[..., Awaitable[Reply]], request: Any, *, timeout_s: float) -> Reply:
        """One request (or an iterator of them) and one reply, with a deadline.

        Raises: what the iterator raised, besides the errors of the service.
        """
        troubles: list[Exception] = []
        try:
            reply = await method(_heard(request, troubles), timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as problem:
            raise await self._explained(problem) from None
        except asyncio.CancelledError:
            if self._is_closed or _is_being_cancelled():
                raise
            # gRPC cancels a call by itself when it could not send all of it, or the iterator raised. Passed on, that
            # would end the task as if somebody had wanted it to, and nobody would hear of it.
            if troubles:
                raise troubles[0] from None
            raise Unavailable(f"the call to {self.address} broke off before all of it was sent") from None
        self._has_answered = True
        return reply

    async def stream(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float | None
    ) -> AsyncGenerator[Any, None]:
        """One request and a stream of replies; None for `timeout_s` only where the stream has no natural end."""
        call = method(request, timeout=timeout_s, metadata=self._metadata)
        if timeout_s is None:
            self._endless[call] = False
        try:
            async for reply in call:
                self._has_answered = True
                yield reply
        except grpc.aio.AioRpcError as problem:
            raise await self._explained(problem) from None
        except asyncio.CancelledError:
            if self._endless.get(call):
                raise Unavailable(f"the connection to {self.address} was made anew") from None
            if self._is_closed or _is_being_cancelled():
                raise
            raise Unavailable(f"the stream from {self.address} broke off") from None
        finally:
            self._endless.pop(call, None)
            call.cancel()

    async def _explained(self, problem: grpc.aio.AioRpcError) -> AstraFlowError:
        error = from_status(problem, peer=self.address)
        if problem.code() is not grpc.StatusCode.UNAVAILABLE or is_from_service(problem):
            return error
        if self._tls is None and self._has_answered:
            return error
        tls = self._tls
        if tls is None:
            return await tls_trouble(self.address, ca=None) or error
        return await tls_trouble(self.address, ca=tls.ca, certificate=tls.certificate, key=tls.key) or error


def _is_being_cancelled() -> bool:
    """Whether somebody cancels the task that this runs in."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _heard(request: Any, troubles: list[Exception]) -> Any:
    """The request; an iterator of them leaves what it raises in `troubles`, which gRPC would not tell."""
    if isinstance(request, AsyncIterator):
        return _heard_later(request, troubles)
    return _heard_now(request, troubles) if isinstance(request, Iterator) else request


async def _heard_later(requests: AsyncIterator[Any], troubles: list[Exception]) -> AsyncGenerator[Any, None]:
    try:
        async for request in requests:
            yield request
    except Exception as problem:
        troubles.append(problem)
        raise


def _heard_now(requests: Iterator[Any], troubles: list[Exception]) -> Iterator[Any]:
    try:
        yield from requests
    except Exception as problem:
        troubles.append(problem)
        raise


class _Methods:
    """The part of a channel that stubs use, over whatever channel is the present one."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    def unary_unary(self, *given: Any, **options: Any) -> Callable[..., Any]:
        """One request, one reply."""
        return self._method("unary_unary", given, options)

    def unary_stream(self, *given: Any, **options: Any) -> Callable[..., Any]:
        """One request, a stream of replies."""
        return self._method("unary_stream", given, options)

    def stream_unary(self, *given: Any, **options: Any) -> Callable[..., Any]:
        """A stream of requests, one reply."""
        return self._method("stream_unary", given, options)

    def stream_stream(self, *given: Any, **options: Any) -> Callable[..., Any]:
        """Streams both ways."""
        return self._method("stream_stream", given, options)

    def _method(self, kind: str, given: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
        made: tuple[grpc.aio.Channel, Callable[..., Any]] | None = None

        def call(*request: Any, **how: Any) -> Any:
            nonlocal made
            if made is None or made[0] is not self.channel:
                made = (self.channel, getattr(self.channel, kind)(*given, **options))
            return made[1](*request, **how)

        return call


def dial(address: str, *, token: str, tls: ClientTls | None = None, has_own_connection: bool = False) -> Link:
    """A link to the service at `HOST:PORT`. Raises: InvalidInput for an address or token that cannot work.

    has_own_connection: links to the same address share one connection, but for those dialled with this. Over a long way
    one connection does not fill the link.
    """
    return Link(address, token=token, tls=tls, has_own_connection=has_own_connection)


def _check_address(address: str) -> None:
    """gRPC would try a malformed address for ever, and takes port 65537 for port 1."""
    host, colon, port = address.rpartition(":")
    if not colon:
        raise InvalidInput(f"address {address!r} has no port: write HOST:PORT")
    if not (host and "/" not in host and port.isdecimal() and 0 < int(port) < 2**16):
        raise InvalidInput(f"address {address!r} is not of the form HOST:PORT, as in 127.0.0.1:7000")


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    if not (token.isascii() and token.isprintable()):
        raise InvalidInput("the run token has characters that cannot be sent: take the one that the run printed")
    return (("authorization", f"Bearer {token}"), (PROTOCOL_KEY, PROTOCOL))


def _channel(address: str, tls: ClientTls | None, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.certificate
    )
    return grpc.aio.secure_channel(address, credentials, options=options)
