"""Workflows of the hosted CI run commands that exist."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
JOBS: list[dict[str, Any]] = [
    job
    for path in (ROOT / ".github/workflows").glob("*.yml")
    for job in yaml.safe_load(path.read_text())["jobs"].values()
]


def commands_of(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_git_and_pip_work_as_root_in_the_container_of_each_job() -> None:
    for job in JOBS:
        commands = "\n".join(commands_of(job))
        assert "git config --global --add safe.directory" in commands, "the checkout belongs to another user"
        assert "g++" in commands or not re.search(r"\.ci/run|installed-dev", commands), "pip builds development tools"


def test_workflows_run_targets_of_the_makefile_and_scripts_of_the_repository() -> None:
    commands = [command.split() for job in JOBS for command in commands_of(job)]
    targets = {target for job in JOBS for target in job.get("strategy", {}).get("matrix", {}).get("target", ())}
    targets |= {
        word for words in commands if words[0] == "make" for word in words[1:] if word[0] != "$" and "}" not in word
    }
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), flags=re.M)

    assert phony is not None
    assert {"test-long", "system-packages"} <= targets
    assert targets - {"matrix.target", ".venv/.installed-dev"} <= set(phony[1].split())
    assert [".ci/run"] in commands
    assert (ROOT / ".ci/run").is_file()
