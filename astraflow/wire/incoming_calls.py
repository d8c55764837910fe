"""Incoming calls of a plane: authentication, roles, rates, limits of messages, and errors as statuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from astraflow.access.authenticator import Authenticator
from astraflow.access.callers import Caller, set_caller
from astraflow.access.rate_limits import PeerLimits, peer_host
from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, ProtocolMismatch
from astraflow.runtime.logs import get_logger
from astraflow.wire.channel import PROTOCOL, PROTOCOL_KEY
from astraflow.wire.codecs.frames import RAW_REPLIES, RAW_REQUESTS
from astraflow.wire.errors import to_status
from astraflow.wire.incoming_bytes import IncomingBytes
from astraflow.wire.listener_limits import ListenerLimits
from astraflow.wire.open_calls import OpenCalls
from astraflow.wire.request_limits import check
from astraflow.wire.routes import check_route

log = get_logger()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates, authorizes and limits every call, and turns errors into statuses.

    protocol, token ──► certificate (`Authenticator`) ──► role and rate (`routes`), open calls (`open_calls`)
             ──► read request (`incoming_bytes`) ──► size, parse, limits (`request_limits`) ──► own node or policy
             ──► handler

    gRPC calls every handler before it reads the request, because all are registered as handlers of streams: a unary
    call is a stream of one message.
    """

    def __init__(self, authenticator: Authenticator | None, *, limits: ListenerLimits, recheck_s: float = 2.0) -> None:
        """authenticator: None admits all callers of any protocol. limits: of the listener. recheck_s: see
        `ListenOptions`."""
        self._authenticator = authenticator
        self._incoming = IncomingBytes(limits)
        self._open_calls = OpenCalls(limits)
        self._limits = PeerLimits(authenticator.clock) if authenticator is not None else None
        self._recheck_s = recheck_s

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        call = _Call(
            authenticator=self._authenticator,
            limits=self._limits,
            incoming=self._incoming,
            open_calls=self._open_calls,
            recheck_s=self._recheck_s,
            metadata=dict(details.invocation_metadata or ()),
            method=details.method,
            parse=None if details.method in RAW_REQUESTS else handler.request_deserializer,
            is_stream=handler.request_streaming,
        )
        if call.is_refused_unread():
            return grpc.stream_stream_rpc_method_handler(_refusing(call))  # the handler reads a stream only on demand
        request, reply = (
            "stream" if is_stream else "unary" for is_stream in (handler.request_streaming, handler.response_streaming)
        )
        wrap = _wrap_stream if handler.response_streaming else _wrap_unary
        make = getattr(grpc, f"stream_{reply}_rpc_method_handler")
        return make(
            wrap(getattr(handler, f"{request}_{reply}"), call),
            request_deserializer=call.parse if handler.request_streaming else None,
            response_serializer=None if details.method in RAW_REPLIES else handler.response_serializer,
        )


