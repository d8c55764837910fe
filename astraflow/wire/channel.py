"""Client channel to a service: options, credentials, deadlines, and errors converted back to the server's."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.wire.errors import from_status, is_from_service
from astraflow.wire.tls_diagnosis import diagnose_tls
from astraflow.wire.tls_files import read_ca_certificates, read_key_pair

if TYPE_CHECKING:
    from astraflow.access.authority import Authority

PROTOCOL = "7"
"""Version of the protocol. A peer with another version is refused explicitly instead of misunderstood."""

PROTOCOL_KEY = "astraflow-protocol"

MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest reply, and largest request on the data plane."""

PIECE_BYTES = 8 * 2**20
"""Largest message of a request on the data plane: a larger one is sent in pieces of this size, several messages of one
call, whose bytes the service joins; a shorter one is the last. A service never holds more of a request that it does not
want to receive now."""

OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # time limit of one attempt, over long links or on a busy machine
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", 64 * 2**20),  # high-latency links need large windows
)

_OWN_CONNECTION = (
    ("grpc.use_local_subchannel_pool", 1),
    (
        "grpc.keepalive_permit_without_calls",
        1,
    ),  # middleboxes drop idle connections
)

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """CA to verify the server with and, for mutual TLS, the client's own certificate and key. PEM."""

    ca: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(cls, ca: Path, certificate: Path | None = None, key: Path | None = None) -> Self:
        """Reads the files. Raises: InvalidInput naming the invalid one."""
        if (certificate is None) != (key is None):
            raise InvalidInput(
                "cannot read client TLS files: only one of certificate and key is set; give both",
                code="tls.invalid_file",
            )
        private, chain = read_key_pair(certificate, key) if certificate and key else (None, None)
        return cls(ca=read_ca_certificates(ca), certificate=chain, key=private)


def authority_client_tls(authority: "Authority") -> ClientTls:
    """Returns mutual TLS for a process that has the run's authority and the run token."""
    own = authority.for_run_token()
    return ClientTls(ca=authority.pem, certificate=own.certificate, key=own.key)


def folder_client_tls(folder: Path) -> ClientTls:
    """Returns mutual TLS from the authority in a folder. Raises: InvalidInput for a folder without one."""
    from astraflow.access.authority import Authority  # X.509 takes 7 MB, loaded only with TLS

    return authority_client_tls(Authority.load(folder))


