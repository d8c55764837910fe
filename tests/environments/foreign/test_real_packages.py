"""The released packages keep the promises of environments by name, with the environments of the recipes."""

import os
import tomllib
from typing import Any

import pytest

from astraflow.conformance.named_environments import NamedEnvironment, check_named_environment
from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import broken_promises
from astraflow.datasets import datasets
from astraflow.environments.foreign.installation import installed_environments
from astraflow.runtime.folders.run_folders import HOME
from astraflow.workflows.scripted.policies import in_order
from tests.environments.foreign.__main__ import RECIPES
from tests.errors import raises_code

pytestmark = [pytest.mark.anyio, pytest.mark.environments, pytest.mark.timeout(900)]

_USERS_HOME = os.environ.get(HOME)


@pytest.fixture(autouse=True)
def _home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments are in the user's home; other tests have one of their own."""
    if _USERS_HOME is None:
        monkeypatch.delenv(HOME, raising=False)
    else:
        monkeypatch.setenv(HOME, _USERS_HOME)


def environment_of(recipe: str) -> dict[str, Any]:
    flow = tomllib.loads((RECIPES / f"{recipe}.toml").read_text())["flows"]["train"]
    environment: dict[str, Any] = flow["environment"]
    if environment["kind"] not in {item.kind for item in installed_environments()}:
        pytest.skip(f"{environment['kind']} is not installed: make environments")
    return environment


@pytest.mark.parametrize("recipe", ["openenv", "verifiers"])
async def test_all_promises_are_kept(recipe: str) -> None:
    environment = NamedEnvironment.of(environment_of(recipe), in_order("cba", "fed"))
    assert broken_promises(await check_named_environment(environment)) == []


def test_verifiers_refuses_commands_of_the_policy_on_this_machine() -> None:
    environment = environment_of("verifiers")
    spec = {**environment, "agent": {"harness": {"id": "bash"}}}
    spec = {name: spec[name] for name in ("kind", "id", "args", "agent")}
    with raises_code(InvalidInput, "environment.unisolated_commands"):
        datasets.build(spec, 0)


@pytest.mark.parametrize("identity", ["no-such-environment", "verifiers"])
def test_verifiers_names_an_environment_that_it_cannot_load(identity: str) -> None:
    environment_of("verifiers")
    with raises_code(InvalidInput, "environment.not_loadable"):
        datasets.build({"kind": "verifiers", "id": identity}, 0)
