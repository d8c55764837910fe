"""Plane with handlers that a test provides, and calls to it over a real link."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from astraflow.wire.channel import ServiceChannel
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import (
    TrainerDataServicer,
    TrainerDataStub,
    add_TrainerDataServicer_to_server,
)

TOKEN = "run-token"
Context = grpc.aio.ServicerContext[Any, Any]


class Plane(TrainerDataServicer):
    """Plane whose `Attach` calls the handler, and whose `PullBatch` streams `pieces` pieces before it does the same."""

    def __init__(self, handle: Callable[[], Awaitable[object]] | None = None, *, pieces: int = 0) -> None:
        self._handle = handle
        self._pieces = pieces

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the plane to a server of `serving`."""
        add_TrainerDataServicer_to_server(self, server)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> pb.AttachReply:
        if self._handle is not None:
            await self._handle()
        return pb.AttachReply(run=request.policy)

    async def PullBatch(  # type: ignore[override]
        self, request: pb.PullBatchRequest, context: Context
    ) -> AsyncIterator[bytes]:
        for _ in range(self._pieces):
            yield pb.BatchPiece().SerializeToString()
        if self._handle is not None:
            await self._handle()

    async def ReportStep(self, request: pb.ReportStepRequest, context: Context) -> pb.ReportStepReply:
        return pb.ReportStepReply()

    async def ReportWait(self, request: pb.ReportWaitRequest, context: Context) -> pb.ReportWaitReply:
        return pb.ReportWaitReply()

    async def ReportFailure(self, request: pb.ReportFailureRequest, context: Context) -> pb.ReportFailureReply:
        return pb.ReportFailureReply()


def register_push(server: grpc.aio.Server, push: Callable[[bytes, Context], Awaitable[pb.PushReply]]) -> None:
    """Adds a handler of `Push`, which gets the request as bytes."""
    handler: Any = grpc.unary_unary_rpc_method_handler(push, response_serializer=pb.PushReply.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("astraflow.v1.NodeData", {"Push": handler}),))


async def unary(link: ServiceChannel, *, payload: str = "run", timeout_s: float = 10.0) -> str:
    """Makes a unary call; returns the reply's content."""
    stub = TrainerDataStub(link.channel)
    reply: pb.AttachReply = await link.call(stub.Attach, pb.AttachRequest(policy=payload), timeout_s=timeout_s)
    return reply.run


async def stream(link: ServiceChannel, *, timeout_s: float | None = 10.0) -> int:
    """Makes a streaming call; returns the number of replies."""
    stub = TrainerDataStub(link.channel)
    return len([piece async for piece in link.stream(stub.PullBatch, pb.PullBatchRequest(), timeout_s=timeout_s)])
