"""Runs the workflow of one task and turns the outcome into an episode."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import FlowId, NodeId, PolicyId, ordinal_of
from astraflow.contract.nodes import TeacherChoice
from astraflow.contract.rollouts.agent_calls import MAX_EPISODE_CHARACTERS, AgentCall
from astraflow.contract.rollouts.failures import Boundary, Failure, RolloutFailed
from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.contract.rollouts.tasks import Task, prompt_position
from astraflow.contract.rollouts.timelines import EPISODE, Hop
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.pinned_versions import PinnedVersions
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.sampling_check import SamplingCheck
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.raas.policies.turn_times import TurnTimes
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.plugins import plugin_cause
from astraflow.runtime.tracing import collect_hops
from astraflow.workflows.base import RewardScorer, SessionSource, Workflow
from astraflow.workflows.components.trajectory_builder import with_text

log = get_logger()

_MAX_MESSAGE_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFlow:
    """Workflow and reward of a flow."""

    workflow: Workflow
    scorer: RewardScorer
    judges: tuple[PolicyId, ...] = ()
    """Policies that the reward asks."""
    attaches_texts: bool = False
    """Attach the text of every trajectory, not only of sampled groups."""
    temperatures: Mapping[PolicyId, float] = field(default_factory=dict)
    """`FlowSpec.temperatures`; empty when any sampling is allowed."""
    columns: Mapping[PolicyId, ColumnNeeds] = field(default_factory=dict)
    """`FlowSpec.columns`."""
    filters: tuple[str, ...] = ()
    """Options of the workflow that remove tokens from sampling, so that engines must record kept sets for training."""
    teacher_choices: Mapping[PolicyId, TeacherChoice] = field(default_factory=dict)
    """`FlowSpec.teacher_choices`, by policy."""

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies that a node needs for the flow, each once."""
        return tuple(dict.fromkeys((*self.workflow.policies, *self.judges)))


class Runner:
    """Turns tasks into episodes. Never raises: an error becomes a failure with its boundary."""

    def __init__(
        self,
        flows: Mapping[FlowId, BuiltFlow],
        policies: ServedPolicies,
        pinned: PinnedVersions | None,
        *,
        node: Callable[[], NodeId],
        counters: NodeCounters,
        clock: Clock,
        timeout_s: float,
        text_share: float,
    ) -> None:
        """pinned: engines for pinned tasks; None where no task is pinned."""
        self._flows = flows
        self._policies = policies
        self._pinned = pinned
        self._node = node
        self._counters = counters
        self._clock = clock
        self._timeout_s = timeout_s
        self._text_share = text_share

    async def run(self, task: Task, recorder: RolloutRecorder) -> Episode:
        """Runs a task and returns its episode, successful or failed.

        Every attempt runs the workflow from the start with a new environment. For a task that was handed back,
        `recorder` recalls the generations of earlier nodes.
        """
        if not is_sampled(task, self._text_share):
            return await self._run(task, recorder)
        began_at = self._clock.wall()
        with collect_hops() as hops:
            episode = await self._run(task, recorder)
        whole = Hop(
            name=EPISODE,
            began_at=began_at,
            duration_s=episode.duration_s,
            detail=f"attempt {task.attempt + 1} on {episode.node}",
            error=episode.failure.message if episode.failure else "",
        )
        return replace(episode, hops=(whole, *hops))

    async def _run(self, task: Task, recorder: RolloutRecorder) -> Episode:
        began_at = self._clock.now()
        trajectories: tuple[Trajectory, ...] = ()
        failure = None
        try:
            trajectories = await self._trajectories(task, recorder)
        except RolloutFailed as problem:
            failure = self._failure(task, problem.boundary, str(problem), problem)
        except Exception as problem:
            message = plugin_cause(problem)
            failure = self._failure(task, Boundary.WORKFLOW, message, problem)
        finally:
            calls = self._take_failed_calls(task)  # of a cancelled episode too: the workflow keeps none
        self._counters.add("episodes_done" if failure is None else "episodes_failed")
        if task.pinned:
            self._counters.add("evaluation_episodes")
        return Episode(
            task=task.id,
            node=self._node(),
            trajectories=trajectories,
            failure=failure,
            duration_s=self._clock.now() - began_at,
            attempt=task.attempt,
            continued_tokens=recorder.continued_tokens,
            failed_calls=calls,
        )

    async def _trajectories(self, task: Task, recorder: RolloutRecorder) -> tuple[Trajectory, ...]:
        flow = self._flows.get(task.flow)
        if flow is None:
            raise RolloutFailed(
                f"cannot run the task: this node has no flow {task.flow!r}",
                boundary=Boundary.WORKFLOW,
                code="rollout.unknown_flow",
            )
        teachers = {
            policy: choice.teacher_of(task.prompt.id, task.prompt.fields)
            for policy, choice in flow.teacher_choices.items()
        }
        turns = TurnTimes(self._clock) if is_sampled(task, self._text_share) else None
        sampling_check = SamplingCheck(temperatures=flow.temperatures)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                async with self._policies_for(task) as policies:
                    clients = policies.for_task(
                        task, recorder, self._counters, turns, sampling_check, columns=flow.columns
                    )
                    # A pinned task is judged by the versions for training: only what it evaluates is pinned.
                    judges = self._policies.for_task(task, recorder, self._counters) if task.pinned else clients
                    trajectories = tuple(await flow.workflow.run(task, clients, flow.scorer.asking(judges)))
        except TimeoutError as problem:
            if not limit.expired():
                raise
            raise RolloutFailed(
                f"cannot finish the episode: no result after {self._timeout_s:g} s (episode_timeout_s)",
                boundary=Boundary.ENGINE,
                code="rollout.timeout",
            ) from problem
        _check_trajectories(flow.workflow, trajectories)
        sampling_check.check(trajectories)
        if teachers:
            trajectories = tuple(replace(item, teacher=teachers.get(item.policy, "")) for item in trajectories)
        trajectories = _without_calls(trajectories) if turns is None else with_limited_calls(trajectories)
        if turns is None and not flow.attaches_texts:
            return trajectories
        return tuple(self._with_text_and_times(trajectory, turns) for trajectory in trajectories)

    def _take_failed_calls(self, task: Task) -> tuple[AgentCall, ...]:
        """Returns the recorded calls of a failed episode: none where the task's group is not sampled."""
        flow = self._flows.get(task.flow)
        if flow is None or not isinstance(flow.workflow, SessionSource):
            return ()
        calls = flow.workflow.take_failed_calls(task.id)
        return _with_cut_bodies(calls, _body_limit(calls)) if is_sampled(task, self._text_share) else ()

    def _with_text_and_times(self, trajectory: Trajectory, turns: TurnTimes | None) -> Trajectory:
        """Returns the trajectory with its text and, for inspection, the durations of its turns."""
        text = with_text(trajectory, self._policies[trajectory.policy].tokenizer)
        return text if turns is None else replace(text, span_s=turns.span_times_s(trajectory))

    @asynccontextmanager
    async def _policies_for(self, task: Task) -> AsyncIterator[ServedPolicies]:
        """Provides the newest versions for training, the pinned versions for an evaluation."""
        if not task.pinned:
            yield self._policies
            return
        assert self._pinned is not None  # noqa: S101 (see `__init__`)
        async with self._pinned.use_versions(task.pinned) as policies:
            yield policies

    def _failure(self, task: Task, boundary: Boundary, message: str, problem: Exception) -> Failure:
        message = message[:_MAX_MESSAGE_CHARACTERS]
        is_new = self._counters.note_error(f"{boundary.value}: {message}")
        write = log.warning if is_new else log.debug
        is_defect = not boundary.is_infrastructure
        code = problem.code if isinstance(problem, AstraFlowError) else None
        write(
            "episode_failed",
            task=task.id,
            boundary=boundary.value,
            code=code,
            message=message,
            exc_info=is_defect and problem,
        )
        return Failure(boundary=boundary, message=message)