class ServiceChannel:
    """Channel to one service with its token; calls through it raise contract errors.

    Use it with `async with`. It connects lazily and reconnects by itself.
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
        self._replaced: list[grpc.aio.Channel] = []
        """Replaced channels, open only for the calls that began on them."""
        self._endless: dict[Any, bool] = {}
        """Open streams without a natural end; True for streams that were cancelled to restart."""
        self._has_answered = False
        self._is_closed = False

    @property
    def channel(self) -> grpc.aio.Channel:
        """Channel for stubs, which stay valid when the credentials change."""
        return cast("grpc.aio.Channel", self._methods)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel and cancels calls in flight."""
        self._is_closed = True
        for channel in (*self._replaced, self._methods.channel):
            await channel.close()

    async def update_credentials(self, *, token: str, tls: ClientTls | None) -> None:
        """Uses these credentials for new calls. Calls in flight keep the old credentials; streams without an end
        restart."""
        self._metadata, self._tls = _metadata(token), tls
        earlier, self._replaced = self._replaced, [self._methods.channel]
        self._methods.channel = _channel(self.address, tls, self._options)
        for call in self._endless:
            self._endless[call] = True
            call.cancel()
        for channel in earlier:  # changes are hours apart: all calls on these have ended
            await channel.close()

    async def call(self, method: Callable[..., Awaitable[Reply]], request: Any, *, timeout_s: float) -> Reply:
        """Makes a call with one request (or an iterator of requests) and one reply, with a deadline.

        Raises: the errors of the service, and any that the iterator raised.
        """
        problems: list[Exception] = []
        try:
            reply = await method(_captured(request, problems), timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as problem:
            raise await self._explained(problem) from None
        except asyncio.CancelledError:
            if self._is_closed or _is_being_cancelled():
                raise
            # gRPC cancels a call by itself when it could not send all requests or the iterator raised. Passed on, the
            # cancellation would end the task silently.
            if problems:
                raise problems[0] from None
            raise Unavailable(
                f"cannot complete the call to {self.address!r}: it ended before all requests were sent; retry",
                code="channel.interrupted",
            ) from None
        self._has_answered = True
        return reply

    async def stream(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float | None
    ) -> AsyncGenerator[Any, None]:
        """Yields the replies to one request. `timeout_s` is None only for streams without a natural end.

        A reply is not retained while the next one is awaited: reports of thousands of nodes are megabytes.
        """
        call = method(request, timeout=timeout_s, metadata=self._metadata)
        if timeout_s is None:
            self._endless[call] = False
        try:
            while (replies := [await call.read()])[0] is not grpc.aio.EOF:
                self._has_answered = True
                yield replies.pop()
        except grpc.aio.AioRpcError as problem:
            raise await self._explained(problem) from None
        except asyncio.CancelledError:
            if self._endless.get(call):
                raise Unavailable(
                    f"cannot continue the stream from {self.address!r}: its credentials were renewed; retry",
                    code="channel.renewed",
                ) from None
            if self._is_closed or _is_being_cancelled():
                raise
            raise Unavailable(
                f"cannot continue the stream from {self.address!r}: the connection ended; retry",
                code="channel.interrupted",
            ) from None
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
            return await diagnose_tls(self.address, ca=None) or error
        return await diagnose_tls(self.address, ca=tls.ca, certificate=tls.certificate, key=tls.key) or error


def _is_being_cancelled() -> bool:
    """Returns whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _captured(request: Any, problems: list[Exception]) -> Any:
    """Returns the request; an iterator's exceptions are also appended to `problems`, because gRPC hides them."""
    if isinstance(request, AsyncIterator):
        return _captured_async(request, problems)
    return _captured_sync(request, problems) if isinstance(request, Iterator) else request


async def _captured_async(requests: AsyncIterator[Any], problems: list[Exception]) -> AsyncGenerator[Any, None]:
    try:
        async for request in requests:
            yield request
    except Exception as problem:  # kept for the caller, and raised again
        problems.append(problem)
        raise


def _captured_sync(requests: Iterator[Any], problems: list[Exception]) -> Iterator[Any]:
    try:
        yield from requests
    except Exception as problem:  # kept for the caller, and raised again
        problems.append(problem)
        raise


class _Methods:
    """Channel interface that stubs use, delegating to the current channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    def unary_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns a callable for one request and one reply."""
        return self._method("unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns a callable for one request and a stream of replies."""
        return self._method("unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns a callable for a stream of requests and one reply."""
        return self._method("stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns a callable for streams in both directions."""
        return self._method("stream_stream", arguments, options)

    def _method(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
        current: tuple[grpc.aio.Channel, Callable[..., Any]] | None = None

        def call(*request: Any, **call_options: Any) -> Any:
            nonlocal current
            if current is None or current[0] is not self.channel:
                current = (self.channel, getattr(self.channel, kind)(*arguments, **options))
            return current[1](*request, **call_options)

        return call


def unary_in_pieces(
    channel: grpc.aio.Channel, path: str, *, response_deserializer: Callable[[bytes], Reply]
) -> Callable[..., Awaitable[Reply]]:
    """Returns a callable for one request as bytes, of any size, and one reply."""
    call_whole: Callable[..., Any] = channel.unary_unary(path, response_deserializer=response_deserializer)
    call_in_pieces: Callable[..., Any] = channel.stream_unary(path, response_deserializer=response_deserializer)

    def call(request: bytes, **options: Any) -> Awaitable[Reply]:
        if len(request) <= PIECE_BYTES:
            return cast("Awaitable[Reply]", call_whole(request, **options))
        pieces = (request[start : start + PIECE_BYTES] for start in range(0, len(request), PIECE_BYTES))
        return cast("Awaitable[Reply]", call_in_pieces(pieces, **options))

    return call


def dial(address: str, *, token: str, tls: ClientTls | None = None, has_own_connection: bool = False) -> ServiceChannel:
    """Returns a channel to the service at `HOST:PORT`. Raises: InvalidInput for an invalid address or token.

    has_own_connection: channels to the same address share one connection unless this is set. On a long-distance link
    one connection does not use the full bandwidth.
    """
    return ServiceChannel(address, token=token, tls=tls, has_own_connection=has_own_connection)


def _check_address(address: str) -> None:
    """Rejects malformed addresses, which gRPC would retry without end: it takes port 65537 for port 1."""
    host, colon, port = address.rpartition(":")
    if not colon:
        raise InvalidInput(
            f"cannot connect to {address!r}: the address has no port; use HOST:PORT", code="channel.invalid_address"
        )
    if not (host and "/" not in host and port.isdecimal() and 0 < int(port) < 2**16):
        raise InvalidInput(
            f"cannot connect to {address!r}: not a valid address; use HOST:PORT, as in 127.0.0.1:7000",
            code="channel.invalid_address",
        )


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    if not (token.isascii() and token.isprintable()):
        raise InvalidInput(
            "cannot send the run token: it has invalid characters; use the token that the run printed",
            code="token.malformed",
        )
    return (("authorization", f"Bearer {token}"), (PROTOCOL_KEY, PROTOCOL))


def _channel(address: str, tls: ClientTls | None, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.certificate
    )
    return grpc.aio.secure_channel(address, credentials, options=options)
