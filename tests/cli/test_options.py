"""Token, pin and key options: as a value, from a file, or environment."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from astraflow.cli.fleet.commands import fleet
from astraflow.cli.options import TOKEN, TOKEN_FILE, read_ca_hash, read_token, read_weights_key
from astraflow.contract.errors import InvalidInput
from tests.words import options_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("file\n")
    return path


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.delenv(TOKEN_FILE, raising=False)


def test_an_explicit_token_file_overrides_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "environment")
    assert read_token(file) == "file"


def test_a_token_in_the_environment_overrides_a_token_file_in_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine has its own token in its environment, beside the variables inherited from its parent process."""
    monkeypatch.setenv(TOKEN_FILE, str(file))
    assert read_token(None) == "file"
    monkeypatch.setenv(TOKEN, "environment")
    assert read_token(None) == "environment"


def test_without_a_source_the_token_is_empty() -> None:
    assert read_token(None) == ""


@pytest.mark.parametrize("read", [read_ca_hash, read_weights_key])
def test_pins_and_keys_are_given_as_values_or_files(read: Callable[[str], str], file: Path) -> None:
    assert read("") == ""
    assert read("sha256:5f") == "sha256:5f"
    assert read(str(file)) == "file"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b" \n", "it is empty"), (b"\xff", "not a text file")],
)
def test_an_unusable_token_file_is_refused_with_its_path(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as refused:
        read_token(path)
    assert str(path) in str(refused.value)


def test_every_fleet_command_has_the_mutual_tls_options() -> None:
    ways = {"--token-file", "--authority", "--tls-ca", "--tls-client-certificate", "--tls-client-key"}
    commands = typer.main.get_command(fleet).commands  # type: ignore[attr-defined]
    assert {name for name, command in commands.items() if ways - options_of(command)} == set()
    assert {"providers", "preflight", "status"} <= commands.keys()
