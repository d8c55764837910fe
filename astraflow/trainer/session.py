"""Session of a trainer that is not AstraFlow's: pulls a policy's batches and publishes versions, without asyncio."""

import asyncio
import secrets
import threading
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar

from torch import Tensor

from astraflow.access.callers import Role
from astraflow.client.credential import join_run
from astraflow.client.data_plane import TrainerDataClient
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.batches import Batch, StepFailure, StepReport
from astraflow.contract.errors import AstraFlowError, InvalidInput, RunComplete
from astraflow.contract.ids import BatchId, PolicyId, Version
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.weights import Dtype
from astraflow.models.precision import bits_of
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.logs import get_logger
from astraflow.trainer.batch_stream import BatchStream
from astraflow.trainer.checkpoints import TrainingProgress
from astraflow.trainer.step_mark import REPORT_FAILURE_S, error_text, step_end
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.signing import SigningKey
from astraflow.wire.channel import folder_client_tls

_Result = TypeVar("_Result")
log = get_logger()

PULL_WAIT_S = 10.0
"""Longest wait for a batch within one request."""


class SessionState(TypedDict, total=False):
    """Progress of a session as JSON values, which a checkpoint stores and the session that continues gets as arguments.
    Empty before the first step."""

    run: str
    step: int
    last_batch: str


