"""One round over the tasks of a baseline: episodes with retries, some at the same time, and their scores."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

from astraflow.baselines.intervals import interval_of
from astraflow.baselines.report import BaselineReport, BaselineScore, SampleResult
from astraflow.baselines.selection import Selection
from astraflow.baselines.subjects import Subject
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import FlowSpec
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.admission.limits import ResultLimits, failed, reward_defect
from astraflow.dataflow.evaluation.rounds import EvaluationRequest, EvaluationRounds, Round
from astraflow.dataflow.evaluation.scores import estimate, samples_by_slot, score_name, values_by_figure
from astraflow.dataflow.issuing.groups import OpenGroup, task_id
from astraflow.datasets import datasets
from astraflow.raas.builders import build_flow, start_flows
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.tasks.runner import BuiltFlow, Runner
from astraflow.runtime.clock import SystemClock
from astraflow.workflows.components.trajectory_builder import with_text

_NODE = NodeId("baseline.1")
_FIRST_ROUND = 1


class BaselineRound:
    """Runs every prompt `samples` times, as a round of an evaluation does, and scores the complete prompts.

    An episode that fails at a boundary other than the workflow is repeated up to `max_attempts` times, then masked: it
    is left out of every figure and counted by its boundary. Episodes that run when the round ends early count as
    nothing.
    """

    def __init__(
        self,
        selection: Selection,
        subject: Subject,
        *,
        concurrency: int,
        timeout_s: float,
        on_sample: Callable[[SampleResult], None],
    ) -> None:
        """concurrency: episodes at the same time. timeout_s: of an episode. on_sample: called with each result."""
        self._selection = selection
        self._subject = subject
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._on_sample = on_sample
        self._limits = ResultLimits(reward_range=selection.config.reward_range)
        self._clock = SystemClock()
        config = selection.config
        self._rounds = EvaluationRounds(
            selection.name,
            datasets.build(config.dataset, selection.dataset_seed),
            prompts=config.prompts,
            samples=config.samples,
            seed=selection.dataset_seed,
        )
        request = EvaluationRequest(versions={}, actor="", reason="", requested_at=self._clock.wall())
        self._rounds.begin(Round(number=_FIRST_ROUND, request=request, started_at=self._clock.wall()))
        self._began_at = self._clock.now()
        self._ended_at: float | None = None
        self._is_complete = False
        self.done = 0
        """Samples with a result, masked ones included."""
        self._retried = 0
        self._failures: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Samples of the round."""
        return self._rounds.prompts * self._rounds.samples

    async def run(self) -> None:
        """Runs the episodes; returns early when the subject has halted. Raises: InvalidInput and errors of plugins that
        cannot start."""
        config, name = self._selection.config, self._selection.name
        flow = build_flow(FlowSpec(id=name, workflow=config.workflow, reward=config.reward))
        if flow.judges:
            raise InvalidInput(
                f"cannot evaluate {name!r} outside its run: its reward asks the policy {flow.judges[0]!r}, which only "
                "nodes of the run serve; evaluate a version of the run, or set base_url and model of a judge",
                code="evaluation.policy_judges",
            )
        try:
            async with AsyncExitStack() as resources:
                await start_flows({name: flow}, resources)
                runner, members = self._runner(flow), self._members()
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(self._concurrency):
                        tasks.create_task(self._work(runner, members))
                self._is_complete = self.done == self.total
        finally:
            self._ended_at = self._clock.now()

    def report(self) -> BaselineReport:
        """Returns the scores so far, of the prompts whose samples all have a result."""
        reason, succeeded = self._subject.halted(), self._rounds.succeeded()
        return BaselineReport(
            evaluation=self._selection.name,
            subject=self._subject.description,
            state=EvaluationState.DONE if self._is_complete else EvaluationState.STOPPED,
            reason=str(reason) if reason else "",
            prompts=self._rounds.prompts,
            complete_prompts=len(succeeded),
            samples=self._rounds.samples,
            done=self.done,
            total=self.total,
            masked=sum(self._failures.values()),
            failed=succeeded.count(0),
            failures=dict(self._failures),
            retried=self._retried,
            errors=self._subject.counters.errors(),
            scores=self._scores(),
            usage=self._subject.usage(),
            duration_s=(self._ended_at or self._clock.now()) - self._began_at,
        )

    def _runner(self, flow: BuiltFlow) -> Runner:
        return Runner(
            {self._selection.name: flow},
            self._subject.policies,
            None,
            node=lambda: _NODE,
            counters=self._subject.counters,
            clock=self._clock,
            timeout_s=self._timeout_s,
            text_share=0.0,
        )

    def _members(self) -> Iterator[tuple[OpenGroup, int]]:
        """Yields the samples of each prompt; a prompt is issued when its first sample is taken."""
        while self._rounds.has_more:
            group = self._rounds.next_group()
            for member in range(group.size):
                yield group, member

    async def _work(self, runner: Runner, members: Iterator[tuple[OpenGroup, int]]) -> None:
        for group, member in members:
            episode = await self._episode(runner, group, member)
            has_halted = self._subject.halted() is not None
            if episode.failure is None or not has_halted:  # otherwise the failure says nothing about the sample
                self._finish(group, member, episode)
            if has_halted:
                return

    async def _episode(self, runner: Runner, group: OpenGroup, member: int) -> Episode:
        """Returns the result of a sample after its last attempt."""
        while True:
            task = group.task(task_id(group.id, member), member, None)
            episode = self._with_checked_rewards(await runner.run(task, RolloutRecorder()))
            if episode.failure is None or not episode.failure.is_retried or self._subject.halted():
                return episode
            if not group.count_failed_attempt(member, max_attempts=self._selection.config.max_attempts):
                return episode
            self._retried += 1

    def _with_checked_rewards(self, episode: Episode) -> Episode:
        defects = (reward_defect(trajectory, self._limits) for trajectory in episode.trajectories)
        defect = next((defect for defect in defects if defect is not None), None)
        return episode if defect is None else failed(episode, defect)

    def _finish(self, group: OpenGroup, member: int, episode: Episode) -> None:
        group.episodes[member] = episode
        self.done += 1
        if episode.failure is not None:
            self._failures[episode.failure.boundary.value] += 1
        if group.is_complete:
            self._rounds.observe(group)
        self._on_sample(SampleResult.of(group.prompt, member, self._with_texts(episode)))

    def _with_texts(self, episode: Episode) -> Episode:
        texts = (
            with_text(trajectory, self._subject.tokenizers[trajectory.policy]) for trajectory in episode.trajectories
        )
        return replace(episode, trajectories=tuple(texts))

    def _scores(self) -> tuple[BaselineScore, ...]:
        config, by_slot = self._selection.config, samples_by_slot(self._rounds.prompt_samples())
        figures = (
            (slot, name, values)
            for slot in sorted(by_slot, key=lambda slot: self._selection.policies.index(slot[0]))
            for name, values in values_by_figure(
                by_slot[slot], samples=self._rounds.samples, correct_threshold=config.correct_threshold
            ).items()
        )
        return tuple(
            BaselineScore(
                policy=policy,
                name=score_name(role, name),
                value=estimate(values).value,
                error=estimate(values).error,
                interval=interval_of(values),
                prompts=len(values),
            )
            for (policy, role), name, values in figures
        )
