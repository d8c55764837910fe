"""ALFWorld's engine in worker processes: each task type is won, episodes repeat, and workers may die."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets import datasets
from astraflow.datasets.worlds.alfworld_games import TASK_TYPES, HouseholdGame, PlacedObject
from astraflow.environments import environments
from astraflow.environments.alfworld import normalized
from astraflow.environments.alfworld_problems import problem_of
from astraflow.environments.base import EnvironmentFactory, Observation
from astraflow.environments.episodes import Expert, plan_of_answer, play
from astraflow.runtime.plugins import start_managed
from astraflow.testing.plugins import EnvironmentSuite
from tests import make
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

GAMES = datasets.build({"kind": "alfworld", "generated": 60}, 0)
KITCHEN = HouseholdGame(
    room="kitchen",
    receptacles=("Fridge", "CounterTop", "Cabinet"),
    objects=(PlacedObject(type="Apple", place=0), PlacedObject(type="Mug", place=2)),
    task_type="pick_and_place_simple",
    target="Apple",
    destination="CounterTop",
)


@asynccontextmanager
async def workers(count: int = 1, **options: Any) -> AsyncIterator[EnvironmentFactory]:
    spec = {"kind": "process", "workers": count, "of": {"kind": "alfworld", **options}}
    async with AsyncExitStack() as resources:
        factory = environments.build(spec)
        await start_managed([factory], resources)
        yield factory


def published(folder: Path, game: HouseholdGame) -> Prompt:
    """Writes a game as the published data has it, with a grammar that must not be evaluated."""
    path = folder / "json_2.1.1" / "train" / "pick" / "trial"
    path.mkdir(parents=True)
    content = {"pddl_domain": "", "grammar": "grammar :: broken", "pddl_problem": problem_of(game), "solvable": True}
    (path / "game.tw-pddl").write_text(json.dumps(content))
    goal = "Please {put} #the# apple [away]."
    fields = {"question": goal, "answer": "", "game": "train/pick/trial/game.tw-pddl"}
    return Prompt(id=PromptId("alfworld:train/pick/trial"), fields=fields)


@pytest.mark.long
async def test_each_task_type_is_won_and_repeats_itself(tmp_path: Path) -> None:
    prompts = [GAMES.prompt(index) for index in range(len(TASK_TYPES))]
    async with workers(path=str(tmp_path)) as factory:
        for prompt in prompts:
            observations = await play(factory, prompt, 0, plan_of_answer)
            assert (observations[-1].reward, observations[-1].ending) == (1.0, Ending.WON), prompt.id
            goal = str(prompt.fields["question"])
            assert observations[0].text.endswith(f"Your task is to: {goal}.")
            assert observations[0].actions == tuple(sorted(observations[0].actions))
        again = await play(factory, prompts[-1], 1, plan_of_answer)
        assert again == observations
        await _check_actions(factory, published(tmp_path, KITCHEN))


async def _check_actions(factory: EnvironmentFactory, prompt: Prompt) -> None:
    environment = factory.make()
    begun = await environment.begin(prompt, 0)
    assert begun.text.endswith("Your task is to: Please {put} #the# apple [away].")
    assert set(begun.actions) >= {"go to fridge 1", "go to countertop 1", "look", "inventory"}
    impossible = await environment.act("take apple 1 from fridge 1")
    unread = await environment.act("I should go")
    assert (impossible.text, impossible.is_malformed, unread.is_malformed) == ("Nothing happens.", False, True)
    assert impossible.actions == unread.actions == begun.actions
    for action in ("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1"):
        assert (await environment.act(action)).reward == 0.0
    await environment.act("go to countertop 1")
    won = await environment.act("> Put apple 1 in/on countertop 1.")
    assert (won.text, won.reward, won.ending) == ("You move the apple 1 to the countertop 1.", 1.0, Ending.WON)
    after = await environment.act("look")
    assert (after.reward, after.ending) == (0.0, Ending.WON)
    await environment.close()


@pytest.mark.long
class TestAlfworld(EnvironmentSuite):
    @pytest.fixture
    def factory(self) -> EnvironmentFactory:
        return environments.build({"kind": "process", "workers": 2, "of": {"kind": "alfworld"}})

    @pytest.fixture
    def prompts(self) -> Sequence[Prompt]:
        return [GAMES.prompt(index) for index in (0, 5)]

    @pytest.fixture
    def expert(self) -> Expert:
        return plan_of_answer


@pytest.mark.long
async def test_the_plan_wins_every_task_type_for_fifty_seeds() -> None:
    async with workers(2) as factory:
        for seed in range(50):
            dataset = datasets.build({"kind": "alfworld", "generated": 6}, seed)
            for index in range(len(TASK_TYPES)):
                prompt = dataset.prompt(index)
                observations = await play(factory, prompt, seed, plan_of_answer)
                assert observations[-1].reward == 1.0, (seed, prompt.fields)
                assert not any(step.text == "Nothing happens." for step in observations), (seed, prompt.fields)


@pytest.mark.long
async def test_a_killed_worker_fails_its_game_alone() -> None:
    async with workers(2) as factory:
        first, second = factory.make(), factory.make()
        await first.begin(GAMES.prompt(0), 0)
        before = set(psutil.Process().children())
        await second.begin(GAMES.prompt(1), 0)
        assert set(psutil.Process().children()) == before
        os.kill(_busiest(before).pid, signal.SIGKILL)
        outcomes = [await _acted(environment) for environment in (first, second)]
        assert sorted(outcomes) == [False, True]
        for environment in (first, second):
            await environment.close()
        assert (await play(factory, GAMES.prompt(2), 0, plan_of_answer))[-1].ending is Ending.WON


@pytest.mark.long
async def test_texts_and_actions_are_those_of_the_unchanged_engine() -> None:
    prompts = [GAMES.prompt(index) for index in range(len(TASK_TYPES))]
    states = _played_by_the_unchanged_engine(prompts)

    factory = environments.build({"kind": "alfworld"})
    for prompt, expected in zip(prompts, states, strict=True):
        for _ in range(2):  # the second time from the cached translation
            observations = await play(factory, prompt, 0, plan_of_answer)
            assert [text for text, _ in expected][1:] == [step.text for step in observations][1:]
            assert [tuple(actions) for _, actions in expected] == [step.actions for step in observations]


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ("put apple 1 in/on fridge 1", "move apple 1 to fridge 1"),
        ("Put  apple 1 in fridge 1.", "move apple 1 to fridge 1"),
        ("place apple 1 on table 2", "move apple 1 to table 2"),
        ("move apple 1 to fridge 1", "move apple 1 to fridge 1"),
        ("> go to fridge 1", "go to fridge 1"),
        ("look " * 1000, ""),
    ],
)
def test_both_spellings_of_the_put_command_are_read(action: str, command: str) -> None:
    assert normalized(action) == command


@pytest.mark.parametrize(
    "game",
    [
        None,
        "train/pick/trial/game.tw-pddl",
        "../../etc/passwd",
        {"room": "kitchen"},
        {**GAMES.prompt(0).fields["game"], "target": "Apple) (isHot x"},  # type: ignore[dict-item]
    ],
    ids=["none", "missing", "outside", "partial", "injection"],
)
async def test_a_prompt_without_a_game_is_refused(game: Any, tmp_path: Path) -> None:
    environment = environments.build({"kind": "alfworld", "path": str(tmp_path)}).make()
    with raises_code(InvalidInput, "environment.wrong_prompt"):
        await environment.begin(Prompt(id=make.prompt().id, fields={"question": "?", "game": game}), 0)
    with raises_code(InvalidInput, "environment.not_begun"):
        await environment.act("look")
    await environment.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"generated": 5, "is_sample": True}, {"generated": 5, "task_types": []}, {"generated": 5, "receptacles": 2}],
    ids=str,
)
def test_options_that_name_no_games_are_refused(options: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        datasets.build({"kind": "alfworld", **options}, 0)


async def _acted(environment: Any) -> bool:
    try:
        observation: Observation = await environment.act("look")
    except RolloutFailed:
        return False
    return bool(observation.text)


def _busiest(processes: set[psutil.Process]) -> psutil.Process:
    return max(processes, key=lambda process: sum(process.cpu_times()[:2]))


UNCHANGED_ENGINE = """
import json, sys
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos
from textworld.envs import PddlEnv

for line in sys.stdin:
    game = json.loads(line)
    engine = AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True)))
    engine.load(game["data"])
    states = [engine.reset(), *(engine.step(action)[0] for action in game["plan"])]
    print(json.dumps([[state["feedback"], state["admissible_commands"]] for state in states]))
"""


def _played_by_the_unchanged_engine(prompts: Sequence[Prompt]) -> list[list[tuple[str, list[str]]]]:
    """Returns text and actions of each state; in another process, since this one changes functions of the engine."""
    games = [{"data": _game_data(prompt), "plan": str(prompt.fields["answer"]).splitlines()} for prompt in prompts]
    command = [sys.executable, "-W", "ignore", "-c", UNCHANGED_ENGINE]
    lines = "".join(f"{json.dumps(game)}\n" for game in games)
    output = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def _game_data(prompt: Prompt) -> dict[str, str]:
    import alfworld.info as info
    from pydantic import TypeAdapter

    game = TypeAdapter(HouseholdGame).validate_python(prompt.fields["game"])
    return {
        "pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(),
        "grammar": Path(info.ALFRED_TWL2_PATH).read_text(),
        "pddl_problem": problem_of(game),
    }