Parse: TypeAlias = "Callable[[bytes], Any] | None"
"""Parses a request from bytes. gRPC would parse before the handler runs and answer a malformed one with INTERNAL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One incoming call, with the data to authorize it."""

    authenticator: Authenticator | None
    limits: PeerLimits | None
    """Limits per peer; None without an authenticator."""
    incoming: IncomingBytes
    open_calls: OpenCalls
    recheck_s: float
    metadata: dict[str, Any] = field(repr=False)
    method: str
    parse: Parse
    is_stream: bool
    """True if requests arrive as a stream, which gRPC parses."""

    @asynccontextmanager
    async def authorized(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        """Yields the request, or the stream of them, after all checks passed. Raises: the error for the client."""
        connection = context.peer()
        if self.authenticator is None or self.limits is None:
            async with self._request(requests, context, None, peer=connection) as request:
                yield request
            return
        peer = peer_host(connection)
        caller = self._authenticate(self.authenticator, self.limits, peer, context)
        route = check_route(caller, self.method)
        if route.rate is not None:
            self.limits.check_rate(peer, self.method, route.rate)
        scope = route.scope
        set_caller(caller)
        check_scope = (lambda item: scope(caller, item)) if scope is not None else None
        with self.open_calls.counting(caller, connection):
            async with self._request(requests, context, check_scope, peer=caller.holder or connection) as request:
                yield request

    @asynccontextmanager
    async def _request(
        self,
        requests: Any,
        context: grpc.aio.ServicerContext[Any, Any],
        check_scope: Callable[[Any], None] | None,
        *,
        peer: str,
    ) -> AsyncIterator[Any]:
        """Yields the parsed request, or the stream of them. peer: whose memory it counts as."""
        if self.is_stream:
            yield self._watched(requests, context, check_scope or (lambda item: None))
            return
        async with self.incoming.request(context, self.method, peer=peer) as raw:
            parsed = _parsed(raw, self.parse, self.method)
            if check_scope is not None:
                check_scope(parsed)
            yield parsed

    def is_refused_unread(self) -> bool:
        """Returns whether protocol or token are wrong. Then the message is not read, so that unauthenticated peers use
        no memory."""
        if self.authenticator is None:
            return False
        try:
            self._check_protocol()
            self.authenticator.check_token(self._token)
        except (ProtocolMismatch, NotAuthenticated):
            return True
        return False

    def refuse(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Refuses a call without reading it. Raises: the error for the client."""
        self._check_protocol()
        if self.authenticator is not None and self.limits is not None:
            self._authenticate(self.authenticator, self.limits, peer_host(context.peer()), context)

    def _check_protocol(self) -> None:
        protocol = self.metadata.get(PROTOCOL_KEY) or "none"
        if protocol != PROTOCOL:
            raise ProtocolMismatch(
                f"cannot accept the call: the service uses protocol {PROTOCOL!r}, the caller {protocol!r}; "
                "install the same release of astraflow on both sides",
                code="protocol.mismatch",
            )

    def check_still_valid(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Checks the caller of an open stream. Raises: NotAuthenticated when it was revoked or has expired."""
        if self.authenticator is not None:
            self._caller(self.authenticator, context)

    def _authenticate(
        self, authenticator: Authenticator, limits: PeerLimits, peer: str, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Caller:
        """Returns the caller. Raises: NotAuthenticated; RateLimited for a peer with too many failed attempts."""
        limits.check_failures(peer, self._token)
        try:
            caller = self._caller(authenticator, context)
        except NotAuthenticated:
            limits.record_failure(peer, self._token)
            raise
        limits.record_success(peer, self._token)
        return caller

    def _caller(self, authenticator: Authenticator, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        return authenticator.caller(self._token, _certificate(context) if authenticator.requires_certificate else None)

    @property
    def _token(self) -> str:
        return str(self.metadata.get("authorization", "")).removeprefix("Bearer ")

    async def _watched(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any], scope: Callable[[Any], None]
    ) -> AsyncIterator[Any]:
        async for request in self.incoming.pieces(requests, self.method):
            self.check_still_valid(context)
            check(request)
            scope(request)
            yield request


def _certificate(context: grpc.aio.ServicerContext[Any, Any]) -> bytes | None:
    """Returns the caller's certificate, PEM."""
    certificates = list(context.auth_context().get("x509_pem_cert", ()))
    return bytes(certificates[0]) if certificates else None


class _CredentialWatch:
    """Rechecks the caller of an open stream periodically and ends the stream once it is no longer admitted. A `with`.

    Active streams are checked with every message; this covers idle streams. A timer costs less than a task, and streams
    may be short.
    """

    def __init__(self, call: _Call, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._call = call
        self._context = context
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self.problem: AstraFlowError | None = None
        """Reason for which this watch cancelled the stream's task; None otherwise."""

    def __enter__(self) -> Self:
        if self._call.authenticator is not None:
            self._schedule_check()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._call.recheck_s, self._check_credential)

    def _check_credential(self) -> None:
        try:
            self._call.check_still_valid(self._context)
        except AstraFlowError as problem:
            self.problem = problem
            if self._task is not None:
                self._task.cancel()
        else:
            self._schedule_check()


def _refusing(call: _Call) -> Any:
    async def refused(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            call.refuse(context)
            # the credential was invalid when the call arrived
            raise NotAuthenticated(
                "cannot complete the call: the credential became valid only after the call arrived; call again",
                code="credential.retry",
            )
        except Exception as problem:  # each error becomes a status of the call
            await _abort(context, problem, call.method)

    return refused


def _wrap_unary(behaviour: Callable[..., Awaitable[Any]], call: _Call) -> Any:
    async def wrapped(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            if not call.is_stream:
                async with call.authorized(requests, context) as request:
                    return await behaviour(request, context)
            with _CredentialWatch(call, context) as watch:
                try:
                    async with call.authorized(requests, context) as request:
                        return await behaviour(request, context)
                except asyncio.CancelledError:
                    _raise_for(watch)
                    raise
        except Exception as problem:  # each error becomes a status of the call
            await _abort(context, problem, call.method)

    return wrapped


def _wrap_stream(behaviour: Callable[..., AsyncIterator[Any]], call: _Call) -> Any:
    async def wrapped(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            with _CredentialWatch(call, context) as watch:
                try:
                    async with call.authorized(requests, context) as request:
                        async for reply in behaviour(request, context):
                            call.check_still_valid(context)
                            yield reply
                except asyncio.CancelledError:
                    _raise_for(watch)
                    raise
        except Exception as problem:  # each error becomes a status of the call
            await _abort(context, problem, call.method)

    return wrapped


def _raise_for(watch: _CredentialWatch) -> None:
    """Converts a cancellation by the watch. Raises: the watch's problem."""
    task = asyncio.current_task()
    if watch.problem is not None and task is not None:
        task.uncancel()
        raise watch.problem from None


def _parsed(request: Any, parse: Parse, method: str) -> Any:
    """Returns the parsed request. Raises: InvalidInput if it is malformed, too large, or breaks a field limit."""
    if parse is None:
        return request
    try:
        parsed = parse(request)
    except DecodeError:
        raise InvalidInput(
            f"cannot parse {len(request)} bytes as a request to {method!r}: not a valid message; "
            "install the same release on both sides",
            code="message.malformed",
        ) from None
    check(parsed)
    return parsed


async def _abort(context: grpc.aio.ServicerContext[Any, Any], problem: Exception, method: str) -> None:
    if isinstance(problem, grpc.aio.AbortError):
        raise problem
    code, message, trailer = to_status(problem)
    if code is grpc.StatusCode.INTERNAL:
        log.error("handler_failed", method=method, exc_info=problem)
    _drop_tracebacks(problem)
    await context.abort(code, message, trailer)


def _drop_tracebacks(problem: BaseException) -> None:
    """Drops tracebacks, which hold the handler's objects, perhaps whole models: gRPC keeps an error after its call
    ended."""
    pending: list[BaseException | None] = [problem]
    visited_ids: set[int] = set()
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in visited_ids:
            visited_ids.add(id(current))
            current.__traceback__ = None
            pending += [current.__cause__, current.__context__]
