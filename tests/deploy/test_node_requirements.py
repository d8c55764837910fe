"""Requirements of the image, printed by deploy/node/requirements.py."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from astraflow.raas.engines.server.environments import installed_environments
from deploy.node import engine_environment

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "deploy" / "node" / "requirements.py"


def printed(extras: str, torch: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(PROGRAM), str(ROOT), extras, torch]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(
    ("torch", "requirement"), [("cpu", "torch==2.13.0+cpu"), ("cuda", "torch===2.13.0"), ("any", "torch==2.13.0")]
)
def test_the_selected_build_of_torch_is_pinned(torch: str, requirement: str) -> None:
    lines = printed("local,k8s,postgres", torch).stdout.splitlines()
    assert [line for line in lines if line.startswith("torch")] == [requirement]
    requirements = {requirement.name: requirement for requirement in map(Requirement, lines)}
    assert {"grpcio", "fastapi", "transformers", "kubernetes"} <= requirements.keys()
    assert "astraflow" not in requirements
    assert requirements["psycopg"].extras == {"binary"}
    assert not any(line.startswith("pytest") for line in lines)


def test_without_extras_only_the_dependencies_are_listed() -> None:
    lines = printed("", "cpu").stdout.splitlines()
    assert "grpcio" in {Requirement(line).name for line in lines}
    assert not any(line.startswith("torch") for line in lines)


@pytest.mark.parametrize(("extras", "torch", "known"), [("train,gpu", "cpu", "skypilot"), ("train", "rocm", "cuda")])
def test_an_unknown_name_is_refused_with_the_known_ones(extras: str, torch: str, known: str) -> None:
    done = printed(extras, torch)
    assert (done.returncode, done.stdout) == (1, "")
    assert known in done.stderr


def test_the_dependency_layer_does_not_depend_on_the_sources() -> None:
    text = (ROOT / "deploy" / "node" / "Dockerfile").read_text()
    final = text[text.index("\nFROM ${BASE}\n") :]
    before = final[: final.index("pip install")]
    copied = [line for line in before.splitlines() if line.startswith("COPY")]
    assert copied == ["COPY pyproject.toml constraints.txt deploy/node/requirements.py /build/"]


def test_the_image_has_the_extras_of_the_kubernetes_provider_and_the_database() -> None:
    assert "ARG EXTRAS=local,k8s,postgres\n" in (ROOT / "deploy" / "node" / "Dockerfile").read_text()
    assert "${ASTRAFLOW_EXTRAS:-local,k8s,postgres}" in (ROOT / "docker-compose.yml").read_text()


def test_the_engine_of_a_base_image_becomes_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(engine_environment, "version", {"vllm": "0.33.0"}.__getitem__)
    engine_environment.describe("vllm", tmp_path / "engines", interpreter=sys.executable)
    (environment,) = installed_environments()
    assert (environment.name, environment.kind, environment.device, environment.version) == (
        *("vllm-cuda", "vllm", "cuda"),
        "0.33.0",
    )
    text = (ROOT / "deploy" / "node" / "Dockerfile").read_text()
    assert '"${ENGINE}" /opt/astraflow-engines;' in text
    assert "ASTRAFLOW_ENGINES=/opt/astraflow-engines HOME=/tmp\n" in text
    command: list[str | Path] = [environment.python, "-c", "import sys; print(sys.argv[1], end='')", "a b"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "a b"


@pytest.mark.parametrize(("engine", "cause"), [("tgi", "sglang, vllm"), ("sglang", "does not have it")])
def test_a_base_image_without_the_engine_fails_the_build(tmp_path: Path, engine: str, cause: str) -> None:
    program: list[str | Path] = [sys.executable, ROOT / "deploy" / "node" / "engine_environment.py", engine, tmp_path]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert cause in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_labels_of_the_image_are_those_of_the_project() -> None:
    text = (ROOT / "deploy" / "node" / "Dockerfile").read_text()
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["licenses"] == project["license"]
    assert labels["description"].startswith(project["description"].partition(":")[0])
    assert {labels[name] for name in ("version", "revision", "base.name")} == {"${VERSION}", "${REVISION}", "${BASE}"}
    assert text.index("LABEL") > text.rindex("\nRUN"), "a label of another commit must not build a layer again"
