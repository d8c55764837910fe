"""The example of an own environment keeps the promises of the interface, also in worker processes."""

import sys

import pytest

from astraflow.conformance.environments import check_environment
from astraflow.contract.ids import PromptId
from astraflow.contract.plugins import broken_promises
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments
from astraflow.environments.episodes import play
from astraflow.recipe.files import EXAMPLES, PACKAGED
from astraflow.runtime.plugins import PLUGINS_VARIABLE, import_plugins

pytestmark = pytest.mark.anyio

EXAMPLE = str(PACKAGED / EXAMPLES / "own_environment.py")
PROMPTS = [Prompt(id=PromptId(f"p:{number}"), fields={}) for number in range(3)]


@pytest.mark.parametrize("workers", [0, 1])
async def test_the_example_keeps_the_promises_of_the_interface(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import_plugins(EXAMPLE)
    monkeypatch.setenv(PLUGINS_VARIABLE, EXAMPLE)
    spec = {"kind": "guess_number"}
    factory = environments.build({"kind": "process", "of": spec, "workers": workers} if workers else spec)
    assert broken_promises(await check_environment(factory, PROMPTS, sys.modules["own_environment"].bisect)) == []


async def test_the_example_is_lost_after_its_last_guess() -> None:
    import_plugins(EXAMPLE)
    factory = environments.build({"kind": "guess_number", "largest": 3, "guesses": 2})
    observations = await play(factory, PROMPTS[0], 0, lambda *_: "9")
    assert (len(observations), observations[-1].ending) == (3, Ending.LOST)
