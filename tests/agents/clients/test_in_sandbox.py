"""Coding agents of others, as released, in sessions of the sandbox: they reach the proxy and nothing else."""

import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from astraflow.conformance.workflows import ConstantReward
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.spans import Ending
from astraflow.runtime.plugins import start_managed
from astraflow.sandbox.base import SandboxError
from astraflow.sandbox.isolation import check_readable, find_python
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from tests import make
from tests.agents.clients.environments import NODE, PYTHON, ClientEnvironment
from tests.agents.clients.test_coding_agents import CHECK, TASK, bug_fixer
from tests.agents.exactness import assert_token_exact
from tests.fakes.deciding_policy import Decide, DecidingPolicy, hermes_call

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(400)]

SOLVER = PolicyId("solver")
SANDBOX_USER = 65534 if os.geteuid() == 0 else None
INTERPRETER = find_python("", user=SANDBOX_USER)
"""Interpreter that the user of the sandbox can run."""
FIXED = "import calc; print(int(calc.add(40, 2) == 42))"


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Program of a command in a folder with the bug."""

    def spec(environment: ClientEnvironment, *command: str, **options: Any) -> dict[str, Any]:
        try:
            check_readable([str(environment.folder)], INTERPRETER, user=SANDBOX_USER)
        except SandboxError as problem:
            pytest.skip(f"{problem}: set ASTRAFLOW_HOME")
        texts = {"calc.py": "def add(a, b):\n    return a - b\n", "check.py": CHECK}
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        return {
            "kind": "command",
            "command": command,
            "files": {name: str(tmp_path / name) for name in texts},
            "sandbox": {"kind": "local", "workers": 1, "readable_paths": [str(environment.folder)]},
            **options,
        }

    return spec


async def fixes_the_bug(program: dict[str, Any], decide: Decide) -> None:
    """Runs an episode that a command in the same session scores, and checks its trajectory."""
    score = {"by": "command", "command": [INTERPRETER, "-c", FIXED]}
    options = {"score": score, "max_context": 200_000, "max_new_tokens": 2000, "max_seconds": 240}
    workflow = workflows.build({"kind": "agent", "program": program, **options})
    policy = DecidingPolicy(decide, policy=SOLVER)
    async with AsyncExitStack() as resources:
        await start_managed((workflow,), resources)
        trajectories = await workflow.run(make.task(), {SOLVER: policy}, RewardScorer(ConstantReward()))
    (trajectory,) = trajectories
    assert (trajectory.reward, trajectory.ending, trajectory.turns) == (1.0, Ending.DONE, 3)
    assert_token_exact(trajectories, policy.requests)


async def test_mini_swe_agent_fixes_a_bug_in_the_sandbox(program: Callable[..., dict[str, Any]]) -> None:
    submits = hermes_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    options = ("--task", TASK, "--yolo", "--exit-immediately", "--cost-limit", "0")
    agent = program(
        PYTHON,
        *(INTERPRETER, "-c", "from minisweagent.run.mini import app; app()", "--model", "openai/solver", *options),
        memory_mib=4096,
        variables={
            "PYTHONPATH": str(next(PYTHON.folder.glob("lib/*/site-packages"))),
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )
    await fixes_the_bug(agent, bug_fixer("bash", "command", end=f"It is fixed.\n{submits}"))


def node_program(program: Callable[..., dict[str, Any]], *command: str, **variables: str) -> dict[str, Any]:
    """Returns the program of an agent from npm. Its JavaScript engine reserves far more addresses than memory."""
    return program(NODE, *command, memory_mib=2**18, processes=256, variables=variables)


async def test_claude_code_fixes_a_bug_in_the_sandbox(program: Callable[..., dict[str, Any]]) -> None:
    options = ("--print", TASK, "--allowedTools", "Bash")
    agent = node_program(program, NODE.program("claude"), *options, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")
    await fixes_the_bug(agent, bug_fixer("Bash", "command", description="Runs the check"))


async def test_codex_fixes_a_bug_in_the_sandbox(program: Callable[..., dict[str, Any]]) -> None:
    """Its settings name the address of the calls, so a shell fills it in."""
    provider = (
        '-c model_provider=astraflow -c "model_providers.astraflow.base_url=$OPENAI_BASE_URL" '
        "-c model_providers.astraflow.name=AstraFlow -c model_providers.astraflow.env_key=OPENAI_API_KEY "
        "-c model_providers.astraflow.wire_api=responses"
    )
    options = "--skip-git-repo-check --dangerously-bypass-approvals-and-sandbox --model solver"
    command = f'exec {NODE.program("codex")} exec {options} {provider} "{TASK}"'
    await fixes_the_bug(node_program(program, "/bin/sh", "-c", command), bug_fixer("exec_command", "cmd"))


async def test_qwen_code_fixes_a_bug_in_the_sandbox(program: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Its shell tool is told to use pipes, because a session has no pseudo-terminals."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"tools": {"shell": {"enableInteractiveShell": False}}}))
    options = ("--auth-type", "openai", "--yolo", "--prompt", TASK)
    agent = node_program(program, NODE.program("qwen"), *options, OPENAI_MODEL="solver")
    agent["files"][".qwen/settings.json"] = str(settings)
    agent["sandbox"]["readable_paths"].append("/etc/passwd")
    decide = bug_fixer("run_shell_command", "command", description="Runs the check", is_background=False)
    await fixes_the_bug(agent, decide)
