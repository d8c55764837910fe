"""Virtual environments of other projects' packages are made on request, pinned, and found by name."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.environments.foreign import installation
from astraflow.environments.foreign.installation import find_environment, install, installed_environments, remove
from astraflow.environments.foreign.releases import RELEASES, release_of
from astraflow.runtime.locks import exclusive_lock
from tests.errors import raises_code

RELEASE = release_of("verifiers")


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Takes the place of the interpreter and pip; returns their commands."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(installation, "_python", lambda release: "python")
    monkeypatch.setattr(installation, "_frozen", lambda folder: ("verifiers==0.4.0",))
    ran: list[list[str]] = []

    def run(command: Sequence[str], _log: Path, *, on_line: Callable[[str], None]) -> list[str] | None:
        ran.append(list(command))
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "python").touch()
        if "missing==1" in command:
            on_line("ERROR: No matching distribution found for missing==1")
            return ["ERROR"]
        return None

    monkeypatch.setattr(installation, "run_logged", run)
    return ran


def installed(*packages: str, version: str = "", name: str = "verifiers") -> installation.InstalledEnvironment:
    return install(RELEASE, name=name, version=version, packages=packages, progress=lambda line: None)


def test_the_tested_release_is_pinned_and_further_packages_are_constrained(
    commands: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "words").mkdir()
    environment = installed(str(tmp_path / "words"), "more==2")
    assert (environment.version, environment.is_pinned) == (RELEASE.version, True)
    assert commands[1][-3:] == ["--no-deps", "--requirement", str(RELEASE.requirements)]
    assert commands[2][-4:-2] == ["--constraint", str(RELEASE.requirements)]
    assert (Path(commands[2][-2]).name, commands[2][-1]) == ("words", "more==2")
    assert Path(commands[2][-2]) != tmp_path / "words", "a build leaves files in the folder"
    assert find_environment("verifiers") == environment


def test_another_release_is_recorded_as_one_that_was_not_tested(commands: list[list[str]]) -> None:
    assert not installed(version="0.5.0", name="newer").is_pinned
    assert commands[1][-1] == "verifiers==0.5.0"
    assert [(item.name, item.version) for item in installed_environments()] == [("newer", "0.5.0")]
    with raises_code(InvalidInput, "environment.not_installed", "verifiers"):
        find_environment("verifiers")
    assert find_environment("verifiers", "newer").version == "0.5.0"


def test_a_failed_installation_leaves_nothing_that_a_run_would_use() -> None:
    installed()
    with raises_code(Unavailable, "environment.install_failed", "missing==1"):
        installed("missing==1")
    assert installed_environments() == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": "../up"}, "environment.invalid_name"),
        ({"version": "1; rm"}, "environment.invalid_version"),
    ],
)
def test_bad_names_and_releases_are_refused(options: dict[str, str], code: str) -> None:
    with raises_code(InvalidInput, code):
        installed(**options)


def test_an_option_of_pip_is_no_package() -> None:
    with raises_code(InvalidInput, "environment.invalid_requirement"):
        installed("--index-url=http://example.org")


def test_one_process_at_a_time_changes_an_environment() -> None:
    installed()
    lock = installation.environments_folder() / ".verifiers.lock"
    refusal = Conflict("busy", code="test.busy")
    with exclusive_lock(lock, refusal=refusal), raises_code(Conflict, "environment.locked"):
        remove("verifiers")
    remove("verifiers")
    with raises_code(InvalidInput, "environment.not_installed"):
        remove("verifiers")


def test_an_environment_in_use_is_not_changed() -> None:
    python = installed().python
    python.unlink()
    python.symlink_to(sys.executable)
    with subprocess.Popen([python, "-S", "-c", "input()"], stdin=subprocess.PIPE) as user:
        for change in (installed, lambda: remove("verifiers")):
            with raises_code(Conflict, "environment.in_use", str(user.pid)):
                change()
    remove("verifiers")


def test_a_description_that_cannot_be_read_is_no_environment() -> None:
    installed()
    description = installation.environments_folder() / "verifiers" / installation.InstalledEnvironment.description
    for text in ("", "[]", json.dumps({"kind": "verifiers"})):
        description.write_text(text)
        assert installed_environments() == []


def test_every_release_pins_its_package() -> None:
    for release in RELEASES:
        assert f"{release.distribution}=={release.version}" in release.requirements.read_text().splitlines()
        assert release.bridge.is_file()
    with raises_code(InvalidInput, "environment.unknown_package"):
        release_of("gym")
