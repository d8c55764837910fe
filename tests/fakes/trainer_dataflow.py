"""The trainer side of dataflow, in memory: serves given batches in order, and repeats each until it is acknowledged."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import grpc

from astraflow.contract.batches import Batch, StepFailure, StepReport, TrainerAttachment
from astraflow.contract.errors import UnknownPolicy
from astraflow.contract.ids import PolicyId
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import encode_batch
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import TrainerDataServicer, add_TrainerDataServicer_to_server

Context = grpc.aio.ServicerContext[Any, Any]


class FakeTrainerData(TrainerDataServicer):
    """Stream of one policy. Its state outlives the server, as if it were on disk."""

    def __init__(self, batches: Sequence[Batch], *, run: str = "run", weights_address: str = "127.0.0.1:1") -> None:
        self.weights_key = b""
        self.batches = list(batches)
        self.run = run
        self.weights_address = weights_address
        self.served: list[Batch] = []
        """Every delivery, redeliveries included."""
        self.reports: dict[str, StepReport] = {}
        """First report of each batch, in order of arrival."""
        self.repeats: list[StepReport] = []
        """Repeated reports of batches."""
        self.failures: list[StepFailure] = []
        """Reported failed steps, in order of arrival."""
        self.attached: list[pb.AttachRequest] = []
        self.waits = 0
        """Requests that waited because there was no batch."""
        self.changed = asyncio.Condition()

    def register(self, server: grpc.aio.Server) -> None:
        """Registers the service for `serving`."""
        add_TrainerDataServicer_to_server(self, server)

    async def until_reported(self, steps: int) -> None:
        """Waits for this many acknowledged batches."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.reports) >= steps)

    async def until_waiting(self, waits: int) -> None:
        """Waits until the trainer had to wait for a batch this often."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.waits >= waits)

    async def _note_waiting(self) -> None:
        self.waits += 1
        async with self.changed:
            self.changed.notify_all()

    async def Attach(self, request: pb.AttachRequest, context: Context) -> pb.AttachReply:
        if self.batches and PolicyId(request.policy) != self.batches[0].policy:
            raise UnknownPolicy(f"no policy {request.policy}")
        self.attached.append(request)
        return to_message(
            TrainerAttachment(
                run=self.run,
                weights_address=self.weights_address,
                acknowledged_steps=len(self.reports),
                weights_key=self.weights_key,
            ),
            pb.AttachReply,
        )

    async def PullBatch(  # type: ignore[override]
        self, request: pb.PullBatchRequest, context: Context
    ) -> AsyncIterator[bytes]:
        open_batches = [batch for batch in self.batches if batch.id not in self.reports]
        ahead = request.version - len(self.reports)
        position = ahead if 0 <= ahead <= request.unacknowledged else 0
        batch = open_batches[position] if position < len(open_batches) else None
        if batch is None:
            await self._note_waiting()
            await asyncio.sleep(request.wait_s)
            return
        batch = replace(batch, is_redelivered=any(batch.id == other.id for other in self.served))
        self.served.append(batch)
        for piece in encode_batch(batch):
            yield piece

    async def ReportStep(self, request: pb.ReportStepRequest, context: Context) -> pb.ReportStepReply:
        report = from_message(request, StepReport)
        is_first = report.batch not in self.reports
        if is_first:
            self.reports[report.batch] = report
        else:
            self.repeats.append(report)
        async with self.changed:
            self.changed.notify_all()
        return pb.ReportStepReply(is_first=is_first)

    async def ReportWait(self, request: pb.ReportWaitRequest, context: Context) -> pb.ReportWaitReply:
        return pb.ReportWaitReply()

    async def ReportFailure(self, request: pb.ReportFailureRequest, context: Context) -> pb.ReportFailureReply:
        self.failures.append(from_message(request, StepFailure))
        return pb.ReportFailureReply(is_set_aside=False)
