"""A recording proxy: forwards every call to a service unchanged, and reports requests and answers to a ledger.

It stands right before the service, behind the disturbed links, so an answer that it sees is a promise of the
service, even if the answer never reached the caller. It needs only the protos of the planes; it forwards
messages as the bytes that arrived, and decodes them separately for the ledger. In a run with mutual TLS it holds the
run's authority: it serves with a certificate of the service, and calls with a certificate of each caller.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from astraflow.access.authority import Authority, KeyPair, new_request
from astraflow.access.credentials import is_credential, read_claims
from astraflow.contract.batches import StepReport
from astraflow.contract.ids import PolicyId, Version
from astraflow.wire.codecs.converter import from_message
from astraflow.wire.codecs.data import decode_batch, decode_lease, decode_push
from astraflow.wire.codecs.weights import decode_manifest
from astraflow.wire.pb import data_plane_pb2 as data
from astraflow.wire.pb import weight_plane_pb2 as weights
from soak.ledger import Ledger

MAX_MESSAGE_BYTES = 64 * 2**20

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Callers must find a restarted service by their own retries.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
)

TLS_CONNECT_MS = 5000
"""Time limit of an attempt to connect with TLS, on a busy machine."""

_UNFORWARDED_METADATA = frozenset({"content-type", "user-agent", "grpc-accept-encoding", "accept-encoding"})
"""Headers of the connection, not of the call."""

Context = grpc.aio.ServicerContext[bytes, bytes]


class CallRecorder:
    """Decodes the calls that the ledger needs. `asked` runs before the request, `answered` before the reply."""

    def __init__(self, ledger: Ledger) -> None:
        self._asked: Mapping[str, Callable[[bytes], None]] = {
            "/astraflow.v1.NodeData/Push": lambda raw: ledger.pushed(decode_push(raw)[1]),
            "/astraflow.v1.WeightPlane/Publish": self._publish_asked,
        }
        self._answered: Mapping[str, Callable[[Sequence[bytes], Sequence[bytes]], None]] = {
            "/astraflow.v1.NodeData/Lease": self._leased,
            "/astraflow.v1.NodeData/Push": self._push_answered,
            "/astraflow.v1.TrainerData/PullBatch": self._pulled,
            "/astraflow.v1.TrainerData/ReportStep": self._step_answered,
            "/astraflow.v1.WeightPlane/Publish": self._publish_answered,
        }
        self._ledger = ledger
        self.reply_bytes: Counter[tuple[str, str]] = Counter()
        """Bytes of the replies of unwatched methods, by name of the caller (empty for the run token) and method."""

    def replied(self, caller: str, method: str, reply: bytes) -> None:
        """Records a reply of an unwatched method."""
        self.reply_bytes[caller, method.rpartition("/")[2]] += len(reply)

    def is_watched(self, method: str) -> bool:
        """Returns whether the ledger needs the answers of a method."""
        return method in self._answered

    def asked(self, method: str, request: bytes) -> None:
        """Records a request before it reaches the service."""
        if method in self._asked:
            self._asked[method](request)

    def answered(self, method: str, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        """Records a successful answer of the whole call."""
        self._answered[method](requests, replies)

    def _leased(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        self._ledger.leased(decode_lease(data.LeaseReply.FromString(replies[0])).tasks)

    def _push_answered(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        outcomes = data.PushReply.FromString(replies[0]).outcomes
        self._ledger.push_answered(decode_push(requests[0])[1], list(outcomes))

    def _pulled(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        batch = decode_batch(replies)
        if batch is not None:
            self._ledger.delivered(batch)

    def _step_answered(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        report = from_message(data.ReportStepRequest.FromString(requests[0]), StepReport)
        self._ledger.step_answered(report, is_first=data.ReportStepReply.FromString(replies[0]).is_first)

    def _publish_asked(self, request: bytes) -> None:
        piece = weights.PublishPiece.FromString(request)
        if piece.WhichOneof("piece") == "head":
            self._ledger.publish_asked(decode_manifest(piece.head.manifest))

    def _publish_answered(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        head = weights.PublishPiece.FromString(requests[0]).head.manifest
        is_new = weights.PublishReply.FromString(replies[0]).is_new
        self._ledger.publish_answered(PolicyId(head.policy), Version(head.version), is_new=is_new)


@asynccontextmanager
async def recording(
    upstream: str, witness: CallRecorder, *, at: str = "127.0.0.1:0", authority: Authority | None = None
) -> AsyncIterator[str]:
    """Forwards calls to the service at `upstream` while the block runs; yields the address to call instead.

    at: address to listen on. authority: of a run with mutual TLS.
    """
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # callers that disappear in the middle are expected here
    channels = _Channels(upstream, authority)
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((_ForwardingHandler(channels, witness),))
    host = at.rpartition(":")[0]
    if authority is None:
        port = server.add_insecure_port(at)
    else:
        own = authority.for_service(host)
        credentials = grpc.ssl_server_credentials([(own.key, own.certificate)], authority.pem, require_client_auth=True)
        port = server.add_secure_port(at, credentials)
    await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(0)
        await channels.close()


class _Channels:
    """Channels to the service: one for all callers without TLS, one for each token with mutual TLS."""

    def __init__(self, upstream: str, authority: Authority | None) -> None:
        self._upstream = upstream
        self._authority = authority
        self._by_token: dict[str, grpc.aio.Channel] = {}

    def of(self, token: str) -> grpc.aio.Channel:
        """Returns the channel for the calls with this token."""
        key = token if self._authority is not None else ""
        if key not in self._by_token:
            self._by_token[key] = self._connect(token)
        return self._by_token[key]

    async def close(self) -> None:
        """Closes all channels."""
        for channel in self._by_token.values():
            await channel.close()

    def _connect(self, token: str) -> grpc.aio.Channel:
        if self._authority is None:
            return grpc.aio.insecure_channel(self._upstream, options=_OPTIONS)
        own = _certificate_of(token, self._authority)
        credentials = grpc.ssl_channel_credentials(self._authority.pem, own.key, own.certificate)
        options = (*_OPTIONS, ("grpc.min_reconnect_backoff_ms", TLS_CONNECT_MS))
        return grpc.aio.secure_channel(self._upstream, credentials, options=options)


def _certificate_of(token: str, authority: Authority) -> KeyPair:
    """Issues the certificate that the holder of a token must show."""
    if not is_credential(token):
        return authority.for_run_token()
    key, request = new_request()
    return KeyPair(certificate=authority.for_caller(request, read_claims(token)), key=key)


class _ForwardingHandler(grpc.GenericRpcHandler):
    """Handles every method as a stream of bytes in both directions, as all calls are on the wire."""

    def __init__(self, channels: _Channels, witness: CallRecorder) -> None:
        self._channels = channels
        self._witness = witness

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = handler_call_details.method
        metadata = tuple(
            (key, value)
            for key, value in handler_call_details.invocation_metadata or ()
            if key not in _UNFORWARDED_METADATA and not key.startswith("grpc-")
        )

        async def behaviour(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for reply in self._pass(method, metadata, requests, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(behaviour)

    async def _pass(
        self, method: str, metadata: Any, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        sent: list[bytes] = []
        token = str(dict(metadata).get("authorization", "")).removeprefix("Bearer ")
        caller = read_claims(token).name if is_credential(token) else ""
        channel = self._channels.of(token)
        onward: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
        call = onward(self._heard(method, requests, sent), timeout=context.time_remaining(), metadata=metadata)
        try:
            if self._witness.is_watched(method):
                replies = [reply async for reply in call]
                self._witness.answered(method, sent, replies)
                for reply in replies:
                    yield reply
            else:
                async for reply in call:
                    self._witness.replied(caller, method, reply)
                    yield reply
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as problem:
            trailing = tuple(problem.trailing_metadata() or ())
            await context.abort(problem.code(), problem.details() or "", trailing)
        finally:
            call.cancel()

    async def _heard(self, method: str, requests: AsyncIterator[bytes], sent: list[bytes]) -> AsyncIterator[bytes]:
        async for request in requests:
            sent.append(request)
            self._witness.asked(method, request)
            yield request
