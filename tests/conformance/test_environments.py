"""The check of environments finds each broken promise."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from astraflow.conformance import environments as conformance
from astraflow.conformance.environments import check_environment
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PromptId
from astraflow.contract.plugins import broken_promises
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments.base import EnvironmentLimits, Observation
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

PROMPTS = [Prompt(id=PromptId(f"p:{number}"), fields={}) for number in range(2)]
SHARED = random.Random(0)
FAULTS = {
    "unusable": conformance.WORKS,
    "half reward": conformance.WINS,
    "endless": conformance.WINS,
    "not finite": conformance.WINS,
    "random": conformance.REPEATS,
    "reward after the end": conformance.ENDS_ONCE,
    "shared state": conformance.CONCURRENT,
    "hangs": conformance.CONCURRENT,
    "raises": conformance.BAD_ACTIONS,
    "malformed counts": conformance.BAD_ACTIONS,
    "echo": conformance.LARGE_ACTION,
    "closes once": conformance.CLOSES,
    "foreign": conformance.FOREIGN_PROMPT,
}


class Countdown:
    """Three times `go` wins. Factory and fault in one."""

    begun = 0

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.open = 0

    @property
    def limits(self) -> EnvironmentLimits:
        return EnvironmentLimits(begin_s=0.5, act_s=0.5)

    def make(self) -> "Episode":
        return Episode(self)

    async def check(self) -> None:
        if self.fault == "unusable":
            raise Unavailable("cannot use it: broken; repair it")


class Episode:
    def __init__(self, factory: Countdown) -> None:
        self.factory = factory
        self.fault = factory.fault
        self.steps = 0
        self.is_closed = False

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        if self.fault == "foreign" and prompt not in PROMPTS:
            raise KeyError("field")
        self.factory.open += 1
        return Observation(text=str(SHARED.random()) if self.fault == "random" else f"{seed}")

    async def act(self, action: str) -> Observation:
        await asyncio.sleep(0.6 if self.fault == "hangs" and self.factory.open > 1 else 0)
        if action != "go":
            if self.fault == "raises":
                raise ValueError(action)
            self.steps += self.fault == "malformed counts"
            return Observation(text=action if self.fault == "echo" else "say go", is_malformed=True)
        self.steps += 1
        others = self.factory.open if self.fault == "shared state" else 1
        if self.steps < 3 or self.fault == "endless":
            return Observation(text=f"{self.steps} of {others}")
        reward = {"half reward": 0.5, "not finite": float("inf")}.get(self.fault, 1.0)
        is_late = self.steps > 3 and self.fault != "reward after the end"
        return Observation(text="done", reward=0.0 if is_late else reward, ending=Ending.WON)

    async def close(self) -> None:
        if self.fault == "closes once" and self.is_closed:
            raise RuntimeError("closed twice")
        self.factory.open -= not self.is_closed
        self.is_closed = True


def go(_: Prompt, __: Sequence[Observation]) -> str:
    return "go"


async def test_an_environment_without_faults_passes() -> None:
    results = await check_environment(Countdown(""), PROMPTS, go)
    assert [result.promise for result in results] == list(conformance.PROMISES)
    assert broken_promises(results) == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_breaks_its_promise(fault: str) -> None:
    broken = [
        line.partition(":")[0] for line in broken_promises(await check_environment(Countdown(fault), PROMPTS, go))
    ]
    assert FAULTS[fault] in broken
    if fault in ("malformed counts", "echo", "reward after the end", "closes once", "foreign", "unusable"):
        assert broken == [FAULTS[fault]]


@pytest.mark.parametrize(("fault", "best_reward", "is_kept"), [
    ("half reward", 0.5, True), ("half reward", None, True), ("", 0.5, False), ("endless", None, False),
    ("not finite", None, False),
])  # fmt: skip
async def test_the_best_reward_is_declared_or_there_is_none(
    fault: str, best_reward: float | None, is_kept: bool
) -> None:
    results = await check_environment(Countdown(fault), PROMPTS, go, best_reward=best_reward)
    broken = [line.partition(":")[0] for line in broken_promises(results)]
    assert (conformance.WINS not in broken) == is_kept


async def test_a_check_without_prompts_is_refused() -> None:
    with raises_code(InvalidInput, "check.no_prompts"):
        await check_environment(Countdown(""), [], go)
