"""Environments are found by engine and name; incomplete ones are not."""

from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.raas.engines.server.environments import (
    Environment,
    environments_folder,
    find_environment,
    installed_environments,
)
from tests.errors import raises_code


def installed(name: str, kind: str) -> Environment:
    folder = environments_folder() / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    environment = Environment(kind=kind, device="cpu", version="1.2", folder=folder)
    environment.describe()
    return environment


def test_an_environment_is_read_from_its_description() -> None:
    environment = installed("sglang-cpu", "sglang")

    assert installed_environments() == [environment]
    assert environment.python == environment.folder / "bin" / "python"


def test_environments_are_found_by_kind_and_by_name() -> None:
    first, second, other = installed("a", "vllm"), installed("b", "vllm"), installed("c", "sglang")

    assert find_environment("vllm") == first
    assert find_environment("vllm", "b") == second
    assert find_environment("sglang") == other
    with raises_code(InvalidInput, "engine.not_installed", "'c'", "astraflow engines install vllm"):
        find_environment("vllm", "c")


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "vllm"}', "{"])
def test_an_invalid_description_is_left_out(content: str) -> None:
    environment = installed("a", "vllm")
    (environment.folder / "engine.json").write_text(content)

    assert installed_environments() == []


def test_an_environment_without_an_interpreter_is_left_out() -> None:
    environment = installed("a", "vllm")
    Path(environment.python).unlink()

    with raises_code(InvalidInput, "engine.not_installed", "vllm"):
        find_environment("vllm")


def test_the_folder_of_environments_can_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_ENGINES", str(tmp_path / "engines"))
    environment = installed("a", "vllm")

    assert environment.folder == tmp_path / "engines" / "a"
    assert find_environment("vllm") == environment
