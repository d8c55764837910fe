"""Terminal tasks in the sandbox: each sample task can be solved and is not solved by doing nothing."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets import datasets
from astraflow.datasets.worlds.terminal import SAMPLE_TASKS, load_task
from astraflow.environments import environments
from astraflow.environments.base import Environment, EnvironmentFactory, Observation
from astraflow.environments.episodes import Expert
from astraflow.environments.terminal.environment import command_of
from astraflow.environments.terminal.runners import copied_files
from astraflow.runtime.plugins import ManagedPlugin
from astraflow.testing.plugins import EnvironmentSuite
from tests import make
from tests.environments.experts import solver
from tests.errors import raises_code
from tests.hostile.files import TASK_LINKS, TASK_SETTINGS
from tests.hostile.policies import TERMINAL_COMMANDS, TERMINAL_PROGRAMS

pytestmark = pytest.mark.anyio

SPEC = {"kind": "terminal", "is_sample": True}
TASKS = datasets.build(SPEC, 0)


def prompt_of(task: str) -> Prompt:
    return Prompt(id=PromptId(f"terminal:{task}"), fields={"question": "?", "task": task})


async def started(**options: object) -> EnvironmentFactory:
    factory = environments.build({**SPEC, **options})
    assert isinstance(factory, ManagedPlugin)
    await factory.start()
    return factory


@pytest.fixture(scope="module")
async def factory() -> AsyncIterator[EnvironmentFactory]:
    factory = await started()
    yield factory
    assert isinstance(factory, ManagedPlugin)
    await factory.close()


@pytest.fixture(scope="module")
async def impatient_factory() -> AsyncIterator[EnvironmentFactory]:
    """Terminals whose commands may take 3 s."""
    factory = await started(command_s=3.0)
    yield factory
    assert isinstance(factory, ManagedPlugin)
    await factory.close()


@pytest.fixture
async def terminal(impatient_factory: EnvironmentFactory) -> AsyncIterator[Environment]:
    """Terminal of the task `greeting`, whose tests want a file greeting.txt."""
    environment = impatient_factory.make()
    await environment.begin(prompt_of("greeting"), 0)
    yield environment
    await environment.close()


@pytest.mark.long
class TestTerminal(EnvironmentSuite):
    @pytest.fixture
    def factory(self) -> EnvironmentFactory:
        return environments.build(SPEC)

    @pytest.fixture
    def prompts(self) -> Sequence[Prompt]:
        return [TASKS.prompt(0), TASKS.prompt(5)]

    @pytest.fixture
    def expert(self) -> Expert:
        return solver


@pytest.mark.long
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)], ids=["every fourth", "all"])
async def test_each_sample_task_is_won_by_its_solution_and_not_by_doing_nothing(
    factory: EnvironmentFactory, step: int
) -> None:
    async def result(prompt: Prompt, actions: Sequence[str]) -> Observation:
        environment = factory.make()
        observation = await environment.begin(prompt, 0)
        for action in actions:
            observation = await environment.act(action)
        await environment.close()
        return observation

    assert TASKS.size == 20
    prompts = [TASKS.prompt(index) for index in range(0, TASKS.size, step)]
    solved = await asyncio.gather(
        *(result(prompt, [solver(prompt, [Observation(text="")]), "submit"]) for prompt in prompts)
    )
    idle = await asyncio.gather(*(result(prompt, ["submit"]) for prompt in prompts))
    assert [(last.reward, last.ending) for last in solved] == [(1.0, Ending.WON)] * len(prompts)
    assert [(last.reward, last.ending) for last in idle] == [(0.0, Ending.LOST)] * len(prompts)


@pytest.mark.parametrize("command", TERMINAL_COMMANDS.cases())
async def test_the_policy_cannot_write_its_own_reward(terminal: Environment, command: str) -> None:
    await terminal.act(command)
    last = await terminal.act("submit")
    assert (last.reward, last.ending) == (0.0, Ending.LOST)


@pytest.mark.parametrize("program", TERMINAL_PROGRAMS.cases())
async def test_a_program_of_the_policy_that_the_tests_run_changes_no_reward(
    impatient_factory: EnvironmentFactory, program: str
) -> None:
    terminal = impatient_factory.make()
    await terminal.begin(prompt_of("fix-script"), 0)
    await terminal.act(f"printf '%b' '{program}' > greet.sh")
    last = await terminal.act("submit")
    assert (last.reward, last.ending) == (0.0, Ending.LOST)
    await terminal.close()


@pytest.mark.parametrize("level", ["namespaces", "restricted"])
async def test_links_and_modes_that_the_policy_left_reach_the_tests(tmp_path: Path, level: str) -> None:
    test = '[ "$(cat link absolute)" = "$(printf "x\\nx")" ] && [ "$(stat -c %a made)" = 640 ] && [ -d own/. ]'
    factory = await of_test(
        tmp_path, f'cd "$APP_DIR"\n{test} && echo 1 > "$LOGS_DIR/verifier/reward.txt"\n', level=level
    )
    command = 'echo x > made; chmod 640 made; ln -s made link; ln -s "$PWD/made" absolute; ln -s "$PWD" own'
    assert (await played(factory, command)).reward == 1.0
    await factory.close()  # type: ignore[attr-defined]  # a ManagedPlugin


POOL = """import multiprocessing
def square(number):
    return number * number
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(sum(pool.map(square, [1, 2, 3])))
"""
SERVER = """import socket, sys, threading
family, address = (socket.AF_UNIX, "own.sock") if sys.argv[1] == "unix" else (socket.AF_INET, ("127.0.0.1", 8123))
listener = socket.socket(family)
listener.bind(address)
listener.listen()
threading.Thread(target=lambda: listener.accept()[0].sendall(b"14"), daemon=True).start()
client = socket.socket(family)
client.connect(address)
print(client.recv(2).decode())
"""


@pytest.mark.parametrize(("program", "argument"), [(POOL, ""), (SERVER, "unix"), (SERVER, "inet")])
async def test_programs_of_the_policy_use_processes_and_sockets_of_their_own_namespace(
    tmp_path: Path, program: str, argument: str
) -> None:
    test = f'cd "$APP_DIR"; python3 p.py {argument} > out; [ "$(cat out)" = 14 ] && r=1 || r=0\n'
    factory = await of_test(tmp_path, f'{test}echo $r > "$LOGS_DIR/verifier/reward.txt"\n', level="namespaces")
    assert (await played(factory, f"cat > p.py << 'END'\n{program}END")).reward == 1.0
    await factory.close()  # type: ignore[attr-defined]  # a ManagedPlugin


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        ('echo 1 > "$LOGS_DIR/verifier/reward.txt"; exit 1', 0.0),
        ('echo 1 > "$LOGS_DIR/verifier/reward.txt"; kill -9 $$', 0.0),
        ('echo 0.5 > "$LOGS_DIR/verifier/reward.txt"', 0.5),
        ('[ -e "$APP_DIR/left" ] || echo 1 > "$LOGS_DIR/verifier/reward.txt"', 0.0),
    ],
    ids=["status", "signal", "number", "without a reward only after what the policy did"],
)
async def test_the_reward_is_what_tests_with_exit_status_0_wrote(tmp_path: Path, test: str, reward: float) -> None:
    factory = await of_test(tmp_path, f"{test}\n")
    assert (await played(factory, "touch left")).reward == reward
    await factory.close()  # type: ignore[attr-defined]  # a ManagedPlugin


async def of_test(folder: Path, test: str, **sandbox: str) -> EnvironmentFactory:
    """Returns terminals of one task, whose test is a text."""
    shutil.copytree(SAMPLE_TASKS / "greeting", folder / "one")
    (folder / "one" / "tests" / "test.sh").write_text(test)
    spec = {"kind": "terminal", "path": str(folder), "sandbox": {"kind": "local", "workers": 1, **sandbox}}
    factory = environments.build(spec)
    assert isinstance(factory, ManagedPlugin)
    await factory.start()
    return factory


async def played(factory: EnvironmentFactory, command: str) -> Observation:
    """Returns the end of an episode with one command."""
    terminal = factory.make()
    await terminal.begin(prompt_of("one"), 0)
    await terminal.act(command)
    last = await terminal.act("submit")
    await terminal.close()
    return last


async def test_tests_that_write_a_reward_only_when_they_pass_score_0_after_an_episode_was_won(tmp_path: Path) -> None:
    factory = await of_test(tmp_path, 'set -e\n[ -e "$APP_DIR/left" ]\necho 1 > "$LOGS_DIR/verifier/reward.txt"\n')
    with pytest.raises(RolloutFailed):
        await played(factory, "true")
    assert [(await played(factory, command)).reward for command in ("touch left", "true")] == [1.0, 0.0]
    await factory.close()  # type: ignore[attr-defined]  # a ManagedPlugin


async def test_a_shell_keeps_its_state_until_a_timeout_restarts_it() -> None:
    factory = await started(command_s=2.0, max_output_chars=200)
    terminal = factory.make()
    try:
        first = await terminal.begin(prompt_of("greeting"), 0)
        assert "greeting.txt" in first.text
        folder = (await terminal.act("pwd")).text
        assert folder.endswith("/app")
        await terminal.act("mkdir inner && cd inner && x=7")
        assert (await terminal.act('echo "$x"; pwd')).text == f"7\n{folder}/inner"
        failed = await terminal.act("ls missing")
        assert failed.text.endswith("[exit status 2]") and failed.ending is None
        assert "restarted" in (await terminal.act("sleep 60")).text
        assert (await terminal.act('pwd; echo "$x"')).text == folder
        long = (await terminal.act("seq 1000")).text
        assert long.startswith("1\n2\n") and long.endswith("999\n1000") and len(long) < 300
        assert (await terminal.act("true")).text == "[no output]"
    finally:
        await terminal.close()
        assert isinstance(factory, ManagedPlugin)
        await factory.close()


def test_the_last_fenced_block_is_the_command() -> None:
    assert command_of("a\n```sh\nls\n```\nor\n```bash\npwd\n```") == "pwd"
    assert command_of(" submit\n") == "submit"
    assert command_of("x" * 200_000) == command_of("a\0b") == ""


async def test_tests_that_write_no_reward_are_a_failure_and_not_zero(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE_TASKS / "greeting", tmp_path / "broken")
    (tmp_path / "broken" / "tests" / "test.sh").write_text("exit 0\n")
    factory = environments.build({"kind": "terminal", "path": str(tmp_path)})
    assert isinstance(factory, ManagedPlugin)
    await factory.start()
    terminal = factory.make()
    await terminal.begin(prompt_of("broken"), 0)
    with raises_code(RolloutFailed, "environment.no_reward") as caught:
        await terminal.act("submit")
    assert caught.value.boundary is Boundary.ENVIRONMENT
    await terminal.close()
    await factory.close()


@pytest.mark.parametrize(
    "line", ["RUN apt-get update", "COPY ../x .", "COPY missing .", "COPY files/ /etc/", "ADD a b"]
)
def test_a_dockerfile_that_does_more_than_copying_needs_a_container(tmp_path: Path, line: str) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "sum-column", tmp_path / "task")
    (folder / "environment" / "Dockerfile").write_text(f"FROM debian\nWORKDIR /app\n{line}\n")
    with raises_code(InvalidInput, "environment.needs_container"):
        copied_files(load_task(folder))


def test_files_are_copied_as_the_dockerfile_says(tmp_path: Path) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "sum-column", tmp_path / "task")
    lines = "FROM x\n\n# data\nCOPY files/ data/\nCOPY files/sales.csv /app/\nCOPY files/sales.csv ./other.csv\n"
    (folder / "environment" / "Dockerfile").write_text(lines)
    assert set(copied_files(load_task(folder))) == {"data/sales.csv", "sales.csv", "other.csv"}


PUBLISHED = """
schema_version = "1.1"
[task]
name = "org/task"
[metadata]
category = "security"
[verifier]
timeout_sec = 120
env = { KEY = "value" }
[environment]
docker_image = "registry.example.com/task:1"
memory = "2G"
cpus = 2
"""


def test_a_published_task_is_read(tmp_path: Path) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "greeting", tmp_path / "published")
    (folder / "task.toml").write_text(PUBLISHED)
    task = load_task(folder)
    assert (task.image, task.memory_bytes, task.cpus) == ("registry.example.com/task:1", 2 * 2**30, 2.0)
    assert (task.steps[0].verifier_s, task.build_s, task.category) == (120.0, 600.0, "security")


@pytest.mark.parametrize("settings", TASK_SETTINGS.cases())
def test_a_task_with_wrong_settings_is_refused(tmp_path: Path, settings: str) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "greeting", tmp_path / "wrong")
    (folder / "task.toml").write_text(settings)
    with raises_code(InvalidInput, "dataset.invalid_task", "wrong"):
        load_task(folder)


@pytest.mark.parametrize(("path", "target"), TASK_LINKS.cases())
def test_a_task_with_a_link_out_of_its_folder_is_refused_when_the_dataset_opens(
    tmp_path: Path, path: str, target: str
) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "sum-column", tmp_path / "tasks" / "linked")
    (tmp_path / "tasks" / "outside").write_text("secret")
    (folder / path).unlink(missing_ok=True)
    (folder / path).symlink_to(target)
    for open_tasks in (
        lambda: load_task(folder),
        lambda: datasets.build({"kind": "terminal", "path": str(folder.parent)}, 0),
    ):
        with raises_code(InvalidInput, "dataset.invalid_task", "linked"):
            open_tasks()


def test_a_task_with_a_pipe_and_a_linked_task_folder_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "sum-column", tmp_path / "elsewhere" / "task")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "linked").symlink_to(folder)
    with raises_code(InvalidInput, "dataset.invalid_task", "linked"):
        load_task(tmp_path / "tasks" / "linked")
    os.mkfifo(folder / "environment" / "pipe")
    with raises_code(InvalidInput, "dataset.invalid_task", "pipe"):
        load_task(folder)


def test_a_link_inside_of_a_task_is_followed(tmp_path: Path) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "sum-column", tmp_path / "task")
    (folder / "environment" / "files" / "linked.csv").symlink_to("sales.csv")
    files = copied_files(load_task(folder))
    assert files["linked.csv"] == files["sales.csv"] != b""


@pytest.mark.parametrize(
    "change", ["instruction.md", "tests/test.sh", "steps/first/instruction.md", "environment/docker-compose.yaml"]
)
def test_a_task_that_is_incomplete_or_has_an_empty_file_of_services_is_refused(tmp_path: Path, change: str) -> None:
    folder = shutil.copytree(SAMPLE_TASKS / "greeting", tmp_path / "wrong")
    path = folder / change
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink() if path.is_file() else path.touch()
    with raises_code(InvalidInput, "dataset.invalid_task"):
        load_task(folder)


async def test_a_prompt_that_names_no_task_folder_is_refused(factory: EnvironmentFactory) -> None:
    await factory.check()
    for prompt in (make.prompt(), prompt_of("../greeting"), prompt_of("missing-task")):
        with pytest.raises(InvalidInput):
            await factory.make().begin(prompt, 0)


async def test_a_missing_folder_is_named() -> None:
    factory = environments.build({"kind": "terminal", "path": "/nowhere"})
    with raises_code(InvalidInput, "environment.no_folder", "/nowhere"):
        await factory.check()
    with raises_code(InvalidInput, "dataset.empty", "/nowhere"):
        datasets.build({"kind": "terminal", "path": "/nowhere"}, 0)


async def test_a_killed_sandbox_worker_fails_its_episode_alone_and_the_next_one_works() -> None:
    factory = await started()
    try:
        first, second = factory.make(), factory.make()
        before = set(psutil.Process().children(recursive=True))
        await first.begin(prompt_of("greeting"), 0)
        of_first = set(psutil.Process().children(recursive=True)) - before
        await second.begin(prompt_of("greeting"), 0)
        for process in of_first:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with pytest.raises(RolloutFailed) as caught:
            await first.act("true")
        assert of_first and caught.value.boundary is Boundary.ENVIRONMENT
        assert (await second.act("echo spared")).text == "spared"
        third = factory.make()
        await third.begin(prompt_of("greeting"), 0)
        assert (await third.act("echo new")).text == "new"
        for environment in (first, second, third):
            await environment.close()
    finally:
        assert isinstance(factory, ManagedPlugin)
        await factory.close()
