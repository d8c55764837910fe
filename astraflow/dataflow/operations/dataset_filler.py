"""Groups of flows that train on the answers of their dataset: dataflow itself completes them, without nodes."""

import asyncio
from collections.abc import Sequence

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectories
from astraflow.dataflow.flow import AnswerSource, Flow
from astraflow.dataflow.operations.assignment import TaskAssignment
from astraflow.dataflow.operations.results import Results
from astraflow.dataflow.run import Run

FILLER = NodeId("dataset")
"""Author of the episodes, in place of a node."""

IDLE_S = 1.0
"""Longest wait for a notification: tasks of an earlier process are returned to the queue without one. Seconds."""

MAX_TASKS = 64
"""Tasks that are completed before requests are answered again."""

FAILED_S = 0.1
"""Pause after a prompt without an answer, so that a dataset without answers uses little CPU. Seconds."""


class DatasetFiller:
    """Keeps the streams of such flows full.

    A group passes through the same steps as a group of nodes: it is issued, its tasks are leased, and its episodes are
    accepted, filtered and buffered. So the counts balance, and a restart recovers as always. The staleness gate bounds
    how many are buffered; since it admits only what is trained in time, none becomes stale.
    """

    def __init__(self, run: Run, results: Results) -> None:
        self._run = run
        self._results = results

    async def work(self) -> None:
        """Fills the streams whenever the gate admits groups, until cancelled. Ends at once without such a flow."""
        flows = [flow for flow in self._run.flows.values() if flow.answers is not None]
        while flows:
            subscription = self._run.nodes_notifier.subscribe(FILLER)
            filled = [self.fill(flow) for flow in flows]
            if not any(filled):
                await subscription.wait(IDLE_S)
            # In between, requests are answered.
            await asyncio.sleep(FAILED_S if any(map(_has_failed, filled)) else 0)

    def fill(self, flow: Flow) -> Sequence[Episode]:
        """Completes the queued tasks of a flow, or those of a new group; returns the episodes, none if it must wait."""
        if flow.answers is None or self._run.is_over:
            return []
        tasks = self._tasks(flow) or self._tasks_of_new_group(flow)
        answered = [self._episode(task, flow, flow.answers) for task in tasks]
        episodes = self._results.within_limits(answered, node=FILLER)
        self._results.accept_results(episodes)
        return episodes

    def _tasks(self, flow: Flow) -> list[Task]:
        assignment = TaskAssignment(FILLER, MAX_TASKS, served={}, now=self._run.clock.now())
        assignment.add_tasks_from(flow)
        return assignment.tasks

    def _tasks_of_new_group(self, flow: Flow) -> list[Task]:
        """Issues a group if the gates of all its policies admit one."""
        streams = [self._run.streams[policy] for policy in flow.policies]
        if flow.is_paused or not self._run.may_issue or any(stream.issue_headroom() <= 0 for stream in streams):
            return []
        self._run.records.record_issued(flow.issue())
        for stream in streams:
            stream.counts.issued += 1
        return self._tasks(flow)

    def _episode(self, task: Task, flow: Flow, answers: AnswerSource) -> Episode:
        version = min(self._run.streams[policy].version for policy in flow.policies)
        try:
            trajectories = Trajectories.of((answers(task, version),))
            return Episode(task=task.id, node=FILLER, trajectories=trajectories, attempt=task.attempt)
        except InvalidInput as problem:
            failure = Failure(boundary=Boundary.WORKFLOW, message=str(problem))
            return Episode(task=task.id, node=FILLER, trajectories=(), failure=failure, attempt=task.attempt)


def _has_failed(episodes: Sequence[Episode]) -> bool:
    return any(episode.failure is not None for episode in episodes)
