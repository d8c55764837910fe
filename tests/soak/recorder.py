"""A man in the middle: passes every call on to a service as it is, and tells a ledger what was asked and answered.

It stands right before the service, behind the links that are disturbed, so that what it sees answered is what the
service promised, whether or not that ever reached the caller. It knows the planes from their protos alone; messages are
passed on as the bytes they came in, and decoded for the ledger beside that.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from astraflow.contract.ids import PolicyId, Version
from astraflow.wire.codec_data import decode_batch, decode_lease, decode_push, decode_step
from astraflow.wire.codec_weights import decode_manifest
from astraflow.wire.pb import data_plane_pb2 as data
from astraflow.wire.pb import weight_plane_pb2 as weights
from tests.soak.ledger import Ledger

MAX_MESSAGE_BYTES = 64 * 2**20

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    # How soon a service that is back is found again is to be the callers' own doing.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
)

_NOT_PASSED_ON = frozenset({"content-type", "user-agent", "grpc-accept-encoding", "accept-encoding"})
"""Headers of the connection, not of the call."""

Context = grpc.aio.ServicerContext[bytes, bytes]


class Witness:
    """Decodes the calls that matter. `asked` before a request goes on, `answered` before its answer goes back."""

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

    def is_watched(self, method: str) -> bool:
        """Whether the answers of a method matter."""
        return method in self._answered

    def asked(self, method: str, request: bytes) -> None:
        """A request is about to reach the service."""
        if method in self._asked:
            self._asked[method](request)

    def answered(self, method: str, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        """The service answered the whole call, and well."""
        self._answered[method](requests, replies)

    def _leased(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        self._ledger.leased(decode_lease(data.LeaseReply.FromString(replies[0])).tasks)

    def _push_answered(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        fates = data.PushReply.FromString(replies[0]).fates
        self._ledger.push_answered(decode_push(requests[0])[1], list(fates))

    def _pulled(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        batch = decode_batch(replies)
        if batch is not None:
            self._ledger.delivered(batch)

    def _step_answered(self, requests: Sequence[bytes], replies: Sequence[bytes]) -> None:
        report = decode_step(data.ReportStepRequest.FromString(requests[0]))
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
async def recording(upstream: str, witness: Witness) -> AsyncIterator[str]:
    """Pass calls on to the service at `upstream` while the block runs; yields where to call instead."""
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # callers that vanish in the middle are what this is for
    async with grpc.aio.insecure_channel(upstream, options=_OPTIONS) as channel:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_Passage(channel, witness),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


class _Passage(grpc.GenericRpcHandler):
    """Every method as a stream of bytes in both directions: on the wire all kinds of calls are."""

    def __init__(self, channel: grpc.aio.Channel, witness: Witness) -> None:
        self._channel = channel
        self._witness = witness

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = handler_call_details.method
        metadata = tuple(
            (key, value)
            for key, value in handler_call_details.invocation_metadata or ()
            if key not in _NOT_PASSED_ON and not key.startswith("grpc-")
        )

        async def behaviour(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for reply in self._pass(method, metadata, requests, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(behaviour)

    async def _pass(
        self, method: str, metadata: Any, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        sent: list[bytes] = []
        onward: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(method)
        call = onward(self._heard(method, requests, sent), timeout=context.time_remaining(), metadata=metadata)
        try:
            if self._witness.is_watched(method):
                replies = [reply async for reply in call]
                self._witness.answered(method, sent, replies)
                for reply in replies:
                    yield reply
            else:
                async for reply in call:
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
