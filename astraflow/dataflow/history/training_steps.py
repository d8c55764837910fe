"""Training steps of a run: each one exactly, for ever.

A step goes into the journal, in the same commit as its acknowledgement, and from there into the archive; after a crash,
steps that the archive lost are restored.
"""

from collections.abc import Mapping

from astraflow.archive.training_steps import INSERT_STEP, find_steps, step_columns, step_from_row
from astraflow.contract.batches import StepReport
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.serving.stream import Stream
from astraflow.dataflow.storage.journal import Journal

MAX_JOURNALED_STEPS = 1000
"""Latest steps of each policy that stay in the journal: those that the archive may lose in a crash. Count."""


class TrainingSteps:
    """Durable rows of all acknowledged steps."""

    def __init__(self, journal: Journal, archive: Archive) -> None:
        self._journal = journal
        self._archive = archive

    def add(self, stream: Stream, report: StepReport, *, at: float) -> None:
        """Records the latest acknowledged step of a stream. at: Unix seconds."""
        counts = stream.counts
        step = TrainingStep(
            policy=stream.policy,
            step=counts.steps,
            at=at,
            version=report.version,
            total_tokens=counts.tokens,
            total_episodes=counts.episodes,
            reward=stream.history.rewards[-1],
            metrics=stream.history.last_step,
        )
        columns = step_columns(step)
        self._journal.put("insert or replace into training_steps values (?, ?, ?)", *columns)
        delete = "delete from training_steps where policy = ? and step <= ?"
        self._journal.put(delete, stream.policy, counts.steps - MAX_JOURNALED_STEPS)
        self.store(columns)

    async def page(self, query: TrainingStepQuery) -> TrainingStepPage:
        """Returns steps that no crash can take back. Raises: DeadlineExceeded, StorageFull."""
        await self._journal.wait_durable()
        return await self._archive.read(lambda database: find_steps(database, query))

    def restore(self, acknowledged: Mapping[PolicyId, int]) -> None:
        """Restores the steps that the archive lost, and deletes those that a crash took back.

        acknowledged: number of acknowledged steps of each policy.
        """
        steps = self._journal.decoded(
            "select policy, step, body from training_steps order by policy, step",
            step_from_row,
            what="training step",
            delete="delete from training_steps where policy = ? and step = ?",
            keys=2,
        )
        for step in steps:
            self.store(step_columns(step))
        for policy, count in acknowledged.items():
            self._archive.put("delete from training_steps where policy = ? and step > ?", policy, count)

    def store(self, columns: tuple[str, int, bytes]) -> None:
        """Stores the row of a step in the archive alone."""
        self._archive.put(INSERT_STEP, *columns, size_bytes=len(columns[2]), must_keep=True)
