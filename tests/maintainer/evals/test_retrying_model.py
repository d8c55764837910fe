"""A model whose service fails: failures that are retried, and failures that are not."""

import asyncio

import pytest

from maintainer.agent.llm.interface import Failure, ModelFailed, Request, TextPart, Usage
from maintainer.agent.prompt import SYSTEM
from maintainer.evals.retrying_model import MAX_ATTEMPTS, RetryingModel
from tests.fakes.clock import ManualClock
from tests.maintainer.parts import Says

pytestmark = pytest.mark.anyio

REQUEST = Request(system=SYSTEM, tools=(), messages=(), max_tokens=100, timeout_s=20.0)


def failed(failure: Failure, *, retry_after_s: float | None = None, used: int = 0) -> ModelFailed:
    problem = ModelFailed(failure, failure.value, retry_after_s=retry_after_s)
    problem.usage = Usage(input=used)
    return problem


async def test_a_temporary_failure_is_retried_later_and_its_usage_counts() -> None:
    clock = ManualClock()
    says = Says(
        [failed(Failure.RATE_LIMITED, retry_after_s=30.0, used=7), failed(Failure.DROPPED), (TextPart(text="so"),)]
    )
    asking = asyncio.ensure_future(RetryingModel(says, clock).reply(REQUEST))
    await clock.pass_time(29.0)
    assert len(says.requests) == 1, "the pause is the one that the service requested"
    await clock.pass_time(10.0)
    reply = await asking
    assert reply.text == "so"
    assert reply.usage.input == says.usage.input + 7


async def test_an_unreachable_service_is_given_up_after_the_last_attempt() -> None:
    clock = ManualClock()
    says = Says([failed(Failure.OVERLOADED)] * 100)
    model = RetryingModel(says, clock)
    asking = asyncio.ensure_future(model.reply(REQUEST))
    await clock.pass_time(3600.0)
    with pytest.raises(ModelFailed):
        await asking
    assert len(says.requests) == MAX_ATTEMPTS
    with pytest.raises(ModelFailed):
        await model.reply(REQUEST)
    assert len(says.requests) == MAX_ATTEMPTS
    assert model.gave_up is not None


@pytest.mark.parametrize(("failure", "is_given_up"), [(Failure.AUTH, True), (Failure.REFUSED, False)])
async def test_a_wrong_key_gives_up_and_a_refusal_does_not(failure: Failure, is_given_up: bool) -> None:
    says = Says([failed(failure)])
    model = RetryingModel(says, ManualClock())
    with pytest.raises(ModelFailed):
        await model.reply(REQUEST)
    assert len(says.requests) == 1
    assert (model.gave_up is not None) == is_given_up
