"""Coding agents of others, as released, fix a bug in a repository with their own tools, and know only the proxy."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agents.clients.environments import NODE, PYTHON
from tests.agents.clients.sessions import ClientSession, client_session
from tests.fakes.deciding_policy import Decide, DecidingPolicy, Step, hermes_call, in_steps

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(400)]

TASK = "check.py fails. Fix the bug."
CHECK = 'from calc import add\n\nprint(f"add(40, 2) is {add(40, 2)}")\nassert add(40, 2) == 42\n'
ANSWER = "The function adds now."


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Folder of a project with a bug in one line, and beside it a home for the agent."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "home").mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "check.py").write_text(CHECK)
    return folder


def bug_fixer(tool: str, argument: str, *, end: str = ANSWER, **others: Any) -> Decide:
    """Returns decisions that run the check, change the line once the output of the check was seen, and then end.

    tool, argument: the tool of the agent that runs a command, and its argument for it; others: further arguments.
    """

    def runs(command: str) -> str:
        return "I run a command.\n" + hermes_call(tool, **{argument: command}, **others)

    return in_steps(
        runs("python3 check.py"),
        Step("add(40, 2) is 38", runs("sed -i 's/a - b/a + b/' calc.py && python3 check.py")),
        Step("add(40, 2) is 42", end),
    )


async def run(session: ClientSession, repository: Path, *command: str, **variables: str) -> str:
    """Runs an agent in the repository, checks that the bug is fixed, and returns what the agent printed."""
    printed = await session.run(*command, home=repository.parent / "home", folder=repository, variables=variables)
    assert (repository / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
    return printed


async def test_mini_swe_agent(repository: Path) -> None:
    submits = hermes_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    async with client_session(DecidingPolicy(bug_fixer("bash", "command", end=f"It is fixed.\n{submits}"))) as session:
        await run(
            session,
            repository,
            PYTHON.program("mini"),
            *("--model", "openai/policy", "--task", TASK, "--yolo", "--exit-immediately", "--cost-limit", "0"),
            MSWEA_CONFIGURED="true",
            MSWEA_COST_TRACKING="ignore_errors",
            LITELLM_LOCAL_MODEL_COST_MAP="True",
        )
        session.trajectories(turns=[3])


async def test_claude_code(repository: Path) -> None:
    decide = bug_fixer("Bash", "command", description="Runs the check")
    async with client_session(DecidingPolicy(decide)) as session:
        printed = await run(
            session,
            repository,
            NODE.program("claude"),
            *("--print", TASK, "--allowedTools", "Bash"),
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )
        assert printed.strip() == ANSWER
        (trajectory,) = session.trajectories(turns=[3])
        assert {call.dialect for call in trajectory.calls} == {"messages"}


async def test_codex(repository: Path) -> None:
    async with client_session(DecidingPolicy(bug_fixer("exec_command", "cmd"))) as session:
        provider = {"name": "AstraFlow", "env_key": "OPENAI_API_KEY", "wire_api": "responses"}
        provider["base_url"] = session.access.environment["OPENAI_BASE_URL"]
        settings = [f"model_providers.astraflow.{name}={json.dumps(value)}" for name, value in provider.items()]
        options = [part for setting in ('model_provider="astraflow"', *settings) for part in ("--config", setting)]
        printed = await run(
            session,
            repository,
            NODE.program("codex"),
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--model", "policy"),
            *(*options, TASK),
        )
        assert printed.strip() == ANSWER
        (trajectory,) = session.trajectories(turns=[3])
        assert {call.dialect for call in trajectory.calls} == {"responses"}


async def test_opencode(repository: Path) -> None:
    """OpenCode writes a title in a second conversation, concurrently with the first."""
    fixes = bug_fixer("bash", "command", description="Runs the check")

    def decide(prompt: str) -> str:
        return "A bug" if "You are a title generator" in prompt else fixes(prompt)

    async with client_session(DecidingPolicy(decide)) as session:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"policy": {}},
        }
        settings = {"model": "astraflow/policy", "provider": {"astraflow": provider}, "autoupdate": False}
        (repository / "opencode.json").write_text(json.dumps(settings))
        printed = await run(session, repository, NODE.program("opencode"), "run", TASK)
        assert ANSWER in printed
        trajectories = session.trajectories()
        assert sorted(trajectory.turns for trajectory in trajectories) == [1, 3]
        assert {call.dialect for trajectory in trajectories for call in trajectory.calls} == {"chat"}


async def test_qwen_code(repository: Path) -> None:
    """Qwen Code inserts an answer that no model wrote into the conversation."""
    decide = bug_fixer("run_shell_command", "command", description="Runs the check", is_background=False)
    async with client_session(DecidingPolicy(decide)) as session:
        printed = await run(
            session,
            repository,
            NODE.program("qwen"),
            *("--auth-type", "openai", "--yolo", "--prompt", TASK),
            OPENAI_MODEL="policy",
        )
        assert ANSWER in printed
        (trajectory,) = session.trajectories(turns=[3])
        assert {call.dialect for call in trajectory.calls} == {"chat"}
