"""A model whose service fails: what is tried again, and what is not."""

import asyncio

import pytest

from maintainer.evals.patience import TRIES, Patient
from maintainer.llm.base import Failure, ModelFailed, Request, Said, Usage
from maintainer.prompt import SYSTEM
from tests.fakes.clock import ManualClock
from tests.maintainer.parts import Says

pytestmark = pytest.mark.anyio

REQUEST = Request(system=SYSTEM, tools=(), messages=(), max_tokens=100, timeout_s=20.0)


def failed(failure: Failure, *, retry_after_s: float | None = None, used: int = 0) -> ModelFailed:
    problem = ModelFailed(failure, failure.value, retry_after_s=retry_after_s)
    problem.usage = Usage(input=used)
    return problem


async def test_what_the_service_could_not_answer_is_asked_again_later_and_counted() -> None:
    clock = ManualClock()
    says = Says([failed(Failure.RATE_LIMITED, retry_after_s=30.0, used=7), failed(Failure.DROPPED), (Said(text="so"),)])
    asking = asyncio.ensure_future(Patient(says, clock).reply(REQUEST))
    await clock.pass_time(29.0)
    assert len(says.requests) == 1, "it is waited for as long as the service asks"
    await clock.pass_time(10.0)
    reply = await asking
    assert reply.text == "so"
    assert reply.usage.input == says.usage.input + 7


async def test_a_service_that_stays_away_is_given_up_and_not_asked_any_more() -> None:
    clock = ManualClock()
    says = Says([failed(Failure.OVERLOADED)] * 100)
    model = Patient(says, clock)
    asking = asyncio.ensure_future(model.reply(REQUEST))
    await clock.pass_time(3600.0)
    with pytest.raises(ModelFailed):
        await asking
    assert len(says.requests) == TRIES
    with pytest.raises(ModelFailed):
        await model.reply(REQUEST)
    assert len(says.requests) == TRIES
    assert model.gave_up is not None


@pytest.mark.parametrize(("failure", "is_given_up"), [(Failure.AUTH, True), (Failure.REFUSED, False)])
async def test_a_wrong_key_ends_it_and_a_refusal_is_the_models_own(failure: Failure, is_given_up: bool) -> None:
    says = Says([failed(failure)])
    model = Patient(says, ManualClock())
    with pytest.raises(ModelFailed):
        await model.reply(REQUEST)
    assert len(says.requests) == 1
    assert (model.gave_up is not None) == is_given_up
