"""`astraflow token`: for whom a join token is minted, and of which pool they are."""

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput
from tests.fakes.control_plane import TOKEN, FakeControlPlane

pytestmark = pytest.mark.anyio


async def asked(fake: FakeControlPlane, *arguments: str) -> Result:
    async with fake.serving() as address:
        return await asyncio.to_thread(CliRunner().invoke, app, ["token", address, "--token", TOKEN, *arguments])


async def test_a_pool_alone_is_that_of_a_node_and_beside_a_role_the_only_one_to_touch() -> None:
    fake = FakeControlPlane()
    node = await asked(fake, "--pool", "eu")
    assert "astraflow join 127.0.0.1:7001 --token afj.node.0" in node.output
    operator = await asked(fake, "--role", "operator", "--name", "ada", "--pool", "eu", "--json")
    assert json.loads(operator.output)["token"] == "afj.operator.0"
    assert [(kind, pool) for kind, pool, _ in fake.actions] == [("mint", "eu"), ("mint", "eu")]


async def test_who_is_to_join_is_said_once() -> None:
    for wrong in ((), ("--pool", "eu", "--policy", "solver"), ("--role", "operator", "--policy", "solver")):
        refused = await asked(FakeControlPlane(), *wrong)
        assert isinstance(refused.exception, InvalidInput)
        assert "say who is to join" in str(refused.exception)
