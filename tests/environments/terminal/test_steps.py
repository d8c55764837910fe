"""Tasks of Harbor with several steps, and with tests in a container of their own."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets.worlds.terminal import load_task
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentFactory, Observation
from astraflow.environments.terminal.kubernetes import KubernetesRunner, PodOptions
from astraflow.runtime.plugins import ManagedPlugin
from tests.environments.terminal.test_containers import Docker, played
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

CONFIG = """
[[steps]]
name = "write"
min_reward = 0.5
[[steps]]
name = "read"
"""
TEST = """
. "$(dirname "$0")/lib.sh"
score "$(grep -c {word} words.txt)"
"""
LIBRARY = """
cd "$APP_DIR"
score() { mkdir -p "$LOGS_DIR/verifier"; echo "$1" > "$LOGS_DIR/verifier/reward.txt"; }
"""
FILES = {
    "task.toml": CONFIG,
    "environment/Dockerfile": "FROM debian\nWORKDIR /app\n",
    "tests/lib.sh": LIBRARY,
    "steps/write/instruction.md": "Write the word one.",
    "steps/write/tests/test.sh": TEST.format(word="one"),
    "steps/read/instruction.md": "Append the word of hint.txt.",
    "steps/read/tests/test.sh": TEST.format(word="two"),
    "steps/read/workdir/hint.txt": "two\n",
    "steps/read/workdir/setup.sh": "touch prepared\n",
}


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    docker = Docker(tmp_path / "docker")
    monkeypatch.setenv("PATH", f"{docker.folder / 'bin'}:/usr/bin:/bin")
    return docker


def task_in(folder: Path, files: Mapping[str, str] = {}) -> Path:
    """Writes a task with two steps; returns the folder of the tasks."""
    for name, text in {**FILES, **files}.items():
        path = folder / "tasks" / "two" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "tasks"


def factory_of(tasks: Path, runner: str = "docker") -> EnvironmentFactory:
    return environments.build({"kind": "terminal", "path": str(tasks), "runner": runner})


def rewards(observations: list[Observation]) -> list[tuple[float, Ending | None]]:
    return [(observation.reward, observation.ending) for observation in observations]


@pytest.mark.long
async def test_each_step_has_its_tests_and_its_files(docker: Docker, tmp_path: Path) -> None:
    actions = ("echo one > words.txt", "submit", "ls", "cat hint.txt >> words.txt", "submit")
    first, _, step, listed, _, last = await played(factory_of(task_in(tmp_path)), "two", *actions)
    assert "Write the word one." in first.text
    assert rewards([step, last]) == [(0.5, None), (0.5, Ending.WON)]
    assert "Append the word of hint.txt." in step.text
    assert listed.text.split() == ["hint.txt", "prepared", "setup.sh", "words.txt"]


async def test_the_policys_container_is_frozen_while_a_step_is_tested(docker: Docker, tmp_path: Path) -> None:
    await played(factory_of(task_in(tmp_path)), "two", "echo one > words.txt", "submit", "true")
    calls = docker.calls
    verbs = [call[0] for call in calls]
    tested = calls[verbs.index("pause") : verbs.index("unpause")]
    assert "container-1" in {word for call in tested for word in call}
    assert not [call for call in tested if call[0] == "exec" and "container-0" in call]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("mean", [(0.0, Ending.LOST)]), ("final", [(0.0, Ending.LOST)])],
)
async def test_a_step_below_its_least_reward_ends_the_task(
    docker: Docker, tmp_path: Path, strategy: str, expected: list[tuple[float, Ending]]
) -> None:
    config = f'multi_step_reward_strategy = "{strategy}"\n{CONFIG}'
    *_, last = await played(factory_of(task_in(tmp_path, {"task.toml": config})), "two", "touch words.txt", "submit")
    assert rewards([last]) == expected


@pytest.mark.long
async def test_the_last_step_gives_the_reward_where_the_task_says_so(docker: Docker, tmp_path: Path) -> None:
    tasks = task_in(tmp_path, {"task.toml": f'multi_step_reward_strategy = "final"\n{CONFIG}'})
    _, _, first, last = await played(factory_of(tasks), "two", "echo one > words.txt", "submit", "submit")
    assert rewards([first, last]) == [(0.0, None), (0.0, Ending.LOST)]
    _, _, first, _, last = await played(
        factory_of(tasks), "two", "echo one > words.txt", "submit", "cat hint.txt >> words.txt", "submit"
    )
    assert rewards([first, last]) == [(0.0, None), (1.0, Ending.WON)]


@pytest.mark.long
async def test_a_setup_that_fails_first_is_a_failure_and_later_the_end(docker: Docker, tmp_path: Path) -> None:
    later = task_in(tmp_path, {"steps/read/workdir/setup.sh": "exit 3\n"})
    *_, step = await played(factory_of(later), "two", "echo one > words.txt", "submit")
    assert rewards([step]) == [(0.5, Ending.LOST)]
    with raises_code(RolloutFailed, "environment.setup_failed") as caught:
        await played(factory_of(task_in(tmp_path, {"steps/write/workdir/setup.sh": "exit 3\n"})), "two")
    assert caught.value.boundary is Boundary.ENVIRONMENT


@pytest.mark.long
@pytest.mark.parametrize(
    ("written", "reward"),
    [('{\\"reward\\": 0.25, \\"style\\": 3}', 0.25), ("0.75", 0.75)],
)
async def test_the_reward_may_be_an_object(docker: Docker, tmp_path: Path, written: str, reward: float) -> None:
    test = f'echo "{written}" > "$LOGS_DIR/verifier/reward.json"\n'
    tasks = task_in(tmp_path, {"task.toml": "", "instruction.md": "Wait.", "tests/test.sh": test})
    for path in (tasks / "two" / "steps").rglob("*"):
        path.unlink() if path.is_file() else None
    *_, last = await played(factory_of(tasks), "two", "submit")
    assert rewards([last]) == [(reward, Ending.LOST)]


SEPARATE = """
artifacts = ["/app/words.txt", { source = "/app/absent" }]
[verifier]
environment_mode = "separate"
[verifier.environment]
memory_mb = 300
"""


async def test_separate_tests_get_a_container_of_their_own_image_and_the_artifacts(
    docker: Docker, tmp_path: Path
) -> None:
    files = {
        "task.toml": SEPARATE,
        "instruction.md": "Write the word one.",
        "tests/Dockerfile": "FROM debian\nWORKDIR /app\n",
        "tests/test.sh": '. "$(dirname "$0")/lib.sh"\n[ -e own-file ] || score "$(grep -c one words.txt)"\n',
    }
    tasks = task_in(tmp_path, files)
    for path in (tasks / "two" / "steps").rglob("*"):
        path.unlink() if path.is_file() else None
    *_, last = await played(factory_of(tasks), "two", "echo one > words.txt; touch own-file", "submit")
    assert rewards([last]) == [(1.0, Ending.WON)]
    solver, verifier = [call for call in docker.calls if call[0] == "run"]
    assert solver[-2] != verifier[-2]
    assert verifier[verifier.index("--memory") + 1] == f"{300 * 2**20}b"


SERVICES = """
services:
  main:
    depends_on: [cache]
    environment: { CACHE: "cache:6379" }
  cache:
    image: registry.example.com/cache:7
    command: serve --port 6379
    environment: ["MODE=small"]
    depends_on: { store: { condition: service_healthy } }
    healthcheck: { test: ["CMD", "true"], interval: 1s, retries: 2 }
  store: { build: ./store, entrypoint: [/bin/store, --fast] }
