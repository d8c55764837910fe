"""Table of what one node credential can send, and what dataflow must answer and record."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.wire.codecs.data import encode_push
from tests.hostile.peer import POLICY, HostileNode, plausible

ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One thing that a node does against a run."""

    name: str
    act: Callable[[HostileNode], Awaitable[Sequence[str]]]
    """Does it; returns the outcomes, or the codes of the errors, with which dataflow answered."""
    event: str = "push_refused"
    """Kind of the event that names the node; empty where the answer alone is enough."""


def written(values: Callable[[int], Any]) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results of leased tasks with exchanged fields. values: version -> fields of the trajectory."""

    async def act(node: HostileNode) -> Sequence[str]:
        tasks = await node.lease(4)
        version = node.served.get(POLICY, Version(0))
        try:
            return await node.push_episodes([node.episode(task, values(version)) for task in tasks])
        except AstraFlowError as refusal:  # the whole push is refused: its tasks are leased again by others
            return [refusal.code]

    return act


def replaced(**fields: Any) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results with these fields of the trajectory."""
    return written(lambda _: fields)


def logprob(value: float) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results whose model tokens all have one logprob."""
    return replaced(logprobs=np.full(3, value, np.float32))


def token(value: int) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results with one model token exchanged."""
    return replaced(tokens=np.array([1, 2, 3, value, 5], np.int32))


def long_rows(tokens: int) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results of many tokens."""
    return written(lambda version: plausible(Version(version), tokens=tokens))


async def spans_that_do_not_add_up(node: HostileNode) -> Sequence[str]:
    """Pushes a message in which one span claims more tokens than there are."""
    tasks = await node.lease(2)
    message = bytearray(encode_push(node.node, [node.episode(task, {}) for task in tasks]))
    return await refused(node.push(bytes(message[:-4])))


async def other_policy(node: HostileNode) -> Sequence[str]:
    """Pushes a result for a policy that the run does not have."""
    tasks = await node.lease(2)
    return await refused(node.push_episodes([node.episode(task, {"policy": PolicyId("judge")}) for task in tasks]))


async def many_trajectories(node: HostileNode) -> Sequence[str]:
    """Pushes an episode of twenty thousand trajectories."""
    (task, *_) = await node.lease(1)
    trajectory = node.episode(task, {}).trajectories[0]
    episode = Episode(task=task.id, node=node.node, trajectories=(trajectory,) * 20_000)
    return await refused(node.push_episodes([episode]))


async def poisoned_hand_back(node: HostileNode) -> Sequence[str]:
    """Hands tasks back with generations that an honest node would continue and train on."""
    tasks = await node.lease(2)
    version = node.served.get(POLICY, Version(0))
    generation = Generation(
        tokens=np.array([3, 10**6], np.int32),
        logprobs=np.full(2, -0.5, np.float32),
        spans=(VersionSpan(length=2, version=version),),
        finish=Finish.ABORT,
    )
    recorded = RecordedGeneration(policy=POLICY, request=b"0" * 32, generation=generation)
    partials = [PartialRollout(task=task.id, attempt=task.attempt, generations=(recorded,)) for task in tasks]
    return await refused(node.client.hand_back(node.node, partials))


async def failures_only(node: HostileNode) -> Sequence[str]:
    """Fails every task that it gets, as fast as it can."""
    outcomes: list[str] = []
    for _ in range(5):
        failure = Failure(boundary=Boundary.ENGINE, message="no")
        tasks = await node.lease(8, attempts=1)
        episodes = [Episode(task=task.id, node=node.node, trajectories=(), failure=failure) for task in tasks]
        outcomes += await node.push_episodes(episodes) if episodes else []
    return outcomes


async def hand_back_loop(node: HostileNode) -> Sequence[str]:
    """Leases tasks and hands them back untouched, as fast as it can."""
    outcomes: list[str] = []
    for _ in range(5):
        tasks = await node.lease(64, attempts=1)
        partials = [PartialRollout(task=task.id, attempt=task.attempt, generations=()) for task in tasks]
        outcomes += await node.client.hand_back(node.node, partials) if partials else []
    return outcomes


async def held_leases(node: HostileNode) -> Sequence[str]:
    """Leases all that it gets for some seconds, reports everything as running, and returns nothing."""
    held: list[Task] = []
    for _ in range(20):
        held += (await node.client.lease(node.node, 4096, wait_s=0.2, versions=node.served)).tasks
        await node.heartbeat(held)
        await asyncio.sleep(0.1)
    return []


async def results_of_others(node: HostileNode) -> Sequence[str]:
    """Pushes results of tasks that other nodes hold."""
    (task, *_) = await node.lease(1)
    flow, _, number = task.group.rpartition(":")
    others = [TaskId(f"{flow}:{int(number) - back}/{member}") for back in range(1, 9) for member in range(4)]
    trajectories = node.episode(task, {}).trajectories
    episodes = [Episode(task=other, node=node.node, trajectories=trajectories) for other in others]
    return await refused(node.push_episodes(episodes))


async def refused(answer: Awaitable[Sequence[str]]) -> Sequence[str]:
    """Returns the outcomes, or the code of the error."""
    try:
        return list(await answer)
    except AstraFlowError as refusal:
        return [refusal.code]


HUGE: Mapping[str, float] = {"x": 1e308}

ATTACKS = (
    Attack(name="a token beyond the vocabulary", act=token(10**6)),
    Attack(name="the largest token of int32", act=token(2**31 - 1)),
    Attack(name="a negative token", act=token(-1)),
    Attack(name="rows of 300,000 tokens", act=long_rows(300_000)),
    Attack(name="a logprob of -3e38", act=logprob(-3e38)),
    Attack(name="a logprob that is not a number", act=logprob(math.nan)),
    Attack(name="a logprob of minus infinity", act=logprob(-math.inf)),
    Attack(name="a positive logprob", act=logprob(5.0)),
    Attack(name="a reward outside the range", act=replaced(reward=1e6)),
    Attack(name="turn rewards outside the range", act=replaced(turn_rewards=(9e8,))),
    Attack(name="reward terms outside the range", act=replaced(reward_terms={"term": 1e17})),
    Attack(name="a version of the future", act=written(lambda version: plausible(Version(version + 1000)))),
    Attack(name="metrics of 1e308", act=replaced(metrics=HUGE)),
    Attack(name="a message that is cut off", act=spans_that_do_not_add_up),
    Attack(name="a policy that the flow does not have", act=other_policy),
    Attack(name="twenty thousand trajectories in one episode", act=many_trajectories),
    Attack(name="a hand-back with a token beyond the vocabulary", act=poisoned_hand_back),
    Attack(name="failures only", act=failures_only, event=""),
    Attack(name="leases that go back untouched", act=hand_back_loop, event=""),
    Attack(name="results of tasks of other nodes", act=results_of_others),
    Attack(name="leases that are held", act=held_leases, event=""),
)
