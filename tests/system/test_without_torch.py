"""A run with simulated engine and trainer on a machine without the extra `train`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.system.processes import ROOT, command

pytestmark = [pytest.mark.slow, pytest.mark.long]

BLOCKED = ("torch", "transformers", "tokenizers", "safetensors")


def without_train(folder: Path) -> dict[str, str]:
    """Returns an environment in which no process or child can import the packages of the extra `train`."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED!r}))\n")
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = without_train(folder)
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150, check=False
    )


def test_the_smoke_recipe_is_prepared_without_torch(tmp_path: Path) -> None:
    done = ran(tmp_path, "prepare", "smoke")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_smoke_recipe_runs_to_its_end_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    where = ("--no-web", "--json", str(file), "--run-dir", str(tmp_path / "run"), "--limit-s", "120")
    done = ran(tmp_path, "run", "smoke", "--headless", "--steps", "5", "--set", "stop.reward=0.1", *where)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(file.read_text())
    assert summary["balanced"]
    assert summary["simulated"] == ["engine scripted", "trainer scripted"]
