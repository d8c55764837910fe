"""Workflows of the hosted CI run commands that exist."""

import os
import re
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.node.requirements import VARIANTS

ROOT = Path(__file__).parents[1]
WORKFLOWS: dict[str, dict[Any, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
}
JOBS: list[dict[str, Any]] = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
IMAGES: dict[str, Any] = WORKFLOWS["release"]["jobs"]["images"]

ON = True
"""The key `on`, as YAML 1.1 reads it."""


def commands_of(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_git_and_pip_work_as_root_in_the_container_of_each_job() -> None:
    for job in (job for job in JOBS if "container" in job):
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


def test_only_a_tag_publishes_and_each_job_may_write_only_what_it_publishes() -> None:
    assert WORKFLOWS["release"][ON] == {"push": {"tags": ["v*"]}}
    writable = {}
    for name, workflow in WORKFLOWS.items():
        assert "write" not in workflow["permissions"].values(), name
        for job_name, job in workflow["jobs"].items():
            writable[name, job_name] = {what for what, how in job.get("permissions", {}).items() if how == "write"}
    assert {job: names for job, names in writable.items() if names} == {
        ("release", "publish"): {"contents", "id-token", "attestations"},
        ("release", "images"): {"packages"},
    }


PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def test_every_action_is_pinned_by_its_commit_and_names_its_release() -> None:
    lines = [
        line
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(lines) >= len(WORKFLOWS)
    commits: dict[str, set[str]] = {}
    for line in lines:
        match = re.fullmatch(r"\s+-? ?uses: (\S+) # v\d+\.\d+\.\d+", line)
        assert match is not None, line
        assert PINNED.fullmatch(match[1]), line
        commits.setdefault(match[1].partition("@")[0], set()).add(line.strip("- "))
    assert all(len(pins) == 1 for pins in commits.values()), "one release of each action"


def test_no_checkout_leaves_credentials_for_the_tools_that_follow() -> None:
    checkouts = [step for job in JOBS for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_a_job_that_may_write_to_the_repository_runs_no_tools_of_others() -> None:
    for job in JOBS:
        written = {what for what, how in job.get("permissions", {}).items() if how == "write"}
        if "contents" in written:
            commands = "\n".join(commands_of(job))
            assert not re.search(r"\b(make|pip|apt-get|npm|curl|docker)\b", commands)
            assert "container" not in job
            assert not any("checkout" in step.get("uses", "") for step in job["steps"])


def test_the_files_of_a_release_are_attested_before_they_are_published() -> None:
    steps = WORKFLOWS["release"]["jobs"]["publish"]["steps"]
    (attested,) = [n for n, step in enumerate(steps) if "attest-build-provenance" in step.get("uses", "")]
    (published,) = [n for n, step in enumerate(steps) if "gh release create" in step.get("run", "")]
    assert attested < published
    assert steps[attested]["with"]["subject-path"] == "dist/*"
    assert "dist/*" in steps[published]["run"]


def test_base_images_are_pinned_by_their_digests() -> None:
    containers = {job["container"]["image"] for job in JOBS if "container" in job}
    dockerfile = (ROOT / "deploy/node/Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)$", dockerfile, flags=re.M)
    (composed,) = re.findall(r"ASTRAFLOW_BASE:-([^}]+)\}", (ROOT / "docker-compose.yml").read_text())
    assert len(containers) == 1, "one image for all jobs"
    assert all(DIGEST.fullmatch(image) for image in (*containers, base))
    assert composed == base


@pytest.mark.parametrize("variant", IMAGES["strategy"]["matrix"]["include"], ids=lambda variant: variant["name"])
def test_the_image_of_a_tag_is_built_as_the_dockerfile_expects_and_pushed_with_attestations(
    variant: dict[str, str], tmp_path: Path
) -> None:
    (build,) = [command for command in commands_of(IMAGES) if "buildx build" in command]
    build = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match: variant[match[1]], build)
    arguments = _recorded_docker(build, tmp_path)
    dockerfile = ROOT / arguments[arguments.index("--file") + 1]
    options = list(pairwise(arguments))
    build_args = dict(text.split("=", 1) for option, text in options if option == "--build-arg")
    declared = set(re.findall(r"^ARG (\w+)", dockerfile.read_text(), flags=re.M))
    secrets = set(re.findall(r"type=secret,id=(\w+)", dockerfile.read_text()))

    assert (build_args["VERSION"], build_args["REVISION"]) == ("1.2.3", "0" * 40)
    assert build_args["TORCH"] == (variant["name"] if variant["name"] in VARIANTS else "any")
    assert set(build_args) <= declared
    assert ("--secret", "id=pip,env=PIP_CONF") in options
    assert secrets == {"pip"}
    assert ("--tag", f"ghcr.io/some-owner/astraflow:1.2.3-{variant['name']}") in options
    assert ("--label", "org.opencontainers.image.source=https://github.com/Some-Owner/AstraFlow") in options
    assert arguments[:2] == ["buildx", "build"]
    assert {"--sbom=true", "--provenance=mode=max", "--push"} < set(arguments)
    assert arguments[-1] == "."


def test_images_with_an_engine_have_the_bases_of_the_commands_in_the_documents() -> None:
    commands = re.findall(
        r"^ASTRAFLOW_BASE=(\S+) ASTRAFLOW_ENGINE=(\S+) ASTRAFLOW_TORCH=(\S+) ASTRAFLOW_EXTRAS=(\S+) docker compose",
        (ROOT / "docs/how-to/deploy.md").read_text(),
        flags=re.M,
    )
    variants = {variant["name"]: variant["arguments"] for variant in IMAGES["strategy"]["matrix"]["include"]}

    assert {engine for _, engine, _, _ in commands} == {"sglang", "vllm"}
    for base, engine, torch, extras in commands:
        expected = {"BASE": base, "ENGINE": engine, "TORCH": torch, "EXTRAS": extras}
        assert variants[engine] == " ".join(f"--build-arg {name}={value}" for name, value in expected.items())
    assert set(variants) == {"sglang", "vllm", *VARIANTS} - {"any"}


def test_an_image_is_built_only_of_a_tag_whose_wheel_was_published() -> None:
    assert (IMAGES["needs"], WORKFLOWS["release"]["jobs"]["publish"]["needs"]) == ("publish", "build")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (check,) = [command for command in commands_of(WORKFLOWS["release"]["jobs"]["build"]) if "test " in command]
    for tag, code in ((f"v{version}", 0), ("v9.9.9", 1)):
        done = subprocess.run(["bash", "-ec", check], cwd=ROOT, env=os.environ | {"GITHUB_REF_NAME": tag}, check=False)
        assert done.returncode == code, tag


def _recorded_docker(command: str, folder: Path) -> list[str]:
    """Runs a step's command as the hosted service does; returns the arguments that `docker` would have had."""
    docker = folder / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    variables = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "GITHUB_REF_NAME": "v1.2.3",
        "GITHUB_REPOSITORY": "Some-Owner/AstraFlow",
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_SHA": "0" * 40,
    }
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], env=variables, capture_output=True, check=True)
    return done.stdout.decode().splitlines()