class TrainerSession:
    """Consumer of one policy's stream, and a context manager. Every call blocks, and waits for unreachable services.

        begin(weights) ─► pull() ─► train, save your checkpoint ─► end_step(weights) ─► pull() ─► ... ─► None

    Version `n` has the weights after `n` batches. `end_step` publishes a version and then acknowledges the batch, which
    is not served again afterwards. Therefore the checkpoint, with `state_after`, must be durable before `end_step`. A
    trainer that is killed earlier gets the batch again. Publishing the same bits again has no effect; other bits under
    a published version are refused, so a restarted trainer must begin with the weights of its checkpoint.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str,
        policy: str,
        name: str = "own",
        run: str = "",
        step: int = 0,
        last_batch: str = "",
        authority: Path | None = None,
        ca_hash: str = "",
        signing: SigningKey | None = None,
        dtype: Dtype = Dtype.BFLOAT16,
        vocabulary: int | None = None,
        max_row_tokens: int | None = None,
    ) -> None:
        """address: of the dataflow service. token: the run token or a join token of a trainer. name: shown in reports.

        run, step, last_batch: the values of `state_after` in the checkpoint; the defaults begin a run.
        authority: folder of the certificate authority, for a run with TLS. ca_hash: its hash, instead of the folder.
        signing: key of the run, if it signs its versions. dtype: element type of the versions. vocabulary: rows of the
        model's embedding. max_row_tokens: longest row that it can train. With these two, dataflow refuses results that
        the trainer could not train; None: unknown.
        """
        self._address = address
        self._token = token
        self._policy = PolicyId(policy)
        self._name = name
        self._tls = folder_client_tls(authority) if authority else None
        self._ca_hash = ca_hash
        self._signing = signing
        self._dtype = dtype
        self._limits = RowLimits(vocabulary=vocabulary, tokens=max_row_tokens)
        self.step = step
        """Number of trained batches, which is also the newest version."""
        self.last_batch = last_batch
        """Batch of the last step; empty before the first."""
        self.run = run
        """Run of the batches."""
        self._is_complete = False
        self._untrained: BatchId | None = None
        """Batch that was pulled and whose step has not ended."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trainer session", daemon=True)
        self._stack = AsyncExitStack()

    @classmethod
    def of_run(cls, folder: Path | str, *, policy: str, **options: Any) -> Self:
        """Returns a session for a run of this machine, whose folder has its address, token and keys.

        Made for `astraflow run RECIPE --own-trainer POLICY`. options: as for the session itself. Raises: InvalidInput
        for a folder that is not one of a run; OSError without a token.
        """
        run = Path(folder)
        facts, token = RunFolder(run).facts, RunFolder(run).token
        return cls(
            facts.dataflow,
            token=token,
            policy=policy,
            authority=run / "authority" if facts.is_tls else None,
            signing=SigningKey.read(run / "weights.key"),
            **options,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._connect())
        except BaseException as problem:
            self.__exit__(type(problem), problem, problem.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._untrained is not None and isinstance(problem, Exception):
                self._call(self._report_failure(self._untrained, problem))
            self._call(self._stack.__aexit__(kind, problem, trace))
        finally:
            self._end()

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """Publishes the weights of the checkpoint as version `step`, and acknowledges its batch again; nodes wait for
        the first version."""
        self._call(self._publish(weights))
        if self.last_batch:
            self._call(self._batches.acknowledge(self._report(BatchId(self.last_batch), {})))

    def pull(self) -> Batch | None:
        """Waits for the next batch and returns it; None when the run is complete."""
        while not self._is_complete:
            try:
                batch = self._call(self._batches.pull(self._progress, unacknowledged=0))
            except RunComplete:
                self._is_complete = True
                break
            if batch.id != self.last_batch:
                self._untrained = batch.id
                return batch
            self._call(self._batches.acknowledge(self._report(batch.id, {})))
        return None

    def state_after(self, batch: Batch) -> SessionState:
        """Returns the state that the checkpoint of the step on `batch` must store."""
        return {"run": self.run, "step": self.step + 1, "last_batch": batch.id}

    def end_step(
        self,
        batch: Batch,
        weights: Mapping[str, Tensor],
        *,
        metrics: Mapping[str, float] | None = None,
        wait_s: float = 0.0,
        compute_s: float = 0.0,
    ) -> Version:
        """Publishes the weights after `batch` as the next version, and acknowledges the batch; returns the version.

        weights: names as in the model's `state_dict`, tied weights once; the same shapes in every version. metrics:
        shown with the step, such as `loss` and `grad_norm`. wait_s, compute_s: seconds waited and computed.
        """
        self.step += 1
        self.last_batch = batch.id
        self._untrained = None
        self._call(self._publish(weights))
        report = self._report(batch.id, metrics or {}, wait_s=wait_s, compute_s=compute_s)
        self._call(self._batches.acknowledge(report))
        return Version(self.step)

    @property
    def _progress(self) -> TrainingProgress:
        return TrainingProgress(run=self.run, step=self.step, report=None)

    def _report(
        self, batch: BatchId, metrics: Mapping[str, float], *, wait_s: float = 0.0, compute_s: float = 0.0
    ) -> StepReport:
        return StepReport(
            batch=batch,
            policy=self._policy,
            version=Version(self.step),
            wait_s=wait_s,
            compute_s=compute_s,
            publish_s=0.0,
            metrics=metrics,
        )

    async def _report_failure(self, batch: BatchId, problem: Exception) -> None:
        """Reports an error between `pull` and `end_step`: a batch with two is not served again."""
        end = step_end(problem)
        if end is None:
            return
        failure = StepFailure(
            policy=self._policy,
            batch=batch,
            attempt=secrets.token_hex(8),
            end=end,
            error=error_text(problem),
            step_s=0.0,
        )
        try:
            await self._batches.report_failure(failure, give_up_after_s=REPORT_FAILURE_S)
        except AstraFlowError as unreported:
            log.warning("step_failure_not_reported", batch=batch, problem=str(unreported))

    async def _connect(self) -> None:
        address, credential = await join_run(
            self._address,
            token=self._token,
            tls=self._tls,
            ca_hash=self._ca_hash,
            role=Role.TRAINER,
            name=self._policy,
        )
        enter = self._stack.enter_async_context
        renewing = asyncio.create_task(credential.run(address))
        self._stack.callback(renewing.cancel)
        self._batches = BatchStream(
            TrainerDataClient(await enter(credential.dial(address)), self._policy),
            self._policy,
            backend=self._name,
            is_simulated=False,
            limits=self._limits,
            pull_wait_s=PULL_WAIT_S,
            clock=SystemClock(),
        )
        attachment = await self._batches.attach(self._progress if self.step else None)
        self.run = attachment.run
        own_key = b"" if self._signing is None else self._signing.public.raw
        if own_key != attachment.weights_key:
            raise InvalidInput(
                f"cannot train for run {attachment.run!r}: its versions are signed with another key, or not at all; "
                "give the key in the file `weights.key` of the run directory, or none where there is none",
                code="trainer.signing_key_mismatch",
            )
        weights = WeightPlaneClient(await enter(credential.dial(attachment.weights_address)))
        self._publisher = await enter(Publisher(weights, self._policy, signing=self._signing))

    async def _publish(self, weights: Mapping[str, Tensor]) -> None:
        tensors = {
            name: (self._dtype, tuple(weight.shape), bits_of(weight, self._dtype)) for name, weight in weights.items()
        }
        await self._publisher.publish(Version(self.step), tensors)
        await self._publisher.wait()

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
