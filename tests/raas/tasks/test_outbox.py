import asyncio

import pytest

from astraflow.contract.ids import TaskId
from astraflow.raas.tasks.outbox import PUSH_BYTES, PUSH_EPISODES, Outbox
from tests import make

pytestmark = pytest.mark.anyio


async def test_episodes_stay_until_acknowledged() -> None:
    outbox = Outbox()
    outbox.put(make.episode("train:0/0"))
    outbox.put(make.episode("train:0/1"))

    first = await outbox.next_batch()
    again = await outbox.next_batch()
    outbox.put(make.episode("train:0/2"))
    outbox.acknowledge(first)

    assert first == again
    assert outbox.tasks() == ["train:0/2"]
    assert (TaskId("train:0/2"), 0) in outbox
    assert (TaskId("train:0/1"), 0) not in outbox


async def test_a_push_is_bounded_in_number_and_in_bytes() -> None:
    many, large = Outbox(), Outbox()
    for member in range(PUSH_EPISODES + 1):
        many.put(make.episode(f"train:0/{member}"))
    tokens = PUSH_BYTES // 4 // 2
    for member in range(3):
        large.put(make.episode(f"train:0/{member}", model_tokens=tokens))

    assert len(await many.next_batch()) == PUSH_EPISODES
    assert len(await large.next_batch()) == 1


async def test_waiting_calls_are_woken() -> None:
    outbox = Outbox()
    pushing = asyncio.create_task(outbox.next_batch())
    await asyncio.sleep(0)
    outbox.put(make.episode())
    batch = await pushing
    emptied = asyncio.create_task(outbox.wait_until_empty())
    await asyncio.sleep(0)
    assert not emptied.done()

    outbox.acknowledge(batch)

    await emptied