"""


async def test_services_start_in_order_in_a_network_of_the_episode(docker: Docker, tmp_path: Path) -> None:
    files = {"environment/docker-compose.yaml": SERVICES, "environment/store/Dockerfile": "FROM debian\n"}
    _, shown, *_ = await played(factory_of(task_in(tmp_path, files)), "two", "echo $CACHE; touch words.txt", "submit")
    assert shown.text == "cache:6379"
    runs = [call for call in docker.calls if call[0] == "run"]
    (network,) = {call[call.index("--network") + 1] for call in runs}
    store, cache, policy, verifier = runs
    assert store[-4:-2] == ["--entrypoint", "/bin/store"] and store[-1] == "--fast"
    assert cache[-4:] == ["registry.example.com/cache:7", "serve", "--port", "6379"]
    assert [call[call.index("--network-alias") + 1] for call in (store, cache)] == ["store", "cache"]
    assert "MODE=small" in cache and "--network-alias" not in {*policy, *verifier}
    assert all({"--cap-drop", "no-new-privileges", "--memory"} <= set(call) for call in runs)
    assert ["network", "create", "--internal", network] in docker.calls
    assert docker.calls[-1] == ["network", "rm", "--force", network]


async def test_a_service_that_is_not_healthy_is_a_failure(docker: Docker, tmp_path: Path) -> None:
    check = "{ test: exit 4, interval: 1ms, retries: 1 }"
    services = f"services: {{ cache: {{ image: cache, healthcheck: {check} }} }}"
    with raises_code(RolloutFailed, "environment.service_failed", "cache") as caught:
        await played(factory_of(task_in(tmp_path, {"environment/docker-compose.yaml": services})), "two")
    assert caught.value.boundary is Boundary.ENVIRONMENT
    assert docker.calls[-1][0] == "network"


@pytest.mark.parametrize(
    "services",
    [
        "services: { cache: { image: a, volumes: ['/:/host'] } }",
        "services: { cache: { image: a, privileged: true } }",
        "services: { cache: { image: a, network_mode: host } }",
        "services: { cache: { image: a, environment: { KEY: '${AWS_SECRET_ACCESS_KEY}' } } }",
        "services: { cache: { image: '--privileged' } }",
        "services: { cache: { build: ../../other } }",
        "services: { cache: { build: { context: ., dockerfile: other } } }",
        "services: { cache: { image: a, depends_on: [store] }, store: { image: a, depends_on: [cache] } }",
        "services: { main: { volumes: ['/:/host'] } }",
        "services: { cache: { image: a, healthcheck: { test: x, interval: soon } } }",
        "services: [cache]",
        "{",
        "secrets: { key: { file: /etc/shadow } }\nservices: {}",
    ],
)
def test_services_that_need_more_are_refused(tmp_path: Path, services: str) -> None:
    with raises_code(InvalidInput, "dataset.invalid_task"):
        load_task(task_in(tmp_path, {"environment/docker-compose.yaml": services}) / "two")


async def test_steps_run_in_the_sandbox(tmp_path: Path) -> None:
    factory = factory_of(task_in(tmp_path), "sandbox")
    assert isinstance(factory, ManagedPlugin)
    await factory.start()
    try:
        actions = ("echo one > words.txt", "submit", "ls", "cat hint.txt >> words.txt", "submit")
        _, _, step, listed, _, last = await played(factory, "two", *actions)
        task_in(tmp_path, {"task.toml": CONFIG.replace("min_reward = 0.5", "")})
        *_, full = await played(factory, "two", "head -c 20000000 /dev/urandom > large", "submit")
    finally:
        await factory.close()
    assert rewards([step, last, full]) == [(0.5, None), (0.5, Ending.WON), (0.0, Ending.LOST)]
    assert listed.text.split() == ["hint.txt", "prepared", "setup.sh", "words.txt"]


def test_steps_need_more_than_a_pod(tmp_path: Path) -> None:
    pods = PodOptions(namespace="", runtime_class="", lifetime_s=60, has_network=False)
    task = load_task(task_in(tmp_path, {"task.toml": f'{CONFIG}\n[environment]\ndocker_image = "a:1"\n'}) / "two")
    with raises_code(InvalidInput, "environment.needs_container"):
        KubernetesRunner(pods).open(task)


@pytest.mark.parametrize(
    "config",
    [
        '[[steps]]\nname = "../up"\n',
        '[[steps]]\nname = "read"\n[[steps]]\nname = "READ"\n',
        '[[steps]]\nname = "missing"\n',
        "steps = [1]\n",
        'multi_step_reward_strategy = "best"\n' + CONFIG,
        CONFIG.replace("0.5", '"high"'),
        '[verifier]\nenvironment_mode = "shared"\nenvironment = {}\n' + CONFIG,
        'artifacts = ["../x"]\n[verifier]\nenvironment_mode = "separate"\n' + CONFIG,
        "",
    ],
)
def test_wrong_steps_are_refused(tmp_path: Path, config: str) -> None:
    with raises_code(InvalidInput, "dataset.invalid_task"):
        load_task(task_in(tmp_path, {"task.toml": config}) / "two")
