"""Child processes that run code of others get no secret of their parent, and every start of a child is classified."""

import ast
import asyncio
import os
import subprocess
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from astraflow.agents.programs.callables import _ForkServer
from astraflow.environments.adapters.worker_process import start_worker
from astraflow.rewards.worker_pool import WorkerPool
from astraflow.runtime.pip import run_logged
from astraflow.runtime.processes.child import child_environment, run_environment
from astraflow.tools.mcp_servers import McpOptions, _client
from maintainer.fleet.providers.local_process.machine_folders import MachineFolders

ROOT = Path(__file__).parents[3]

MINIMAL = "gets a minimal environment"
SECRETS = (
    "ASTRAFLOW_TOKEN", "ASTRAFLOW_TOKEN_FILE", "ASTRAFLOW_RANKS_SECRET", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_JUDGE_KEY",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN",
    "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "PGPASSWORD", "KUBECONFIG", "WANDB_API_KEY", "SSH_AUTH_SOCK",
    "NETRC", "DATABASE_URL",
)  # fmt: skip
CANARY = "canary-of-a-secret"

STARTS = {
    "astraflow/agents/programs/callables.py": MINIMAL,
    "astraflow/environments/adapters/worker_process.py": MINIMAL,
    "astraflow/environments/foreign/installation.py": MINIMAL,
    "astraflow/environments/foreign/workers.py": MINIMAL,
    "astraflow/raas/engines/server/process.py": "environment of the caller, which is minimal",
    "astraflow/raas/engines/server/replica.py": MINIMAL,
    "astraflow/rewards/worker_pool.py": MINIMAL,
    "astraflow/runtime/pip.py": MINIMAL,
    "astraflow/sandbox/isolation.py": "an empty environment",
    "astraflow/sandbox/worker.py": "a constant environment",
    "astraflow/tools/mcp_limits.py": "its own environment, which is minimal",
    "astraflow/tools/mcp_servers.py": MINIMAL,
    "maintainer/fleet/providers/local_process/machine_folders.py": "its own minimal environment, anywhere",
    "maintainer/fleet/providers/local_process/machine.py": "its own environment, which is minimal",
    "maintainer/fleet/changes/run_changes.py": "a run of the same user: devices, caches, access to stores and hubs",
    "astraflow/cli/running/supervisor.py": "services of the run, of the same user and code",
    "astraflow/cli/running/sweeps.py": "the same command line",
    "astraflow/cli/inspection/archive_viewer.py": "the viewer that the user installed, without the tokens",
    "astraflow/cli/page/page_programs.py": "the same command line",
    "astraflow/cli/recipes/fleet_form.py": "the same command line",
    "astraflow/cli/run_directory.py": "git",
    "astraflow/cli/services/control_processes.py": "the same process, as another command of ours",
    "astraflow/environments/container_engine.py": "client of a container engine; containers get no variable",
    "astraflow/environments/terminal/supervisor.py": "tests of a task, in their sandbox or container",
    "astraflow/runtime/processes/child.py": "environment of the caller",
    "astraflow/runtime/processes/requests.py": "environment of the caller",
    "astraflow/runtime/processes/supervised.py": "its own environment, which is minimal",
    "astraflow/raas/engines/server/installation/host.py": "nvidia-smi",
    "astraflow/trainer/ranks/launch.py": "ranks of the same trainer",
    "maintainer/fleet/providers/slurm/provider.py": "clients of Slurm; jobs get the named variables",
    "web/exports/settings.py": "the same command line, without the tokens of the page",
    "web/launcher/catalogue.py": "the same command line, without the tokens of the page",
    "web/launcher/recipe_program.py": "a program of ours, without the tokens of the page",
    "web/launcher/launcher.py": "runs of the same user, without the tokens of the page",
}
"""Modules that start programs, and what these get."""

_STARTING = frozenset(
    {
        "create_subprocess_exec",
        "subprocess_exec",
        "create_subprocess_shell",
        "Popen",
        "check_output",
        "check_call",
        "posix_spawn",
    }
    | {"posix_spawnp", "execve", "execvp", "execvpe", "StdioServerParameters"}
    | {"spawn", "spawn_logged", "spawn_answering", "run_command", "start_independent"}
)


