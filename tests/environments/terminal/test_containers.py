"""Terminal tasks in containers, with an executable that acts as Docker."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets import datasets
from astraflow.datasets.worlds.terminal import SAMPLE_TASKS
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentFactory, Observation
from astraflow.environments.container_engine import ContainerEngine
from astraflow.environments.container_limits import ContainerLimits
from astraflow.sandbox.base import SandboxError
from tests.environments.experts import solver
from tests.errors import raises_code
from tests.fakes import docker_command

pytestmark = pytest.mark.anyio


class Docker:
    """The executable, first in PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "bin" / "docker"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{docker_command.__file__}" "{folder}" "$@"\n')
        program.chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    def fails_to_start(self, commands: int) -> None:
        """Lets the next commands in containers fail before they begin."""
        (self.folder / "start-failures").write_text(str(commands))

    def breaks(self, verb: str) -> None:
        (self.folder / f"fail-{verb}").touch()


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    docker = Docker(tmp_path / "docker")
    monkeypatch.setenv("PATH", f"{docker.folder / 'bin'}:/usr/bin:/bin")
    return docker


def factory_of(**options: object) -> EnvironmentFactory:
    return environments.build({"kind": "terminal", "is_sample": True, "runner": "docker", **options})


def prompt_of(task: str) -> Prompt:
    return Prompt(id=PromptId(f"terminal:{task}"), fields={"question": "?", "task": task})


async def played(factory: EnvironmentFactory, task: str, *actions: str) -> list[Observation]:
    environment = factory.make()
    observations = [await environment.begin(prompt_of(task), 0)]
    try:
        observations += [await environment.act(action) for action in actions]
    finally:
        await environment.close()
    return observations


@pytest.mark.long
async def test_tasks_are_won_by_their_solution_and_not_by_doing_nothing(docker: Docker) -> None:
    factory = factory_of()
    await factory.check()
    dataset = datasets.build({"kind": "terminal", "is_sample": True}, 0)
    for index in (5, 11, 16):
        prompt = dataset.prompt(index)
        solved = await played(factory, str(prompt.fields["task"]), solver(prompt, [Observation(text="")]), "submit")
        idle = await played(factory, str(prompt.fields["task"]), "submit")
        assert (solved[-1].reward, solved[-1].ending) == (1.0, Ending.WON)
        assert (idle[-1].reward, idle[-1].ending) == (0.0, Ending.LOST)
    assert [call[0] for call in docker.calls].count("build") == 3
    assert not list(docker.folder.glob("container-*"))


@pytest.mark.long
async def test_a_container_has_the_limits_of_its_task_and_no_network(docker: Docker) -> None:
    await played(factory_of(), "greeting", "true")
    await played(factory_of(has_network=True, capabilities=["CHOWN"]), "greeting", "true")
    closed, open_one = [call for call in docker.calls if call[0] == "run"]
    assert closed[closed.index("--network") + 1] == "none"
    assert closed[closed.index("--memory") + 1] == f"{512 * 2**20}b"
    assert closed[closed.index("--cpus") + 1] == "1"
    assert closed[closed.index("--storage-opt") + 1] == f"size={10 * 2**30}"
    assert closed[closed.index("--ulimit") + 1] == f"fsize={10 * 2**30}"
    assert closed[closed.index("--cap-drop") + 1] == "ALL" and "--cap-add" not in closed
    assert closed[closed.index("--security-opt") + 1] == "no-new-privileges"
    assert not {"--privileged", "--volume", "--device", "--pid", "--ipc"} & set(closed)
    assert closed[closed.index("--stop-signal") + 1] == "KILL"  # otherwise Podman waits 10 s at the end of an episode
    assert "--network" not in open_one
    assert open_one[open_one.index("--cap-add") + 1] == "CHOWN"


async def test_storage_without_quotas_starts_containers_without_them(docker: Docker) -> None:
    (docker.folder / "no-quotas").touch()
    factory = factory_of()
    for _ in range(2):
        assert (await played(factory, "greeting", "echo x"))[-1].text == "x"
    assert ["--storage-opt" in call for call in docker.calls if call[0] == "run"] == [True, False, False]


