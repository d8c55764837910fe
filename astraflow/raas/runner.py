"""One task: run its flow's workflow, and make an episode of whatever happens."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b

from astraflow.contract.failures import Boundary, Failure
from astraflow.contract.ids import FlowId, GroupId, NodeId
from astraflow.contract.tasks import Task
from astraflow.contract.trajectories import Episode, Trajectory
from astraflow.raas.counters import NodeCounters
from astraflow.raas.pinned import PinnedEngines
from astraflow.raas.recording import Recording
from astraflow.raas.serving import ServedPolicies
from astraflow.raas.turns import TurnTimes
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.workflows.base import Workflow
from astraflow.workflows.errors import RolloutBroke
from astraflow.workflows.judge import Judge
from astraflow.workflows.transcript import with_text

log = get_logger()

_MESSAGE_LETTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFlow:
    """A flow's plug-ins, ready to run."""

    workflow: Workflow
    judge: Judge


class Runner:
    """Turns tasks into episodes. It never raises: what breaks becomes a failure that names its boundary."""

    def __init__(
        self,
        flows: Mapping[FlowId, BuiltFlow],
        policies: ServedPolicies,
        pinned: PinnedEngines,
        *,
        node: Callable[[], NodeId],
        counters: NodeCounters,
        clock: Clock,
        timeout_s: float,
        text_share: float,
    ) -> None:
        self._flows = flows
        self._policies = policies
        self._pinned = pinned
        self._node = node
        self._counters = counters
        self._clock = clock
        self._timeout_s = timeout_s
        self._text_share = text_share

    async def run(self, task: Task, recording: Recording) -> Episode:
        """The episode of a task, failed or not.

        Every try runs the workflow anew, which makes its environment: nothing of an earlier try is in it. For a task
        that was handed back, `recording` answers the requests that were answered before.
        """
        began = self._clock.now()
        trajectories: tuple[Trajectory, ...] = ()
        failure = None
        try:
            trajectories = await self._trajectories(task, recording)
        except RolloutBroke as problem:
            failure = self._failure(task, problem.boundary, str(problem), problem)
        except Exception as problem:
            message = f"{type(problem).__name__}: {problem}"
            failure = self._failure(task, Boundary.WORKFLOW, message, problem)
        self._counters.add("episodes_done" if failure is None else "episodes_failed")
        if task.pinned:
            self._counters.add("evaluation_episodes")
        return Episode(
            task=task.id,
            node=self._node(),
            trajectories=trajectories,
            failure=failure,
            duration_s=self._clock.now() - began,
            attempt=task.attempt,
            continued_tokens=recording.continued_tokens,
        )

    async def _trajectories(self, task: Task, recording: Recording) -> tuple[Trajectory, ...]:
        flow = self._flows.get(task.flow)
        if flow is None:
            raise RolloutBroke(Boundary.WORKFLOW, f"this node knows no flow {task.flow!r}")
        turns = TurnTimes(self._clock) if is_sampled(task.group, self._text_share) else None
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                async with self._policies_for(task) as policies:
                    ports = policies.ports(task, recording, self._counters, turns)
                    trajectories = tuple(await flow.workflow.run(task, ports, flow.judge))
        except TimeoutError as problem:
            if not limit.expired():
                raise
            raise RolloutBroke(Boundary.ENGINE, f"given up after {self._timeout_s:g} s") from problem
        _check(flow.workflow, trajectories)
        return trajectories if turns is None else tuple(self._shown(one, turns) for one in trajectories)

    def _shown(self, trajectory: Trajectory, turns: TurnTimes) -> Trajectory:
        """With what people look at: its text, and how long its turns took."""
        text = with_text(trajectory, self._policies[trajectory.policy].tokenizer)
        return replace(text, span_s=turns.of(trajectory))

    @asynccontextmanager
    async def _policies_for(self, task: Task) -> AsyncIterator[ServedPolicies]:
        """The newest versions for training, the pinned ones for an evaluation."""
        if not task.pinned:
            yield self._policies
            return
        async with self._pinned.serving(task.pinned) as policies:
            yield policies

    def _failure(self, task: Task, boundary: Boundary, message: str, problem: Exception) -> Failure:
        message = message[:_MESSAGE_LETTERS]
        is_new = self._counters.note_error(f"{boundary.value}: {message}")
        write = log.warning if is_new else log.debug
        is_defect = not boundary.is_infrastructure
        write("episode_failed", task=task.id, boundary=boundary.value, message=message, exc_info=is_defect and problem)
        return Failure(boundary=boundary, message=message)


def is_sampled(group: GroupId, share: float) -> bool:
    """Whether a group is among the `share` that is looked at: the same answer on every node, for all its members.

    >>> [is_sampled(GroupId(f"train:{number}"), 0.5) for number in range(4)]
    [True, False, False, False]
    """
    place = int.from_bytes(blake2b(group.encode(), digest_size=8).digest(), "big")
    return place < share * 2**64


def _check(workflow: Workflow, trajectories: Sequence[Trajectory]) -> None:
    """Raises: RolloutBroke for what dataflow would refuse, which would hold up everybody else's episodes."""
    if not trajectories:
        raise RolloutBroke(Boundary.WORKFLOW, "the workflow returned no trajectories")
    for trajectory in trajectories:
        if trajectory.policy not in workflow.policies:
            raise RolloutBroke(
                Boundary.WORKFLOW,
                f"the workflow returned a trajectory of {trajectory.policy!r}, which is not among its policies "
                f"{', '.join(workflow.policies)}",
            )