def is_sampled(task: Task, share: float) -> bool:
    """Returns True for a `share` of the groups; the same answer on every node, for all members of a group.

    Prompts of an evaluation are the same in each round, so it samples by prompt. For training, an eighth of the share
    are the groups of some prompts, each time that they are issued; the others are evenly spaced, so that each batch has
    some.
    """
    position = prompt_position(task.prompt.id)
    if task.pinned or position < share / 8:
        return position < share
    rate = (share - share / 8) / (1 - share / 8)
    ordinal = ordinal_of(task.group) or 0
    return math.floor((ordinal + 1) * rate) > math.floor(ordinal * rate)


def with_limited_calls(trajectories: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """Returns the trajectories of an episode with recorded calls of at most `MAX_EPISODE_CHARACTERS`.

    Beyond it, all bodies are cut at the same length, so that each call keeps the begin of its request and reply.
    """
    limit = _body_limit([call for trajectory in trajectories for call in trajectory.calls])
    if limit is None:
        return tuple(trajectories)
    return tuple(
        replace(trajectory, calls=_with_cut_bodies(trajectory.calls, limit)) if trajectory.calls else trajectory
        for trajectory in trajectories
    )


def _body_limit(calls: Sequence[AgentCall]) -> int | None:
    """Returns the length at which the bodies of an episode's calls are cut; None when they need no cut."""
    characters = sum(len(call.request) + len(call.reply) for call in calls)
    return None if characters <= MAX_EPISODE_CHARACTERS else MAX_EPISODE_CHARACTERS // (2 * len(calls))


def _with_cut_bodies(calls: Sequence[AgentCall], limit: int | None) -> tuple[AgentCall, ...]:
    if limit is None:
        return tuple(calls)
    return tuple(replace(call, request=call.request[:limit], reply=call.reply[:limit]) for call in calls)


def _without_calls(trajectories: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    return tuple(replace(trajectory, calls=()) if trajectory.calls else trajectory for trajectory in trajectories)


def _check_trajectories(workflow: Workflow, trajectories: Sequence[Trajectory]) -> None:
    """Checks trajectories: dataflow refuses a push with an invalid one as a whole. Raises: RolloutFailed."""
    if not trajectories:
        raise RolloutFailed(
            "cannot use the episode: the workflow returned no trajectories",
            boundary=Boundary.WORKFLOW,
            code="rollout.no_trajectories",
        )
    for trajectory in trajectories:
        if trajectory.policy not in workflow.policies:
            raise RolloutFailed(
                f"cannot use the episode: the workflow returned a trajectory of {trajectory.policy!r}, which is not "
                f"one of its policies {', '.join(workflow.policies)}",
                boundary=Boundary.WORKFLOW,
                code="rollout.foreign_policy",
            )