async def test_a_text_that_is_no_name_of_an_image_starts_no_container(docker: Docker) -> None:
    limits = ContainerLimits(memory_bytes=2**28, cpus=1, disk_bytes=2**30)
    for image in ("--privileged", "-v=/:/host", "a b", "", "UPPER"):
        with raises_code(InvalidInput, "environment.invalid_image"):
            ContainerEngine("docker").container(image, network="none", limits=limits, label="a", start_s=1)


async def test_an_image_without_a_working_directory_needs_paths(docker: Docker) -> None:
    (docker.folder / "workdir").write_text("/")
    with raises_code(InvalidInput, "environment.no_working_directory"):
        await played(factory_of(), "greeting", "true")


@pytest.mark.long
async def test_the_folder_lasts_and_a_timeout_ends_the_command(docker: Docker) -> None:
    _, _, where, failed, slow = await played(
        factory_of(command_s=1.0), "greeting", "mkdir inner && cd inner", "pwd", "echo 'a b'; exit 4", "sleep 30"
    )
    assert where.text.endswith("/app/inner")
    assert failed.text == "a b\n[exit status 4]"
    assert "stopped after 1 s" in slow.text
    assert docker.calls[-1][0] == "rm"


async def test_a_lost_container_is_a_failure_and_a_command_that_pretends_it_is_not(docker: Docker) -> None:
    environment = factory_of().make()
    await environment.begin(prompt_of("greeting"), 0)
    for action in ("echo Error response from daemon >&2; exit 1", "exit 137"):
        assert "[exit status" in (await environment.act(action)).text
    shutil.rmtree(docker.folder / "container-0")
    with raises_code(RolloutFailed, "environment.container_failed") as caught:
        await environment.act("true")
    assert caught.value.boundary is Boundary.ENVIRONMENT
    (docker.folder / "container-0").mkdir()
    await environment.close()


async def test_a_policy_that_uses_up_the_memory_of_its_container_loses_the_episode(docker: Docker) -> None:
    environment = factory_of().make()
    await environment.begin(prompt_of("greeting"), 0)
    for name in ("ended", "spent"):
        (docker.folder / "container-0" / name).touch()
    last = await environment.act("true")
    assert (last.reward, last.ending, await environment.act("true")) == (0.0, Ending.LOST, last)
    await environment.close()


async def test_a_command_that_the_engine_did_not_start_is_started_again(docker: Docker) -> None:
    docker.fails_to_start(2)
    _, answer = await played(factory_of(), "greeting", "echo began >> log; cat log")
    assert answer.text == "began"
    assert [call[0] for call in docker.calls].count("exec") == 4


async def test_a_command_that_never_starts_is_a_failure_and_no_answer(docker: Docker) -> None:
    docker.fails_to_start(9)
    with raises_code(RolloutFailed, "environment.command_not_started", "OCI runtime error") as caught:
        await played(factory_of(), "greeting", "true")
    assert caught.value.boundary is Boundary.ENVIRONMENT


@pytest.mark.parametrize("verb", ["build", "run"])
async def test_a_container_that_does_not_start_is_a_failure(docker: Docker, verb: str) -> None:
    docker.breaks(verb)
    with raises_code(RolloutFailed, "environment.container_failed", verb) as caught:
        await played(factory_of(), "greeting")
    assert caught.value.boundary is Boundary.ENVIRONMENT


async def test_tests_that_cannot_be_copied_are_a_failure(docker: Docker) -> None:
    docker.breaks("cp")
    with raises_code(RolloutFailed, "environment.container_failed", "greeting"):
        await played(factory_of(), "greeting", "submit")
    assert docker.calls[-1][0] == "rm"


async def test_tests_run_where_root_cannot_write_the_root_folder(docker: Docker) -> None:
    (docker.folder / "read-only-root").touch()
    prompt = datasets.build({"kind": "terminal", "is_sample": True}, 0).prompt(5)
    actions = (solver(prompt, [Observation(text="")]), "submit")
    observations = await played(factory_of(), str(prompt.fields["task"]), *actions)
    assert observations[-1].reward == 1.0
    assert [call[-1] for call in docker.calls if call[0] == "cp" and call[-1].endswith((":/tests", ":/logs"))] == [
        "container-1:/logs",
        "container-1:/tests",
        "container-1:/tests",
    ]


