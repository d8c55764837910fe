import asyncio
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from astraflow.client.model_server import ServerClient
from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.server.dialect import Dialect
from astraflow.raas.engines.server.request_groups import MAX_REQUESTS, MAX_TOKENS, RequestGroups
from tests.fakes.clock import settle

pytestmark = pytest.mark.anyio

PROMPT = np.array([1, 2, 3], dtype=np.int32)
SHORT = Sampling(max_new_tokens=MAX_TOKENS)
CLIENT = cast("ServerClient", object())


class RecordingDialect:
    """Answers each id with a token of its own, or raises `problem`."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.problem: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate(
        self, client: ServerClient, request_ids: Sequence[str], prompt: Int32Array, sampling: Sampling
    ) -> list[Generation]:
        self.calls.append(list(request_ids))
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        return [generation_of(request_id) for request_id in request_ids]


def generation_of(request_id: str) -> Generation:
    tokens = np.array([int(request_id)], dtype=np.int32)
    spans = (VersionSpan(version=Version(0), length=1),)
    return Generation(tokens=tokens, logprobs=np.zeros(1, dtype=np.float32), spans=spans, finish=Finish.STOP)


def groups_of(dialect: RecordingDialect) -> RequestGroups:
    return RequestGroups(cast("Dialect", dialect))


async def gathered(groups: RequestGroups, count: int, sampling: Sampling = SHORT) -> list[int]:
    requests = [groups.generate(CLIENT, str(number), PROMPT, sampling) for number in range(count)]
    generations = await asyncio.gather(*requests)
    return [int(generation.tokens[0]) for generation in generations]


async def test_equal_requests_of_one_iteration_are_one_call_and_get_their_own_answers() -> None:
    dialect = RecordingDialect()
    assert await gathered(groups_of(dialect), 3) == [0, 1, 2]
    assert dialect.calls == [["0", "1", "2"]]


async def test_a_group_has_a_largest_size() -> None:
    dialect = RecordingDialect()
    assert await gathered(groups_of(dialect), MAX_REQUESTS + 2) == list(range(MAX_REQUESTS + 2))
    assert [len(call) for call in dialect.calls] == [MAX_REQUESTS, 2]


@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=MAX_TOKENS + 1), Sampling(max_new_tokens=1, seed=3)])
async def test_long_requests_and_those_with_a_seed_are_sent_alone(sampling: Sampling) -> None:
    dialect = RecordingDialect()
    assert await gathered(groups_of(dialect), 2, sampling=sampling) == [0, 1]
    assert dialect.calls == [["0"], ["1"]]


async def test_requests_with_other_prompts_or_sampling_are_sent_separately() -> None:
    dialect = RecordingDialect()
    groups = groups_of(dialect)
    await asyncio.gather(
        groups.generate(CLIENT, "0", PROMPT, SHORT),
        groups.generate(CLIENT, "1", PROMPT[:2], SHORT),
        groups.generate(CLIENT, "2", PROMPT, Sampling(max_new_tokens=1)),
        groups.generate(CLIENT, "3", PROMPT, SHORT),
    )
    assert sorted(dialect.calls) == [["0", "3"], ["1"], ["2"]]


async def test_an_error_reaches_every_member() -> None:
    dialect = RecordingDialect()
    dialect.problem = Unavailable("cannot answer: the server is away; try again")
    groups = groups_of(dialect)
    outcomes = await asyncio.gather(
        *(groups.generate(CLIENT, str(number), PROMPT, SHORT) for number in range(2)), return_exceptions=True
    )
    assert outcomes == [dialect.problem] * 2


async def test_a_cancelled_member_does_not_end_the_others() -> None:
    dialect = RecordingDialect()
    dialect.gate.clear()
    groups = groups_of(dialect)
    cancelled, other = (asyncio.create_task(groups.generate(CLIENT, str(number), PROMPT, SHORT)) for number in range(2))
    await settle()
    cancelled.cancel()
    dialect.gate.set()

    assert (await other).tokens.tolist() == [1]
    assert cancelled.cancelled()
