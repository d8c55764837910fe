"""Check of a trainer that another party provides, by a scripted dataflow service and a real weight store."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.batches import Batch, Row, StepReport, TrainerAttachment
from astraflow.contract.errors import AstraFlowError, InvalidInput, RunComplete, Unavailable, UnknownPolicy
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.plugins import CheckResult, Outcome
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import running
from astraflow.wire.channel import dial
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import encode_batch
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import TrainerDataServicer, add_TrainerDataServicer_to_server
from astraflow.wire.server import ListenOptions, serving

ATTACHES = "attaches to its policy at version 0"
FIRST_VERSION = "publishes version 0 before it acknowledges a batch"
ACKNOWLEDGES = "acknowledges each batch in order, with the version after it"
REPEATS = "repeats an acknowledgement that was not accepted"
RECONNECTS = "continues after a restart of the service"
NOT_TWICE = "acknowledges a batch that is served again without training it again"
PUBLISHES = "publishes every version, at the latest when it acknowledges the next batch"
SAME_LAYOUT = "keeps names, types and shapes of the tensors"
PROMISES = (ATTACHES, FIRST_VERSION, ACKNOWLEDGES, REPEATS, RECONNECTS, NOT_TWICE, PUBLISHES, SAME_LAYOUT)

BATCHES = 6
_REFUSED, _RESTARTED, _LOST = 1, 2, 3
"""Batches whose first acknowledgement is refused; after whose delivery the service restarts; whose first
acknowledgement is lost in a restart."""

RESTART_S = 1.0
"""Time for which the service is away."""
PUBLISH_S = 30.0
"""Time for the last version to arrive."""
TELL_S = 3.0
"""Time for the trainer to learn that the run is complete."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCheck:
    """Options of the check."""

    policy: PolicyId
    token: str
    host: str = "127.0.0.1"
    port: int = 0
    vocabulary: int = 32
    """Token ids of the batches are below this. Count."""
    limit_s: float = 120.0
    """Time for the whole check, from the moment at which the service listens."""


async def check_trainer(check: TrainerCheck, *, on_ready: Callable[[str], None]) -> list[CheckResult]:
    """Serves the script to one trainer; returns a result for each promise.

    on_ready: called with the address that the trainer must be given as dataflow's. Raises: InvalidInput when the port
    is in use.
    """
    listen = ListenOptions(host=check.host, port=check.port, token=check.token, drain_s=0.0)
    with tempfile.TemporaryDirectory() as folder:
        store = running(
            WeightsConfig(retained_versions=BATCHES + 2), listen=replace(listen, port=0), directory=Path(folder)
        )
        async with store as weights_address, dial(weights_address, token=check.token) as link:
            script = _ScriptedDataflow(check, weights_address, WeightPlaneClient(link))
            try:
                async with asyncio.timeout(check.limit_s):
                    await _serve(script, listen, on_ready)
            except TimeoutError:
                script.note_unreached(check.limit_s)
    return script.results()


async def _serve(script: "_ScriptedDataflow", listen: ListenOptions, on_ready: Callable[[str], None]) -> None:
    async with serving(listen, script.register) as address:
        on_ready(address)
        await script.must_restart.wait()
    again = replace(listen, port=int(address.rpartition(":")[2]))
    while not script.is_done.is_set():
        script.must_restart.clear()
        await asyncio.sleep(RESTART_S)
        async with serving(again, script.register):
            await script.must_restart.wait()
            if script.is_done.is_set():
                await script.check_versions()
                await script.until_told_of_end()


