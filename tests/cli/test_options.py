"""Token, pin and key options: as a value, from a file, or environment."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from astraflow.cli.fleet_commands import fleet
from astraflow.cli.options import TOKEN, TOKEN_FILE, read_ca_hash, read_token, read_weights_key
from astraflow.contract.errors import InvalidInput
from tests.words import options_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("file\n")
    return path


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.delenv(TOKEN_FILE, raising=False)


def test_a_file_that_is_named_goes_before_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "environment")
    assert read_token(file) == "file"


def test_a_token_in_the_environment_goes_before_a_file_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine has its own token in its environment, beside the variables inherited from its parent process."""
    monkeypatch.setenv(TOKEN_FILE, str(file))
    assert read_token(None) == "file"
    monkeypatch.setenv(TOKEN, "environment")
    assert read_token(None) == "environment"


def test_without_any_there_is_no_token() -> None:
    assert read_token(None) == ""


@pytest.mark.parametrize("read", [read_ca_hash, read_weights_key])
def test_a_pin_and_a_key_are_given_as_they_are_or_in_a_file(read: Callable[[str], str], file: Path) -> None:
    assert read("") == ""
    assert read("sha256:5f") == "sha256:5f"
    assert read(str(file)) == "file"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b" \n", "it is empty"), (b"\xff", "not a text file")],
)
def test_a_file_that_does_not_do_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=said) as refused:
        read_token(path)
    assert str(path) in str(refused.value)


def test_every_command_of_the_fleet_can_reach_one_behind_mutual_tls() -> None:
    ways = {"--token-file", "--authority", "--tls-ca", "--tls-client-certificate", "--tls-client-key"}
    commands = typer.main.get_command(fleet).commands  # type: ignore[attr-defined]
    assert {name for name, command in commands.items() if ways - options_of(command)} == set()
    assert {"providers", "preflight", "status"} <= commands.keys()
