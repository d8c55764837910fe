"""Terminal tasks in pods, with an executable that acts as `kubectl`."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets.worlds.terminal import SAMPLE_TASKS
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentFactory, Observation
from tests.errors import raises_code
from tests.fakes import kubectl_command
from tests.fakes.kubernetes_api import check_fields

pytestmark = pytest.mark.anyio


class Kubectl:
    """The executable, first in PATH, and a folder with one task that names an image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "bin" / "kubectl"
        program.parent.mkdir(parents=True)
        module = kubectl_command.__file__
        root = Path(module).parents[2]
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{root}" exec "{sys.executable}" -S "{module}" "{folder}" "$@"\n')
        program.chmod(0o755)
        self.tasks = folder / "tasks"
        shutil.copytree(SAMPLE_TASKS / "greeting", self.tasks / "greeting")
        settings = self.tasks / "greeting" / "task.toml"
        text = settings.read_text()
        assert "[environment]" in text
        settings.write_text(text.replace("[environment]", '[environment]\ndocker_image = "registry/greeting:1"'))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    def breaks(self, verb: str) -> None:
        (self.folder / f"fail-{verb}").touch()

    def terminals(self, **options: Any) -> EnvironmentFactory:
        spec = {
            "kind": "terminal",
            "path": str(self.tasks),
            "runner": "kubernetes",
            "namespace": "terminals",
            **options,
        }
        return environments.build(spec)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    kubectl = Kubectl(tmp_path / "kubectl")
    monkeypatch.setenv("PATH", f"{kubectl.folder / 'bin'}:/usr/bin:/bin")
    return kubectl


async def played(factory: EnvironmentFactory, *actions: str) -> list[Observation]:
    environment = factory.make()
    prompt = Prompt(id=PromptId("terminal:greeting"), fields={"question": "?", "task": "greeting"})
    observations = [await environment.begin(prompt, 0)]
    try:
        observations += [await environment.act(action) for action in actions]
    finally:
        await environment.close()
    return observations


async def test_a_task_is_won_by_its_solution_and_not_by_doing_nothing(kubectl: Kubectl) -> None:
    factory = kubectl.terminals()
    await factory.check()
    solution = (kubectl.tasks / "greeting" / "solution" / "solve.sh").read_text()
    solved, idle = await played(factory, solution, "submit"), await played(factory, "submit")
    assert [(played[-1].reward, played[-1].ending) for played in (solved, idle)] == [(1, Ending.WON), (0, Ending.LOST)]
    assert not list(kubectl.folder.glob("astraflow-*"))
    assert all(call[0] == "--namespace=terminals" for call in kubectl.calls)


async def test_the_tests_run_in_another_pod(kubectl: Kubectl) -> None:
    forged = 'mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo "echo 1" > /tests/test.sh'
    observations = await played(kubectl.terminals(), forged, "submit")
    assert observations[-1].reward == 0.0
    assert [call[1] for call in kubectl.calls if call[1] in ("create", "delete")] == [
        "create",
        "create",
        *["delete"] * 2,
    ]


@pytest.mark.long
async def test_commands_keep_their_folder_and_report_their_status(kubectl: Kubectl) -> None:
    _, _, where, failed, slow = await played(
        kubectl.terminals(command_s=1.0), "mkdir inner && cd inner", "pwd", "echo 'a b'; exit 4", "sleep 30"
    )
    assert where.text.endswith("/app/inner")
    assert failed.text == "a b\n[exit status 4]"
    assert "stopped after 1 s" in slow.text


@pytest.mark.long
async def test_a_pod_has_the_limits_of_its_task_no_token_and_no_network(kubectl: Kubectl) -> None:
    await played(kubectl.terminals(runtime_class="gvisor", lifetime_s=600))
    await played(kubectl.terminals(has_network=True, capabilities=["CHOWN"]))
    closed, open_pod = [json.loads(call[-1]) for call in kubectl.calls if call[1] == "create"]
    for pod in (closed, open_pod):
        check_fields("pods", pod)
    spec, (container,) = closed["spec"], closed["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "1", "memory": str(512 * 2**20)}
    assert container["resources"]["limits"]["ephemeral-storage"] == str(10 * 2**30)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": []},
        "privileged": False,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert open_pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] == ["CHOWN"]
    assert (spec["automountServiceAccountToken"], spec["activeDeadlineSeconds"]) == (False, 600)
    assert spec["runtimeClassName"] == "gvisor"
    assert closed["metadata"]["labels"]["astraflow.io/network"] == "astraflow-terminal"
    assert "astraflow.io/network" not in open_pod["metadata"]["labels"]


@pytest.mark.parametrize("verb", ["create", "wait"])
async def test_a_pod_that_does_not_start_is_a_failure(kubectl: Kubectl, verb: str) -> None:
    kubectl.breaks(verb)
    with raises_code(RolloutFailed, "environment.container_failed", verb) as caught:
        await played(kubectl.terminals())
    assert caught.value.boundary is Boundary.ENVIRONMENT
    assert not list(kubectl.folder.glob("astraflow-*"))


async def test_a_lost_pod_is_a_failure_and_not_the_status_of_a_command(kubectl: Kubectl) -> None:
    environment = kubectl.terminals().make()
    await environment.begin(Prompt(id=PromptId("terminal:greeting"), fields={"task": "greeting"}), 0)
    (pod,) = kubectl.folder.glob("astraflow-*")
    pod.rename(kubectl.folder / "gone")
    with raises_code(RolloutFailed, "environment.container_failed", "NotFound"):
        await environment.act("true")
    (kubectl.folder / "gone").rename(pod)
    await environment.close()


@pytest.mark.parametrize("reason", ["Evicted ", " OOMKilled"])
async def test_a_policy_that_uses_up_memory_or_disk_of_its_pod_loses_the_episode(kubectl: Kubectl, reason: str) -> None:
    environment = kubectl.terminals().make()
    await environment.begin(Prompt(id=PromptId("terminal:greeting"), fields={"task": "greeting"}), 0)
    (pod,) = kubectl.folder.glob("astraflow-*")
    pod.rename(kubectl.folder / "gone")
    (kubectl.folder / "reason").write_text(reason)
    last = await environment.act("true")
    assert (last.reward, last.ending) == (0.0, Ending.LOST)
    (kubectl.folder / "gone").rename(pod)
    await environment.close()


async def test_missing_parts_are_refused_with_their_remedy(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl.breaks("get")
    with raises_code(InvalidInput, "environment.no_network_policy", "astraflow-terminal"):
        await kubectl.terminals().check()
    await kubectl.terminals(has_network=True).check()
    kubectl.breaks("auth")
    with raises_code(Unavailable, "environment.container_engine_failed", "auth is broken"):
        await kubectl.terminals().check()
    shutil.copytree(SAMPLE_TASKS / "greeting", kubectl.tasks / "greeting", dirs_exist_ok=True)
    with raises_code(InvalidInput, "environment.needs_image"):
        await played(kubectl.terminals())
    monkeypatch.setenv("PATH", "/nowhere")
    with raises_code(InvalidInput, "environment.no_container_engine", "kubectl"):
        await kubectl.terminals().check()
