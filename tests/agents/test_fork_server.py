"""Process that imports the modules of agents and forks for each episode."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from astraflow.agents.programs.base import AgentTask
from astraflow.agents.programs.callables import CallableOptions, CallableProgram, _ForkServer
from astraflow.agents.programs.fork_server import WORK, Start, called_with, function_named
from astraflow.agents.programs.sdk_clients import UNSET_KEY, UNSET_URL, early_clients, point_clients, warm_up
from astraflow.agents.proxy.server import environment
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.plugins import PLUGINS_VARIABLE
from tests.errors import raises_code
from tests.fakes.clock import settle


def test_clients_that_a_module_creates_get_base_url_and_key_of_each_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(UNSET_URL, UNSET_KEY).items():
        monkeypatch.setenv(name, value)
    clients: list[Any] = [OpenAI(), AsyncOpenAI(), Anthropic()]
    judge = OpenAI(base_url="http://judge/v1")
    module_clients = early_clients()
    assert {id(client) for _, client in module_clients} >= {id(client) for client in clients}
    assert id(judge) not in {id(client) for _, client in module_clients}

    point_clients(module_clients, environment("http://127.0.0.1:4321/s/secret", "secret"))
    bases = ["http://127.0.0.1:4321/s/secret/v1/"] * 2 + ["http://127.0.0.1:4321/s/secret/"]
    assert [str(client.base_url) for client in clients] == bases
    assert [client.auth_headers for client in clients[:2]] == [{"Authorization": "Bearer secret"}] * 2
    assert [value.removeprefix("Bearer ") for value in clients[2].auth_headers.values()] == ["secret"]


@pytest.mark.anyio
async def test_a_module_that_fails_in_the_process_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "agent_without_credentials.py"
    module.write_text(
        "import sys\ndef ask(question): ...\nif 'fork_server' in sys.argv[0]: raise ValueError('no key')\n"
    )
    monkeypatch.setenv(PLUGINS_VARIABLE, str(module))
    program = CallableProgram(CallableOptions(function="agent_without_credentials:ask"))
    with raises_code(InvalidInput, "agent.modules_not_imported"):
        await program.start()
    await program.close()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("agent_without_file:ask", "the module 'agent_without_file' is not loaded"),
        ("pathlib:answer", "the module has no function 'answer'"),
        ("pathlib:__doc__", "the module has no function '__doc__'"),
    ],
)
def test_a_function_that_does_not_exist_is_named(entry: str, message: str) -> None:
    with pytest.raises(LookupError, match=re.escape(message)):
        function_named(entry)


def test_a_parameter_gets_the_field_of_its_name_and_is_named_without_one() -> None:
    def ask(question: str, task: AgentTask, hint: str = "none", *rest: str) -> None: ...

    task = AgentTask(
        fields={"question": "1+1=", "answer": "2"},
        base_url="",
        api_key="",
        models=("m",),
        environment={},
        port=1,
        seed=0,
    )

    assert called_with(ask, task) == {"question": "1+1=", "task": task}
    with pytest.raises(TypeError, match=r"the parameter 'question', but the agent's task only \['answer'\]"):
        called_with(ask, replace(task, fields={"answer": "2"}))


def test_the_sdks_are_warmed_up_without_a_connection() -> None:
    with structlog.testing.capture_logs() as entries:
        warm_up()
    assert entries == []


@pytest.mark.anyio
async def test_agents_that_are_cancelled_while_they_start_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and kill reach the fork server together, so that the kill comes before the agent has its own group."""
    (tmp_path / "waiting_agent.py").write_text("import time\ndef wait(): time.sleep(1000)\n")
    monkeypatch.setenv(PLUGINS_VARIABLE, str(tmp_path / "waiting_agent.py"))
    task = AgentTask(fields={}, base_url="", api_key="", models=("m",), environment={}, port=1, seed=0)
    server = _ForkServer(())
    await server.start()
    calls = []
    for number in range(8):
        (tmp_path / f"{number}" / WORK).mkdir(parents=True)
        start = Start(
            function="waiting_agent:wait",
            folder=str(tmp_path / f"{number}"),
            task=task,
            memory_bytes=2**30,
            file_bytes=2**20,
        )
        calls.append(asyncio.create_task(server.call(start)))
    await settle()
    for waiting in calls:
        waiting.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait(calls)
    assert all(waiting.cancelled() for waiting in calls)
    await server.close()