@pytest.mark.parametrize("folder", ["/logs/verifier", "/tests", "/app"])
async def test_the_tests_run_in_another_container_with_the_working_directory_of_the_first(
    docker: Docker, folder: str
) -> None:
    shutil.copytree(SAMPLE_TASKS / "greeting", docker.folder / "tasks" / "one")
    (docker.folder / "tasks" / "one" / "tests" / "test.sh").write_text(
        'set -- "$LOGS_DIR/verifier/reward.txt" "$(dirname "$0")/reward.txt"\n'
        'if [ -e "$1" ] || [ -e "$2" ]; then echo 1 > "$1"; else echo 0 > "$1"; fi\n'
        '[ ! -e reward.txt ] || echo 0.5 > "$1"\n'
    )
    factory = environments.build({"kind": "terminal", "path": str(docker.folder / "tasks"), "runner": "docker"})
    observations = await played(factory, "one", f"mkdir -p {folder} && echo 1 > {folder}/reward.txt", "submit")
    verbs = [(call[0], call[-1]) for call in docker.calls if call[0] in ("run", "kill", "rm")]
    assert [verb for verb, _ in verbs] == ["run", "kill", "run", "kill", "rm", "rm"]
    assert [name for verb, name in verbs if verb == "kill"] == ["container-0", "container-1"]
    assert observations[-1].reward == (0.5 if folder == "/app" else 0.0)


@pytest.mark.parametrize(
    "command", ["cd /; rm -r /app; ln -s / /app", "rm -r /app", "ln -s ../logs x; ln -s /tests/test.sh greeting.txt"]
)
async def test_a_working_directory_that_cannot_be_copied_scores_0(docker: Docker, command: str) -> None:
    observations = await played(factory_of(), "greeting", command, "submit")
    assert (observations[-1].reward, observations[-1].ending) == (0.0, Ending.LOST)


async def test_a_program_of_the_policy_writes_no_reward_in_a_container(docker: Docker) -> None:
    forged = '(while :; do echo 1 > "$LOGS_DIR/verifier/reward.txt"; done) > /dev/null 2>&1 &\nsleep 0.2'
    observations = await played(factory_of(), "fix-script", f"printf '%b' '{forged}' > greet.sh", "submit")
    assert observations[-1].reward == 0.0


_SLOW_DOCKER = """#!/bin/sh
# the daemon creates the container, whatever becomes of the client
if [ "$1" = run ]; then
    (sleep 0.2; touch "$FOLDER/box-$3") >/dev/null 2>&1 &
    touch "$FOLDER/begun"
    exec sleep 30
elif [ "$1" = rm ] && [ -e "$FOLDER/box-$3" ]; then
    rm "$FOLDER/box-$3"
    echo "$3"
fi
"""


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_container_whose_start_does_not_complete_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    program = tmp_path / "docker"
    program.write_text(_SLOW_DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    engine = ContainerEngine(str(program))
    limits = ContainerLimits(memory_bytes=1, cpus=1, disk_bytes=1)

    async def use() -> None:
        start_s = 60.0 if is_cancelled else 0.5
        async with engine.container("i", network="", limits=limits, label="a", start_s=start_s):
            pytest.fail("the start completes")

    using = asyncio.create_task(use())
    while not (tmp_path / "begun").exists():  # noqa: ASYNC110 (a file of another process)
        await asyncio.sleep(0.01)
    if is_cancelled:
        using.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else SandboxError):
        await using
    await asyncio.sleep(0.5)
    assert not list(tmp_path.glob("box-*"))


async def test_another_image_is_built_when_a_file_changes(docker: Docker, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE_TASKS / "sum-column", tmp_path / "tasks" / "one")
    for text in ("a,b,c\n", "a,b,d\n"):
        (tmp_path / "tasks" / "one" / "environment" / "files" / "sales.csv").write_text(text)
        factory = environments.build({"kind": "terminal", "path": str(tmp_path / "tasks"), "runner": "docker"})
        await played(factory, "one", "true")
    tags = [call[call.index("--tag") + 1] for call in docker.calls if call[0] == "build"]
    assert len(set(tags)) == 2


async def test_a_missing_or_broken_engine_is_told(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    docker.breaks("version")
    with raises_code(Unavailable, "environment.container_engine_failed", "version is broken"):
        await factory_of().check()
    monkeypatch.setenv("PATH", "/nowhere")
    with raises_code(InvalidInput, "environment.no_container_engine", "podman"):
        await factory_of(runner="podman").check()
