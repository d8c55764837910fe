"""Dataflow as one trainer sees it: batches in, acknowledgements out, however often the link breaks."""

from astraflow.client.data_plane import TrainerDataClient
from astraflow.contract.batches import Batch, StepReport, TrainerWelcome
from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.contract.ids import PolicyId, Version
from astraflow.runtime.aio import TRANSIENT, retry
from astraflow.runtime.clock import Clock
from astraflow.trainer.checkpoint import Progress


class Feed:
    """A policy's stream of batches. Dataflow being away, or without room on its disk, only makes calls take longer.

    Dataflow may come back as another process that has not seen this trainer, so a broken link attaches again.
    """

    def __init__(
        self,
        client: TrainerDataClient,
        policy: PolicyId,
        *,
        backend: str,
        is_simulated: bool,
        pull_wait_s: float,
        clock: Clock,
    ) -> None:
        self._client = client
        self._policy = policy
        self._backend = backend
        self._is_simulated = is_simulated
        self._pull_wait_s = pull_wait_s
        self._clock = clock
        self._is_attached = False

    async def attach(self, progress: Progress | None) -> TrainerWelcome:
        """Say which trainer consumes the stream now. Raises: InvalidInput when run and checkpoint do not fit."""
        return await retry(lambda: self._attach(progress), what="attaching to dataflow", clock=self._clock)

    async def pull(self, progress: Progress) -> Batch:
        """The next batch for a trainer that is so far; waits until there is one."""
        while True:
            batch = await retry(lambda: self._pull(progress), what="pulling a batch", clock=self._clock)
            if batch is None:
                continue
            if batch.policy != self._policy:
                raise InvalidInput(
                    f"dataflow served batch {batch.id} of {batch.policy} to the trainer of {self._policy}"
                )
            return batch

    async def acknowledge(self, report: StepReport) -> bool:
        """Tell that a batch is trained, durably; returns False if dataflow knew."""
        return await retry(
            lambda: self._report(report),
            what=f"reporting {report.batch}",
            retry_on=(*TRANSIENT, StorageFull),
            clock=self._clock,
        )

    async def _attach(self, progress: Progress | None) -> TrainerWelcome:
        version = progress.version if progress else Version(0)
        welcome = await self._client.attach(version=version, backend=self._backend, is_simulated=self._is_simulated)
        _check_lineage(welcome, progress, self._policy)
        self._is_attached = True
        return welcome

    async def _pull(self, progress: Progress) -> Batch | None:
        if not self._is_attached:
            await self._attach(progress)
        try:
            return await self._client.pull_batch(version=progress.version, wait_s=self._pull_wait_s)
        except TRANSIENT:
            self._is_attached = False
            raise

    async def _report(self, report: StepReport) -> bool:
        try:
            return await self._client.report_step(report)
        except TRANSIENT:
            self._is_attached = False
            raise


def _check_lineage(welcome: TrainerWelcome, progress: Progress | None, policy: PolicyId) -> None:
    """Dataflow's count of acknowledged steps is the checkpoint's, or one behind when a crash came in between."""
    step, acknowledged = (progress.step if progress else 0), welcome.acknowledged_steps
    if progress is not None and progress.run != welcome.run:
        raise InvalidInput(
            f"the checkpoint of {policy} is from run {progress.run!r}, dataflow serves run {welcome.run!r}: give the "
            "trainer another directory, or the address of its own run"
        )
    if acknowledged not in (step, step - 1):
        raise InvalidInput(
            f"dataflow has {acknowledged} steps of {policy} acknowledged, the newest whole checkpoint here has {step}: "
            "training on would make versions that exist already with other bits; restore the trainer's directory that "
            "belongs to this run, or start a new run with empty directories"
        )
