"""Environments in worker processes and behind HTTP: the same promises, and failures that stay where they happen."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.conformance.environments import check_environment
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PromptId
from astraflow.contract.plugins import broken_promises
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.environments import environments, games
from astraflow.environments.adapters.host import EnvironmentHost
from astraflow.environments.adapters.messages import ActRequest, BeginRequest, CloseRequest
from astraflow.environments.adapters.process import ProcessFactory
from astraflow.environments.base import Environment, EnvironmentFactory, EnvironmentLimits, Observation
from astraflow.environments.episodes import Expert, plan_of_answer, play, total_reward
from astraflow.environments.serve import serving_environment
from astraflow.runtime.http.json_service import ServiceAddress
from astraflow.runtime.plugins import PLUGINS_VARIABLE, start_managed
from astraflow.testing.plugins import EnvironmentSuite
from tests.errors import raises_code
from tests.fakes import environments as fakes

pytestmark = pytest.mark.anyio

TASKS = datasets.build({"kind": "textcraft", "size": 20, "min_depth": 1, "max_depth": 2}, 0)
PROMPT = Prompt(id=PromptId("p:0"), fields={})
FAULTY = {"kind": "faulty"}


@pytest.fixture(autouse=True)
def _workers_know_the_faulty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, fakes.__name__)


class TestProcess(EnvironmentSuite):
    @pytest.fixture
    def factory(self) -> EnvironmentFactory:
        return environments.build({"kind": "process", "of": {"kind": "textcraft"}, "workers": 2})

    @pytest.fixture
    def prompts(self) -> Sequence[Prompt]:
        return [TASKS.prompt(index) for index in range(3)]

    @pytest.fixture
    def expert(self) -> Expert:
        return plan_of_answer


async def test_an_environment_behind_http_keeps_the_promises_of_the_interface() -> None:
    prompts = [TASKS.prompt(index) for index in range(3)]
    async with serving_environment({"kind": "textcraft"}, ServiceAddress()) as url:
        factory = environments.build({"kind": "http", "url": url, "concurrency": 8})
        assert broken_promises(await check_environment(factory, prompts, plan_of_answer)) == []


@asynccontextmanager
async def faulty_workers(**options: Any) -> AsyncIterator[ProcessFactory]:
    spec = {"kind": "process", "of": FAULTY, "workers": 1, "act_s": 60.0, **options}
    factory = environments.build(spec)
    assert isinstance(factory, ProcessFactory)
    try:
        await factory.start()
        yield factory
    finally:
        await factory.close()


async def failure_of(environment: Environment, action: str) -> RolloutFailed:
    with pytest.raises(RolloutFailed) as caught:
        await environment.act(action)
    assert caught.value.boundary is Boundary.ENVIRONMENT
    return caught.value


@pytest.mark.parametrize(
    ("action", "code", "is_replaced"),
    [
        pytest.param("die", "environment.worker_died", True, marks=pytest.mark.long),
        pytest.param("hang", "environment.worker_timeout", True, marks=pytest.mark.long),
        pytest.param("raise", "environment.crashed", False, marks=pytest.mark.long),
        pytest.param("flood", "environment.invalid_observation", False, marks=pytest.mark.long),
        ("nan", "environment.invalid_observation", False),
    ],
)
async def test_a_fault_fails_the_episode_and_the_next_one_works(action: str, code: str, is_replaced: bool) -> None:
    async with faulty_workers(act_s=1.0) as factory:
        environment = factory.make()
        first = await environment.begin(PROMPT, 0)
        assert (await failure_of(environment, action)).code == code
        await environment.close()
        after = await play(factory, PROMPT, 1, lambda *_: "win")
        assert total_reward(after) == 1.0
        assert (after[0].text != first.text) == is_replaced


async def test_a_game_in_a_worker_is_played_and_its_faults_are_failures_of_the_environment() -> None:
    factory = games.build({"kind": "process", "of": {"kind": "counting"}, "workers": 1})
    async with AsyncExitStack() as resources:
        await start_managed([factory], resources)
        for action in ("stranger", "nan", "raise"):
            game = factory.make()
            await game.begin(PROMPT, 0)
            with pytest.raises(RolloutFailed) as caught:
                await game.act(0, action)
            assert caught.value.boundary is Boundary.ENVIRONMENT
            await game.close()
        game = factory.make()
        turns = [await game.begin(PROMPT, 0), await game.act(0, "x" * 1_000_001)]
        turns += [await game.act(player, "go") for player in (0, 1, 0)]
        await game.close()
    assert [turn.player for turn in turns] == [0, 0, 1, 0, 0]
    assert turns[1].observation.is_malformed
    assert [result.reward for result in turns[-1].results] == [1.0, -1.0]


@pytest.mark.long
async def test_a_worker_killed_from_outside_fails_only_its_own_episode() -> None:
    async with faulty_workers(workers=2) as factory:
        first, second = factory.make(), factory.make()
        begun, spared = await first.begin(PROMPT, 0), await second.begin(PROMPT, 0)
        os.kill(int(begun.text.split()[1]), signal.SIGKILL)
        assert (await failure_of(first, "go")).code == "environment.worker_died"
        assert (await failure_of(first, "go")).code == "environment.worker_died"
        assert (await second.act("win")).reward == 1.0
        await first.close()
        await second.close()
        pids = {(await factory.make().begin(PROMPT, 0)).text for _ in range(2)}
        assert spared.text in pids and begun.text not in pids


async def test_a_hang_is_ended_also_when_its_caller_stopped_waiting() -> None:
    async with faulty_workers(act_s=0.5) as factory:
        environment = factory.make()
        await environment.begin(PROMPT, 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(environment.act("hang"), 0.05)
        await environment.close()
        assert total_reward(await play(factory, PROMPT, 1, lambda *_: "win")) == 1.0


@pytest.mark.long
async def test_output_of_an_environment_does_not_disturb_its_answers() -> None:
    async with faulty_workers() as factory:
        environment = factory.make()
        await environment.begin(PROMPT, 0)
        assert (await environment.act("print")).text == "1"
        assert (await environment.act("win")).text == "2"


@pytest.mark.long
async def test_episodes_wait_for_a_free_worker_and_may_share_one() -> None:
    async with faulty_workers(episodes_per_worker=3) as factory:
        assert factory.limits.concurrency == 3
        environments = [factory.make() for _ in range(4)]
        first = await asyncio.gather(*(environment.begin(PROMPT, 0) for environment in environments[:3]))
        assert len({observation.text for observation in first}) == 1
        waiting = asyncio.create_task(environments[3].begin(PROMPT, 0))
        await asyncio.sleep(0)
        assert [(await environment.act("go")).text for environment in environments[:3]] == ["1", "1", "1"]
        assert not waiting.done()
        await environments[0].close()
        assert await waiting == first[0]


@pytest.mark.parametrize(
    ("changed", "kind", "code"),
    [
        ({"of": {**FAULTY, "refuses_check": True}}, InvalidInput, "faulty.refused"),
        ({"of": {**FAULTY, "dies_at_start": True}}, Unavailable, "environment.worker_not_started"),
        ({"python": "/no/such/python"}, Unavailable, "environment.worker_not_started"),
        ({"python": sys.executable, "of": {"kind": "unknown"}}, InvalidInput, "plugin.unknown_kind"),
    ],
)
async def test_workers_that_do_not_start_are_reported(changed: Mapping[str, Any], kind: Any, code: str) -> None:
    with raises_code(kind, code):
        async with faulty_workers(**changed):
            pass


async def test_an_episode_begins_only_while_the_workers_run() -> None:
    async with faulty_workers() as factory:
        pass
    unstarted = environments.build({"kind": "process", "of": FAULTY})
    for environment in (factory.make(), unstarted.make()):
        for _ in range(3):  # a refusal keeps no slot
            with raises_code(InvalidInput, "environment.not_started"):
                await environment.begin(PROMPT, 0)


@pytest.mark.long
async def test_refused_prompts_stay_invalid_input_over_every_adapter() -> None:
    refused = Prompt(id=PromptId("p:1"), fields={"refuse": True})
    async with faulty_workers() as factory:
        with raises_code(InvalidInput, "faulty.prompt"):
            await factory.make().begin(refused, 0)
    async with serving_environment(FAULTY, ServiceAddress()) as url, served(url) as http:
        with raises_code(InvalidInput, "faulty.prompt"):
            await http.make().begin(refused, 0)


@asynccontextmanager
async def served(url: str, **options: Any) -> AsyncIterator[Any]:
    factory: Any = environments.build({"kind": "http", "url": url, **options})
    try:
        await factory.start()
        yield factory
    finally:
        await factory.close()


@pytest.mark.long
async def test_faults_behind_http_are_failures_of_the_environment() -> None:
    workers = {"kind": "process", "of": FAULTY, "workers": 1, "act_s": 1.0}
    async with serving_environment(workers, ServiceAddress()) as url, served(url, act_s=30.0) as factory:
        for action, code in (("die", "environment.worker_died"), ("hang", "environment.worker_timeout")):
            environment = factory.make()
            await environment.begin(PROMPT, 0)
            assert (await failure_of(environment, action)).code == code
            assert (await failure_of(environment, "go")).code == "environment.unknown_episode"
            await environment.close()
        assert total_reward(await play(factory, PROMPT, 1, lambda *_: "win")) == 1.0


async def test_a_service_that_ends_or_does_not_answer_fails_the_episode() -> None:
    async with AsyncExitStack() as service:
        url = await service.enter_async_context(serving_environment(FAULTY, ServiceAddress()))
        async with served(url, act_s=0.3) as factory:
            waiting, raising, lost = [factory.make() for _ in range(3)]
            for environment in (waiting, raising, lost):
                await environment.begin(PROMPT, 0)
            assert (await failure_of(waiting, "wait")).code == "service.timeout"
            assert (await failure_of(raising, "raise")).code == "environment.crashed"
            await service.aclose()
            assert (await failure_of(lost, "go")).code == "service.unreachable"
            await lost.close()


async def test_the_service_requires_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_environment({"kind": "textcraft"}, ServiceAddress(token="secret")) as url:
        monkeypatch.setenv("ASTRAFLOW_ENVIRONMENT_TOKEN", "guess")
        with raises_code(Unavailable, "environment.service_unavailable"):
            async with served(url):
                pass
        monkeypatch.setenv("ASTRAFLOW_ENVIRONMENT_TOKEN", "secret")
        async with served(url) as factory:
            assert total_reward(await play(factory, TASKS.prompt(0), 0, plan_of_answer)) == 1.0
    with raises_code(InvalidInput, "service.token_required"):
        ServiceAddress(host="0.0.0.0")  # noqa: S104 (refused)


@asynccontextmanager
async def process_of(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    program = [sys.executable, "-m", "astraflow.environments.serve", *arguments]
    process = await asyncio.create_subprocess_exec(*program, stdout=-1, stderr=-1, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.long
async def test_an_environment_is_served_by_a_command() -> None:
    async with process_of('{"kind": "textcraft"}', "--port", "0") as process:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().removeprefix("serving at ").strip()
        async with served(url) as factory:
            assert total_reward(await play(factory, TASKS.prompt(1), 0, plan_of_answer)) == 1.0
        process.terminate()
        assert await process.wait() == 0
    async with process_of("textcraft") as process:
        assert await process.wait() == 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def begin_request(episode: str) -> BeginRequest:
    return BeginRequest(episode=episode, prompt_id="p:0", fields={}, seed=0)


async def test_a_host_repeats_answers_closes_unused_episodes_and_refuses_too_many() -> None:
    clock = Clock()
    host = EnvironmentHost(environments.build(FAULTY), max_episodes=2, idle_s=10.0, now=clock)
    first = await host.begin(begin_request("a"))
    assert await host.begin(begin_request("a")) == first
    first_answer = await host.act(ActRequest(episode="a", turn=1, action="go"))
    assert await host.act(ActRequest(episode="a", turn=1, action="go")) == first_answer
    assert (await host.act(ActRequest(episode="a", turn=2, action="go")))["text"] == "2"
    with raises_code(InvalidInput, "environment.wrong_turn"):
        await host.act(ActRequest(episode="a", turn=9, action="go"))
    await host.begin(begin_request("b"))
    with raises_code(RolloutFailed, "environment.too_many_episodes"):
        await host.begin(begin_request("c"))
    clock.now = 5.0
    await host.act(ActRequest(episode="b", turn=1, action="go"))
    clock.now = 11.0
    await host.close_idle()
    assert host.episodes == 1
    with raises_code(RolloutFailed, "environment.unknown_episode"):
        await host.act(ActRequest(episode="a", turn=3, action="go"))
    await host.close(CloseRequest(episode="b"))
    await host.close(CloseRequest(episode="b"))
    assert host.episodes == 0


class SlowBegin:
    """Environment and its factory. The begin opens a resource, until whose opening `close` has nothing to close."""

    limits = EnvironmentLimits()

    def __init__(self) -> None:
        self.has_begun, self.may_open = asyncio.Event(), asyncio.Event()
        self.is_open = False

    def make(self) -> Environment:
        return self

    async def check(self) -> None:
        """Nothing is missing."""

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        self.has_begun.set()
        await self.may_open.wait()
        self.is_open = True
        return Observation(text="begun")

    async def act(self, action: str) -> Observation:
        return Observation(text=action)

    async def close(self) -> None:
        self.is_open = False


async def test_an_episode_that_is_closed_during_its_begin_leaves_nothing_open() -> None:
    slow = SlowBegin()
    host = EnvironmentHost(slow, max_episodes=1, idle_s=10.0)
    begin = asyncio.create_task(host.begin(begin_request("a")))
    await slow.has_begun.wait()
    close = asyncio.create_task(host.close(CloseRequest(episode="a")))
    await asyncio.sleep(0)
    slow.may_open.set()
    await close
    with raises_code(RolloutFailed, "environment.unknown_episode"):
        await begin
    assert (slow.is_open, host.episodes) == (False, 0)
