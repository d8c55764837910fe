"""Scores finished groups with the group rewards of their flows, and admits them.

A group is open in the journal until its new rewards and its admission are committed together. After a crash before
that, the group is complete but open, and is scored again.
"""

import asyncio
from contextlib import AsyncExitStack

from astraflow.contract.ids import GroupId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.admission.group_scoring import GroupScoring, without_unsampled_texts
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.operations.results import Results
from astraflow.dataflow.run import Run
from astraflow.runtime.plugins import start_managed
from astraflow.runtime.retries import Backoff

FIRST_PAUSE_S = 0.5
"""Pause before the second attempt for a group; each further one is twice as long. Seconds."""

MAX_PAUSE_S = 30.0


class GroupScorer:
    """Calls the group rewards of all flows for a bounded number of groups at the same time, concurrently with the
    service."""

    def __init__(self, run: Run, results: Results) -> None:
        self._run = run
        self._results = results

    async def work(self) -> None:
        """Scores groups until cancelled. Raises: what the start of a group reward raises."""
        async with AsyncExitStack() as resources:
            scorings = {flow: flow.group_scoring for flow in self._run.flows.values()}
            await start_managed((scoring.reward for scoring in scorings.values() if scoring), resources)
            for flow, scoring in scorings.items():
                self._resume(flow, scoring)
            async with asyncio.TaskGroup() as tasks:
                for flow, scoring in scorings.items():
                    for _ in range(scoring.config.concurrency if scoring else 0):
                        tasks.create_task(self._score_groups(flow, scoring))

    def _resume(self, flow: Flow, scoring: GroupScoring | None) -> None:
        """Takes up the groups that were complete when the service stopped."""
        for group in [group for group in flow.open_groups.values() if group.is_complete]:
            if scoring is None:  # the recipe had a group reward before the restart
                self._admit(flow, group.id, without_unsampled_texts(group.to_group().episodes))
            elif not flow.is_awaiting_scores(group.id):
                flow.await_scores(group.id)

    async def _score_groups(self, flow: Flow, scoring: GroupScoring | None) -> None:
        while scoring is not None:
            group = await scoring.waiting.get()
            episodes = await self._scored(flow.open_groups[group].to_group(), scoring)
            scoring.counts["scored" if episodes else "dropped"] += 1
            self._admit(flow, group, episodes)

    async def _scored(self, group: Group, scoring: GroupScoring) -> tuple[Episode, ...] | None:
        """Returns the episodes with their new rewards, None when every attempt failed."""
        backoff = Backoff(self._run.clock, first_s=FIRST_PAUSE_S, max_s=MAX_PAUSE_S)
        for attempt in range(1, scoring.config.attempts + 1):
            try:
                return without_unsampled_texts(await scoring.scored(group))
            except Exception as problem:  # a third-party group reward may raise anything
                scoring.counts["failed_attempts"] += 1
                error = f"{type(problem).__name__}: {problem}"[:500]
                self._run.events.add(
                    RecordKind.GROUP_REWARD_FAILED, group.flow, group=group.id, attempt=attempt, error=error
                )
            if attempt < scoring.config.attempts:
                await backoff.wait()
        return None

    def _admit(self, flow: Flow, group: GroupId, episodes: tuple[Episode, ...] | None) -> None:
        """Admits a scored group, or drops it without scores; the journal commits all of it together."""
        versions = {policy: stream.version for policy, stream in self._run.streams.items()}
        complete = flow.finish_scored(group, episodes, versions)
        if episodes is not None:
            self._run.records.record_rescored(group, episodes)
            self._results.note_rewards(episodes)
        self._results.admit(complete)
