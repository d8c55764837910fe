"""Check of an environment of another project, as a flow of a recipe names it: one suite for all kinds.

The world is other people's code in a process of its own, so the promises are about what reaches the run: rewards,
tokens, failures and processes.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import psutil

from astraflow.agents.environment_flows import with_environment
from astraflow.conformance.promises import Unsupported, require, result_of
from astraflow.conformance.workflows import (
    Started,
    WorkflowCheck,
    keeps_exact_tokens,
    lets_engine_failures_through,
    repeats_its_requests,
    runs_episodes_at_once,
)
from astraflow.contract.plugins import CheckResult
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.datasets import datasets
from astraflow.runtime.processes import supervised
from astraflow.workflows.scripted.policies import EpisodeRecord, Reply

CANCEL_S = 2.0
"""Longest time for the end of a cancelled episode. Seconds."""
_END_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEnvironment:
    """Environment to check, and the replies of a policy in a regular episode."""

    check: WorkflowCheck

    @classmethod
    def of(cls, spec: Mapping[str, Any], reply: Reply, *, limit_s: float = 180.0) -> "NamedEnvironment":
        """Returns the check of an environment by its specification in a flow. Raises: InvalidInput."""
        apart = {} if spec.get("kind") == "harbor" else {"workers": 2, "episodes_per_worker": 1}
        flow = with_environment({"environment": {**spec, **apart}})
        prompt = datasets.build(flow["dataset"], 0).prompt(0)
        return cls(check=WorkflowCheck(spec=flow["workflow"], prompt=prompt, reply=reply, limit_s=limit_s))


async def check_named_environment(environment: NamedEnvironment) -> list[CheckResult]:
    """Runs all checks; each starts the environment anew."""
    check = environment.check
    return [
        await result_of(promise, partial(function, check), limit_s=check.limit_s)
        for promise, function in CHECKS.items()
    ]


async def gives_rewards(check: WorkflowCheck) -> str:
    """A regular episode ends with trajectories whose reward is finite."""
    async with Started(check) as started:
        trajectories = await started.run(EpisodeRecord(reply=check.reply))
    require(bool(trajectories), "it returned no trajectory")
    rewards = {trajectory.reward for trajectory in trajectories}
    require(all(map(math.isfinite, rewards)), f"the rewards {rewards} are not finite")
    return f"reward {', '.join(f'{reward:g}' for reward in sorted(rewards))}"


async def loses_one_episode(check: WorkflowCheck) -> None:
    """A world that is killed fails its own episode at the boundary `environment`, and the next episode works."""
    async with Started(check) as started:
        records = [EpisodeRecord(reply=check.reply, blocked_from=0) for _ in range(2)]
        running = [asyncio.create_task(started.run(record, member)) for member, record in enumerate(records)]
        await asyncio.gather(*(record.blocked.wait() for record in records))
        _worlds()[0].kill()
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=_END_S)
        for record in records:
            record.released.set()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, RolloutFailed)]
        require(len(failures) == 1, f"{len(failures)} of 2 episodes failed: {outcomes!r:.300}")
        require(failures[0].boundary is Boundary.ENVIRONMENT, f"the boundary is {failures[0].boundary.value!r}")
        await _expect_trajectories(started.run(EpisodeRecord(reply=check.reply)))


async def ends_soon_when_cancelled(check: WorkflowCheck) -> str:
    """A cancelled episode ends within 2 s, and the next one works."""
    async with Started(check) as started:
        record = EpisodeRecord(reply=check.reply, blocked_from=0)
        running = asyncio.create_task(started.run(record))
        await record.blocked.wait()
        began_at = perf_counter()
        running.cancel()
        await asyncio.wait({running})
        seconds = perf_counter() - began_at
        require(seconds < CANCEL_S, f"it took {seconds:.1f} s")
        require(running.cancelled(), "it did not end as cancelled")
        await _expect_trajectories(started.run(EpisodeRecord(reply=check.reply)))
        return f"{seconds:.2f} s"


async def leaves_no_process(check: WorkflowCheck) -> str:
    """Nothing that the environment started lives on after the end of the workflow."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    async with Started(check) as started:
        record = EpisodeRecord(reply=check.reply, blocked_from=0)
        running = asyncio.create_task(started.run(record))
        await record.blocked.wait()
        processes = [item for item in psutil.Process().children(recursive=True) if item.pid not in before]
        require(bool(processes), "it has no process of its own")
        running.cancel()
        await asyncio.wait({running})
    alive = [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    require(not alive, f"{len(alive)} processes live on: {alive!r:.300}")
    return f"{len(processes)} processes"


CHECKS: Mapping[str, Callable[[WorkflowCheck], Awaitable[str | None]]] = {
    "gives a reward to a regular episode": gives_rewards,
    "keeps exactly the tokens that were read and written": keeps_exact_tokens,
    "sends the same requests again for the same task": repeats_its_requests,
    "runs many episodes at once": runs_episodes_at_once,
    "lets a failure of the engine fail the episode": lets_engine_failures_through,
    "loses one episode when a world crashes, without a reward": loses_one_episode,
    "ends a cancelled episode within 2 s": ends_soon_when_cancelled,
    "leaves no process": leaves_no_process,
}
"""Check by promise."""


def _worlds() -> list[psutil.Process]:
    """Returns the processes with worlds: the program below each supervisor. Raises: Unsupported without one."""
    supervisors = [
        process for process in psutil.Process().children(recursive=True) if supervised.__file__ in process.cmdline()
    ]
    worlds = [child for supervisor in supervisors for child in supervisor.children()[:1]]
    if not worlds:
        raise Unsupported("its worlds are no processes below this one")
    return worlds


async def _expect_trajectories(episode: Awaitable[Sequence[Trajectory]]) -> None:
    require(await episode, "the next episode has no trajectory")
