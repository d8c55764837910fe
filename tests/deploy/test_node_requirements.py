"""Requirements of the image, printed by deploy/node/requirements.py."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "deploy" / "node" / "requirements.py"


def printed(extras: str, torch: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(PROGRAM), str(ROOT), extras, torch]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(
    ("torch", "requirement"), [("cpu", "torch==2.13.0+cpu"), ("cuda", "torch===2.13.0"), ("any", "torch==2.13.0")]
)
def test_the_selected_build_of_torch_is_pinned(torch: str, requirement: str) -> None:
    lines = printed("train,k8s", torch).stdout.splitlines()
    assert [line for line in lines if line.startswith("torch")] == [requirement]
    assert {"grpcio", "transformers", "kubernetes"} <= set(lines)
    assert not any(line.startswith("pytest") for line in lines)


def test_without_extras_only_the_dependencies_are_listed() -> None:
    lines = printed("", "cpu").stdout.splitlines()
    assert "grpcio" in lines
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


def test_the_image_has_the_extra_of_the_kubernetes_provider() -> None:
    assert "ARG EXTRAS=train,k8s\n" in (ROOT / "deploy" / "node" / "Dockerfile").read_text()
    assert "${ASTRAFLOW_EXTRAS:-train,k8s}" in (ROOT / "docker-compose.yml").read_text()
