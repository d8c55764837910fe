"""Concurrent requests with one idempotency key: the operation is done once."""

import asyncio
from typing import Any
from unittest.mock import create_autospec

import pytest

from astraflow.contract.errors import Conflict, Unavailable
from tests.errors import raises_code
from web.accounts.viewer import Viewer
from web.live.followed_run import FollowedRun
from web.requests.commands import Commands, ProcessCache
from web.security.audit_log import AuditLog
from web.security.roles import Role

pytestmark = pytest.mark.anyio

ADA = Viewer(user_id=2, name="ada", role=Role.ADMIN)


@pytest.fixture
def commands() -> Commands:
    """Commands of a process that has answered no request."""
    return Commands(
        viewer=ADA,
        run=create_autospec(FollowedRun, instance=True),
        audit_log=create_autospec(AuditLog),
        cache=ProcessCache(),
    )


async def ask(commands: Commands, operation: Any, *, key: str = "k", text: str = "t") -> str:
    return await commands.once(operation, key=key, request=text)


async def test_concurrent_requests_with_one_key_act_once(commands: Commands) -> None:
    answers: list[str] = []

    async def operation() -> str:
        await asyncio.sleep(0)
        answers.append(str(len(answers)))
        return answers[-1]

    assert await asyncio.gather(*(ask(commands, operation) for _ in range(3))) == ["0", "0", "0"]
    assert answers == ["0"]
    with raises_code(Conflict, "request.key_reused"):
        await ask(commands, operation, text="other")


async def test_requests_with_other_keys_do_not_wait_and_locks_are_dropped(commands: Commands) -> None:
    release = asyncio.Event()

    async def wait() -> str:
        await release.wait()
        return "slow"

    async def answer() -> str:
        return "quick"

    slow = asyncio.create_task(ask(commands, wait))
    await asyncio.sleep(0)
    assert len(commands.cache.answer_locks) == 1
    for index in range(10):
        assert await ask(commands, answer, key=f"other-{index}") == "quick"
    release.set()
    assert await slow == "slow"
    del slow
    assert len(commands.cache.answer_locks) == 0


async def test_after_a_failure_the_next_request_with_the_key_acts(commands: Commands) -> None:
    async def fail() -> str:
        raise Unavailable("cannot reach the service: it is down; start it", code="service.down")

    async def answer() -> str:
        return "done"

    results = await asyncio.gather(ask(commands, fail), ask(commands, answer), return_exceptions=True)
    assert isinstance(results[0], Unavailable)
    assert results[1] == "done"
