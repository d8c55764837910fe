"""Serving a plane: bind, authenticate, map errors, drain."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from astraflow.access.authority import Authority
from astraflow.access.callers import Caller, set_caller
from astraflow.access.keeper import Keeper
from astraflow.access.limits import Limits, host_of
from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, ProtocolMismatch
from astraflow.runtime.clock import Clock
from astraflow.runtime.hosts import host_port, is_loopback
from astraflow.runtime.logs import get_logger
from astraflow.wire.channel import MAX_MESSAGE_BYTES, PROTOCOL, PROTOCOL_KEY
from astraflow.wire.errors import to_status
from astraflow.wire.frames import RAW_REPLIES, RAW_REQUESTS
from astraflow.wire.listeners import DATA, ListenerLimits, for_strangers
from astraflow.wire.pem import authorities, pair
from astraflow.wire.requests import check, check_size
from astraflow.wire.routes import check_route

log = get_logger()

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # else a second server on the same port would silently share it
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Certificate chain and key, PEM; with `client_ca`, clients must show a certificate too (mutual TLS)."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None

    @classmethod
    def read(cls, certificate: Path, key: Path, client_ca: Path | None = None) -> Self:
        """From files. Raises: InvalidInput naming the one that does not do."""
        private, chain = pair(certificate, key)
        return cls(certificate=chain, key=private, client_ca=authorities(client_ca) if client_ca else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where a service listens and whom it lets in. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(repr=False)
    """The run token: what opens everything, and what credentials are sealed with."""
    tls: ServerTls | None = None
    authority: Authority | None = None
    """The run's: what it revoked is not let in. It also issues certificates, where the service does that."""
    enroll_port: int = 0
    """With mutual TLS, where those who have no certificate yet get one."""
    drain_s: float = 2.0
    """On stopping, calls in flight get this long to end."""
    recheck_s: float = 2.0
    """A stream on which nothing is sent ends this long after its caller was revoked, or has expired."""

    @property
    def wants_certificates(self) -> bool:
        """Whether callers must show a certificate of the run's authority, made for them."""
        return self.authority is not None and self.tls is not None and self.tls.client_ca == self.authority.pem


def authority_tls(
    authority: Authority, host: str, names: tuple[str, ...] = (), *, clock: Clock | None = None
) -> ServerTls:
    """Mutual TLS with the run's own certificates, for a service that is known by its host and these names."""
    own = authority.for_service(host, names, clock=clock)
    return ServerTls(certificate=own.certificate, key=own.key, client_ca=authority.pem)


@asynccontextmanager
async def serving(
    listen: Listen,
    *add: Callable[[grpc.aio.Server], None],
    keeper: Keeper | None = None,
    limits: ListenerLimits = DATA,
) -> AsyncIterator[str]:
    """Serve what the `add` functions register (as in `lambda server: add_XServicer_to_server(servicer, server)`).

    keeper: who says who calls, where the service itself needs it; `listen`'s own by default. limits: of the listener.
    Yields the address `HOST:PORT` that was bound; leaving the block drains and stops.
    Raises: InvalidInput when the port is taken, or for an address beyond loopback without a token or without TLS.
    """
    check_safe(listen)
    if not is_loopback(listen.host) and not (listen.tls and listen.tls.client_ca):
        limits = for_strangers(limits)
    server = grpc.aio.server(
        interceptors=(_Door(keeper or keeper_of(listen), recheck_s=listen.recheck_s),),
        options=(*_OPTIONS, *limits.options()),
    )
    for register in add:
        register(server)
    port = _bind(server, listen)
    await server.start()
    try:
        yield host_port(listen.host, port)
    finally:
        await server.stop(listen.drain_s)


def keeper_of(listen: Listen, *, clock: Clock | None = None) -> Keeper:
    """Who says who calls a service that listens so."""
    return Keeper(listen.token, authority=listen.authority, wants_certificate=listen.wants_certificates, clock=clock)


def check_safe(listen: Listen) -> None:
    """Raises: InvalidInput for what would let strangers in."""
    if is_loopback(listen.host):
        return
    if not listen.token:
        raise InvalidInput(f"refusing to listen on {listen.host} without a token: anyone who reaches it could use it")
    if listen.tls is None:
        raise InvalidInput(
            f"refusing to listen on {listen.host} without TLS: token and data would cross the network in the clear; "
            "give --authority (the run directory has one), or a certificate with --tls-certificate and --tls-key"
        )