def starts_programs(path: Path) -> bool:
    """Returns whether a module starts programs. Forks of a process keep its environment, and are not meant."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] in _STARTING or name == "subprocess.run":
                return True
            if any(ast.unparse(argument) == "start_independent" for argument in node.args):
                return True
    return False


def test_a_fork_gets_devices_caches_and_stores_but_no_token_or_key_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = ("AWS_SECRET_ACCESS_KEY", "CUDA_VISIBLE_DEVICES", "HF_TOKEN", "WANDB_API_KEY")
    for name in (*passed, "ASTRAFLOW_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, CANARY)
    assert {name for name, value in run_environment().items() if value == CANARY} == set(passed)


def test_every_module_that_starts_programs_says_what_they_get() -> None:
    modules = {
        str(path.relative_to(ROOT))
        for package in ("astraflow", "maintainer", "web")
        for path in (ROOT / package).rglob("*.py")
        if not {"inside", "in_server"} & set(path.parts) and starts_programs(path)
    }
    minimal = {module for module, reason in STARTS.items() if reason == MINIMAL}
    assert modules | {"astraflow/raas/engines/server/replica.py"} == STARTS.keys()
    assert {module for module in STARTS if "child_environment(" in (ROOT / module).read_text()} - minimal == {
        "astraflow/runtime/processes/child.py",
        "web/exports/settings.py",
        "web/launcher/catalogue.py",
        "web/launcher/launcher.py",
        "web/launcher/recipe_program.py",
    }, "the first defines it, and that of the others withholds the tokens of the page"
    assert all("child_environment(" in (ROOT / module).read_text() for module in minimal)


class Started(Exception):
    """A child process would have been started."""


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """Environments of the children that were to be started; the parent has secrets."""
    environments: list[dict[str, str]] = []

    def record(*arguments: Any, env: dict[str, str] | None = None, **options: Any) -> Any:
        environments.append(dict(os.environ if env is None else env))
        raise Started

    def spawn(path: str, arguments: list[str], environment: dict[str, str], **options: Any) -> int:
        return int(record(env=environment))

    for name in SECRETS:
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", record)
    monkeypatch.setattr(BaseEventLoop, "subprocess_exec", record)
    monkeypatch.setattr(subprocess, "Popen", record)
    monkeypatch.setattr(os, "posix_spawn", spawn)
    yield environments


def start_environment() -> Coroutine[Any, Any, Any]:
    return start_worker({"kind": "textcraft"}, is_game=False, python="", episodes=1, limit_s=1.0)


def start_agents() -> Coroutine[Any, Any, Any]:
    return _ForkServer(()).start()


def start_reward() -> Coroutine[Any, Any, Any]:
    return WorkerPool("module:name", workers=1, limit_s=1.0).start()


@pytest.mark.anyio
@pytest.mark.parametrize("start", [start_environment, start_agents, start_reward])
async def test_workers_get_no_secret_of_the_node(
    start: Callable[[], Coroutine[Any, Any, Any]], environments: list[dict[str, str]]
) -> None:
    with pytest.raises(Started):
        await start()
    (environment,) = environments
    assert "PATH" in environment
    assert CANARY not in environment.values()


@pytest.mark.anyio
async def test_workers_get_the_variables_that_the_recipe_names(environments: list[dict[str, str]]) -> None:
    with pytest.raises(Started):
        await start_worker(
            {"kind": "x"}, is_game=False, python="", episodes=1, limit_s=1.0, variables=("HF_TOKEN", "ABSENT_ONE")
        )
    (environment,) = environments
    assert {name for name, value in environment.items() if value == CANARY} == {"HF_TOKEN"}
    assert "ABSENT_ONE" not in environment


def test_pip_gets_its_options_and_no_secret(
    environments: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    with pytest.raises(Started):
        run_logged(["pip"], tmp_path / "log", on_line=print)
    (environment,) = environments
    assert environment["PIP_INDEX_URL"] == "https://index.example/simple"
    assert CANARY not in environment.values()
    assert "PYTHONPATH" not in environment


def test_a_local_machine_gets_its_join_token_and_no_secret(environments: list[dict[str, str]], tmp_path: Path) -> None:
    machines = MachineFolders(tmp_path, grace_s=1.0, retention_s=1.0)
    machines.make("one", {})
    with pytest.raises(Started):
        machines.start("one", token="its join token")
    (environment,) = environments
    assert environment["ASTRAFLOW_TOKEN"] == "its join token"
    assert CANARY not in environment.values()


@pytest.mark.anyio
async def test_an_mcp_server_gets_the_named_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    mcp = pytest.importorskip("mcp")
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(mcp, "StdioServerParameters", lambda *, command, args, env: environments.append(env))
    monkeypatch.setattr(mcp, "Client", lambda server: server)
    for name in SECRETS:
        monkeypatch.setenv(name, CANARY)
    await _client(McpOptions(command=("server",), variables=("GITHUB_TOKEN",)), AsyncExitStack())
    assert {name for name, value in environments[0].items() if value == CANARY} == {"GITHUB_TOKEN"}


def test_the_environment_has_what_was_added_and_named_and_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/own")
    monkeypatch.setenv("CHOSEN", "1")
    monkeypatch.delenv("ABSENT_ONE", raising=False)
    environment = child_environment(("CHOSEN", "ABSENT_ONE"), PATH="/bin", ADDED="2")
    assert environment["PATH"] == "/bin"
    assert (environment["TMPDIR"], environment["CHOSEN"], environment["ADDED"]) == ("/own", "1", "2")
    assert "ABSENT_ONE" not in environment