class _ScriptedDataflow(TrainerDataServicer):
    """Stream of one policy. Its state outlives the server, as if it were on disk."""

    def __init__(self, check: TrainerCheck, weights_address: str, store: WeightPlaneClient) -> None:
        self.must_restart = asyncio.Event()
        """Set also when the script is done."""
        self.is_done = asyncio.Event()
        self._is_told = asyncio.Event()
        self._check = check
        self._weights_address = weights_address
        self._store = store
        self._batches = [_batch(check, number) for number in range(BATCHES)]
        self._acknowledged = 0
        self._was_refused = False
        self._was_lost = False
        self._has_restarted = False
        self._problems: dict[str, str] = {}
        self._kept: set[str] = set()
        """Promises that were kept when it mattered."""

    def register(self, server: grpc.aio.Server) -> None:
        """Registers the service for `serving`."""
        add_TrainerDataServicer_to_server(self, server)

    def results(self) -> list[CheckResult]:
        return [
            CheckResult(
                promise=promise,
                outcome=Outcome.PASSED if promise in self._kept and promise not in self._problems else Outcome.FAILED,
                detail=self._problems.get(promise, ""),
            )
            for promise in PROMISES
        ]

    def note_unreached(self, limit_s: float) -> None:
        """Records that the trainer did not come this far in time."""
        for promise in PROMISES:
            if promise not in self._kept:
                self._break(promise, f"not reached within {limit_s:g} s: {self._acknowledged} of {BATCHES} batches")

    async def check_versions(self) -> None:
        """Waits for the last version, and compares the versions."""
        deadline = asyncio.get_running_loop().time() + PUBLISH_S
        versions = await self._versions()
        while BATCHES not in versions and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.1)
            versions = await self._versions()
        expected = set(range(BATCHES + 1))
        self._judge(PUBLISHES, versions == expected, f"the store has {sorted(versions)}")
        layouts = set()
        for version in sorted(versions):
            manifest = (await self._store.plan(self._check.policy, have=None, want=Version(version))).manifest
            layouts.add(tuple((spec.name, spec.dtype, spec.shape) for spec in manifest.tensors))
        self._judge(SAME_LAYOUT, len(layouts) == 1, f"{len(layouts)} different sets of tensors")

    async def until_told_of_end(self) -> None:
        """Waits a moment for the trainer to pull once more, so that it learns that the run is complete."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                await self._is_told.wait()

    async def Attach(self, request: pb.AttachRequest, context: Context) -> pb.AttachReply:
        """See the proto."""
        if request.policy != self._check.policy:
            self._break(ATTACHES, f"it attached to {request.policy!r}")
            raise UnknownPolicy(f"cannot attach to policy {request.policy!r}: the check serves {self._check.policy!r}")
        if ATTACHES not in self._kept:
            self._judge(ATTACHES, request.version == 0, f"it attached at version {request.version}")
        return to_message(
            TrainerAttachment(
                run="check", weights_address=self._weights_address, acknowledged_steps=self._acknowledged
            ),
            pb.AttachReply,
        )

    async def PullBatch(  # type: ignore[override]  # generated servicers have no types
        self, request: pb.PullBatchRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """See the proto."""
        if self._acknowledged == BATCHES:
            self._is_told.set()
            raise RunComplete("the check is complete")
        ahead = request.version - self._acknowledged
        number = self._acknowledged + (ahead if 0 <= ahead <= request.unacknowledged else 0)
        if number >= BATCHES:
            await asyncio.sleep(min(request.wait_s, 0.2))
            return
        for piece in encode_batch(self._batches[number]):
            yield piece
        self._batches[number] = replace(self._batches[number], is_redelivered=True)
        if number == _RESTARTED and not self._has_restarted:
            self._has_restarted = True
            self.must_restart.set()

    async def ReportStep(self, request: pb.ReportStepRequest, context: Context) -> pb.ReportStepReply:
        """See the proto."""
        report = from_message(request, StepReport)
        number = next((index for index, batch in enumerate(self._batches) if batch.id == report.batch), BATCHES)
        if number < self._acknowledged:
            return pb.ReportStepReply(is_first=False)
        if number > self._acknowledged:
            oldest = self._batches[self._acknowledged].id
            self._break(ACKNOWLEDGES, f"it acknowledged {report.batch!r} before {oldest!r}")
            raise InvalidInput(f"cannot acknowledge batch {report.batch!r}: it is not the oldest one")
        await self._judge_report(number, report)
        if number == _REFUSED and not self._was_refused:
            self._was_refused = True
            raise Unavailable("the check refuses the first acknowledgement of this batch; repeat it")
        if number == _LOST and not self._was_lost:
            self._was_lost = True
            self.must_restart.set()
            raise Unavailable("the check restarts and has lost this acknowledgement; repeat it")
        self._acknowledged += 1
        if self._acknowledged == BATCHES:
            self._keep(ACKNOWLEDGES)
            self.is_done.set()
            self.must_restart.set()
        return pb.ReportStepReply(is_first=True)

    async def ReportWait(self, request: pb.ReportWaitRequest, context: Context) -> pb.ReportWaitReply:
        """See the proto. No promise depends on it."""
        return pb.ReportWaitReply()

    async def ReportFailure(self, request: pb.ReportFailureRequest, context: Context) -> pb.ReportFailureReply:
        """See the proto. The trainer's own error shows the failure; the batch is served again."""
        return pb.ReportFailureReply(is_set_aside=False)

    async def _judge_report(self, number: int, report: StepReport) -> None:
        expected = number + 1
        is_right = report.version == expected
        finding = f"batch {report.batch!r} was acknowledged with version {report.version}, not {expected}"
        if not is_right:
            self._break(ACKNOWLEDGES, finding)
        if number == _REFUSED and self._was_refused:
            self._judge(REPEATS, is_right, finding)
        if number == _RESTARTED:
            self._judge(RECONNECTS, is_right, finding)
        if number == _LOST and self._was_lost:
            self._judge(NOT_TWICE, is_right and expected + 1 not in await self._versions(), finding)
        versions = await self._versions()
        if number == 0:
            self._judge(FIRST_VERSION, 0 in versions, "there was no version when the first batch was acknowledged")
        if not versions >= set(range(number + 1)):
            self._break(PUBLISHES, f"at the acknowledgement of {report.batch!r} the store had {sorted(versions)}")

    async def _versions(self) -> set[int]:
        try:
            return {int(notice.version) for notice in await self._store.versions(self._check.policy)}
        except AstraFlowError as problem:
            self._break(PUBLISHES, str(problem))
            return set()

    def _judge(self, promise: str, is_kept: bool, problem: str) -> None:
        if is_kept:
            self._keep(promise)
        else:
            self._break(promise, problem)

    def _keep(self, promise: str) -> None:
        self._kept.add(promise)

    def _break(self, promise: str, problem: str) -> None:
        self._problems.setdefault(promise, problem)


def _batch(check: TrainerCheck, number: int) -> Batch:
    """Returns two groups of two random trajectories; in each group one has the reward 1."""
    random = np.random.default_rng(number)
    rows = [
        Row(
            group=GroupId(f"check:{number}.{group}"),
            task=TaskId(f"check:{number}.{group}/{member}"),
            node=NodeId("node"),
            trajectory=_trajectory(check, number, random, reward=float(member)),
        )
        for group in range(2)
        for member in range(2)
    ]
    return Batch(
        id=BatchId(f"{check.policy}:{number}"),
        policy=check.policy,
        version=Version(number),
        is_redelivered=False,
        rows=tuple(rows),
    )


def _trajectory(check: TrainerCheck, number: int, random: np.random.Generator, *, reward: float) -> Trajectory:
    prompt, answer = 4, int(random.integers(3, 9))
    return Trajectory(
        policy=check.policy,
        tokens=random.integers(1, check.vocabulary, prompt + answer).astype(np.int32),
        logprobs=np.full(answer, -np.log(check.vocabulary), dtype=np.float32),
        spans=(
            Span(author=Author.CONTEXT, length=prompt),
            Span(author=Author.MODEL, length=answer, version=Version(number)),
        ),
        reward=reward,
    )