@asynccontextmanager
async def serving_openly(
    host: str, port: int, tls: ServerTls | None, *add: Callable[[grpc.aio.Server], None], limits: ListenerLimits
) -> AsyncIterator[str]:
    """Serve peers that speak a protocol of somebody else's and know no run token; TLS alone may keep them out.

    Yields the address that was bound. Errors become statuses as everywhere.
    Raises: InvalidInput when the port is taken.
    """
    listen = Listen(host=host, port=port, token="", tls=tls)
    server = grpc.aio.server(interceptors=(_Door(None),), options=(*_OPTIONS, *limits.options()))
    for register in add:
        register(server)
    bound = _bind(server, listen)
    await server.start()
    try:
        yield host_port(host, bound)
    finally:
        await server.stop(listen.drain_s)


def _bind(server: grpc.aio.Server, listen: Listen) -> int:
    address = host_port(listen.host, listen.port)
    if not 0 <= listen.port < 2**16:  # gRPC would take 65537 for 1
        raise InvalidInput(f"cannot listen on {address}: ports go from 1 to 65535, and 0 takes a free one")
    try:
        if listen.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, _credentials(listen.tls))
    except RuntimeError:
        raise InvalidInput(
            f"cannot listen on {address}: the port is in use or the address is not this machine's; "
            "stop what holds it or choose another port"
        ) from None


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)],
        root_certificates=tls.client_ca,
        require_client_auth=tls.client_ca is not None,
    )


class _Door(grpc.aio.ServerInterceptor):
    """The one place where it is decided who calls, whether they may, and about what; turns errors into statuses.

    protocol, token ──► message is read ──► certificate (`Keeper`) ──► role and rate (`routes`) ──► size, parse, limits
             (`requests`) ──► own node or policy ──► handler
    """

    def __init__(self, keeper: Keeper | None, *, recheck_s: float = 2.0) -> None:
        """keeper: None lets everybody in, whatever protocol they speak. recheck_s: see `Listen`."""
        self._keeper = keeper
        self._limits = Limits(keeper.clock) if keeper is not None else None
        self._recheck_s = recheck_s

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        call = _Call(
            keeper=self._keeper,
            limits=self._limits,
            recheck_s=self._recheck_s,
            metadata=dict(details.invocation_metadata or ()),
            method=details.method,
            parse=None if details.method in RAW_REQUESTS else handler.request_deserializer,
            is_stream=handler.request_streaming,
        )
        if call.is_refused_unread():
            return grpc.stream_stream_rpc_method_handler(_refusing(call))  # a stream is not read until it is asked for
        wrap = _wrap_stream if handler.response_streaming else _wrap_unary
        name = {
            (False, False): "unary_unary",
            (False, True): "unary_stream",
            (True, False): "stream_unary",
            (True, True): "stream_stream",
        }[(handler.request_streaming, handler.response_streaming)]
        make = getattr(grpc, f"{name}_rpc_method_handler")
        return make(
            wrap(getattr(handler, name), call),
            request_deserializer=call.parse if handler.request_streaming else None,
            response_serializer=None if details.method in RAW_REPLIES else handler.response_serializer,
        )


