"""A recording proxy: forwards every call to a service unchanged, and reports requests and answers to a ledger.

It stands right before the service, behind the disturbed links, so an answer that it sees is a promise of the
service, even if the answer never reached the caller. It needs only the protos of the planes; it forwards
messages as the bytes that arrived, and decodes them separately for the ledger.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from astraflow.contract.batches import StepReport
from astraflow.contract.ids import PolicyId, Version
from astraflow.wire.codec_data import decode_batch, decode_lease, decode_push
from astraflow.wire.codec_weights import decode_manifest
from astraflow.wire.converter import from_message
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
    # Callers must find a restarted service by their own retries.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
)

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
async def recording(upstream: str, witness: CallRecorder) -> AsyncIterator[str]:
    """Forwards calls to the service at `upstream` while the block runs; yields the address to call instead."""
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # callers that disappear in the middle are expected here
    async with grpc.aio.insecure_channel(upstream, options=_OPTIONS) as channel:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_ForwardingHandler(channel, witness),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


class _ForwardingHandler(grpc.GenericRpcHandler):
    """Handles every method as a stream of bytes in both directions, as all calls are on the wire."""

    def __init__(self, channel: grpc.aio.Channel, witness: CallRecorder) -> None:
        self._channel = channel
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
