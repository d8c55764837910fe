"""Stream of batches between dataflow and one trainer, with retries and reconnection."""

from astraflow.client.data_plane import TrainerDataClient
from astraflow.contract.batches import Batch, StepFailure, StepReport, TrainerAttachment
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.runtime.clock import Clock
from astraflow.runtime.retries import TRANSIENT, retry
from astraflow.trainer.checkpoints import TrainingProgress


class BatchStream:
    """Stream of batches of one policy. Calls wait while dataflow is unreachable or its disk is full.

    Dataflow may restart as a process that does not know this trainer, so the trainer attaches again after an error.
    """

    def __init__(
        self,
        client: TrainerDataClient,
        policy: PolicyId,
        *,
        backend: str,
        is_simulated: bool,
        limits: RowLimits,
        batching: BatchingFacts | None = None,
        pull_wait_s: float,
        clock: Clock,
    ) -> None:
        """limits: of the rows that the trainer can train, which it states whenever it attaches, as it does the
        batching of its passes."""
        self._client = client
        self._policy = policy
        self._backend = backend
        self._is_simulated = is_simulated
        self._limits = limits
        self._batching = batching
        self._pull_wait_s = pull_wait_s
        self._clock = clock
        self._is_attached = False

    async def attach(self, progress: TrainingProgress | None) -> TrainerAttachment:
        """Registers this trainer as the stream's consumer. Raises: InvalidInput on a wrong run or checkpoint."""
        return await retry(lambda: self._attach(progress), what="attaching to dataflow", clock=self._clock)

    async def pull(self, progress: TrainingProgress, *, unacknowledged: int) -> Batch:
        """Waits for the next batch after `progress` and returns it.

        unacknowledged: trained batches that are acknowledged later, when they are durable; 0 or 1.
        """
        while True:
            batch = await retry(lambda: self._pull(progress, unacknowledged), what="pulling a batch", clock=self._clock)
            if batch is None:
                continue
            if batch.policy != self._policy:
                raise InvalidInput(
                    f"cannot train batch {batch.id!r}: it is of policy {batch.policy!r}, this trainer trains "
                    f"{self._policy!r}; connect the trainer to the dataflow service of its run",
                    code="trainer.wrong_policy",
                )
            return batch

    async def acknowledge(self, report: StepReport) -> bool:
        """Reports a batch as trained and durable; returns False if dataflow knew already."""
        return await retry(
            lambda: self._report(report),
            what=f"reporting {report.batch}",
            retry_on=(*TRANSIENT, StorageFull),
            clock=self._clock,
        )

    async def report_failure(self, failure: StepFailure, *, give_up_after_s: float | None = None) -> bool:
        """Reports a step that ended its trainer; returns True if its batch is not delivered again.

        give_up_after_s: time after which the error of a call that cannot be made is raised; None waits for dataflow.
        Raises: InvalidInput when too many batches in a row have failed.
        """
        return await retry(
            lambda: self._client.report_failure(failure),
            what=f"reporting the failed step on {failure.batch}",
            give_up_after_s=give_up_after_s,
            retry_on=(*TRANSIENT, StorageFull),
            clock=self._clock,
        )

    async def _attach(self, progress: TrainingProgress | None) -> TrainerAttachment:
        version = progress.version if progress else Version(0)
        attachment = await self._client.attach(
            version=version,
            backend=self._backend,
            is_simulated=self._is_simulated,
            limits=self._limits,
            batching=self._batching,
            damage=_damage(progress) if progress else "",
        )
        _check_lineage(attachment, progress, self._policy)
        self._is_attached = True
        return attachment

    async def _pull(self, progress: TrainingProgress, unacknowledged: int) -> Batch | None:
        if not self._is_attached:
            await self._attach(progress)
        try:
            return await self._client.pull_batch(
                version=progress.version, wait_s=self._pull_wait_s, unacknowledged=unacknowledged
            )
        except TRANSIENT:
            self._is_attached = False
            raise

    async def _report(self, report: StepReport) -> bool:
        try:
            return await self._client.report_step(report)
        except TRANSIENT:
            self._is_attached = False
            raise


def _damage(progress: TrainingProgress) -> str:
    """Returns a sentence about steps that are lost with a damaged checkpoint; empty without any."""
    if progress.damaged <= progress.step:
        return ""
    return (
        f"checkpoint {progress.damaged} of the trainer is damaged and set aside as "
        f"step-{progress.damaged:08d}.damaged; training goes on from checkpoint {progress.step}, without what the "
        "steps after it changed: check the disk"
    )


def _check_lineage(attachment: TrainerAttachment, progress: TrainingProgress | None, policy: PolicyId) -> None:
    """Checks that dataflow's acknowledged steps equal the checkpoint's steps, or are one behind after a crash, or ahead
    by those of damaged checkpoints."""
    step, acknowledged = (progress.step if progress else 0), attachment.acknowledged_steps
    if progress is not None and progress.run != attachment.run:
        raise InvalidInput(
            f"cannot resume {policy!r}: its checkpoint is of run {progress.run!r}, dataflow serves run "
            f"{attachment.run!r}; give the trainer another directory, or the address of its own run",
            code="trainer.wrong_run",
        )
    if acknowledged not in (step, step - 1) and not (progress and step < acknowledged <= progress.damaged):
        raise InvalidInput(
            f"cannot resume {policy!r}: dataflow has {acknowledged} acknowledged steps, the newest intact checkpoint "
            f"has {step}; restore the trainer's directory that belongs to this run, or start a new run with empty "
            "directories (training on would publish existing versions with other bits)",
            code="trainer.checkpoint_mismatch",
        )