Parse: TypeAlias = "Callable[[bytes], Any] | None"
"""Makes a request of bytes. gRPC would do it before the handler is asked, and answer a broken one with INTERNAL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call at the door."""

    keeper: Keeper | None
    limits: Limits | None
    """Of the door, where there is a keeper."""
    recheck_s: float
    metadata: dict[str, Any] = field(repr=False)
    method: str
    parse: Parse
    is_stream: bool
    """Whether requests come as a stream: gRPC parses those."""

    def admitted(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """The request, for a caller who may make it. Raises: what the client is to be told."""
        if self.keeper is None or self.limits is None:
            return request if self.is_stream else _parsed(request, self.parse, self.method)
        peer = host_of(context.peer())
        caller = self._let_in(self.keeper, self.limits, peer, context)
        route = check_route(caller, self.method)
        if route.rate is not None:
            self.limits.check_rate(peer, self.method, route.rate)
        scope = route.scope
        set_caller(caller)
        if self.is_stream:
            return self._watched(request, context, lambda one: scope(caller, one) if scope else None)
        parsed = _parsed(request, self.parse, self.method)
        if scope is not None:
            scope(caller, parsed)
        return parsed

    def is_refused_unread(self) -> bool:
        """Whether protocol or token are wrong: then the message is not read, so that strangers fill no memory."""
        if self.keeper is None:
            return False
        try:
            self._check_protocol()
            self.keeper.check_token(self._token)
        except (ProtocolMismatch, NotAuthenticated):
            return True
        return False

    def refuse(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Of a call that is refused unread. Raises: what the client is to be told."""
        self._check_protocol()
        if self.keeper is not None and self.limits is not None:
            self._let_in(self.keeper, self.limits, host_of(context.peer()), context)

    def _check_protocol(self) -> None:
        given = self.metadata.get(PROTOCOL_KEY)
        if given != PROTOCOL:
            raise ProtocolMismatch(
                f"this service speaks protocol {PROTOCOL}, the caller {given or 'none'}: "
                "install the same release of astraflow on both sides"
            )

    def still(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Of a stream that goes on. Raises: NotAuthenticated when the caller was revoked, or has expired, meanwhile."""
        if self.keeper is not None:
            self._caller(self.keeper, context)

    def _let_in(self, keeper: Keeper, limits: Limits, peer: str, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        """Raises: NotAuthenticated; RateLimited for a peer of which too many were not."""
        limits.check_failures(peer, self._token)
        try:
            caller = self._caller(keeper, context)
        except NotAuthenticated:
            limits.failed(peer, self._token)
            raise
        limits.succeeded(peer, self._token)
        return caller

    def _caller(self, keeper: Keeper, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        return keeper.caller(self._token, _certificate(context) if keeper.wants_certificate else None)

    @property
    def _token(self) -> str:
        return str(self.metadata.get("authorization", "")).removeprefix("Bearer ")

    async def _watched(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any], scope: Callable[[Any], None]
    ) -> AsyncIterator[Any]:
        async for request in requests:
            self.still(context)
            check(request)
            scope(request)
            yield request


def _certificate(context: grpc.aio.ServicerContext[Any, Any]) -> bytes | None:
    """What the caller showed, PEM."""
    found = list(context.auth_context().get("x509_pem_cert", ()))
    return bytes(found[0]) if found else None


class _Watch:
    """Looks again, now and then, at whoever has a stream open, and ends it when they are not let in any more. A `with`.

    A stream on which something is sent is looked at with every piece of it; this is for those on which nothing is. A
    timer costs less than a task of its own, and streams may be short.
    """

    def __init__(self, call: _Call, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._call = call
        self._context = context
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self.problem: AstraFlowError | None = None
        """Why the stream's task was cancelled; None while it was not, or by others."""

    def __enter__(self) -> Self:
        if self._call.keeper is not None:
            self._look_later()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._call.recheck_s, self._look)

    def _look(self) -> None:
        try:
            self._call.still(self._context)
        except AstraFlowError as problem:
            self.problem = problem
            if self._task is not None:
                self._task.cancel()
        else:
            self._look_later()


def _refusing(call: _Call) -> Any:
    async def refused(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            call.refuse(context)
            raise NotAuthenticated("the credential has just become good: call again")  # it was not, a moment ago
        except Exception as problem:
            await _abort(context, problem, call.method)

    return refused


def _wrap_unary(behaviour: Callable[..., Awaitable[Any]], call: _Call) -> Any:
    async def wrapped(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            if not call.is_stream:
                return await behaviour(call.admitted(request, context), context)
            with _Watch(call, context) as watch:
                try:
                    return await behaviour(call.admitted(request, context), context)
                except asyncio.CancelledError:
                    _raise_for(watch)
                    raise
        except Exception as problem:
            await _abort(context, problem, call.method)

    return wrapped


def _wrap_stream(behaviour: Callable[..., AsyncIterator[Any]], call: _Call) -> Any:
    async def wrapped(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            with _Watch(call, context) as watch:
                try:
                    async for reply in behaviour(call.admitted(request, context), context):
                        call.still(context)
                        yield reply
                except asyncio.CancelledError:
                    _raise_for(watch)
                    raise
        except Exception as problem:
            await _abort(context, problem, call.method)

    return wrapped


def _raise_for(watch: _Watch) -> None:
    """Of a task that the watch has cancelled. Raises: why."""
    task = asyncio.current_task()
    if watch.problem is not None and task is not None:
        task.uncancel()
        raise watch.problem from None


def _parsed(request: Any, parse: Parse, method: str) -> Any:
    """Raises: InvalidInput for bytes that are no such request, are too many, or hold what no request may."""
    check_size(method, len(request))
    if parse is None:
        return request
    try:
        parsed = parse(request)
    except DecodeError:
        raise InvalidInput(f"the {len(request)} bytes given to {method} are no request of it") from None
    check(parsed)
    return parsed


async def _abort(context: grpc.aio.ServicerContext[Any, Any], problem: Exception, method: str) -> None:
    if isinstance(problem, grpc.aio.AbortError):
        raise problem
    code, message, trailer = to_status(problem)
    if code is grpc.StatusCode.INTERNAL:
        log.error("handler_failed", method=method, exc_info=problem)
    _forget_frames(problem)
    await context.abort(code, message, trailer)


def _forget_frames(problem: BaseException) -> None:
    """Let go of what the handler had in hand, whole models perhaps: gRPC keeps an error after its call has ended."""
    left: list[BaseException | None] = [problem]
    seen: set[int] = set()
    while left:
        found = left.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            left += [found.__cause__, found.__context__]
