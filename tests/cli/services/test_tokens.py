"""`astraflow token`: role and pool of a minted join token."""

import asyncio
import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput
from tests.fakes.control_plane import TOKEN, FakeControlPlane

pytestmark = pytest.mark.anyio


async def run_token_command(fake: FakeControlPlane, *arguments: str) -> Result:
    async with fake.serving() as address:
        return await asyncio.to_thread(CliRunner().invoke, app, ["token", address, "--token", TOKEN, *arguments])


async def test_a_pool_selects_a_node_token_or_limits_the_role() -> None:
    fake = FakeControlPlane()
    node = await run_token_command(fake, "--pool", "eu")
    assert "astraflow join 127.0.0.1:7001 --token afj.node.0" in node.output
    operator = await run_token_command(fake, "--role", "operator", "--name", "ada", "--pool", "eu", "--json")
    assert json.loads(operator.output)["token"] == "afj.operator.0"
    assert [(kind, pool) for kind, pool, _ in fake.actions] == [("mint", "eu"), ("mint", "eu")]


async def test_a_missing_or_ambiguous_role_is_refused() -> None:
    for wrong in ((), ("--pool", "eu", "--policy", "solver"), ("--role", "operator", "--policy", "solver")):
        refused = await run_token_command(FakeControlPlane(), *wrong)
        assert isinstance(refused.exception, InvalidInput)
        assert refused.exception.code == "token.role_required"


async def test_a_token_is_written_to_a_file_of_the_given_mode_and_not_printed(tmp_path: Path) -> None:
    for arguments, mode in (((), 0o600), (("--mode", "440"), 0o440), (("--mode", "0600", "--json"), 0o600)):
        file = tmp_path / "pool.token"
        minted = await run_token_command(
            FakeControlPlane(), "--pool", "eu", "--reusable", "--out", str(file), *arguments
        )
        assert minted.exit_code == 0, minted.output
        assert "afj." not in minted.output
        assert str(file) in minted.output
        assert file.read_text() == "afj.node.0\n"
        assert stat.S_IMODE(file.stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == ["pool.token"]


@pytest.mark.parametrize("mode", ["rw", "622", "666", "755", "0", "-600", "99"])
async def test_file_modes_that_let_others_write_are_refused(tmp_path: Path, mode: str) -> None:
    fake = FakeControlPlane()
    refused = await run_token_command(fake, "--pool", "eu", "--out", str(tmp_path / "pool.token"), "--mode", mode)
    assert isinstance(refused.exception, InvalidInput)
    assert fake.actions == []
    assert list(tmp_path.iterdir()) == []


async def test_tokens_are_listed_with_their_uses() -> None:
    listed = await run_token_command(FakeControlPlane(), "--list", "--json")
    (known,) = json.loads(listed.output)
    assert (known["pool"], known["uses"], known["is_reusable"]) == ("eu", 3, True)
    shown = await run_token_command(FakeControlPlane(), "--list")
    assert shown.output.split()[-3:] == ["3", "2033-05-18", "03:33:20"]


async def test_several_uses_require_a_reusable_token() -> None:
    refused = await run_token_command(FakeControlPlane(), "--pool", "eu", "--uses", "3")
    assert isinstance(refused.exception, InvalidInput)
