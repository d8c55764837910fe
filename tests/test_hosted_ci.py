"""Workflows of the hosted CI run commands that exist."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_workflows_run_targets_of_the_makefile_and_scripts_of_the_repository() -> None:
    jobs = [
        job
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
    ]
    commands = [step["run"].split() for job in jobs for step in job["steps"] if "run" in step]
    targets = {target for job in jobs for target in job.get("strategy", {}).get("matrix", {}).get("target", ())}
    targets |= {
        word for words in commands if words[0] == "make" for word in words[1:] if word[0] != "$" and "}" not in word
    }
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), flags=re.M)

    assert phony is not None
    assert {"test-long", "system-packages"} <= targets
    assert targets - {"matrix.target", ".venv/.installed-dev"} <= set(phony[1].split())
    assert [".ci/run"] in commands
    assert (ROOT / ".ci/run").is_file()
