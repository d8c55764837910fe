"""The package `coins` as an installed kind: a virtual environment whose interpreter is that of the tests."""

import json
import os
import sys
from pathlib import Path

import pytest

from astraflow.agents.programs import foreign as programs_of_packages
from astraflow.agents.programs import programs
from astraflow.environments.foreign import bridges, installation, releases
from astraflow.environments.foreign.releases import EnvironmentRelease
from astraflow.runtime.folders.run_folders import HOME

PACKAGES = Path(__file__).parents[2] / "fakes" / "foreign_packages"


class _CoinsRelease(EnvironmentRelease):
    @property
    def bridge(self) -> Path:
        return PACKAGES / "coins_bridge.py"


COINS = _CoinsRelease(
    kind="coins", distribution="coins", version="1.0", python=sys.version_info[:2], licence="MIT", size_bytes=1
)


@programs.register("coins", options=programs_of_packages.VerifiersOptions)
class CoinsProgram(programs_of_packages._ForeignProgram):
    """Environment of the package `coins`."""

    kind = "coins"


@pytest.fixture
def coins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes an installed environment with the package; returns its folder."""
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setattr(releases, "RELEASES", (*releases.RELEASES, COINS))
    folder = installation.environments_folder() / "coins"
    (folder / "bin").mkdir(parents=True)
    modules = os.pathsep.join([str(PACKAGES), str(Path(bridges.__file__).parent)])
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={modules} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    facts = {"kind": "coins", "version": "1.0", "is_pinned": True, "packages": [], "frozen": []}
    (folder / installation.InstalledEnvironment.description).write_text(json.dumps(facts))
    return folder
